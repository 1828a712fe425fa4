"""A federation whose past is written down a second time, in plain dicts, as it happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from federator.aggregator.ledger.indexed_state import read_indexed_state
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import (
    Batch,
    ClusterEntry,
    ClusterRecord,
    Commit,
    Delete,
    Entry,
    EntryType,
    ObjectEntry,
    Put,
)
from federator.aggregator.merge.merged_view import MergedView
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.wire.body import content_hash, decode_body, encode_body
from tests.contract.ledger.member import PODS

CLUSTERS = (ClusterID("berlin"), ClusterID("paris"))
NAMES = ("a", "b", "c")
RESOURCE = PODS.group_resource


class State(NamedTuple):
    """What an object was: the revision since when, and its JSON."""

    revision: int
    body: Any


class Push(NamedTuple):
    """A batch of a cluster; None deletes."""

    cluster: ClusterID
    changes: tuple[tuple[str, dict[str, Any] | None], ...]


class SetState(NamedTuple):
    """A cluster enters a state."""

    cluster: ClusterID
    state: ClusterState


class SetType(NamedTuple):
    """The pods of a cluster enter a state."""

    cluster: ClusterID
    state: TypeState


class Compact(NamedTuple):
    """History is forgotten up to so many entries before the newest."""

    behind: int


Step = Push | SetState | SetType | Compact

_content = st.fixed_dictionaries(
    {
        "uid": st.sampled_from(["1", "1", "2"]),
        "app": st.sampled_from(["web", "db"]),
        "x": st.integers(0, 2),
        "list": st.lists(st.sampled_from([0, 1, True, "~/", {"n": 1}]), max_size=4),
    }
)
_change = st.tuples(st.sampled_from(NAMES), st.one_of(_content, _content, st.none()))
_cluster = st.sampled_from(CLUSTERS)
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.builds(Push, _cluster, st.lists(_change, min_size=1, max_size=4).map(tuple)),
        st.builds(Push, _cluster, st.lists(_change, min_size=1, max_size=4).map(tuple)),
        st.builds(SetState, _cluster, st.sampled_from([ClusterState.LIVE, ClusterState.STALE, ClusterState.SYNCING])),
        st.builds(SetType, _cluster, st.sampled_from([TypeState.LIVE, TypeState.STALE, TypeState.DENIED])),
        st.builds(Compact, st.integers(0, 12)),
    ),
    min_size=1,
    max_size=25,
)


def manifest(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """An object's JSON."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": content["uid"], "labels": {"app": content["app"]}},
        "spec": {"x": content["x"], "list": content["list"]},
    }


def key_of(cluster: ClusterID, name: str) -> ObjectKey:
    """Key of a pod."""
    return ObjectKey(cluster, *RESOURCE, "shop", name)


class Past:
    """A ledger, what reads it, and all entries that it ever told, whatever it forgets.

    Attributes:
        ledger: it.
        view: moved forward by each commit.
        entries: all entries, in order.
        now: seconds since 1970.
    """

    def __init__(self, open_ledger: Callable[[Callable[[], float]], Ledger]) -> None:
        self.now = 1_800_000_000.0
        self.ledger = open_ledger(lambda: self.now)
        self.view = MergedView()
        self.view.load(self.ledger)
        self.entries: list[Entry] = []
        self.ledger.on_commit(self._committed)

    def _committed(self, commit: Commit) -> None:
        self.entries.extend(commit.entries)
        self.view.apply(commit)

    async def join(self, *clusters: ClusterID) -> None:
        """Clusters join."""
        for cluster in clusters or CLUSTERS:
            await self.ledger.open_session(ClusterRecord(cluster, f"uid-of-{cluster}", agent_instance="agent"))

    async def live(self, *steps: Step) -> None:
        """Something happens, a second each."""
        for step in steps:
            self.now += 1
            match step:
                case Push(cluster, changes):
                    await self.push(cluster, *changes)
                case SetState(cluster, state):
                    await self.ledger.set_cluster_state(cluster, state, f"it is {state}")
                case SetType(cluster, state):
                    await self.ledger.set_type_state(cluster, PODS, state, f"they are {state}")
                case Compact(behind):
                    await self.ledger.compact(max(self.ledger.revision - behind, self.ledger.oldest_revision))

    async def push(self, cluster: ClusterID, *changes: tuple[str, dict[str, Any] | None]) -> None:
        """One batch."""
        made: list[Put | Delete] = []
        for name, content in changes:
            if content is None:
                made.append(Delete("shop", name))
                continue
            raw = json.dumps(manifest(name, content)).encode()
            put = Put("shop", name, content["uid"], "1", content_hash(raw), encode_body(raw), read_indexed_state(raw))
            made.append(put)
        term = self.ledger.clusters()[cluster].term
        await self.ledger.append(Batch(cluster, term, 0, PODS, tuple(made)))

    def versions(self, key: ObjectKey) -> list[ObjectEntry]:
        """The entries of a key, newest first, as far as the ledger still has to know them."""
        known = [entry for entry in self.entries if isinstance(entry, ObjectEntry) and entry.key == key]
        oldest = self.ledger.oldest_revision
        before = [entry for entry in known if entry.revision <= oldest][-1:]
        kept = [entry for entry in before if entry.type is not EntryType.DELETED]
        return [*reversed([entry for entry in known if entry.revision > oldest]), *kept]

    def at(self, revision: int) -> dict[ObjectKey, State]:
        """What was present at a revision."""
        present: dict[ObjectKey, State] = {}
        for entry in self.entries:
            if entry.revision > revision or not isinstance(entry, ObjectEntry):
                continue
            if entry.type is EntryType.DELETED:
                present.pop(entry.key, None)
            else:
                present[entry.key] = State(entry.revision, json.loads(decode_body(entry.body)))
        return present

    def gaps(self, cluster: ClusterID) -> list[tuple[int, int]]:
        """Where each gap began and ended, told revision by revision."""
        subjects: dict[GroupResource | None, list[tuple[int, bool]]] = {}
        for entry in self.entries:
            if isinstance(entry, ObjectEntry) or entry.cluster_id != cluster:
                continue
            if isinstance(entry, ClusterEntry):
                subjects.setdefault(None, []).append((entry.revision, entry.state is ClusterState.LIVE))
            elif entry.resource_type.group_resource == RESOURCE:
                is_good = entry.state in {TypeState.LIVE, TypeState.ABSENT}
                subjects.setdefault(RESOURCE, []).append((entry.revision, is_good))
        oldest = self.ledger.oldest_revision
        known = {}
        for subject, states in subjects.items():
            forgotten = [each for each in states if each[0] <= oldest][:-1]
            known[subject] = [each for each in states if each not in forgotten]
        begin = min((states[0][0] for states in known.values()), default=0)
        found: list[tuple[int, int]] = []
        is_gap = False
        for revision in range(begin, self.ledger.revision + 1):
            now = {states: [good for at, good in known[states] if at <= revision][-1:] for states in known}
            is_bad = any(good == [False] for good in now.values())
            if is_bad and not is_gap:
                found.append((revision, 0))
            elif is_gap and not is_bad:
                found[-1] = (found[-1][0], revision)
            is_gap = is_bad
        return [(begin, end) for begin, end in found if not end or end > oldest]

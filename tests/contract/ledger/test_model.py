"""Any sequence of calls gives what a model of dicts and a list gives: history, present state, lists and watches."""

from __future__ import annotations

import asyncio
import os
import tempfile
from bisect import bisect_right
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Delete,
    Entry,
    EntryType,
    ObjectEntry,
    Put,
    StoredKey,
)
from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import CursorExpired, FederatorError, InvalidInput, SessionFenced, UnknownCluster
from tests.contract.ledger.conftest import Clock
from tests.contract.ledger.joined import Joined
from tests.contract.ledger.model import Entries, Model, check_order, hashed_state
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, delete, put
from tests.unit.aggregator.serve.recorder import Recorded, check_ordered_and_unique, expected, key_of

T = TypeVar("T")

ALL = 1 << 20
"""More entries than any history here has."""

STEPS = 40
"""Calls in one example."""

MEDIUM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Folder for ledgers, in memory where there is such a one: it is not power cuts that this is about."""

_clusters = st.sampled_from([ClusterID("a"), ClusterID("b")])
_types = st.sampled_from([PODS, DEPLOYMENTS])
_names = st.sampled_from(["x", "y"])
_changes: st.SearchStrategy[Put | Delete] = st.one_of(
    st.builds(
        put,
        _names,
        uid=st.sampled_from(["", "", "", "another"]),
        labels=st.sampled_from([{}, {"app": "web"}, {"app": "db"}]),
        node=st.sampled_from(["", "n1"]),
        resource_version=st.sampled_from(["1", "2", "3"]),
        status=st.sampled_from([{}, {"phase": "Running"}, {"phase": "Failed"}]),
    ),
    st.builds(delete, _names),
)
_selections = st.builds(
    lambda types, clusters, labels, fields: Selection(
        frozenset(each.group_resource for each in types),
        ClusterSelector.parse(clusters),
        labels=LabelSelector.parse(labels),
        fields=FieldSelector.parse(fields),
    ),
    st.sampled_from([(PODS,), (DEPLOYMENTS,), (PODS, DEPLOYMENTS)]),
    st.sampled_from([[], [], ["a"], ["!a"]]),
    st.sampled_from(["", "", "app=web", "app!=web", "!app"]),
    st.sampled_from(["", "", "spec.nodeName=n1", "status.phase!=Failed", "metadata.name=x"]),
)
_places = st.one_of(st.floats(0, 1), st.just(1.0))
"""Places in the history, from its first entry ever to its newest."""


class LedgerMachine(RuleBasedStateMachine):
    """Calls in any order, each held against the model; what reads the ledger is held against it alike."""

    is_durable: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory(dir=MEDIUM)
        self.clock = Clock()
        self.model = Model()
        self.history: list[Entry] = []  # all of it, whatever was compacted
        self.joined = Joined(self._open)
        self.sums: dict[tuple[ClusterID, GroupResource], tuple[int, int]] = {}
        self._summed = 0
        self._run(self._start())
        self.base = self.oldest = self.joined.ledger.revision

    def _open(self) -> MemoryLedger | LmdbLedger:
        if self.is_durable:
            return LmdbLedger.open(Path(self._folder.name), clock=self.clock)
        return MemoryLedger(clock=self.clock)

    def teardown(self) -> None:
        self._run(self.joined.stop())
        self._runner.close()
        self._folder.cleanup()

    @initialize()
    def join(self) -> None:
        for name in "ab":
            self.open_session(ClusterID(name), "agent-1", {})

    # Calls

    @rule(
        cluster_id=_clusters,
        instance=st.sampled_from(["agent-1", "agent-1", "agent-2"]),
        labels=st.sampled_from([{}, {}, {"env": "prod"}, {"env": "test", "region": "eu"}]),
    )
    def open_session(self, cluster_id: ClusterID, instance: str, labels: dict[str, str]) -> None:
        wanted = ClusterRecord(cluster_id, f"uid-of-{cluster_id}", agent_instance=instance, labels=labels)
        record = self._run(self.joined.ledger.open_session(wanted))
        with self._told() as entries:
            self.model.open_session(wanted, entries)
        assert record == self.model.clusters[cluster_id]

    @rule(
        cluster_id=_clusters,
        resource_type=_types,
        changes=st.lists(_changes, max_size=5),
        ahead=st.integers(-1, 2),
        low_water=st.sampled_from(["", "7", "8"]),
        skips_older=st.booleans(),
        listed_version=st.sampled_from(["", "1", "2", "3"]),
        generation=st.sampled_from([None, None, 0, 1, 2]),
        is_late=st.sampled_from([False] * 9 + [True]),
    )
    def append(
        self,
        cluster_id: ClusterID,
        resource_type: ResourceType,
        changes: Sequence[Put | Delete],
        ahead: int,
        low_water: str,
        *,
        skips_older: bool,
        listed_version: str,
        generation: int | None,
        is_late: bool,
    ) -> None:
        """A batch with a sequence that is durable already, new, or none (2); of the session before, where `is_late`."""
        record = self.model.clusters[cluster_id]
        sequence = 0 if ahead == 2 else max(0, record.durable_sequence + ahead)
        batch = Batch(
            cluster_id,
            record.term - is_late,
            sequence,
            resource_type,
            tuple(changes),
            low_water,
            skips_older,
            listed_version,
            generation,
        )
        refusal: type[FederatorError] | None = None
        if is_late:
            refusal = SessionFenced
        elif record.state is ClusterState.REMOVED and any(isinstance(change, Put) for change in changes):
            refusal = UnknownCluster
        commit = self._call(self.joined.ledger.append(batch), refusal)
        before = self.model.types.get((cluster_id, resource_type.group_resource))
        with self._told() as entries:
            if refusal is None:
                self.model.append(batch, entries)
                assert commit is not None
                assert commit.has_gone_back == self.model.has_gone_back
        after = self.model.types.get((cluster_id, resource_type.group_resource))
        marks = [mark for commit in self._new for mark in commit.low_water]
        is_moved = after is not None and after.low_water != (before.low_water if before else "")
        assert marks == ([(cluster_id, resource_type.group_resource, low_water)] if is_moved else [])

    @rule(cluster_id=_clusters, state=st.sampled_from(ClusterState), reason=st.sampled_from(["", "why"]))
    def set_cluster_state(self, cluster_id: ClusterID, state: ClusterState, reason: str) -> None:
        self._run(self.joined.ledger.set_cluster_state(cluster_id, state, reason))
        with self._told() as entries:
            self.model.set_cluster_state(cluster_id, state, reason, entries)

    @rule(
        cluster_id=_clusters,
        resource_type=_types,
        state=st.sampled_from(TypeState),
        reason=st.sampled_from(["", "why"]),
    )
    def set_type_state(self, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str) -> None:
        self._run(self.joined.ledger.set_type_state(cluster_id, resource_type, state, reason))
        with self._told() as entries:
            self.model.set_type_state(cluster_id, resource_type, state, reason, entries)

    @rule(seconds=st.floats(-5, 60))
    def pass_time(self, seconds: float) -> None:
        """The clock goes on, or is put back."""
        self.clock.now += seconds

    @rule(place=_places)
    def compact(self, place: float) -> None:
        """Up to any revision that no watch needs; such that were forgotten before change nothing."""
        remaining = self._remaining()
        revision, dropped = self._run(self.joined.compact(self._place(place)))
        self.oldest = max(self.oldest, revision)
        assert dropped == len(remaining) - len(self._remaining())
        self.model.forgotten = (self.oldest, self.oldest)

    @rule()
    def compact_what_is_to_come(self) -> None:
        self._call(self.joined.ledger.compact(self.joined.ledger.revision + 1), InvalidInput)

    @precondition(lambda self: self.is_durable)
    @rule()
    def restart(self) -> None:
        self._run(self.joined.stop())
        self._run(self._start())

    # Questions

    @rule(place=_places, limit=st.sampled_from([1, 3, ALL]))
    def read(self, place: float, limit: int) -> None:
        after = self._place(place)
        if after < self.oldest:
            with pytest.raises(CursorExpired) as caught:
                self.joined.ledger.read(after, limit)
            assert caught.value.oldest == self.oldest
        else:
            wanted = [entry for entry in self.history if entry.revision > after][:limit]
            assert list(self.joined.ledger.read(after, limit)) == wanted

    @rule(cluster_id=_clusters, resource_type=_types, name=_names, place=_places)
    def look_at_one_object(self, cluster_id: ClusterID, resource_type: ResourceType, name: str, place: float) -> None:
        key = ObjectKey(cluster_id, *resource_type.group_resource, "shop", name)
        revision = self._place(place)
        versions = [entry for entry in _objects(self.history) if entry.key == key]
        then = next((entry for entry in reversed(versions) if entry.revision <= revision), None)
        if revision < self.oldest:
            with pytest.raises(CursorExpired):
                self.joined.ledger.at(key, revision)
        else:
            is_present = then is not None and then.type is not EntryType.DELETED
            assert self.joined.ledger.at(key, revision) == (then if is_present else None)
        remaining = self._remaining()
        assert list(self.joined.ledger.versions(key)) == [one for one in reversed(versions) if one in remaining]

    @rule(place=_places, offset=st.integers(-1, 1))
    def ask_for_a_time(self, place: float, offset: int) -> None:
        """Around that of an entry."""
        if self.history:
            time_ms = self.history[round(place * (len(self.history) - 1))].time_ms + offset
            readable = [entry for entry in self.history if entry.revision > self.oldest]
            end = bisect_right(readable, time_ms, key=lambda entry: entry.time_ms)
            assert self.joined.ledger.revision_at(time_ms) == (readable[end - 1].revision if end else self.oldest)

    @rule(selection=_selections)
    def list_what_is_present(self, selection: Selection) -> None:
        listed = self._run(self.joined.listed(selection))
        wanted = [entry for entry in self.model.present.values() if selection.matches(Recorded(entry))]
        assert sorted((key_of(one), one.revision, one.uid, one.body) for one in listed) == sorted(
            (str(entry.key), entry.revision, entry.uid, Recorded(entry).raw) for entry in wanted
        )

    @rule(selections=st.lists(_selections, min_size=3, max_size=3), place=st.floats(0, 1))
    def watch(self, selections: Sequence[Selection], place: float) -> None:
        for selection in selections:
            after = self._place(place)
            recorder = self._run(self.joined.watched(selection, after))
            assert recorder.is_expired == (after < self.oldest)
            check_ordered_and_unique(recorder)
            wanted = expected(self.joined, selection, self.history)  # type: ignore[arg-type]
            if not recorder.is_expired:
                assert recorder.changes() == [change for change in wanted if change.revision > after]

    @rule(selections=st.lists(_selections, min_size=3, max_size=3))
    def watch_from_the_oldest(self, selections: Sequence[Selection]) -> None:
        newest = self.joined.ledger.revision
        self.watch(selections, (self.oldest - self.base) / max(newest - self.base, 1))

    # What always holds

    @invariant()
    def check(self) -> None:
        ledger, model = self.joined.ledger, self.model
        newest = self.history[-1].revision if self.history else self.base
        assert (ledger.revision, ledger.oldest_revision) == (newest, self.oldest)
        assert self.joined.view.revision == newest
        assert dict(ledger.clusters()) == model.clusters
        records = [record for cluster_id in model.clusters for record in ledger.types(cluster_id)]
        assert {(record.cluster_id, record.type.group_resource): record for record in records} == model.types
        assert {entry.key: entry for entry in ledger.present()} == model.present
        for cluster_id, resource in model.types:
            keys = list(ledger.keys(cluster_id, resource))
            stored = {
                key: StoredKey(key.namespace, key.name, entry.revision, hashed_state(entry))
                for key, entry in model.present.items()
                if (key.cluster_id, key.group_resource) == (cluster_id, resource)
            }
            assert sorted(keys, key=str) == sorted(stored.values(), key=str)
            assert [one for part in ledger.key_slices(cluster_id, resource) for one in part] == keys
            for name in ("x", "y"):
                key = ObjectKey(cluster_id, *resource, "shop", name)
                assert ledger.stored(key) == stored.get(key)
        self._check_digests()
        assert list(ledger.read(self.oldest, ALL)) == [each for each in self.history if each.revision > self.oldest]

    @rule()
    def look_at_every_entry(self) -> None:
        remaining = {entry.revision: entry for entry in self._remaining()}
        for entry in self.history:
            wanted = remaining.get(entry.revision)
            assert self.joined.ledger.entry(entry.revision) == (wanted if isinstance(wanted, ObjectEntry) else None)
        assert self.joined.ledger.statistics()["entries"] == len(remaining)

    def _check_digests(self) -> None:
        """What all commits said adds up to what is present, and so does what was loaded and moved by them."""
        wanted = self.model.digests()
        for commit in self.joined.commits[self._summed :]:
            for change in commit.digests:
                of = (change.cluster_id, change.resource)
                count, total = self.sums.get(of, (0, 0))
                self.sums[of] = (count + change.count, (total + change.sum) % 2**64)
        self._summed = len(self.joined.commits)
        assert {of: digest for of, digest in self.sums.items() if digest != (0, 0)} == wanted
        digests = self.joined.view.digests
        assert {of: (digests.of(*of).count, digests.of(*of).sum) for of in wanted} == wanted
        assert digests.statistics() == {"digests": len(wanted)}

    # Helpers

    async def _start(self) -> None:
        self.joined.start()

    def _run(self, call: Awaitable[T]) -> T:
        async def run() -> T:
            return await call

        self._heard = len(self.joined.commits)
        return self._runner.run(run())

    def _call(self, call: Awaitable[T], refusal: type[FederatorError] | None) -> T | None:
        if refusal is None:
            return self._run(call)
        with pytest.raises(refusal):
            self._run(call)
        return None

    @contextmanager
    def _told(self) -> Iterator[Entries]:
        """What the last call made the listener hear; the block has to take all of it."""
        self._new = self.joined.commits[self._heard :]
        told = [entry for commit in self._new for entry in commit.entries]
        check_order(self.history[-1] if self.history else None, told)
        self.history += told
        entries = iter(told)
        yield entries
        assert not (more := list(entries)), f"the ledger also says {more}"

    def _place(self, place: float) -> int:
        newest = self.joined.ledger.revision
        return self.base + round(place * (newest - self.base))

    def _remaining(self) -> list[Entry]:
        """What compaction has left: what is after the oldest revision, and what each object present then was."""
        present: dict[ObjectKey, ObjectEntry] = {}
        for entry in _objects(self.history):
            if entry.revision > self.oldest:
                break
            present.pop(entry.key, None)
            if entry.type is not EntryType.DELETED:
                present[entry.key] = entry
        return [*present.values(), *(entry for entry in self.history if entry.revision > self.oldest)]


def _objects(entries: Sequence[Entry]) -> list[ObjectEntry]:
    return [entry for entry in entries if isinstance(entry, ObjectEntry)]


class _InMemory(LedgerMachine):
    is_durable = False


class _OnDisk(LedgerMachine):
    is_durable = True


TestInMemory = _InMemory.TestCase
TestOnDisk = _OnDisk.TestCase
TestInMemory.settings = TestOnDisk.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=STEPS
)

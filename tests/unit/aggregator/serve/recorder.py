"""Records watches and checks their histories: the promises of `federator.aggregator.serve.watch`, one function each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from federator.aggregator.ledger.records import ClusterEntry, EntryType, ObjectEntry
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.watch import Watch
from federator.api.field_path import FieldPath, FieldValue, read_comparable
from federator.api.key import ObjectKey
from federator.errors import CursorExpired
from federator.v1 import inventory_pb2
from federator.wire.body import decode_body
from tests.unit.aggregator.federation import Federation

BOOKMARK = inventory_pb2.WATCH_EVENT_TYPE_BOOKMARK
INITIAL_END = inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END
ADDED = inventory_pb2.WATCH_EVENT_TYPE_ADDED
MODIFIED = inventory_pb2.WATCH_EVENT_TYPE_MODIFIED
DELETED = inventory_pb2.WATCH_EVENT_TYPE_DELETED
CLUSTER = inventory_pb2.WATCH_EVENT_TYPE_CLUSTER


class Seen(NamedTuple):
    """What a client sees of one event: all that has to be equal however it came by it."""

    revision: int
    type: str
    key: str
    body: bytes


class Recorded:
    """One state of an object, decoded whole."""

    def __init__(self, entry: ObjectEntry) -> None:
        self.key = entry.key
        self.raw = decode_body(entry.body)
        self._decoded = msgspec.json.decode(self.raw)
        self.labels: dict[str, str] = self._decoded["metadata"].get("labels") or {}
        self.uid = entry.uid
        self.owner_uids = [owner["uid"] for owner in self._decoded["metadata"].get("ownerReferences") or ()]

    def field(self, path: FieldPath) -> FieldValue:
        return read_comparable(self._decoded, path)


def new_watch(
    federation: Federation,
    selection: Selection,
    *,
    after: int | None,
    pins: Pins | None = None,
    bookmark_interval: float = 0,
    with_previous: bool = False,
) -> Watch:
    answers = FreshnessAnswers(federation.view, federation.ledger)
    return Watch(
        federation.hub,
        federation.view,
        federation.ledger,
        Pins() if pins is None else pins,
        Question(selection, with_previous),
        after=after,
        bookmark_interval=bookmark_interval,
        freshness=lambda: answers.of(selection),
    )


async def responses(watch: Watch) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
    """The messages of a watch as its client sees them; each has the cursor that it says."""
    async with aclosing(watch.messages()) as messages:
        async for message in messages:
            response = inventory_pb2.WatchResponse.FromString(message.encoded)
            assert response.events[-1].cursor == message.cursor
            yield response


class Recorder:
    """What a client was sent."""

    def __init__(self) -> None:
        self.responses: list[inventory_pb2.WatchResponse] = []
        self.is_expired = False

    async def follow(self, watch: Watch, *, until: Callable[[], int]) -> None:
        """Takes messages until a bookmark stands at a revision, or the watch has expired."""
        try:
            async with aclosing(responses(watch)) as taken:
                async for response in taken:
                    self.responses.append(response)
                    last = response.events[-1]
                    if last.type == BOOKMARK and last.revision >= until():
                        return
        except CursorExpired:
            self.is_expired = True

    @property
    def events(self) -> list[inventory_pb2.WatchEvent]:
        return [event for response in self.responses for event in response.events]

    def changes(self) -> list[Seen]:
        """The events that are changes, without bookmarks and the present state."""
        return [seen(event) for event in self.events if event.type not in {BOOKMARK, INITIAL_END} and event.cursor]

    def initial(self) -> list[inventory_pb2.InventoryObject]:
        """The present state as it came first."""
        return [event.object for event in self.events if not event.cursor]


def seen(event: inventory_pb2.WatchEvent) -> Seen:
    kind = inventory_pb2.WatchEventType.Name(event.type).removeprefix("WATCH_EVENT_TYPE_")
    if event.type == CLUSTER:
        return Seen(event.revision, kind, event.cluster.cluster_id, b"")
    return Seen(event.revision, kind, key_of(event.object), event.object.body)


def key_of(message: inventory_pb2.InventoryObject) -> str:
    return "/".join((message.cluster_id, message.group, message.resource, message.namespace, message.name))


def expected(federation: Federation, selection: Selection, history: Iterable[object]) -> Iterator[Seen]:
    """Brute force: what the whole history means for a selection."""
    present: dict[ObjectKey, Recorded] = {}
    for entry in history:
        if isinstance(entry, ClusterEntry) and entry.is_transition and selection.has_cluster(entry.cluster_id):
            yield Seen(entry.revision, "CLUSTER", entry.cluster_id, b"")
        if not isinstance(entry, ObjectEntry):
            continue
        before = present.pop(entry.key, None)
        now = None if entry.type is EntryType.DELETED else Recorded(entry)
        if now is not None:
            present[entry.key] = now
        was_selected = before is not None and selection.matches(before)
        if now is not None and selection.matches(now):
            yield Seen(entry.revision, "MODIFIED" if was_selected else "ADDED", str(entry.key), now.raw)
        elif before is not None and was_selected:
            yield Seen(entry.revision, "DELETED", str(entry.key), before.raw)


def check_ordered_and_unique(recorder: Recorder) -> None:
    revisions = [change.revision for change in recorder.changes()]
    assert revisions == sorted(set(revisions))
    all_revisions = [event.revision for event in recorder.events]
    assert all_revisions == sorted(all_revisions)


def check_atomic(recorder: Recorder, commits: Sequence[Sequence[int]]) -> None:
    """The selected events of each commit are in one message."""
    number_of = {revision: number for number, commit in enumerate(commits) for revision in commit}
    message_of: dict[int, int] = {}
    for position, response in enumerate(recorder.responses):
        for event in response.events:
            if event.type not in {BOOKMARK, INITIAL_END} and event.cursor:
                assert message_of.setdefault(number_of[event.revision], position) == position


def check_bookmarkable(recorder: Recorder, federation: Federation, changes: Sequence[Seen]) -> None:
    """Every cursor stands at its event's revision; before a bookmark came every change of `changes` up to it."""
    came: list[Seen] = []
    for event in recorder.events:
        if event.cursor:
            assert federation.ledger.cursors.decode(event.cursor) == event.revision
        if event.type == BOOKMARK:
            assert came == [change for change in changes if change.revision <= event.revision]
        elif event.type != INITIAL_END and event.cursor:
            came.append(seen(event))

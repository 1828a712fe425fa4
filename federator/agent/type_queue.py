"""TypeQueue: what is still to be sent of one resource type."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from federator.agent.frame import (
    Bookmark,
    Change,
    Content,
    Deltas,
    SnapshotEnd,
    SnapshotItems,
    StatedDigest,
    TypeStatus,
)
from federator.agent.listing import Listing
from federator.agent.spool import Spool
from federator.api.cluster import LISTING_ANEW, TypeState
from federator.api.key import split_local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.wire.body import BodyCodec, dictionary_of
from federator.wire.digest import MAX_LEFT_OUT, Digest, HashedState, key_hash, state_hash

MAX_CHANGES = 1024
"""Changes in one frame, as many as a ledger commit takes."""

MAX_FETCHES = 20
"""Objects that are fetched one by one to repair what differs; of more the type is listed."""


_BEHIND = TypeStatus(TypeState.STALE, LISTING_ANEW)
_NEVER_TOLD = TypeStatus(TypeState.SYNCING)


class TypeSource(Protocol):
    """Where the objects of a type come from: its informer."""

    @property
    def epoch(self) -> int:
        """How often the cluster was found to have been restored."""
        ...

    def request_list(self) -> None:
        """Has the type listed, which the queue's sink will be told of; called only after it has listed once."""
        ...

    def states(self) -> Sequence[KubeObject]:
        """All objects that are held, without their bytes."""
        ...

    def fetch(self, objects: Sequence[KubeObject]) -> None:
        """Has the bytes of some objects fetched, which the queue's sink will be told of."""
        ...


class TypeQueue:
    """Latest state per object in its first place, and markers, in the order they have to be sent.

    - *Coalescing*: an object has one entry, in the place of its oldest unsent change, with its newest state. So no
      bookmark overtakes a change, and a storm on one object costs one entry.
    - *A snapshot comes first*: it supersedes everything that was to be sent before it, and what follows is newer. While
      it waits for an answer, so does the type.
    - *Accounted for*: it knows what everything adds up to that was taken, so that a bookmark can tell.
    - *Awaiting a list*, it takes nothing but that list: whatever happens before is in it. It may still have changes
      that an earlier process left.
    """

    def __init__(
        self, resource_type: ResourceType, source: TypeSource | None, bodies: BodyCodec, spool: Spool | None = None
    ) -> None:
        """Starts awaiting the informer's first list.

        Args:
            resource_type: the type.
            source: the type's informer; None for a type that is not collected.
            bodies: compresses objects.
            spool: keeps the changes, too; None for nobody.
        """
        self.type = resource_type
        self.resource = resource_type.group_resource
        self.is_retired = False
        self.is_awaiting_list = True
        self.bytes = 0
        self.counted_bytes = 0  # the outbox's note of `bytes`
        self.has_plans = False
        self._source = source
        self._bodies = bodies
        self._spool = spool
        self._is_replay = False
        self._last_version = ""
        self._sent_version = ""
        self._sent: Digest | None = None
        self._left_out: dict[str, int] = {}
        self._settled_epoch = 0
        self._has_listed = False
        self._status = _NEVER_TOLD
        self._listing: Listing | None = None
        self._listed_epoch = 0
        self._end_in_flight: SnapshotEnd | None = None
        self._entries: OrderedDict[str | int, Change | Bookmark | TypeStatus] = OrderedDict()
        self._next_marker = 0

    def __len__(self) -> int:
        """Entries and snapshot objects still to be taken."""
        return len(self._entries) + (len(self._listing) + 1 if self._listing is not None else 0)

    @property
    def can_take(self) -> bool:
        """Whether `take` has something."""
        return bool(self._entries) if self._listing is None else self._listing.can_take

    @property
    def holds_list(self) -> bool:
        """Whether a snapshot is on its way out."""
        return self._listing is not None

    @property
    def is_snapshot_open(self) -> bool:
        """Whether a snapshot is on its way whose end is not known to be durable."""
        return self._listing is not None or self._end_in_flight is not None

    @property
    def left_out(self) -> Collection[str]:
        """Keys of the objects that are in no digest, since they were refused or cannot be sent."""
        return self._left_out.keys()

    @property
    def needs_hashing(self) -> bool:
        """Whether `hash_some` has to be called before the snapshot can be taken."""
        return self._listing is not None and self._listing.needs_hashing

    def hash_some(self) -> None:
        """Prepares the next part of a large snapshot: about 5 ms."""
        if self._listing is not None:
            self._listing.hash_some()

    def replay(self, changes: Iterable[Change], low_water: str) -> None:
        """Queues what an earlier process of the same agent instance left, before anything else.

        Args:
            changes: one for each object, in order.
            low_water: as in Deltas, of the last of them.
        """
        self._is_replay = True
        self._last_version = low_water
        for change in changes:
            self._entries[change.key] = change
            self.bytes += change.size
        self.continues()

    def attach(self, source: TypeSource) -> bool:
        """Gives a queue that only replays its source; False where it is no such queue."""
        if not self._is_replay or self._source is not None:
            return False
        self._source = source
        return True

    def continues(self) -> None:
        """The aggregator believes in what it has of the type, from an earlier process, until it is listed anew."""
        self._status = _BEHIND
        self.confirm()

    def replace(
        self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
    ) -> None:
        """Queues a snapshot in place of everything else.

        Args:
            resource_version: of the list.
            objects: all that can be sent.
            withheld: those that cannot, each with the state that was sent before.
        """
        self._clear()
        self._last_version = resource_version
        self._has_listed = True
        self._is_replay = False
        self.is_awaiting_list = False
        held_back = {key: self._state(obj) if obj else 0 for key, obj in withheld.items()}
        self._listing = self._new_listing(resource_version, objects, held_back)
        told, self._status = self._status, TypeStatus(TypeState.LIVE)
        if told.state is TypeState.DENIED:
            # Who may list may still be denied to watch: it is LIVE only when it is watched, which will be reported.
            self.report(told)

    def recheck(self) -> None:
        """Compares all that was sent, since it does not add up to what is stored; what differs is sent again.

        While a list is awaited or on its way there is no need.
        """
        if self._source is None or self._sent is None or not self.takes_changes or self.is_snapshot_open:
            return
        pending = {key: entry.base for key, entry in self._entries.items() if isinstance(entry, Change)}
        objects = [obj for obj in self._source.states() if obj.key not in pending]
        sent = [
            HashedState(key_hash(*split_local_key(str(key))), base)
            for key, base in pending.items()
            if base and key not in self._left_out
        ]
        left_out = {key: state for key, state in self._left_out.items() if key in pending}
        self._listing = self._new_listing(self._sent_version, objects, left_out, sent)

    def planned(self, sequence: int, plan: int) -> None:
        """The aggregator says how the snapshot that began with this frame goes on."""
        if self._listing is not None:
            self._listing.planned(sequence, plan)
            self._fetch()

    def differing(self, sequence: int, positions: Sequence[int]) -> None:
        """The aggregator says what of this frame differs.

        Raises:
            IndexError: of something that was not in it.
        """
        if self._listing is not None:
            self._listing.differing(sequence, positions)
            self._fetch()

    def fetched(self, asked: Sequence[KubeObject], objects: Sequence[KubeObject]) -> None:
        """Gives what the source has fetched; of no effect where nobody waits for it any more."""
        if self._listing is not None and self._listing.needs_fetching and self._listing.wanted is asked:
            self._listing.fetched(objects)

    def _fetch(self) -> None:
        if self._listing is None or not self._listing.needs_fetching or self._source is None:
            return
        if len(self._listing.wanted) <= MAX_FETCHES:
            self._source.fetch(self._listing.wanted)
        else:
            self.await_list()
            self.request_list()

    def refuse(self, content: Content, key: str) -> None:
        """The aggregator has refused an object of a frame: it is in no digest until it changes."""
        changes = content.changes if isinstance(content, Deltas | SnapshotItems) else ()
        for change in changes:
            if change.key != key or change.body is None:
                continue
            if self._listing is not None:
                self._listing.refused(key, self._state(change))
            self._left_out[key] = self._state(change)

    @property
    def takes_changes(self) -> bool:
        """Whether changes and bookmarks mean anything at present."""
        return not (self.is_awaiting_list or self.is_retired)

    def put(self, obj: KubeObject, before: KubeObject | None) -> bool:
        """Queues an object's newest state, only while the queue takes changes; tells whether an older one gave way.

        Args:
            obj: the state.
            before: the one before it.
        """
        return self._change(self._put(obj, self._state(before) if before else 0))

    def delete(self, key: str, before: KubeObject) -> bool:
        """Queues that an object is gone, as `put` does.

        Args:
            key: its key.
            before: the state before.
        """
        return self._change(Change.delete(key, self._state(before)))

    def recode(self, dictionary_ids: Collection[int]) -> None:
        """Compresses anew what waits and was made with another dictionary than these."""
        for key, entry in self._entries.items():
            if isinstance(entry, Change) and entry.body and dictionary_of(entry.body) not in {0, *dictionary_ids}:
                body = self._bodies.encode(self._bodies.decode(entry.body), self.resource)
                self._entries[key] = msgspec.structs.replace(entry, body=body)
                self.bytes += len(body) - len(entry.body)

    def _put(self, obj: KubeObject, base: int = 0) -> Change:
        return Change.put(obj, self._bodies.encode(obj.raw, self.resource), base)

    def _state(self, obj: KubeObject | Change) -> int:
        return state_hash(obj.content_hash, self.type.api_version, obj.uid)

    def _new_listing(
        self,
        resource_version: str,
        objects: Sequence[KubeObject],
        withheld: Mapping[str, int],
        pending: Sequence[HashedState] | None = None,
    ) -> Listing:
        self._listed_epoch = self._source.epoch if self._source else 0
        return Listing(
            resource_version,
            objects,
            api_version=self.type.api_version,
            withheld=withheld,
            refused=dict(self._left_out),
            has_plan=self.has_plans,
            is_restored=self._listed_epoch > self._settled_epoch,
            pending=pending,
        )

    def _change(self, change: Change) -> bool:
        key = change.key
        older = self._entries.get(key)
        if isinstance(older, Change):
            self.bytes -= older.size
            change = msgspec.structs.replace(change, base=older.base)
        self._entries[key] = change
        self.bytes += change.size
        if self._spool is not None:
            self._spool.put(self.type, change)
        return older is not None

    def bookmark(self, resource_version: str) -> None:
        """Queues a bookmark, only while the queue takes changes; an older one gives way if no change lies between."""
        self._mark(Bookmark(resource_version))

    def settled(self, low_water: str) -> None:
        """Everything up to this version is queued, only while the queue takes changes."""
        self._last_version = low_water
        if self._spool is not None and not self.is_snapshot_open:
            self._spool.bookmark(self.resource, low_water)

    def report(self, status: TypeStatus) -> bool:
        """Queues a change of state, and tells whether it is one; an older one gives way if no change lies between.

        That a type is gone or not collected supersedes everything else. That it is LIVE again says nothing while a
        list is awaited: the end of the snapshot will say it.
        """
        if status == self._status or (status.state is TypeState.LIVE and self.is_awaiting_list):
            return False
        self._status = status
        if status.state in {TypeState.ABSENT, TypeState.NOT_COLLECTED}:
            self._clear()
            self.is_retired = True
        self._mark(status)
        return True

    def await_list(self, *, is_known: bool = True) -> None:
        """Drops everything; only a new list can tell what is.

        Args:
            is_known: the aggregator believes in what it has of the type, and learns that it is behind.
        """
        if self.is_retired:
            return
        self._clear()
        self.is_awaiting_list = True
        if self._status.state is TypeState.LIVE or self._status == _BEHIND:
            self._status = _BEHIND if is_known else _NEVER_TOLD
        self.confirm()

    def drop_list(self) -> None:
        """A list came that cannot be sent; another one is awaited."""
        self._has_listed = True
        self.await_list()

    def request_list(self) -> None:
        """Asks the informer for the list that is awaited, unless its first one is still to come anyway."""
        if self._has_listed and self._source is not None:
            self._source.request_list()

    def confirm(self) -> None:
        """Queues the present state behind everything: once it is received, so is all that a session left open."""
        if self._status != _NEVER_TOLD:
            self._mark(self._status)

    def take(self, max_bytes: int, sequence: int) -> Content | None:
        """Takes what one frame can carry: at least one entry, where there is one, and none beyond `max_bytes`.

        Args:
            max_bytes: size at which it is cut.
            sequence: that the frame will have.
        """
        if self._listing is not None:
            return self._take_snapshot(self._listing, max_bytes, sequence) if self._listing.can_take else None
        if not self._entries:
            return None
        first = next(iter(self._entries.values()))
        if not isinstance(first, Change):
            self._entries.popitem(last=False)
            if isinstance(first, Bookmark):
                self._sent_version = first.resource_version
                return Bookmark(first.resource_version, self._stated())
            return first
        changes: list[Change] = []
        size = 0
        while self._entries and len(changes) < MAX_CHANGES and size < max_bytes:
            change = next(iter(self._entries.values()))
            if not isinstance(change, Change):
                break
            self._entries.popitem(last=False)
            changes.append(change)
            size += change.size
        self.bytes -= size
        self._account(changes)
        low_water = "" if self._entries else self._last_version
        self._sent_version = low_water or self._sent_version
        return Deltas(tuple(changes), low_water, self._is_replay)

    def _account(self, changes: Iterable[Change], *, is_undone: bool = False) -> None:
        """Moves what was sent by some changes."""
        sent = self._sent
        if sent is None:
            return
        for change in changes:
            if self._left_out:
                self._left_out.pop(change.key, None)
            key = key_hash(change.namespace, change.name)
            old, new = change.base, 0 if change.body is None else self._state(change)
            if is_undone:
                old, new = new, old
            if old:
                sent = sent.minus(key, old)
            if new:
                sent = sent.plus(key, new)
        self._sent = sent

    def _stated(self) -> StatedDigest | None:
        if self._sent is None or len(self._left_out) > MAX_LEFT_OUT:
            return None
        stated = self._sent
        for key, state in self._left_out.items():
            if state:
                stated = stated.minus(key_hash(*split_local_key(key)), state)
        return StatedDigest(stated, tuple(self._left_out))

    def put_back(self, content: Content) -> None:
        """Queues again, in front, what was taken and perhaps not received; newer states keep precedence.

        Contents must come back newest first. Parts of snapshots don't come back, since a snapshot is sent whole, and
        states don't either, since `confirm` tells the newest.
        """
        match content:
            case Deltas(changes):
                self._account(changes, is_undone=True)
                for change in reversed(changes):
                    key = change.key
                    newer = self._entries.get(key)
                    if isinstance(newer, Change):
                        self._entries[key] = msgspec.structs.replace(newer, base=change.base)
                    else:
                        self._entries[key] = change
                        self.bytes += change.size
                    self._entries.move_to_end(key, last=False)
            case Bookmark(version):
                self._entries[self._next_marker] = Bookmark(version)
                self._entries.move_to_end(self._next_marker, last=False)
                self._next_marker += 1

    def acknowledge(self, content: Content) -> None:
        """What was taken is durable."""
        if self._spool is not None and isinstance(content, Deltas):
            self._spool.acknowledged(self.resource, content.changes)
        if content is self._end_in_flight:
            self._end_in_flight = None
            self._settled_epoch = max(self._settled_epoch, self._listed_epoch)

    def _take_snapshot(self, listing: Listing, max_bytes: int, sequence: int) -> Content:
        content = listing.take(max_bytes, sequence, self._put)
        if isinstance(content, SnapshotEnd):
            self._listing = None
            self._end_in_flight = content
            self._sent = listing.total
            self._left_out = listing.left_out
            self._sent_version = listing.resource_version
            if listing.is_recheck and self._status.state is not TypeState.LIVE:
                self._mark(self._status)  # the end of a snapshot says that the type is LIVE
        return content

    def _mark(self, marker: Bookmark | TypeStatus) -> None:
        for key in reversed(self._entries):
            entry = self._entries[key]
            if type(entry) is type(marker):
                del self._entries[key]
                break
            if isinstance(entry, Change):
                break
        self._entries[self._next_marker] = marker
        self._next_marker += 1

    def _clear(self) -> None:
        self._listing = None
        self._end_in_flight = None
        self._sent = None
        self._entries.clear()
        self.bytes = 0
        if self._spool is not None:
            self._spool.drop(self.resource)

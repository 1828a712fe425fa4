"""Listing: all objects of one type on their way out, told in as few bytes as the aggregator needs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from federator.agent.frame import (
    Change,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotItems,
    StateBuckets,
    StatedDigest,
    StateItems,
)
from federator.api.key import split_local_key
from federator.api.object import KubeObject
from federator.wire.digest import (
    MAX_LEFT_OUT,
    Buckets,
    Digest,
    HashedState,
    bits_for,
    bucket,
    key_hash,
    state_hash,
)

MAX_ITEMS = 256
"""Objects in one frame of a snapshot. They are compressed as the frame is cut, about 5 ms of the loop at a time."""

MAX_STATES = 4096
"""States in one frame: 64 KiB. A bucket is never split, so there may be some more."""

HASHES_PER_SLICE = 4096
"""Objects hashed before other tasks get their turn: about 5 ms."""


class Plan(IntEnum):
    """What the aggregator asks for; as in SnapshotPlan of ingest.proto."""

    NOTHING = 1
    DIFFERING = 2
    ALL = 3


Content = SnapshotBegin | StateBuckets | StateItems | SnapshotItems | SnapshotEnd


class _Stage(IntEnum):
    """What comes next; even numbers can be taken, odd ones wait for somebody."""

    HASHING = 1
    BEGIN = 2
    PLAN_AWAITED = 3
    BUCKETS = 4
    BUCKETS_AWAITED = 5
    STATES = 6
    STATES_AWAITED = 7
    FETCHING = 9
    OBJECTS = 10
    END = 12
    DONE = 13


class Listing:
    """The frames of one snapshot: begin, what the aggregator's plan asks for, end.

    Its objects are given up as soon as it is known that they are not asked for.

    Attributes:
        resource_version: of the list.
        total: what the aggregator has of the type once the end is taken, those left out included.
        left_out: by key, the state hash that the aggregator was sent of an object that is in no digest; 0 for none.
            It is whole once everything is hashed.
        wanted: objects whose bytes have to be fetched, of a recheck.
        is_recheck: its objects have no bytes.
    """

    def __init__(
        self,
        resource_version: str,
        objects: Sequence[KubeObject],
        *,
        api_version: str,
        withheld: Mapping[str, int],
        refused: Mapping[str, int],
        has_plan: bool,
        is_restored: bool = False,
        pending: Iterable[HashedState] | None = None,
    ) -> None:
        """Hashes nothing yet.

        Args:
            resource_version: of the list.
            objects: all of them.
            api_version: of the type.
            withheld: objects that exist beside them and cannot be sent, as in `left_out`.
            refused: state hashes in which objects were refused, by key; in the same state they are left out.
            has_plan: whether the aggregator answers with a plan; else everything is sent.
            is_restored: as in SnapshotBegin.
            pending: for a recheck: what was sent of the objects whose newest change still waits to be sent, and which
                are not in `objects`. The objects of a recheck have no bytes.
        """
        self.resource_version = resource_version
        self.left_out = dict(withheld)
        self.total = Digest()
        self.wanted: tuple[KubeObject, ...] = ()
        self._api_version = api_version
        self._refused = refused
        self._has_plan = has_plan
        self._is_restored = is_restored
        self.is_recheck = pending is not None
        self._objects: list[KubeObject | None] = []
        self._unhashed = list(reversed(objects))
        self._keys = array("Q")
        self._states = array("Q")
        self._buckets = Buckets(bits_for(len(objects)))
        self._stage = _Stage.HASHING
        self._awaited: dict[int, Sequence[int]] = {}
        self._states_left: list[tuple[list[int], list[int]]] = []
        self._chosen: list[KubeObject] = []
        for hashed in pending or ():
            self._add(*hashed, None)
        if len(objects) <= HASHES_PER_SLICE:
            self.hash_some()

    @property
    def can_take(self) -> bool:
        """Whether a frame can be taken."""
        return self._stage % 2 == 0

    @property
    def needs_hashing(self) -> bool:
        """Whether `hash_some` has to be called before anything can be taken."""
        return self._stage is _Stage.HASHING

    @property
    def needs_fetching(self) -> bool:
        """Whether `wanted` has to be fetched, and given to `fetched`."""
        return self._stage is _Stage.FETCHING

    def __len__(self) -> int:
        """About how many objects may still have to be sent."""
        return len(self._unhashed) + len(self._objects) + len(self._chosen)

    def hash_some(self, most: int = HASHES_PER_SLICE) -> None:
        """Hashes the next objects."""
        refused, api_version = self._refused, self._api_version
        for _ in range(min(most, len(self._unhashed))):
            obj = self._unhashed.pop()
            key, state = key_hash(obj.namespace, obj.name), state_hash(obj.content_hash, api_version, obj.uid)
            if refused and refused.get(obj.key) == state:
                self.left_out[obj.key] = state
            else:
                self._add(key, state, obj)
        if not self._unhashed:
            self._stage = _Stage.BEGIN

    def take(self, max_bytes: int, sequence: int, put: Callable[[KubeObject], Change]) -> Content:
        """Takes the next frame's content, only where `can_take`.

        Args:
            max_bytes: size at which a frame of objects is cut.
            sequence: that the frame will have.
            put: makes the change that carries an object.
        """
        match self._stage:
            case _Stage.BEGIN:
                return self._begin(sequence)
            case _Stage.BUCKETS:
                self._stage = _Stage.BUCKETS_AWAITED
                self._awaited[sequence] = ()
                return StateBuckets(self._buckets.bits, tuple(self._buckets.sums()))
            case _Stage.STATES:
                return self._take_states(sequence)
            case _Stage.OBJECTS:
                return self._take_objects(max_bytes, put)
            case _:
                self._stage = _Stage.DONE
                return SnapshotEnd(self.resource_version, tuple(self.left_out))

    def planned(self, sequence: int, plan: int) -> None:
        """The aggregator says how to go on; of no effect where it does not speak of this listing."""
        if self._stage is not _Stage.PLAN_AWAITED or self._awaited.pop(sequence, None) is None:
            return
        if plan == Plan.NOTHING:
            self._end()
        elif plan == Plan.DIFFERING:
            self._stage = _Stage.BUCKETS
        else:
            self._choose(filter(None, self._objects))

    def differing(self, sequence: int, positions: Sequence[int]) -> None:
        """The aggregator says what of a frame differs; of no effect where it does not speak of this listing.

        Raises:
            IndexError: of something that was not in the frame.
        """
        places = self._awaited.pop(sequence, None)
        if places is None:
            return
        if self._stage is _Stage.BUCKETS_AWAITED:
            self._open_buckets(positions)
        elif self._stage in {_Stage.STATES, _Stage.STATES_AWAITED}:
            self._chosen += filter(None, (self._objects[places[position]] for position in positions))
            if not self._awaited and self._stage is _Stage.STATES_AWAITED:
                self._choose(self._chosen)

    def refused(self, key: str, state: int) -> None:
        """An object that was sent is refused: it is in no digest from now on."""
        if self._stage > _Stage.BEGIN:  # else it is sent once more, and refused once more
            self.left_out[key] = state

    def fetched(self, objects: Iterable[KubeObject]) -> None:
        """Gives what was fetched. What is in another state by now is not sent: the watch brings it."""
        known = {obj.key: obj for obj in self.wanted}
        self.wanted = ()
        self._chosen = [
            obj
            for obj in objects
            if (same := known.get(obj.key)) is not None and (same.uid, same.content_hash) == (obj.uid, obj.content_hash)
        ]
        self._stage = _Stage.OBJECTS if self._chosen else _Stage.END

    def _add(self, key: int, state: int, obj: KubeObject | None) -> None:
        self._objects.append(obj)
        if self._has_plan:
            self._keys.append(key)
            self._states.append(state)
            self._buckets.add(key, state)
        self.total = self.total.plus(key, state)

    def _begin(self, sequence: int) -> SnapshotBegin:
        digest = StatedDigest(self.total, tuple(self.left_out))
        for key, state in self.left_out.items():
            if state:
                self.total = self.total.plus(key_hash(*split_local_key(key)), state)
        if not self._has_plan or len(self.left_out) > MAX_LEFT_OUT:
            self._choose(filter(None, self._objects))
            return SnapshotBegin(self.resource_version, None, self._is_restored)
        self._stage = _Stage.PLAN_AWAITED
        self._awaited[sequence] = ()
        return SnapshotBegin(self.resource_version, digest, self._is_restored)

    def _open_buckets(self, numbers: Sequence[int]) -> None:
        places: dict[int, list[int]] = {number: [] for number in numbers}
        bits = self._buckets.bits
        if len(self._keys) and places:
            for place, key in enumerate(self._keys):
                if (found := places.get(bucket(key, bits))) is not None:
                    found.append(place)
        buckets: list[int] = []
        inside: list[int] = []
        for number, found in places.items():
            buckets.append(number)
            inside += found
            if len(inside) >= MAX_STATES:
                self._states_left.append((buckets, inside))
                buckets, inside = [], []
        if buckets:
            self._states_left.append((buckets, inside))
        if self._states_left:
            self._stage = _Stage.STATES
        else:
            self._end()

    def _take_states(self, sequence: int) -> StateItems:
        buckets, places = self._states_left.pop()
        if not self._states_left:
            self._stage = _Stage.STATES_AWAITED
        self._awaited[sequence] = places
        return StateItems(
            self._buckets.bits,
            tuple(buckets),
            tuple(self._keys[place] for place in places),
            tuple(self._states[place] for place in places),
        )

    def _take_objects(self, max_bytes: int, put: Callable[[KubeObject], Change]) -> SnapshotItems:
        changes: list[Change] = []
        size = 0
        while self._chosen and len(changes) < MAX_ITEMS and size < max_bytes:
            change = put(self._chosen.pop())
            changes.append(change)
            size += change.size
        if not self._chosen:
            self._stage = _Stage.END
        return SnapshotItems(tuple(changes))

    def _choose(self, objects: Iterable[KubeObject]) -> None:
        """Settles what is sent; of a recheck, what has to be fetched for it."""
        chosen = list(objects)
        self._end()
        if chosen and self.is_recheck:
            self.wanted = tuple(chosen)
            self._stage = _Stage.FETCHING
        elif chosen:
            chosen.reverse()
            self._chosen = chosen
            self._stage = _Stage.OBJECTS

    def _end(self) -> None:
        self._stage = _Stage.END
        self._objects.clear()
        self._chosen = []
        self._keys = self._states = array("Q")

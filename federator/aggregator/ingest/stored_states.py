"""StoredStates: what is stored of a type, by hashes, to be compared with a listing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from federator.aggregator.ingest.frames import StateItems
from federator.errors import InvalidInput
from federator.wire.digest import Buckets, Digest, bucket

_FIELDS = 3  # key hash, state hash, revision


class StoredStates:
    """The stored objects of a type when a comparison began, in buckets; some 30 bytes an object.

    Attributes:
        bits: that tell a bucket.
        missing: revisions of the newest entries of those that the listing was found not to have.
    """

    def __init__(self, bits: int) -> None:
        """Starts empty.

        Args:
            bits: 0 to MAX_BITS.
        """
        self.bits = bits
        self.missing = array("Q")
        self._count = 0
        self._sums = Buckets(bits)
        self._objects: dict[int, array[int]] = {}

    def add(self, key: int, state: int, revision: int) -> None:
        """Adds a stored object, by its hashes and the revision of its newest entry."""
        self._count += 1
        self._sums.add(key, state)
        number = bucket(key, self.bits)
        objects = self._objects.get(number)
        if objects is None:
            objects = self._objects[number] = array("Q")
        objects.extend((key, state, revision))

    def digest(self) -> Digest:
        """Returns what they add up to. Not to be asked after `differing`."""
        digest = Digest()
        for total in self._sums.sums():
            digest = digest.changed(0, total)
        return digest.changed(self._count, 0)

    def differing(self, sums: Iterable[int]) -> list[int]:
        """Returns the numbers of the buckets that have another sum in the listing; only those are kept."""
        numbers = list(self._sums.differing(sums))
        self._sums = Buckets(0)  # which may have been large
        self._objects = {number: self._objects.get(number, array("Q")) for number in numbers}
        return numbers

    @property
    def is_compared(self) -> bool:
        """Whether the states of all buckets that differ have come."""
        return not self._objects

    def compare(self, items: StateItems) -> list[int]:
        """Returns the positions of the listed objects that are not stored, or in another state.

        Raises:
            InvalidInput: it speaks of other buckets than those that differ, or of one again.
        """
        if items.bits != self.bits:
            raise InvalidInput("bits", items.bits, f"{self.bits}, as in StateBuckets")
        unknown = next((number for number in items.buckets if number not in self._objects), None)
        if unknown is not None:
            raise InvalidInput("buckets", unknown, "buckets that differ, each in one frame")
        stored: dict[int, tuple[int, int]] = {}
        for number in items.buckets:
            objects = self._objects.pop(number)
            fields = iter(objects)
            stored.update((key, (state, revision)) for key, state, revision in zip(*[fields] * _FIELDS, strict=True))
        positions = []
        for position, (key, state) in enumerate(zip(items.keys, items.states, strict=True)):
            found = stored.pop(key, None)
            if found is None or found[0] != state:
                positions.append(position)
        self.missing.extend(revision for _, revision in stored.values())
        return positions

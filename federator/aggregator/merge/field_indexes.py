"""Field indexes: which objects have which values at paths that users name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum

import msgspec
from pyroaring import BitMap

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.axis import Column
from federator.aggregator.merge.row_values import RowValues
from federator.api.field_path import EVERY, FieldPath, format_field_path, read_field, read_values
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.errors import IndexNotFound, InvalidInput, LimitReached
from federator.wire.body import BodyCodec

MAX_INDEXES = 32
"""Field indexes at once: each looks at every object of its types that changes, in some 7 µs; the first one also decodes
it, in some 20 µs."""

MAX_BYTES = 256 * 1024 * 1024
"""Memory of one index: a million different values of 60 letters. One that takes more is TOO_LARGE, and given up."""

NAMED_QUARANTINED = 10
"""Objects that are named of those that an index could not read."""

BUILD_SLICE = 64
"""Objects that are read in one step of building: some 2 ms."""


class IndexState(Enum):
    """Whether an index answers."""

    BUILDING = "building"
    READY = "ready"
    TOO_LARGE = "too large"


class FieldIndex:
    """The values of one field, by row and by value.

    Its column knows what it has of each row, so a row can be taken out whatever was indexed of it. An object whose body
    is no JSON has no field, as for whoever reads the objects themselves; such objects are quarantined: counted and
    named.

    Attributes:
        path: of the field.
        resources: types whose objects are indexed; None for all.
        state: whether it answers.
        looked_at: objects that building it has looked at.
        quarantined: rows of objects that could not be read.
    """

    def __init__(self, path: FieldPath, resources: frozenset[GroupResource] | None) -> None:
        self.path = path
        self.resources = resources
        self.state = IndexState.BUILDING
        self.looked_at = 0
        self.quarantined = BitMap()
        self._values = RowValues()
        self._compound = BitMap()  # rows with an object or an array there, which equals no value

    @property
    def name(self) -> str:
        """Its path as text, by which it is known."""
        return format_field_path(self.path)

    def covers(self, resource: GroupResource) -> bool:
        """Whether objects of a type are indexed."""
        return self.resources is None or resource in self.resources

    def put(self, row: int, decoded: object) -> None:
        """Takes in a row's object, in place of what it had."""
        self.quarantined.discard(row)
        if EVERY not in self.path and read_field(decoded, self.path) is None:
            self._compound.add(row)
        else:
            self._compound.discard(row)
        self._values.put(row, read_values(decoded, self.path))

    def quarantine(self, row: int) -> None:
        """Says that a row's object cannot be read: it has no field."""
        self.put(row, None)
        self.quarantined.add(row)

    def discard(self, row: int) -> None:
        """Lets go of a row, whether or not it was taken in."""
        self.quarantined.discard(row)
        self._compound.discard(row)
        self._values.discard(row)

    def rows(self, value: str, present: BitMap) -> BitMap:
        """Returns the rows whose field equals a value, as a field selector compares it; not to be changed.

        Args:
            value: what it has to equal; what is not there is "", unless the path has `EVERY` in it.
            present: all rows of the types that are asked for.
        """
        values = self._values
        if value or EVERY in self.path:
            return values.rows(value)
        return present - values.rows_of_any(filter(None, values)) - self._compound

    def column(self, rows: int) -> Column:
        """Returns its values of all rows below a number."""
        return self._values.column(rows)

    def give_up(self) -> None:
        """Lets go of everything, for good."""
        self._values, self._compound, self.quarantined = RowValues(), BitMap(), BitMap()
        self.state = IndexState.TOO_LARGE

    def statistics(self) -> Mapping[str, int]:
        """Different values, pairs of a value and a row, objects in quarantine, and bytes."""
        return {
            "values": len(self._values),
            "entries": self._values.entries,
            "quarantined": len(self.quarantined),
            "bytes": self.memory,
        }

    @property
    def memory(self) -> int:
        """Bytes it takes, estimated."""
        return self._values.memory


class FieldIndexes:
    """All field indexes, kept up to date with the objects that change.

    They are told of each object as it is indexed and dropped. An index that is new is built from what is there by
    `building`, in steps, while changes go on: a row that changes before its turn is indexed twice, which changes
    nothing.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._indexes: dict[str, FieldIndex] = {}
        self._max_bytes = max_bytes

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def __iter__(self) -> Iterator[FieldIndex]:
        """All of them, by path."""
        return iter(sorted(self._indexes.values(), key=lambda index: index.path))

    def add(self, path: FieldPath, resources: frozenset[GroupResource] | None = None) -> bool:
        """Declares an index, to be built.

        Returns:
            whether it is new, or is of other types than before.

        Raises:
            LimitReached: there are `MAX_INDEXES`.
        """
        index = FieldIndex(path, resources)
        known = self._indexes.get(index.name)
        if known is not None and known.resources == resources:
            return False
        if known is None and len(self._indexes) >= MAX_INDEXES:
            raise LimitReached("field indexes", MAX_INDEXES)
        self._indexes[index.name] = index
        return True

    def drop(self, path: FieldPath) -> None:
        """Takes an index back.

        Raises:
            IndexNotFound: there is none.
        """
        if self._indexes.pop(format_field_path(path), None) is None:
            raise IndexNotFound(format_field_path(path), tuple(sorted(self._indexes)))

    def find(self, name: str) -> FieldIndex | None:
        """Returns the index of a path, as text, that answers; None where there is none."""
        index = self._indexes.get(name)
        return index if index is not None and index.state is IndexState.READY else None

    def answers(self, path: FieldPath, resources: Iterable[GroupResource]) -> FieldIndex | None:
        """Returns the index that answers for a field of some types; None where there is none."""
        index = self.find(format_field_path(path)) if self._indexes else None
        return index if index is not None and all(map(index.covers, resources)) else None

    def answering(self, resources: frozenset[GroupResource]) -> tuple[str, ...]:
        """The paths, as text, of the indexes that answer for some types."""
        return tuple(index.name for index in self if self.answers(index.path, resources))

    def put(self, row: int, entry: ObjectEntry, bodies: BodyCodec) -> None:
        """Takes in an object, in place of what its row had."""
        self._put(row, entry, bodies, self._indexes.values())

    def discard(self, row: int) -> None:
        """Lets go of a row."""
        for index in self._indexes.values():
            index.discard(row)

    def unbuilt(self) -> FieldIndex | None:
        """Returns an index that is yet to be built; None where there is none."""
        return next((index for index in self if index.state is IndexState.BUILDING), None)

    def building(
        self,
        index: FieldIndex,
        rows: BitMap,
        entry_of: Callable[[int], ObjectEntry | None],
        bodies: BodyCodec,
    ) -> Iterator[None]:
        """Builds an index in steps of some milliseconds; yields between them. It answers once the iteration has ended.

        Args:
            index: one of these; where it is dropped meanwhile, the iteration ends.
            rows: the rows that are present when it begins.
            entry_of: tells what a row has now; None where it is not in use, or cannot be read.
            bodies: reads bodies.
        """
        numbers = rows.to_array()
        for start in range(0, len(numbers), BUILD_SLICE):
            for row in numbers[start : start + BUILD_SLICE]:
                entry = entry_of(row)
                if entry is not None:
                    self._put(row, entry, bodies, (index,))
            index.looked_at += len(numbers[start : start + BUILD_SLICE])
            if self._indexes.get(index.name) is not index or index.state is not IndexState.BUILDING:
                return
            yield
        index.state = IndexState.READY

    def statistics(self) -> Mapping[str, int]:
        """Indexes, and by index its entries and bytes."""
        told = {"field_indexes": len(self._indexes)}
        for index in self:
            counted = index.statistics()
            told[f"index_entries_field:{index.name}"] = counted["entries"]
            told[f"index_bytes_field:{index.name}"] = counted["bytes"]
            told[f"index_quarantined_field:{index.name}"] = counted["quarantined"]
        return told

    def _put(self, row: int, entry: ObjectEntry, bodies: BodyCodec, indexes: Iterable[FieldIndex]) -> None:
        resource = entry.key.group_resource
        concerned = [index for index in indexes if index.covers(resource) and index.state is not IndexState.TOO_LARGE]
        if not concerned:
            return
        try:
            decoded: object = msgspec.json.decode(bodies.decode(entry.body))
        except (InvalidInput, msgspec.MsgspecError, UnicodeError, RecursionError):
            for index in concerned:
                index.quarantine(row)
            return
        for index in concerned:
            index.put(row, decoded)
            if index.memory > self._max_bytes:
                index.give_up()


def named_quarantined(index: FieldIndex, key_of: Callable[[int], ObjectKey]) -> tuple[ObjectKey, ...]:
    """Returns the keys of the first objects that an index could not read."""
    return tuple(key_of(row) for row in index.quarantined[:NAMED_QUARANTINED])

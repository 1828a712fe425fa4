"""Function indexes: which objects have which values by functions that a program gives, as to client-go's Indexer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog
from pyroaring import BitMap

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.merged_object import MergedObject
from federator.aggregator.merge.row_values import RowValues
from federator.errors import InvalidInput, LedgerCorrupt
from federator.wire.body import BodyCodec

log = structlog.get_logger(__name__)

IndexFunc = Callable[[MergedObject], Iterable[str]]
"""Returns the values under which an object is found; the same ones for the same object."""

BUILD_SLICE = 64
"""Objects that are read in one step of building: some 2 ms and what the functions take."""

_QUARANTINED_BYTES = 300
"""Of an object in quarantine: its row's number and the error."""


class FunctionIndex:
    """The values that one function gives to objects.

    It remembers what each row has, so that taking a row out is exact whatever the function says by then. An object that
    the function fails on is in no value's rows: quarantined, until a state comes that can be indexed.

    Attributes:
        name: by which it is asked.
        func: the function.
        is_ready: whether it has all objects.
        values: what rows have.
        quarantined: by row, the error.
    """

    def __init__(self, name: str, func: IndexFunc) -> None:
        self.name = name
        self.func = func
        self.is_ready = False
        self.values = RowValues()
        self.quarantined: dict[int, str] = {}

    def values_of(self, obj: MergedObject) -> tuple[str, ...]:
        """Calls the function.

        Raises:
            TypeError: what it returns is no collection of strings.
            Exception: what it raises.
        """
        values = self.func(obj)
        if isinstance(values, str):
            raise TypeError("an index function returned a string; a collection of strings is needed")
        taken = tuple(values)
        for value in taken:
            if not isinstance(value, str):
                raise TypeError(f"an index function returned {type(value).__name__} for a value; a string is needed")
        return taken

    def put(self, row: int, obj: MergedObject) -> None:
        """Takes in a row's object, in place of what it had."""
        try:
            values = self.values_of(obj)
        except Exception as error:  # noqa: BLE001 - foreign code; the object is quarantined
            log.warning(
                "index function failed, object not in index", index=self.name, key=str(obj.key), error=repr(error)
            )
            self.quarantine(row, error)
            return
        self.quarantined.pop(row, None)
        self.values.put(row, values)

    def quarantine(self, row: int, error: Exception) -> None:
        """Says that a row's object cannot be indexed."""
        self.values.discard(row)
        self.quarantined[row] = repr(error)

    def discard(self, row: int) -> None:
        """Lets go of a row, whether or not it was taken in."""
        self.quarantined.pop(row, None)
        self.values.discard(row)

    @property
    def memory(self) -> int:
        """Bytes it takes, estimated."""
        return self.values.memory + _QUARANTINED_BYTES * len(self.quarantined)


class FunctionIndexes:
    """All function indexes, kept up to date with the objects that change.

    They are told of each object as it is indexed and dropped, and built from what is there by `building`, while changes
    go on: a row that changes before its turn is indexed twice, which changes nothing.
    """

    def __init__(self) -> None:
        self._indexes: dict[str, FunctionIndex] = {}

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def __iter__(self) -> Iterator[FunctionIndex]:
        """Those that are ready."""
        return (index for index in self._indexes.values() if index.is_ready)

    def find(self, name: str) -> FunctionIndex:
        """Returns the index of a name.

        Raises:
            InvalidInput: there is none, or it is being built.
        """
        index = self._indexes.get(name)
        if index is None or not index.is_ready:
            ready = ", ".join(sorted(index.name for index in self))
            raise InvalidInput("index name", name, ready or "none, there are no indexes")
        return index

    def building(
        self,
        functions: Mapping[str, IndexFunc],
        rows: BitMap,
        present: BitMap,
        entry_of: Callable[[int], ObjectEntry],
        bodies: BodyCodec,
    ) -> Iterator[int]:
        """Adds indexes in steps of some milliseconds; yields after each how many objects were looked at.

        They answer once the iteration has ended. Where it is closed before, they are taken back.

        Args:
            functions: by the indexes' names.
            rows: the rows to look at.
            present: the rows that there are by then.
            entry_of: tells what a row has now.
            bodies: reads bodies.

        Raises:
            InvalidInput: a name is taken; nothing was added.
        """
        if taken := self._indexes.keys() & functions.keys():
            raise InvalidInput("index name", ", ".join(sorted(taken)), "a name that no index has yet")
        added = {name: FunctionIndex(name, func) for name, func in functions.items()}
        self._indexes |= added
        numbers = rows.to_array()
        try:
            for start in range(0, len(numbers), BUILD_SLICE):
                for row in numbers[start : start + BUILD_SLICE]:
                    if row in present:
                        self._look_at(row, entry_of, bodies, added.values())
                yield min(start + BUILD_SLICE, len(numbers))
            for index in added.values():
                index.is_ready = True
        finally:
            for index in added.values():
                if not index.is_ready:
                    del self._indexes[index.name]

    def put(self, row: int, entry: ObjectEntry, bodies: BodyCodec) -> None:
        """Takes in an object, in place of what its row had."""
        self._put(row, entry, bodies, self._indexes.values())

    def discard(self, row: int) -> None:
        """Lets go of a row."""
        for index in self._indexes.values():
            index.discard(row)

    @property
    def memory(self) -> int:
        """Bytes they take, estimated."""
        return sum(index.memory for index in self._indexes.values())

    def statistics(self) -> Mapping[str, int]:
        """By index its entries, bytes and objects in quarantine."""
        told: dict[str, int] = {}
        for index in self:
            told[f"index_entries_function:{index.name}"] = index.values.entries
            told[f"index_bytes_function:{index.name}"] = index.memory
            told[f"index_quarantined_function:{index.name}"] = len(index.quarantined)
        return told

    def _look_at(
        self,
        row: int,
        entry_of: Callable[[int], ObjectEntry],
        bodies: BodyCodec,
        indexes: Iterable[FunctionIndex],
    ) -> None:
        try:
            entry = entry_of(row)
        except LedgerCorrupt as error:
            for index in indexes:
                index.quarantine(row, error)
        else:
            self._put(row, entry, bodies, indexes)

    def _put(self, row: int, entry: ObjectEntry, bodies: BodyCodec, indexes: Iterable[FunctionIndex]) -> None:
        try:
            obj = MergedObject(entry, bodies)
        except InvalidInput as error:
            for index in indexes:
                index.quarantine(row, error)
            return
        for index in indexes:
            index.put(row, obj)

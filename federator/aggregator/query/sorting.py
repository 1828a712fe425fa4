"""Sorting: the rows and past states of a snapshot in the order of a list, as revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.axis import AxisKind, Rows
from federator.aggregator.merge.merged_indexer import LAST, MergedIndexer, row_numbers
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.order import Order, PlaceKey, Term, place_key
from federator.aggregator.query.snapshot import Snapshot
from federator.aggregator.query.values import sort_key
from federator.api.selector import FieldSelector
from federator.errors import LedgerCorrupt, RevisionExpired

Revisions = NDArray[np.uint64]
"""Revisions at which objects took their states, in the order of a list."""

Ranks = NDArray[np.uint32]

Codes = NDArray[np.unsignedinteger[Any]]

AT_ONCE = 1 << 15
"""Rows that are sorted in one step, some 4 ms; more are sorted in a thread."""

_RUN = 1024
"""Values that are read and sorted between two looks at the clock: some 2 ms."""

SLICE = 64
"""States that are read between two looks at the clock."""

_KEY_BYTES = 1024
"""Counted for each past state: what it is compared by, and that of the others it is compared with."""


async def sorted_revisions(
    snapshot: Snapshot,
    order: Order,
    indexer: MergedIndexer,
    ledger: Ledger,
    types: ResourceTypes,
    budget: Budget,
    *,
    most: int = 0,
) -> Revisions:
    """Returns the revisions of the selected states in an order.

    What is damaged stays among them: whoever reads it for the answer has to say so.

    Args:
        snapshot: taken in the step of this call. Its revision is to be pinned until this returns.
        order: ends with what tells any two objects apart.
        indexer: of the view that the snapshot was taken from.
        ledger: has the states.
        types: for decoding them.
        budget: pays for it; the bytes that are returned stay held.
        most: how many are wanted, from the first on; 0 for all.

    Raises:
        QueryTooCostly: it takes more than it may.
        RevisionExpired: compaction passed the revision, because nobody held a pin.
    """
    wanted, fields = most, snapshot.unanswered
    if fields:
        most = 0  # which rows belong to it is known only when they have been read
    columns = [_column(indexer, term) for term in order]
    ranked = [column.ranks for column in columns if isinstance(column, _Ranked)]
    number = len(snapshot.rows)
    if len(ranked) == len(columns) and min(most or number, number) <= AT_ONCE:
        rows = _candidates(snapshot.rows, order[0], indexer, most)
        revisions = indexer.revisions(_smallest(rows, ranked, most))
        budget.hold(revisions.nbytes)
    else:
        revisions = await _sorted_later(*_taken(snapshot.rows, columns, indexer), budget, most)
    if fields:
        revisions = await _selected(revisions, fields, snapshot.revision, ledger, types, budget)
    if not snapshot.past:
        return revisions[: wanted or None]
    past = await _sorted_states(snapshot.past, order, budget)
    reader = PlaceReader(ledger, types, order, snapshot.revision)
    merged = await _merged(revisions, past, reader, budget)
    return merged[: wanted or None]


async def _selected(
    revisions: Revisions, fields: FieldSelector, revision: int, ledger: Ledger, types: ResourceTypes, budget: Budget
) -> Revisions:
    """Returns those of some states whose fields are as asked for."""
    keeps = np.zeros(len(revisions), np.bool_)
    for number, (_, entry) in enumerate(ledger.entries(revisions.tolist())):
        if number % SLICE == 0:
            await budget.turn()
        budget.scan()
        if isinstance(entry, LedgerCorrupt):
            keeps[number] = True
            continue
        if entry is None:
            raise RevisionExpired(revision, ledger.oldest_revision)
        keeps[number] = fields.matches(ObjectState(entry, ledger.bodies, types).field)
    selected = revisions[keeps]
    budget.hold(selected.nbytes - revisions.nbytes)
    return selected


def _candidates(rows: BitMap, first: Term, indexer: MergedIndexer, most: int) -> Rows:
    """The rows that can be among the first `most`."""
    if most and first.axis.kind is AxisKind.NAME:
        return indexer.smallest(first.axis, rows, most, descending=first.descending)
    return row_numbers(rows)


def sorted_rows(rows: BitMap, order: Order, indexer: MergedIndexer) -> Revisions:
    """Returns the revisions of rows in an order without fields, in one step."""
    numbers = row_numbers(rows)
    return _arranged(indexer.revisions(numbers), [_Ranked(indexer, term).take(numbers).codes for term in order], 0)


# ----------------------------------------------------------------------------------------- rows, by the indexes alone


class _Ranked:
    """A term whose ranks the merged Indexer has."""

    def __init__(self, indexer: MergedIndexer, term: Term) -> None:
        self._indexer = indexer
        self._term = term

    def ranks(self, rows: Rows) -> Ranks:
        """Of some rows."""
        return self._indexer.ranks(self._term.axis, descending=self._term.descending, rows=rows)

    def take(self, rows: Rows) -> _Taken:
        """What is needed of some rows beyond this step."""
        return _Taken(_compact(self.ranks(rows)), None, descending=False)


class _Coded:
    """A field's term: its values have to be ranked, which may take longer than a step may."""

    def __init__(self, indexer: MergedIndexer, term: Term) -> None:
        self._codes, self._values, _ = indexer.column(term.axis)
        self._descending = term.descending

    def take(self, rows: Rows) -> _Taken:
        """What is needed of some rows beyond this step."""
        return _Taken(self._codes[rows], list(self._values), descending=self._descending)


class _Taken(NamedTuple):
    """What a term has of rows, for later.

    Attributes:
        codes: compact ranks, or where there are values the places of each row's in them.
        values: which are yet to be ranked; the first is nobody's.
        descending: whether they are to be ranked the other way round.
    """

    codes: Codes
    values: list[str] | None
    descending: bool


def _taken(rows: BitMap, columns: Sequence[_Ranked | _Coded], indexer: MergedIndexer) -> tuple[Revisions, list[_Taken]]:
    """The rows' revisions, and what each term has of them."""
    numbers = row_numbers(rows)
    return indexer.revisions(numbers), [column.take(numbers) for column in columns]


def _column(indexer: MergedIndexer, term: Term) -> _Ranked | _Coded:
    return _Coded(indexer, term) if term.axis.kind is AxisKind.FIELD else _Ranked(indexer, term)


def _smallest(places: NDArray[Any], terms: Sequence[Callable[[NDArray[Any]], Ranks]], most: int) -> NDArray[Any]:
    """Returns places sorted by their ranks; only so many of the smallest, if `most` is not 0.

    Only what belongs to the answer is sorted: of the others it is enough to know that they do not.
    """
    if not most or len(places) <= most or not terms:
        keys = [ranks(places) for ranks in reversed(terms)]
        return places[np.lexsort(keys)] if keys else places[: most or None]
    first = terms[0](places)
    last = np.partition(first, most - 1)[most - 1]
    below = places[first < last]
    found = [_smallest(below, terms, 0)]
    if len(below) < most:
        found.append(_smallest(places[first == last], terms[1:], most - len(below)))
    return np.concatenate(found)


async def _sorted_later(revisions: Revisions, taken: list[_Taken], budget: Budget, most: int) -> Revisions:
    """Sorts what was taken of rows, in steps and in a thread, so that others have their turns."""
    held = revisions.nbytes + sum(term.codes.nbytes for term in taken)
    budget.hold(held)
    keys: list[Codes] = []
    while taken:
        term = taken.pop(0)
        keys.append(term.codes if term.values is None else _compact(await _ranked(term, budget)))
        del term  # a million codes are megabytes, and whoever arranges them takes them out of their list
    held += 2 * revisions.nbytes  # packed keys and their order
    budget.hold(2 * revisions.nbytes)
    await budget.turn()
    if len(revisions) > AT_ONCE:
        found = await asyncio.to_thread(_arranged, revisions, keys, most)
        budget.resume()
    else:
        found = _arranged(revisions, keys, most)
    budget.hold(found.nbytes - held)
    return found


async def _ranked(taken: _Taken, budget: Budget) -> Ranks:
    """Returns the ranks of coded values; what means the same has the same, however it is written."""
    values = taken.values or [""]
    is_used = np.zeros(len(values), np.bool_)
    is_used[taken.codes] = True
    is_used[0] = False
    used = iter(np.flatnonzero(is_used).tolist())
    size = 200 * int(is_used.sum())
    budget.hold(size)
    runs = []
    while run := [(sort_key(values[code]), code) for code in islice(used, _RUN)]:
        run.sort()
        runs.append(run)
        await budget.turn()
    by_code = np.full(len(values), LAST, np.uint32)
    rank, previous = -1, None
    for step, (key, code) in enumerate(merge(*runs)):
        rank += key != previous
        previous = key
        by_code[code] = LAST - 1 - rank if taken.descending else rank
        if step % _RUN == 0:
            await budget.turn()
    budget.hold(-size)
    return by_code[taken.codes]


def _arranged(revisions: Revisions, keys: list[Codes], most: int) -> Revisions:
    """Sorts revisions by their keys; takes the keys out of their list as soon as they are not needed."""
    if most and len(revisions) > most:
        terms = [key.__getitem__ for key in keys]
        order = _smallest(np.arange(len(revisions)), terms, most)
    else:
        words = list(_packed(keys))
        order = np.argsort(words[0]) if len(words) == 1 else np.lexsort(words[::-1])
        del words
    arranged: Revisions = revisions[order]
    return arranged


def _packed(keys: list[Codes]) -> Iterator[NDArray[np.uint64]]:
    """Puts keys together into as few words as hold them, the weightiest first: one is sorted in a third of the time.

    Takes the keys out of their list: with a million rows each is megabytes.
    """
    word: NDArray[np.uint64] | None = None
    left = 64
    while keys:
        key = keys.pop(0)
        bits = int(key.max(initial=0)).bit_length()
        if word is not None and bits <= left:
            word <<= np.uint64(bits)
            word |= key
            left -= bits
        else:
            if word is not None:
                yield word
            word, left = key.astype(np.uint64), 64 - bits
    if word is not None:
        yield word


def _compact(ranks: Ranks) -> Codes:
    """Returns ranks, which it may change, as small numbers of the smallest type that holds them; order is kept."""
    is_last = ranks == LAST
    low = ranks.min(initial=LAST)
    highest = int(ranks.max(initial=0, where=~is_last))
    last = max(0, highest - int(low) + 1)
    ranks -= low
    ranks[is_last] = last
    return ranks.astype(np.min_scalar_type(last))


# --------------------------------------------------------------------------------------------- states, by their values


class PlaceReader:
    """Reads what states are compared by out of the ledger, each once."""

    def __init__(self, ledger: Ledger, types: ResourceTypes, order: Order, revision: int) -> None:
        self._ledger = ledger
        self._types = types
        self._order = order
        self._revision = revision
        self._keys: dict[int, PlaceKey | None] = {}

    def key(self, revision: int) -> PlaceKey | None:
        """The key of the state that an object took at a revision; None where it is damaged.

        Raises:
            RevisionExpired: it is compacted.
        """
        if revision not in self._keys:
            self._keys[revision] = self._read(revision)
        return self._keys[revision]

    def place(self, revisions: Revisions, key: PlaceKey, low: int = 0) -> int:
        """Where a state belongs among sorted ones, at or behind a place: before the first that is not less."""
        high = len(revisions)
        while low < high:
            middle = at = (low + high) // 2
            # What cannot be read is passed over: it comes before whatever is put in its place.
            while (found := self.key(int(revisions[at]))) is None and at > low:
                at -= 1
            if found is None or found < key:
                low = middle + 1
            else:
                high = at
        return low

    def _read(self, revision: int) -> PlaceKey | None:
        try:
            entry = self._ledger.entry(revision)
        except LedgerCorrupt:
            return None
        if entry is None:
            raise RevisionExpired(self._revision, self._ledger.oldest_revision)
        return place_key(ObjectState(entry, self._ledger.bodies, self._types), self._order)


async def _sorted_states(states: Sequence[ObjectState], order: Order, budget: Budget) -> list[tuple[PlaceKey, int]]:
    budget.hold(_KEY_BYTES * len(states))
    runs = []
    for start in range(0, len(states), _RUN):
        run = []
        for number, state in enumerate(states[start : start + _RUN]):
            if number % SLICE == 0:
                await budget.turn()
            run.append((place_key(state, order), state.revision))
            state.settle()
        run.sort()
        runs.append(run)
    return list(merge(*runs))


async def _merged(
    revisions: Revisions, past: list[tuple[PlaceKey, int]], reader: PlaceReader, budget: Budget
) -> Revisions:
    """Puts past states where they belong among the others."""
    places = []
    place = 0
    for key, _ in past:
        place = reader.place(revisions, key, place)
        places.append(place)
        await budget.turn()
    budget.hold((8 - _KEY_BYTES) * len(past))
    return np.insert(revisions, places, [revision for _, revision in past])

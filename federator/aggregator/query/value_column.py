"""Value columns: what the objects of one answer have of one property, each different text once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from federator.aggregator.merge.axis import Column, Rows
from federator.aggregator.query.budget import Budget

Numbers = NDArray[np.int64]
"""Positions, codes or groups."""

TEXT_BYTES = 160
"""Counted for each different text besides its characters: the string, its place in a dict and in a list."""

_SLICE = 4096
"""Texts taken in between two looks at the clock: some 2 ms."""

SPREAD_BYTES = 32
"""Counted for each value that `ValueColumn.spread` returns."""


class ValueColumn:
    """The values of objects, which are known by their positions in the answer.

    Attributes:
        texts: by code; the first is "" and nobody's.
        codes: by position, the code of its first value; 0 where it has none.
        more: positions and codes of all values but the first.
    """

    def __init__(self, texts: list[str], codes: NDArray[Any], more: tuple[NDArray[Any], NDArray[Any]] | None) -> None:
        self.texts = texts
        self.codes = codes
        self.more = more

    def spread(self, positions: NDArray[Any], budget: Budget) -> tuple[NDArray[Any] | None, NDArray[Any]]:
        """Returns every value of every given object.

        Args:
            positions: of the objects; one may be given several times.
            budget: pays for what is returned where objects have several values: `SPREAD_BYTES` for each, to be given
                back by the caller.

        Returns:
            For each value, the place of its object in `positions`, None where that is its own place; and its code, 0
            for an object that has none.

        Raises:
            QueryTooCostly: these are more than may be held.
        """
        if self.more is None:
            return None, self.codes[positions]
        counts, starts, flat = self._by_position
        repeats = counts[positions]
        total = int(repeats.sum())
        budget.hold(SPREAD_BYTES * total)
        places = np.repeat(np.arange(len(positions)), repeats)
        within = np.arange(total) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return places, flat[starts[positions][places] + within]

    @cached_property
    def _by_position(self) -> tuple[Numbers, Numbers, NDArray[Any]]:
        """By position, how many codes it has and where they begin; and all codes."""
        assert self.more is not None
        more_positions, more_codes = self.more
        number = len(self.codes)
        order = np.argsort(np.concatenate([np.arange(number), more_positions]), kind="stable")
        counts = 1 + np.bincount(more_positions, minlength=number)
        return counts, np.cumsum(counts) - counts, np.concatenate([self.codes, more_codes])[order]


class ValueCoder:
    """Makes a value column: first of an index's column, then object by object."""

    def __init__(self, budget: Budget, *, repeats: bool = True) -> None:
        """Makes an empty one.

        Args:
            budget: pays for what is held.
            repeats: whether a value that one object has several times is kept as often.
        """
        self._budget = budget
        self._repeats = repeats
        self._texts = [""]
        self._code_of: dict[str, int] = {}
        self._indexed: Column | None = None
        self._taken = 0
        self._codes = array("I")
        self._more_positions = array("I")
        self._more_codes = array("I")

    def take(self, column: Column, rows: Rows) -> None:
        """Takes in all values of an index's column in some rows, once and before any other.

        It keeps nothing of the column, which may change as soon as this has returned. `settle` is to follow.

        Args:
            column: of the merged Indexer.
            rows: growing.

        Raises:
            QueryTooCostly: the values are more than may be held.
        """
        self._budget.hold(12 * len(rows) + 8 * len(column.values))
        more = None
        if column.more is not None and len(rows):
            more_rows, more_codes = column.more
            positions = np.minimum(np.searchsorted(rows, more_rows), len(rows) - 1)
            is_there = rows[positions] == more_rows
            more = positions[is_there].astype(np.uint32), more_codes[is_there]
        self._indexed = Column(column.codes[rows], list(column.values), more)
        self._taken = len(rows)

    async def settle(self, *, texts: bool = True) -> None:
        """Forgets of what was taken in all values that no object has.

        Args:
            texts: whether it matters what the values are, and not only which are equal. Without, nothing may be added.

        Raises:
            QueryTooCostly: it takes more than it may.
        """
        if self._indexed is None:
            return
        codes, values, more = self._indexed
        is_used = np.zeros(len(values), np.bool_)
        is_used[codes] = True
        if more is not None:
            is_used[more[1]] = True
        is_used[0] = False
        await self._budget.turn()
        used = np.flatnonzero(is_used)
        dense = np.zeros(len(values), np.uint32)
        dense[used] = np.arange(1, len(used) + 1, dtype=np.uint32)
        await self._budget.turn()
        more = None if more is None else (more[0], dense[more[1]])
        self._indexed = Column(dense[codes], (), more)
        self._budget.hold(-8 * len(values))
        if not texts:
            self._texts = [""] * (1 + len(used))
            return
        for start in range(0, len(used), _SLICE):
            await self._budget.turn()
            for code in used[start : start + _SLICE].tolist():
                self._code(values[code])

    def add(self, values: Iterable[str]) -> None:
        """Takes in the next object's values.

        Raises:
            QueryTooCostly: the values are more than may be held.
        """
        position = self._taken + len(self._codes)
        codes = list(map(self._code, values if self._repeats else dict.fromkeys(values)))
        self._codes.append(codes[0] if codes else 0)
        for code in codes[1:]:
            self._more_positions.append(position)
            self._more_codes.append(code)
        self._budget.hold(4 * max(1, 2 * len(codes) - 1))

    def column(self) -> ValueColumn:
        """Returns the values of all objects that were taken in."""
        codes, positions, more = map(_numbers, (self._codes, self._more_positions, self._more_codes))
        if self._indexed is not None:
            codes = np.concatenate([self._indexed.codes, codes])
            if self._indexed.more is not None:
                positions = np.concatenate([self._indexed.more[0], positions])
                more = np.concatenate([self._indexed.more[1], more])
        return ValueColumn(self._texts, codes, (positions, more) if len(positions) else None)

    def _code(self, text: str) -> int:
        code = self._code_of.get(text)
        if code is None:
            code = self._code_of[text] = len(self._texts)
            self._texts.append(text)
            self._budget.hold(len(text) + TEXT_BYTES)
        return code


def _numbers(numbers: array[int]) -> NDArray[np.uint32]:
    return np.frombuffer(numbers, np.uint32) if numbers else np.empty(0, np.uint32)

"""Groupings: the objects of one answer by their values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federator.aggregator.query.budget import Budget
from federator.aggregator.query.value_column import Numbers, ValueColumn
from federator.errors import QueryTooCostly

MAX_GROUPS = 10_000
"""Groups of one answer; each is some 200 bytes of its message, and an answer is one message."""

_COUNTED_DIRECTLY = 1 << 20
"""Keys below this are counted in an array; others are sorted, in a thread."""


class Grouping(NamedTuple):
    """Which objects each group has; an object with several values is in several.

    Attributes:
        positions: of the objects.
        groups: for each of these, the number of its group.
        codes: by group, the codes of its values, one column for each property it was grouped by.
    """

    positions: NDArray[Any]
    groups: NDArray[Any]
    codes: NDArray[Any]

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.codes)


async def group(columns: Sequence[ValueColumn], positions: NDArray[Any], budget: Budget) -> Grouping:
    """Groups objects.

    Args:
        columns: by what; none makes one group, also of no objects.
        positions: of the objects, each once.
        budget: pays for it.

    Raises:
        QueryTooCostly: there are more than `MAX_GROUPS` groups, or it takes more than it may.
    """
    groups: NDArray[Any] = np.zeros(len(positions), np.int64)
    codes = np.zeros((1 if not columns else min(1, len(positions)), 0), np.int64)
    budget.hold(groups.nbytes)
    for column in columns:
        places, found = column.spread(positions, budget)
        if places is not None:
            positions, groups = positions[places], groups[places]
        width = len(column.texts)
        groups, keys = await _numbered(groups * width + found, len(codes) * width, budget)
        if len(keys) > MAX_GROUPS:
            raise QueryTooCostly("groups", MAX_GROUPS)
        codes = np.column_stack([codes[keys // width], keys % width])
        await budget.turn()
    return Grouping(positions, groups, codes)


async def distinct(keys: NDArray[Any], space: int, budget: Budget) -> tuple[Numbers, Numbers]:
    """Returns the different keys, sorted, and how often each is there.

    Args:
        keys: from 0.
        space: one more than the largest may be.
        budget: pays for it.
    """
    await budget.turn()
    if space <= _COUNTED_DIRECTLY:
        counts = np.bincount(keys, minlength=space)
        unique = np.flatnonzero(counts)
        return unique, counts[unique]
    budget.hold(3 * keys.nbytes)
    unique, counts = await asyncio.to_thread(np.unique, keys, return_counts=True)
    budget.hold(unique.nbytes - 2 * keys.nbytes)
    return unique, counts


async def _numbered(keys: NDArray[Any], space: int, budget: Budget) -> tuple[NDArray[Any], Numbers]:
    """Returns, for each key, its place among the different ones, and these, sorted."""
    await budget.turn()
    if space <= _COUNTED_DIRECTLY:
        is_there = np.zeros(space, np.bool_)
        is_there[keys] = True
        unique = np.flatnonzero(is_there)
        places = np.zeros(space, np.int64)
        places[unique] = np.arange(len(unique))
        return places[keys], unique
    budget.hold(4 * keys.nbytes)
    unique, numbered = await asyncio.to_thread(np.unique, keys, return_inverse=True)
    budget.hold(-4 * keys.nbytes)
    return numbered, unique

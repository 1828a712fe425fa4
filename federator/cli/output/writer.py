"""What every output format can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from federator.client import EventType, InventoryObject

Write = Callable[[str], object]
"""Takes text for stdout; raises BrokenPipeError where nobody reads it any more."""


class ObjectWriter(Protocol):
    """Writes objects to stdout."""

    async def write_list(self, items: Sequence[InventoryObject], *, revision: int | None, single: bool) -> None:
        """Writes a whole list.

        Args:
            items: the objects.
            revision: revision at which the list is exact; None where it was put together from several.
            single: one object was asked for, and if there is one, it is to stand alone.
        """

    async def write_change(self, change: EventType, item: InventoryObject) -> None:
        """Writes one object of a watch: its new state, or the last of one that is gone."""

"""What a printer is: columns, and a function from an object to their cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from federator.cli.age import age

Manifest = Mapping[str, Any]
"""An object's decoded JSON. Nothing in it may be taken for granted: agents may send metadata only."""

Cell = str | int | float | bool | None


class Column(NamedTuple):
    """A column.

    Attributes:
        name: heading, in capitals; never changes between versions.
        wide: shown with `-o wide` only.
    """

    name: str
    wide: bool = False


class Printer(NamedTuple):
    """Prints the objects of one type as the apiserver's own Table does.

    Attributes:
        columns: all columns, those of `-o wide` included.
        row: one cell for each of the columns, of an object at a time.
    """

    columns: tuple[Column, ...]
    row: Callable[[Manifest, datetime], Sequence[Cell]]

    def header(self, *, wide: bool = False) -> tuple[str, ...]:
        """The names of the columns shown."""
        return tuple(column.name for column in self.columns if wide or not column.wide)

    def cells(self, manifest: Manifest, now: datetime, *, wide: bool = False) -> tuple[str, ...]:
        """The cells under `header`; empty where the apiserver leaves them empty."""
        row = zip(self.columns, self.row(manifest, now), strict=True)
        return tuple(cell_text(cell) for column, cell in row if wide or not column.wide)


def columns(names: str) -> tuple[Column, ...]:
    """Reads columns from a comma-separated text, in which a star marks one of `-o wide`."""
    return tuple(Column(name.strip().removesuffix("*"), name.endswith("*")) for name in names.split(","))


def cell_text(cell: Cell) -> str:
    """A cell as text, the way Go writes it."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell)


def dig(value: Any, *path: str) -> Any:
    """The value at a path of keys; None where a step is missing or is no mapping."""
    for step in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def text_at(value: Any, *path: str) -> str:
    """The text at a path; empty where there is none."""
    found = dig(value, *path)
    return found if isinstance(found, str) else ""


def count_at(value: Any, *path: str) -> int:
    """The whole number at a path; 0 where there is none, as Go decodes it."""
    found = dig(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def entries_at(value: Any, *path: str) -> list[Manifest]:
    """The mappings of the list at a path; empty where there is none."""
    found = dig(value, *path)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def mapping_at(value: Any, *path: str) -> Mapping[str, Any]:
    """The mapping at a path; empty where there is none."""
    found = dig(value, *path)
    return found if isinstance(found, Mapping) else {}


def name_of(manifest: Manifest) -> str:
    """The cell NAME."""
    return text_at(manifest, "metadata", "name")


def age_of(manifest: Manifest, now: datetime) -> str:
    """The cell AGE."""
    return age(dig(manifest, "metadata", "creationTimestamp"), now)


def first_with_more(shown: Sequence[str], hidden: int) -> str:
    """A comma-separated list that says how many of its entries it leaves out."""
    listed = ",".join(shown)
    return f"{listed} + {hidden} more..." if hidden > 0 else listed

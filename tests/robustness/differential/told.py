"""What an informer tells its handlers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from tests.robustness.differential.history import Key, State


class Told(NamedTuple):
    """One call of a handler.

    Attributes:
        type: which of its functions.
        key: of the object.
        state: the new one; of a deletion the last one, with the version of the deletion where that was seen.
        old: the state before, of an update.
        is_initial: of an add: it was there before.
        is_tombstone: of a deletion: only the object's absence was seen.
    """

    type: Literal["add", "update", "delete"]
    key: Key
    state: State
    old: State | None = None
    is_initial: bool = False
    is_tombstone: bool = False

    def __str__(self) -> str:
        marks = f"{' (initial)' if self.is_initial else ''}{' (tombstone)' if self.is_tombstone else ''}"
        return f"{self.type} {self.state}{marks}"


def outcome(told: Iterable[Told]) -> dict[Key, State]:
    """What exists, by what was told."""
    held: dict[Key, State] = {}
    for each in told:
        if each.type == "delete":
            held.pop(each.key, None)
        else:
            held[each.key] = each.state
    return held

"""Texts by number: the few values of a column, each once."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

import numpy as np
from numpy.typing import NDArray

_TEXT_BYTES = 120
"""Of a text's places in the tables, besides the text itself."""


class Texts:
    """Texts by small numbers while somebody uses them. Number 0 is nobody's: it stands for none, and reads as ""."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = [""]
        self._users: list[int] = [0]
        self._free: list[int] = []
        self._bytes = 0
        self._ranks: NDArray[np.uint32] | None = None

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def __len__(self) -> int:
        return len(self._numbers)

    def use(self, text: str) -> int:
        """Returns the number of a text, for one more user."""
        number = self._numbers.get(text)
        if number is None:
            number = self._free.pop() if self._free else len(self._texts)
            self._numbers[text] = number
            self._texts[number : number + 1] = [text]
            self._users[number : number + 1] = [0]
            self._ranks = None
            self._bytes += getsizeof(text) + _TEXT_BYTES
        self._users[number] += 1
        return number

    def leave(self, number: int) -> None:
        """Says that one user less has a text; number 0 has none."""
        if not number:
            return
        self._users[number] -= 1
        if not self._users[number]:
            text = self._texts[number]
            del self._numbers[text]
            self._texts[number] = ""
            self._ranks = None
            self._free.append(number)
            self._bytes -= getsizeof(text) + _TEXT_BYTES

    def values(self) -> Sequence[str]:
        """The texts by number as they are now, "" for numbers that are free."""
        return self._texts.copy()

    def ranks(self) -> NDArray[np.uint32]:
        """As `ranks_of` returns them; not to be changed."""
        if self._ranks is None:
            self._ranks = ranks_of(self._texts)
        return self._ranks

    @property
    def memory(self) -> int:
        """Bytes they take."""
        return self._bytes


def ranks_of(texts: Sequence[str]) -> NDArray[np.uint32]:
    """By number, the place of a text among all in their order; number 0, which is nobody's, is not placed."""
    ranks = np.zeros(len(texts), np.uint32)
    order = sorted(range(1, len(texts)), key=texts.__getitem__)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    return ranks

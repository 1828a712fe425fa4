"""Texts by number: the few values of a column, each once."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

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
            self._free.append(number)
            self._bytes -= getsizeof(text) + _TEXT_BYTES

    def values(self) -> Sequence[str]:
        """The texts by number as they are now, "" for numbers that are free."""
        return self._texts.copy()

    @property
    def memory(self) -> int:
        """Bytes they take."""
        return self._bytes

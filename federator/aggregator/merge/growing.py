"""Growing columns: one number per row, without a Python object for each."""

from __future__ import annotations

from array import array
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", bound=np.generic)

_FIRST = 1024
_GROWTH = 8
"""An eighth more room each time: each item is moved some eight times until there are a million."""


class GrowingColumn(Generic[N]):
    """Numbers by row. What has no number yet reads as 0.

    It never grows in place: a view that somebody still has stays good, and shows what was there when it was made.

    Attributes:
        items: the numbers, to be read and set one by one at rows below the last `reserve`; not to be kept.
    """

    __slots__ = ("_dtype", "items")

    def __init__(self, typecode: str, dtype: type[N]) -> None:
        """Makes an empty one.

        Args:
            typecode: of `array.array`.
            dtype: the same for numpy.
        """
        self.items: array[int] = array(typecode)
        self._dtype = dtype

    def reserve(self, rows: int) -> None:
        """Makes room for so many rows."""
        if rows > len(self.items):
            room = max(_FIRST, rows + rows // _GROWTH)
            grown = array(self.items.typecode, bytes(room * self.items.itemsize))
            grown[: len(self.items)] = self.items
            self.items = grown

    def view(self) -> NDArray[N]:
        """All numbers, and zeros behind them; not to be changed."""
        return np.frombuffer(self.items, self._dtype)

    def fill(self, numbers: NDArray[Any]) -> None:
        """Sets the first rows."""
        self.reserve(len(numbers))
        np.frombuffer(self.items, self._dtype)[: len(numbers)] = numbers

    @property
    def memory(self) -> int:
        """Bytes it takes."""
        return len(self.items) * self.items.itemsize

"""Memory that nobody uses any more, given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None
    return trim


_trim = _find_trim()


def give_back() -> bool:
    """Gives free memory back, which glibc keeps for later; may run in a thread, and takes some milliseconds.

    Returns:
        Whether there was any. Of other C libraries nothing is known, and nothing done.
    """
    return _trim is not None and bool(_trim(0))

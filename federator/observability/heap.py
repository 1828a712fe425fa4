"""Memory that the process need not have, given back to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path


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


_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc


def keep_large_blocks_apart(threshold: int) -> bool:
    """Has blocks from some size on taken from the system one by one, so that each goes back when it is free.

    glibc raises the size by itself, up to 32 MiB, each time that such a block is freed; what large arrays leave then
    stays in the process. For the whole process and for good.

    Args:
        threshold: bytes.

    Returns:
        Whether the C library knows how to.
    """
    try:
        set_option: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return set_option(_MMAP_THRESHOLD, threshold) == 1


_DONT_NEED = 4  # MADV_DONTNEED of Linux


def give_back_pages(file: Path) -> bool:
    """Gives the pages of a mapped file back, which stay in the system's cache and are taken again when they are read.

    So a process that has once looked at all of a large file does not count all of it as its own. Only for mappings that
    nobody writes to, as LMDB's. May run in a thread.

    Returns:
        Whether the file is mapped and the system has done it; elsewhere than on Linux nothing is done.
    """
    if _advise is None:
        return False
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    done = False
    for line in maps.splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        if name == [str(file)]:
            first, last = (int(address, 16) for address in span.split("-"))
            done = _advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _DONT_NEED) == 0 or done
    return done


def _find_advise() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    advise: Callable[..., int] = ctypes.CDLL(None).madvise
    return advise


_advise = _find_advise()

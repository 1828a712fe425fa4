"""Stamps: what a load writes into an object, and a watcher reads from it."""

from __future__ import annotations

import time
from typing import NamedTuple

ANNOTATION = "bench"
"""Name of the annotation that carries the stamp."""

_START = b'"%s":"' % ANNOTATION.encode()


class Stamp(NamedTuple):
    """A written change.

    Attributes:
        number: of the change among those of its cluster, from 0 without gaps.
        written_ns: when, by the machine's monotonic clock, which all its processes share.
    """

    number: int
    written_ns: int

    def __str__(self) -> str:
        return f"{self.number}.{self.written_ns}"


def new_stamp(number: int) -> Stamp:
    """The stamp of a change that is written now."""
    return Stamp(number, time.monotonic_ns())


def read_stamp(body: bytes) -> Stamp | None:
    """The stamp in an object's JSON; None where it has none."""
    start = body.find(_START)
    if start < 0:
        return None
    start += len(_START)
    number, _, written_ns = body[start : body.index(b'"', start)].partition(b".")
    return Stamp(int(number), int(written_ns))

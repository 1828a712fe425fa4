"""How many: as many as a case is about where tests run long, fewer where they run each time."""

from __future__ import annotations

import os

import pytest

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether tests run long, as of `make torture`."""

scaled = pytest.mark.scaled
"""Marks a test whose numbers depend on that, so that `make torture` runs it."""


def scale(full: int, *, quick: int) -> int:
    """The number of something that a test is to have: `full` where tests run long, else `quick`."""
    return full if IS_LONG else quick

"""Sizes that both ends of gRPC agree on."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 17 * 1024 * 1024
"""Largest message: one object of 16 MiB, the most that an apiserver's watch can carry, and what goes with it. Frames
and pages are cut far below, at about 1 MiB."""

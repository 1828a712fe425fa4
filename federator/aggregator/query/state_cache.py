"""State cache: encoded objects that short lists had lately, for whoever asks again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from federator.aggregator.merge.resource_types import ResourceTypes

MAX_BYTES = 16 << 20
"""Of encoded objects: some 5,000."""

STATE_BYTES = 150
"""Counted for a state besides its bytes."""


class StateCache:
    """The states that were kept last, within a bound of bytes.

    A revision names one state for good, so nothing here gets old; but a state is told with its kind, which clusters may
    describe anew: then everything is forgotten.
    """

    def __init__(self, types: ResourceTypes, max_bytes: int = MAX_BYTES) -> None:
        """Makes an empty one.

        Args:
            types: tells kinds.
            max_bytes: what all of it may take.
        """
        self._types = types
        self._max_bytes = max_bytes
        self._version = types.version
        self._states: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._found = 0
        self._missed = 0

    def find(self, revision: int) -> bytes | None:
        """Returns the state that an object took at a revision, an encoded InventoryObject, if it is here."""
        if self._version != self._types.version:
            self.clear()
            self._version = self._types.version
        encoded = self._states.get(revision)
        if encoded is None:
            self._missed += 1
        else:
            self._found += 1
            self._states.move_to_end(revision)
        return encoded

    def keep(self, revision: int, encoded: bytes) -> None:
        """Keeps a state; lets go of those that nobody has asked for the longest."""
        if revision in self._states:  # two lists read it at the same time
            return
        self._states[revision] = encoded
        self._bytes += len(encoded) + STATE_BYTES
        while self._bytes > self._max_bytes:
            _, oldest = self._states.popitem(last=False)
            self._bytes -= len(oldest) + STATE_BYTES

    def clear(self) -> None:
        """Forgets everything."""
        self._states.clear()
        self._bytes = 0

    def statistics(self) -> Mapping[str, int]:
        """What is kept, and how often it was what somebody asked for."""
        return {
            "cached_states": len(self._states),
            "cached_state_bytes": self._bytes,
            "state_cache_hits": self._found,
            "state_cache_misses": self._missed,
        }

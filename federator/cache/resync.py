"""Adaptive resync: how often handlers are told everything again, as long as nobody needs it."""

from __future__ import annotations

from federator.errors import InvalidInput

DEFAULT_MINIMUM = 600.0
DEFAULT_MAXIMUM = 1800.0
"""Seconds: a program whose handlers are right pays for one pass over its objects in half an hour."""

_GROWTH = 1.5
_SHRINKAGE = 0.5


class AdaptiveResync:
    """A resync period that grows while resyncs find nothing to do, and shrinks when something was amiss.

    What was amiss: a handler raised, or reported that it found something otherwise than it was told
    (`HandlerRegistration.report_drift`). Every informer that is given one keeps a copy of its own.
    """

    def __init__(self, minimum: float = DEFAULT_MINIMUM, maximum: float = DEFAULT_MAXIMUM) -> None:
        """Begins with the shortest period.

        Args:
            minimum: seconds, at least 1.
            maximum: seconds.

        Raises:
            InvalidInput: the bounds are none.
        """
        if minimum < 1:
            raise InvalidInput("minimum", minimum, "1 second or more")
        if maximum < minimum:
            raise InvalidInput("maximum", maximum, f"no less than the minimum, {minimum:g} s")
        self.minimum = minimum
        self.maximum = maximum
        self._period = minimum

    @property
    def period(self) -> float:
        """Seconds until the next resync."""
        return self._period

    def grow(self) -> None:
        """A period went by in which nothing was amiss."""
        self._period = min(self.maximum, self._period * _GROWTH)

    def shrink(self) -> None:
        """Something was amiss."""
        self._period = max(self.minimum, self._period * _SHRINKAGE)

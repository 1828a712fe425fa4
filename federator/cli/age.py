"""Ages and durations as kubectl writes them."""

from __future__ import annotations

from datetime import datetime

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


def human_duration(seconds: float) -> str:
    """A duration in two or three significant figures, e.g. `3m12s`, `5h59m`, `2d3h`; apimachinery's HumanDuration.

    Up to two seconds below zero are `0s`, since clocks differ; anything less is `<invalid>`.
    """
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    if whole < 10 * _MINUTE:
        return _two_units(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two_units(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two_units(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two_units(whole, _YEAR, "y", _DAY, "d")
    return f"{whole // _YEAR}y"


def _two_units(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_name}" + (f"{rest}{small_name}" if rest else "")


def parse_timestamp(timestamp: object) -> datetime | None:
    """A Kubernetes timestamp; None where it is absent, null, or not RFC 3339 with an offset."""
    if not isinstance(timestamp, str):
        return None
    try:
        parsed = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def age(timestamp: object, now: datetime) -> str:
    """Time passed since a Kubernetes timestamp, or `<unknown>` where there is none."""
    parsed = parse_timestamp(timestamp)
    return "<unknown>" if parsed is None else human_duration((now - parsed).total_seconds())

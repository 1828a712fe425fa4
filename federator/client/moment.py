"""Moments: when a question is about."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from federator.errors import InvalidInput

Moment = int | datetime
"""A revision of the federation, or a time with its offset, which means the newest revision committed by then."""


def moment_fields(name: str, moment: Moment | None) -> dict[str, Any]:
    """Returns the fields of a request that say when: `<name>_revision` or `<name>_time_ms`; none for the present.

    Raises:
        InvalidInput: it is negative or a time without an offset, which would be another time elsewhere.
    """
    if moment is None:
        return {}
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidInput(name, moment, "a time with an offset, such as datetime.now(UTC)")
        field, number = f"{name}_time_ms", int(moment.timestamp() * 1000)
    else:
        field, number = f"{name}_revision", moment
    if not 0 <= number < 1 << 64:
        raise InvalidInput(name, moment, "a revision, or a time since 1970")
    return {field: number}

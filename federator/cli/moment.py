"""Moments of the past, as people write them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from federator.cli.age import parse_timestamp
from federator.cli.service import duration
from federator.client import Moment
from federator.errors import InvalidInput

MOMENTS = "a revision, an RFC 3339 time such as 2026-11-29T10:00:00Z, or how long ago, such as 2h or 3d12h"
"""What may be written; for messages and help."""

_MAX_REVISION = 2**53
_AGO = re.compile(r"(.*?)(?:\s+ago)?")


def parse_moment(text: str, *, field: str) -> Moment:
    """Reads a moment of the past.

    Args:
        text: as `MOMENTS` says; "ago" may follow a duration.
        field: option it was given for, for the message.

    Raises:
        InvalidInput: it is none.
    """
    given = text.strip()
    if given.isascii() and given.isdigit():
        if int(given) >= _MAX_REVISION:
            raise InvalidInput(field, text, MOMENTS)
        return int(given)
    if (at := parse_timestamp(given)) is not None:
        return at
    ago = _AGO.fullmatch(given)
    try:
        seconds = duration(ago[1] if ago else "", field=field)
    except InvalidInput:
        raise InvalidInput(field, text, MOMENTS) from None
    return datetime.fromtimestamp(time.time() - seconds, UTC)

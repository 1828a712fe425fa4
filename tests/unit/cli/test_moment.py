from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from federator.cli.moment import parse_moment
from federator.errors import InvalidInput

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("884213", 884213),
        ("0", 0),
        ("2026-11-29T10:00:00Z", datetime(2026, 11, 29, 10, tzinfo=UTC)),
        ("2026-11-29T10:00:00.5+02:00", datetime(2026, 11, 29, 10, 0, 0, 500_000, timezone(timedelta(hours=2)))),
        ("2h", datetime.fromtimestamp(NOW - 7200, UTC)),
        (" 3d12h ago", datetime.fromtimestamp(NOW - 84 * 3600, UTC)),
    ],
)
def test_revisions_times_and_how_long_ago(text: str, moment: int | datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert parse_moment(text, field="--at") == moment


@pytest.mark.parametrize(
    "text", ["", "-5", "yesterday", "2026-11-29", "2026-11-29T10:00:00", "2h30", "9" * 17, "٣", "ago", "-2h"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="how long ago") as refused:
        parse_moment(text, field="--at")
    assert refused.value.field == "--at"

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from federator.cli.age import age, human_duration, parse_timestamp

M, H, D, Y = 60, 3600, 86400, 365 * 86400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1.9, "0s"),
        (-1, "0s"),
        (0, "0s"),
        (0.9, "0s"),
        (1, "1s"),
        (119, "119s"),
        (2 * M, "2m"),
        (2 * M + 1, "2m1s"),
        (3 * M + 12, "3m12s"),
        (10 * M - 1, "9m59s"),
        (10 * M, "10m"),
        (10 * M + 59, "10m"),
        (41 * M, "41m"),
        (3 * H - 1, "179m"),
        (3 * H, "3h"),
        (3 * H + M, "3h1m"),
        (6 * H - 1, "5h59m"),
        (8 * H - 1, "7h59m"),
        (8 * H, "8h"),
        (23 * H, "23h"),
        (2 * D - 1, "47h"),
        (2 * D, "2d"),
        (2 * D + 3 * H, "2d3h"),
        (8 * D - 1, "7d23h"),
        (8 * D, "8d"),
        (2 * Y - 1, "729d"),
        (2 * Y, "2y"),
        (2 * Y + D, "2y1d"),
        (8 * Y - 1, "7y364d"),
        (8 * Y, "8y"),
        (20 * Y + 100 * D, "20y"),
    ],
)
def test_durations_are_rounded_as_kubectl_does(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def test_ages() -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert age("2026-11-29T11:58:00Z", now) == "2m"
    assert age("2026-11-29T11:59:59.500000Z", now) == "0s"
    assert age("2026-11-29T13:00:00+02:00", now) == "60m"


@pytest.mark.parametrize("timestamp", [None, "", "yesterday", 17, "2026-11-29T12:00:00"])
def test_what_is_no_timestamp_has_no_age(timestamp: object) -> None:
    assert parse_timestamp(timestamp) is None
    assert age(timestamp, datetime.now(UTC) + timedelta(days=1)) == "<unknown>"

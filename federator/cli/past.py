"""The past for people: times, the gaps in what is known of it, and tables with what changed below each row."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from federator.api.cluster import ClusterState
from federator.cli.output.table import Table
from federator.client import Gap


def timestamp(seconds: float) -> str:
    """A time as Kubernetes writes it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(gap: Gap) -> str:
    """When a gap was, in UTC, e.g. `09:12–09:31Z`; with dates where it was not all of it today."""
    now = datetime.now(UTC)
    begin = datetime.fromtimestamp(gap.begin, UTC)
    end = None if gap.end is None else datetime.fromtimestamp(gap.end, UTC)
    is_of_today = begin.date() == (end or now).date() == now.date()
    form = "%H:%M" if is_of_today else "%Y-%m-%dT%H:%M"
    return f"{begin.strftime(form)}–{end.strftime(form)}Z" if end else f"{begin.strftime(form)}Z–now"


def gap_text(gap: Gap, cluster_id: str) -> str:
    """What a gap means, as a sentence without its time."""
    lasts = "is" if gap.end is None else "was"
    what = "could not be followed whole" if gap.state is ClusterState.LIVE else f"{lasts} not live"
    reason = f" ({gap.reason})" if gap.reason else ""
    return f"{cluster_id} {what}{reason}: changes inside are known only by their result"


def write_with_details(
    columns: Sequence[str], rows: Sequence[Sequence[str]], details: Sequence[Sequence[str]], *, show_header: bool
) -> None:
    """Writes a table to stdout, with lines of its own, indented, below each row."""
    written = Table(columns, show_header=show_header).text(rows).splitlines()
    below = [[], *details] if show_header else details
    for line, more in zip(written, below, strict=False):
        sys.stdout.write("".join(f"{each}\n" for each in (line, *(f"  {one}" for one in more))))


def gap_document(gap: Gap) -> dict[str, object]:
    """A gap for programs."""
    return {
        "type": "GAP",
        "fromRevision": gap.from_revision,
        "toRevision": gap.to_revision or None,
        "from": timestamp(gap.begin),
        "to": None if gap.end is None else timestamp(gap.end),
        "state": gap.state,
        "reason": gap.reason,
    }

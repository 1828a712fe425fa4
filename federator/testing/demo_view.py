"""The demo's view of the global watch: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from federator.client import Cluster, Event, EventType, aconnect
from federator.errors import FederatorError

_ROWS = 18
"""Events on the screen: with the clusters' table they fit 30 lines."""

_REFRESH = 0.5
_PLAIN_INTERVAL = 5.0
"""Seconds between two status lines where there is no screen."""

_STYLES = {
    "ADDED": "green",
    "DELETED": "red",
    "CLUSTER": "bold yellow",
    "NOTE": "bold magenta",
    "LIVE": "green",
    "STALE": "bold red",
    "RECOVERING": "yellow",
    "SYNCING": "yellow",
}

Row = tuple[str, str, str, str, str, str]


class DemoView:
    """Follows one watch over all clusters, and each cluster's freshness, until cancelled."""

    def __init__(self, address: str, types: Sequence[str]) -> None:
        self._address = address
        self._types = tuple(types)
        self._rows: deque[Row] = deque(maxlen=_ROWS)
        self._counts: Counter[str] = Counter()
        self._clusters: tuple[Cluster, ...] = ()
        self._revision = 0
        self._began = time.monotonic()
        self._live = sys.stdout.isatty()

    def note(self, text: str) -> None:
        """Puts a line of the demo's own between the events."""
        self._append(("NOTE", "", "", "", text, ""))

    def summary(self) -> Iterable[str]:
        """What was seen, in a few lines."""
        seconds = time.monotonic() - self._began
        total = sum(count for kind, count in self._counts.items() if kind not in {"BOOKMARK", "NOTE"})
        yield f"seen in {seconds:.0f} s on one watch: {total} events, the last at revision {self._revision}"
        yield "  " + ", ".join(f"{kind} {count}" for kind, count in sorted(self._counts.items()))

    async def run(self) -> None:
        """Shows until cancelled; a lost connection to the aggregator is mended by the client."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="watch")
            tasks.create_task(self._poll(), name="clusters")
            tasks.create_task(self._draw() if self._live else self._print(), name="draw")

    async def _follow(self) -> None:
        async with aconnect(self._address) as fed, aclosing(fed.watch(self._types)) as events:
            async for event in events:
                self._take(event)

    def _take(self, event: Event) -> None:
        initial = event.type is EventType.ADDED and not event.cursor
        self._counts["INITIAL" if initial else event.type] += 1
        self._revision = max(self._revision, event.revision)
        if event.object is not None and not initial:
            item = event.object
            self._append((event.type, item.cluster_id, item.resource, item.namespace, item.name, str(event.revision)))
        elif event.cluster is not None:
            change = event.cluster
            text = f"{change.previous_state or 'new'} -> {change.state} {change.reason}".rstrip()
            self._append((event.type, change.cluster_id, "", "", text, str(event.revision)))

    def _append(self, row: Row) -> None:
        self._rows.append(row)
        if not self._live and row[0] in {"NOTE", "CLUSTER"}:
            self._write("  ".join(cell for cell in row if cell))

    async def _poll(self) -> None:
        async with aconnect(self._address) as fed:
            while True:
                try:
                    self._clusters = (await fed.clusters(timeout=2)).clusters
                except FederatorError as error:
                    self.note(str(error))
                await asyncio.sleep(1)

    async def _draw(self) -> None:
        with Live(self._screen(), console=Console(), auto_refresh=False, screen=False) as live:
            while True:
                live.update(self._screen(), refresh=True)
                await asyncio.sleep(_REFRESH)

    def _screen(self) -> Group:
        clusters = Table("CLUSTER", "STATE", "OBJECTS", "SEEN", "PROVED", "VERSION", box=None, pad_edge=False)
        for cluster in self._clusters:
            clusters.add_row(
                cluster.cluster_id,
                Text(cluster.state, style=_STYLES.get(cluster.state, "")),
                str(cluster.objects),
                _age(cluster.seen_age),
                _age(cluster.proved_age),
                cluster.server_version,
            )
        events = Table("EVENT", "CLUSTER", "TYPE", "NAMESPACE", "NAME", "REVISION", box=None, pad_edge=False)
        for row in self._rows:
            events.add_row(*row, style=_STYLES.get(row[0], ""))
        title = f"one watch over {len(self._clusters)} clusters, {time.monotonic() - self._began:.0f} s; Ctrl-C ends it"
        return Group(Text(title, style="bold"), "", clusters, "", events)

    async def _print(self) -> None:
        while True:
            await asyncio.sleep(_PLAIN_INTERVAL)
            states = ", ".join(
                f"{cluster.cluster_id} {cluster.state} {cluster.objects} objects proved {_age(cluster.proved_age)} ago"
                for cluster in self._clusters
            )
            self._write(f"revision {self._revision}, {self._counts['MODIFIED']} modified: {states}")

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:5.1f}s  {text}\n")
        sys.stdout.flush()


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f}s"

"""Following: the changes after a list, until interrupted."""

from __future__ import annotations

import sys
from contextlib import aclosing

from federator.api.cluster import ClusterID
from federator.cli.arguments import Query
from federator.cli.freshness import transition_text
from federator.cli.messages import note, warn
from federator.cli.output.writer import ObjectWriter
from federator.client import EventType, InventoryClient
from federator.errors import FederatorError, SelectionChanged


async def write_changes(client: InventoryClient, query: Query, writer: ObjectWriter, cursor: bytes) -> None:
    """Writes every change after the cursor, at once; changes of clusters and of the connection go to stderr.

    Raises:
        CursorExpired: the aggregator was away for so long that its history does not reach back.
        CursorForeign: it came back with another ledger.
        SelectionChanged: while the aggregator was away, or before it last started, a cluster's labels have changed what
            is selected.
    """
    connected = True

    def disconnected(lost: FederatorError, _: float) -> None:
        nonlocal connected
        if connected:
            connected = False
            warn(f"{lost}; trying again every few seconds.")

    sys.stdout.flush()
    while True:
        watch = client.watch(**query._asdict(), cursor=cursor, on_disconnect=disconnected)
        try:
            async with aclosing(watch) as events:
                async for event in events:
                    if not connected:
                        connected = True
                        note("connected again; nothing was missed.")
                    if event.object is not None:
                        await writer.write_change(event.type, event.object)
                        sys.stdout.flush()
                    if event.cluster is not None:
                        note(transition_text(event.cluster))
        except SelectionChanged as changed:
            if not changed.cursor:
                raise
            note(f"{changed}.")
            if changed.is_selected:
                await _write_cluster(client, query, writer, ClusterID(changed.cluster_id))
            cursor = changed.cursor


async def _write_cluster(client: InventoryClient, query: Query, writer: ObjectWriter, cluster_id: ClusterID) -> None:
    """Writes what there is of a cluster that has come into the selection."""
    listed = await client.list(**query._replace(clusters=(cluster_id,))._asdict())
    for item in listed.items:
        await writer.write_change(EventType.ADDED, item)
    sys.stdout.flush()

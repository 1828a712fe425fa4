"""What an aggregator can be told. Each field says its unit, its default's reason, and who reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from federator.aggregator.ingest.settings import IngestSettings

DAY = 24 * 3600.0


class AggregatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one aggregator.

    Attributes:
        listen: address of the reading side, `host:port` or `unix:/path`. Loopback only: it has no TLS.
        ingest_listen: address of the pushing side, apart from the reading side because only the committing process
            may take changes. Loopback or unix socket only.
        http_listen: address of metrics and health, `host:port`, loopback only; empty for none.
        state_directory: folder of the ledger; None keeps it in memory, for throw-away runs.
        history: seconds of history that a cursor may reach back. 7 days: a client that was down over a long weekend
            still resumes.
        compaction_interval: seconds between two looks at what history may be forgotten. 60.
        shutdown_grace: seconds that calls may take to end when the aggregator stops. 2: watches are told to come
            back at once, anything else is short.
        ingest: settings of the pushing side.
    """

    listen: str = "127.0.0.1:9090"
    ingest_listen: str = "127.0.0.1:9443"
    http_listen: str = "127.0.0.1:9091"
    state_directory: Path | None = None
    history: float = 7 * DAY
    compaction_interval: float = 60.0
    shutdown_grace: float = 2.0
    ingest: IngestSettings = IngestSettings()

"""What ingest can be told."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the pushing side of an aggregator.

    Attributes:
        heartbeat_interval: seconds between heartbeats, both ways. 5: an agent that ends is noticed within 10 s, and
            1,000 agents cost 200 messages a second.
        window_bytes: unacknowledged bytes an agent may have in flight, and ingest may hold for it. 4 MiB: 8 full
            frames, enough to keep the disk busy over a link of 100 ms at 40 MB/s.
        hello_timeout: seconds a new stream has to introduce itself. 10.
    """

    heartbeat_interval: float = 5.0
    window_bytes: int = 4 * MIB
    hello_timeout: float = 10.0

    @property
    def silence(self) -> float:
        """Seconds of silence after which an agent counts as gone: two heartbeats."""
        return 2 * self.heartbeat_interval

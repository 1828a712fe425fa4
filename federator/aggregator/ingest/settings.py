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
        removal_objects_per_second: objects of removed clusters that are deleted a second, over all of them. 10,000: a
            cluster of 100,000 objects has left within 10 s, and between its ten batches a second there is room for what
            the others push. At least 1.
        snapshots_at_once: listings that are taken in at once, but for those that change nothing; the others wait for
            their turn. 4: one is limited by what one agent reads and compresses, some take the whole commit thread, and
            each costs up to `window_bytes` and 30 bytes an object. At least 1.
    """

    heartbeat_interval: float = 5.0
    window_bytes: int = 4 * MIB
    hello_timeout: float = 10.0
    removal_objects_per_second: int = 10_000
    snapshots_at_once: int = 4

    @property
    def silence(self) -> float:
        """Seconds of silence after which an agent counts as gone: two heartbeats."""
        return 2 * self.heartbeat_interval

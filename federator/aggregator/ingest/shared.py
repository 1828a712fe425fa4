"""Shared: what all sessions of one process have in common."""

from __future__ import annotations

import time
from collections.abc import Callable

from federator.aggregator.ingest.admission import Admission
from federator.aggregator.ingest.freshness_sink import FreshnessSink
from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ingest.mismatches import Mismatches
from federator.aggregator.ingest.session_counts import SessionCounts
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ingest.stored_digests import StoredDigests
from federator.aggregator.ledger.ledger import Ledger


class Shared:
    """What all sessions of one process work with.

    Attributes:
        ledger: what is appended to.
        lifecycle: told of everything that concerns states.
        freshness: told of signs of life.
        digests: of what is stored.
        settings: window, heartbeat and places for listings.
        admission: whose listing is taken in.
        mismatches: types whose digests differ.
        counts: totals.
    """

    def __init__(
        self,
        ledger: Ledger,
        lifecycle: ClusterLifecycle,
        freshness: FreshnessSink,
        digests: StoredDigests,
        settings: IngestSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has counted nothing yet.

        Args:
            ledger: see above.
            lifecycle: see above.
            freshness: see above.
            digests: see above.
            settings: see above.
            clock: monotonic seconds; what is done about mismatches goes by it.
        """
        self.ledger = ledger
        self.lifecycle = lifecycle
        self.freshness = freshness
        self.digests = digests
        self.settings = settings
        self.admission = Admission(settings.snapshots_at_once)
        self.mismatches = Mismatches(clock)
        self.counts = SessionCounts()

"""`federator aggregator` whose heartbeats are short, so that a silent agent is soon told to be gone.

`python -m tests.robustness.hasty_aggregator aggregator …` takes the options of `federator`.
"""

from __future__ import annotations

import sys
from unittest import mock

import msgspec

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
from federator.cli.main import main

HEARTBEAT = 1.5
"""Seconds; an agent is gone after two."""


def _hasty(settings: AggregatorSettings) -> Aggregator:
    ingest = msgspec.structs.replace(settings.ingest, heartbeat_interval=HEARTBEAT)
    return Aggregator(msgspec.structs.replace(settings, ingest=ingest))


if __name__ == "__main__":
    with mock.patch("federator.cli.aggregator.Aggregator", _hasty):
        sys.exit(main())

"""`federator aggregator` and `federator agent` with short waits: what is gone is soon told to be, and soon found again.

`python -m tests.robustness.hasty COMMAND …` takes the options of `federator`.
"""

from __future__ import annotations

import sys
from functools import partial
from unittest import mock

import msgspec

from federator.agent.agent import Agent
from federator.agent.member import KubeMember
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
from federator.cache.backoff import Backoff
from federator.cli.main import main

HEARTBEAT = 1.5
"""Seconds; an agent is gone after two."""

LONGEST_WAIT = 2.0
"""Seconds between two tries of an agent to reach its apiserver or the aggregator, at most, before the jitter."""


def _aggregator(settings: AggregatorSettings) -> Aggregator:
    ingest = msgspec.structs.replace(settings.ingest, heartbeat_interval=HEARTBEAT)
    return Aggregator(msgspec.structs.replace(settings, ingest=ingest))


def _agent(settings: AgentSettings, member: KubeMember) -> Agent:
    return Agent(msgspec.structs.replace(settings, stale_after=1.5, backoff_max=LONGEST_WAIT), member)


if __name__ == "__main__":
    with (
        mock.patch("federator.cli.aggregator.Aggregator", _aggregator),
        mock.patch("federator.cli.agent.Agent", _agent),
        mock.patch("federator.agent.agent.MEMBER_BACKOFF", (0.5, LONGEST_WAIT)),
        mock.patch("federator.cache.reflector.Backoff", partial(Backoff, cap=LONGEST_WAIT)),
    ):
        sys.exit(main())

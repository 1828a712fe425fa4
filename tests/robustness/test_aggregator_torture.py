"""An aggregator killed under load of some agents: a short `aggregator_torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from federator.aggregator.ingest.settings import IngestSettings
from federator.v1 import ingest_pb2
from tests.fixtures import no_proxies, no_system_authorities
from tests.robustness.aggregator_torture import AggregatorTorture, Report, draw_kill
from tests.robustness.linked_bed import TYPES
from tests.robustness.push_relay import PushRelay

__all__ = ["no_proxies", "no_system_authorities"]

SEED = 1907
AGENTS = 8
"""Twice as many as may be listed at once."""

KILLS = 3
EMPTY_EVERY = 3
"""The last of them takes the ledger with it: agents that think they are in step have to be told otherwise."""


@pytest.mark.timeout(240)
async def test_killed_under_load_it_comes_to_what_the_clusters_have_and_nobody_touches_an_agent(tmp_path: Path) -> None:
    """SIGKILL while agents push, twice with the ledger kept and once with an empty one after it."""
    report = Report(SEED, agents=AGENTS)
    await AggregatorTorture(report, tmp_path, empty_every=EMPTY_EVERY).run(0, KILLS)
    assert not report.difference
    assert (report.kills, report.emptied) == (KILLS, 1)
    assert report.resumed >= AGENTS * (KILLS - 1)
    assert report.states
    assert report.objects
    assert report.lists == AGENTS * len(TYPES), "each type was listed once more, for the empty ledger"
    assert 0 < report.most_listings <= IngestSettings().snapshots_at_once < AGENTS


def test_kills_depend_on_seed_and_number_and_come_at_all_times() -> None:
    drawn = [draw_kill(SEED, number, empty_every=5) for number in range(100)]
    assert drawn == [draw_kill(SEED, number, empty_every=5) for number in range(100)]
    assert drawn != [draw_kill(SEED + 1, number, empty_every=5) for number in range(100)]
    assert {kill.event for kill in drawn} == {"started", "answered"}
    assert sum(kill.is_emptied for kill in drawn) == 20


class TestRelay:
    """It finds out an aggregator that takes back what it has acknowledged."""

    KEY = ("c0", "instance-1")

    def relay(self) -> PushRelay:
        relay = PushRelay("unix:/nowhere")
        relay._note_response(self.KEY, _welcome(0, snapshot_all=True))
        for sequence in (1, 2, 3):
            relay._note_request(self.KEY, ingest_pb2.PushRequest(sequence=sequence, deltas=_deltas(sequence)))
        relay._note_response(self.KEY, ingest_pb2.PushResponse(ack=ingest_pb2.Ack(sequence=2)))
        return relay

    def test_what_is_acknowledged_is_noted_and_what_is_not_is_sent_again(self) -> None:
        relay = self.relay()
        assert sorted(pushed.resource_version for pushed in relay.acknowledged) == ["1", "2"]
        relay._note_response(self.KEY, _welcome(2))
        relay._note_request(self.KEY, ingest_pb2.PushRequest(sequence=3, deltas=_deltas(4)))
        relay._note_response(self.KEY, ingest_pb2.PushResponse(ack=ingest_pb2.Ack(sequence=3)))
        assert sorted(pushed.resource_version for pushed in relay.acknowledged) == ["1", "2", "4"]
        assert relay.broken == []

    def test_what_a_welcome_says_to_be_durable_is_acknowledged(self) -> None:
        relay = self.relay()
        relay._note_response(self.KEY, _welcome(3))
        assert len(relay.acknowledged) == 3

    def test_frames_that_are_gone_are_found(self) -> None:
        relay = self.relay()
        relay._note_response(self.KEY, _welcome(1))
        assert relay.broken == ["c0: acknowledged up to frame 2, and there up to 1"]

    def test_an_agent_that_is_forgotten_is_found(self) -> None:
        relay = self.relay()
        relay._note_response(self.KEY, _welcome(2, snapshot_all=True))
        assert relay.broken == ["c0: its agent is not known any more"]


def _welcome(durable_sequence: int, *, snapshot_all: bool = False) -> ingest_pb2.PushResponse:
    welcome = ingest_pb2.Welcome(durable_sequence=durable_sequence, snapshot_all=snapshot_all)
    return ingest_pb2.PushResponse(welcome=welcome)


def _deltas(version: int) -> ingest_pb2.Deltas:
    put = ingest_pb2.Delta(
        operation=ingest_pb2.Delta.OPERATION_PUT,
        object=ingest_pb2.PushedObject(namespace="default", name="a", uid="u", resource_version=str(version)),
    )
    return ingest_pb2.Deltas(deltas=[put])

"""Processes killed, frozen and restarted under load, and watches through that, on control planes that all share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from federator.testing.testbed import Testbed
from tests.robustness.fault_run import FaultRun, RoundReport
from tests.robustness.federated_bed import FederatedBed, HastyFederation
from tests.robustness.hasty import HEARTBEAT
from tests.robustness.plan import CLUSTERS, Fault, Kind, Role, Round, draw
from tests.robustness.watch_run import WatchBed, WatchReport, watch_run

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

TWO = CLUSTERS[:2]
"""The custom type comes and goes in one of them."""

HASTE = 3.0
"""How much faster everything follows than in a long run, but for what the product waits for."""

SEED = 35093
"""Its first rounds pause an apiserver and restart its agent at the same moment, pause an agent until it is gone, and
restart the aggregator under that."""

ROUNDS = 2

DRAWN = {
    (Kind.PAUSE, Role.APISERVER),
    (Kind.PAUSE, Role.AGENT),
    (Kind.RESTART, Role.AGENT),
    (Kind.RESTART, Role.AGGREGATOR),
}

WATCH_SEED = 1907


@pytest.fixture(scope="module")
def planes() -> Iterator[Testbed]:
    bed = Testbed(TWO)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            runner.run(bed.start())
            yield bed
        finally:
            runner.run(bed.close())


@pytest.fixture(scope="class")
def standing(planes: Testbed) -> Iterator[FederatedBed]:
    subject = FederatedBed(HastyFederation, clusters=TWO, bed=planes)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            runner.run(subject.start())
            yield subject
        finally:
            runner.run(subject.close())
            subject.remove()


@pytest.fixture
def subject(standing: FederatedBed) -> FederatedBed:
    """Everything runs, also after a test that broke off."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(standing.restore())
    return standing


class TestOneFederation:
    """One fault after the other is done to it."""

    async def test_an_apiserver_killed_under_load_is_told_keeps_its_objects_and_catches_up(
        self, subject: FederatedBed
    ) -> None:
        report = await _one(subject, Kind.KILL, Role.APISERVER, "ap-1", until_stale=True)
        assert report.traffic["unreachable"], "its clients went on trying"

    async def test_an_agent_killed_under_load_is_told_and_the_next_one_finds_what_changed(
        self, subject: FederatedBed
    ) -> None:
        await _one(subject, Kind.KILL, Role.AGENT, "eu-1", until_stale=True)

    async def test_the_aggregator_killed_under_load_loses_nothing_and_its_watches_go_on(
        self, subject: FederatedBed
    ) -> None:
        report = await _one(subject, Kind.KILL, Role.AGGREGATOR)
        assert report.resumes >= 2, "both watches were cut"
        assert report.unanswered

    async def test_a_few_rounds_of_a_fixed_seed_find_no_difference(self, subject: FederatedBed) -> None:
        rounds = list(draw(SEED, ROUNDS, silence=2 * HEARTBEAT, haste=HASTE, clusters=TWO))
        assert {(fault.kind, fault.role) for plan in rounds for fault in plan.faults} == DRAWN
        reports = await FaultRun(subject).run(rounds)
        assert [report.difference for report in reports] == [""] * ROUNDS


async def test_under_load_compaction_and_restarts_every_history_passes_every_check(planes: Testbed) -> None:
    subject, report = WatchBed(haste=HASTE, clusters=TWO, bed=planes), WatchReport(seed=WATCH_SEED, seconds=18)
    try:
        await subject.start()
        await watch_run(subject, report)
    finally:
        await subject.close()
        subject.remove()
    assert report.broken == []
    assert len(report.clients) == 21
    assert all(seen.changes for seen in report.clients.values())
    assert report.joint_commits, "something to be atomic"
    assert report.compactions
    assert report.probes and report.replays
    assert report.probes.changes and report.replays.changes
    assert report.probes.expired + report.replays.expired, "cursors behind the history"
    assert sum(seen.torn for seen in report.clients.values()), "messages in whose middle a client went away"


async def _one(
    subject: FederatedBed, kind: Kind, role: Role, cluster: str = "", *, until_stale: bool = False
) -> RoundReport:
    """A round with one fault."""
    fault = Fault(at=1, kind=kind, role=role, cluster=cluster, seconds=1, until_stale=until_stale)
    plan = Round(number=0, seed=0, faults=(fault,), load_seconds=3, late_watch_at=1.5)
    (report,) = await FaultRun(subject).run([plan])
    assert not report.difference, report.difference
    assert report.objects
    assert report.answers
    assert report.replayed
    return report

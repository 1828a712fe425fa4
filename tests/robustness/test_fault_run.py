"""Processes killed, frozen and restarted under load, on one federation that all tests here share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.robustness.fault_run import FaultRun, RoundReport
from tests.robustness.federated_bed import FederatedBed, SpecialFederation
from tests.robustness.hasty_aggregator import HEARTBEAT
from tests.robustness.plan import Fault, Kind, Role, Round, draw

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

SEED = 1907
"""Its first rounds pause and restart agents, aggregator and control planes, two at the same moment among them."""

ROUNDS = 3


class HastyFederation(SpecialFederation):
    """One that soon tells that an agent is gone: tests and rounds wait for that."""

    module = "tests.robustness.hasty_aggregator"


@pytest.fixture(scope="module")
def standing() -> Iterator[FederatedBed]:
    subject = FederatedBed(HastyFederation)
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


async def test_an_apiserver_killed_under_load_is_told_keeps_its_objects_and_catches_up(subject: FederatedBed) -> None:
    report = await _one(
        subject, Fault(at=2, kind=Kind.KILL, role=Role.APISERVER, cluster="eu-1", seconds=2, until_stale=True)
    )
    assert report.traffic["unreachable"], "its clients went on trying"


async def test_an_agent_killed_under_load_is_told_and_the_next_one_finds_what_changed(subject: FederatedBed) -> None:
    await _one(subject, Fault(at=2, kind=Kind.KILL, role=Role.AGENT, cluster="us-1", seconds=2, until_stale=True))


async def test_the_aggregator_killed_under_load_loses_nothing_and_its_watches_go_on(subject: FederatedBed) -> None:
    report = await _one(subject, Fault(at=2, kind=Kind.KILL, role=Role.AGGREGATOR, seconds=2))
    assert report.resumes >= 2, "both watches were cut"
    assert report.unanswered


async def test_a_few_rounds_of_a_fixed_seed_find_no_difference(subject: FederatedBed) -> None:
    reports = await FaultRun(subject).run(list(draw(SEED, ROUNDS, silence=2 * HEARTBEAT)))
    assert [report.difference for report in reports] == [""] * ROUNDS


async def _one(subject: FederatedBed, fault: Fault) -> RoundReport:
    """A round with one fault."""
    plan = Round(number=0, seed=0, faults=(fault,), load_seconds=6, late_watch_at=3)
    (report,) = await FaultRun(subject).run([plan])
    assert not report.difference, report.difference
    assert report.objects
    assert report.answers
    assert report.replayed
    return report

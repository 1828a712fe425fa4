"""Rounds of load and faults, each of which ends with both sides compared.

`python -m tests.robustness.fault_run --seed S --rounds N` runs the plan that the seed decides, writes a report, and
ends with exit code 1 at the first difference, leaving data and logs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from federator.api.cluster import ClusterState
from federator.client import Event, EventType, InventoryClient
from federator.errors import FederatorError
from federator.observability.logs import configure_logging
from tests.integration.federation.recorder import Recorder
from tests.integration.federation.truth import all_types, assert_equal
from tests.robustness.consumption import Consumption, assert_no_growth, measure
from tests.robustness.federated_bed import FederatedBed
from tests.robustness.inflict import inflict
from tests.robustness.plan import Fault, Round, draw
from tests.robustness.report_file import write_report
from tests.robustness.vigil import Vigil

RATE = 12.0
"""Operations per second in each cluster, at most."""

CONVERGED_WITHIN = 180.0
"""Seconds after which what has not come together never will. The longest of the waits on the way: a reflector's delay
of up to a minute, an apiserver's answer of up to 70 s that a frozen one owes."""

Tell = Callable[[str], None]


class RoundReport(msgspec.Struct):
    """What happened in a round.

    Attributes:
        number: of the round.
        faults: what was done, in words.
        traffic: operations of the load by kind, over all clusters.
        seconds_until_converged: from the end of load and faults until both sides were found equal.
        objects: objects compared, byte for byte, with what the apiservers list.
        answers: answers compared during the faults; `unanswered` questions found no aggregator.
        unanswered: see there.
        events: events that the long watch saw in this round, by type; `resumes` of it.
        replayed: events that a watch from a cursor in the past brought again, all of them compared.
        resumes: how often the watches were cut and went on.
        consumption: of each process, at rest.
        difference: what was wrong; empty in a good round.
    """

    number: int
    faults: list[str]
    traffic: dict[str, int] = {}
    seconds_until_converged: float = 0.0
    objects: int = 0
    answers: int = 0
    unanswered: int = 0
    events: dict[str, int] = {}
    replayed: int = 0
    resumes: int = 0
    consumption: dict[str, Consumption] = {}
    difference: str = ""


class Report(msgspec.Struct):
    """What happened in a run.

    Attributes:
        seed: of the run.
        rounds: a report each, up to the first difference.
        folder: data and logs, where there was a difference.
        repeat: the command that repeats it.
    """

    seed: int
    rounds: list[RoundReport] = []
    folder: str = ""
    repeat: str = ""

    @property
    def is_good(self) -> bool:
        """Whether no round had a difference."""
        return all(not each.difference for each in self.rounds)


class FaultRun:
    """Runs rounds over a federation that stands, one after another."""

    def __init__(self, subject: FederatedBed, *, tell: Tell = lambda _: None) -> None:
        """Does nothing yet.

        Args:
            subject: what is put under faults; running.
            tell: takes a line of progress.
        """
        self._subject = subject
        self._tell = tell
        self._first: dict[str, Consumption] = {}

    async def run(self, rounds: Sequence[Round]) -> list[RoundReport]:
        """Runs rounds, up to the first with a difference, under one watch that lasts through all of them."""
        reports: list[RoundReport] = []
        async with self._subject.federation.client() as fed:
            types = await all_types(fed)
            async with Recorder(fed, types) as recorder:
                await _synced(recorder)
                for plan in rounds:
                    self._tell(str(plan))
                    report = RoundReport(plan.number, [str(fault) for fault in plan.faults])
                    reports.append(report)
                    try:
                        await self._round(plan, report, fed, types, recorder)
                    except* (AssertionError, TimeoutError, FederatorError) as failures:
                        report.difference = "\n".join(_leaves(failures))
                    self._tell(_summary(report))
                    if report.difference:
                        break
        return reports

    async def _round(
        self, plan: Round, report: RoundReport, fed: InventoryClient, types: list[str], long: Recorder
    ) -> None:
        long.events.clear()
        resumes = _resumes(fed)
        vigil = Vigil(fed, self._subject.clusters)
        await vigil.begin()
        loads = [self._subject.traffic(cluster, plan) for cluster in self._subject.clusters]
        recorders = [long]
        async with AsyncExitStack() as watches:

            async def open_late() -> None:
                await asyncio.sleep(plan.late_watch_at)
                recorders.append(await watches.enter_async_context(Recorder(fed, types)))

            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(vigil.keep(), name="vigil")
                churning = [tasks.create_task(load.run(RATE), name="load") for load in loads]
                async with asyncio.TaskGroup() as faults:
                    faults.create_task(open_late(), name="late watch")
                    faults.create_task(asyncio.sleep(plan.load_seconds), name="load lasts")
                    for fault in plan.faults:
                        inflicting = self._inflict(fault, vigil, is_alone=len(plan.faults) == 1)
                        faults.create_task(inflicting, name=str(fault))
                for task in churning:
                    task.cancel()
                await asyncio.gather(*(load.finish() for load in loads))
                self._tell("  load ends, everything runs")
                await self._converge(report, fed, types, recorders)
                asking.cancel()
            report.replayed = await _replay(plan, fed, types, long.events)
        report.traffic = dict(sum((Counter(load.statistics()) for load in loads), Counter()))
        report.answers, report.unanswered = vigil.answers, vigil.unanswered
        report.events = dict(Counter(str(event.type) for event in long.events))
        report.resumes = _resumes(fed) - resumes
        report.consumption = measure(self._subject.federation.processes)
        self._first = self._first or report.consumption
        assert_no_growth(self._first, report.consumption)
        assert long.starts == 1, "the long watch was told to start over, though no history was lost"

    async def _inflict(self, fault: Fault, vigil: Vigil, *, is_alone: bool) -> None:
        await asyncio.sleep(fault.at)

        async def lasting() -> None:
            if not fault.until_stale:
                await asyncio.sleep(fault.seconds)
                return
            await vigil.wait_state(fault.cluster, ClusterState.STALE)
            self._tell(f"  {fault.cluster} is told to be STALE")
            before = await vigil.held(fault.cluster)
            await asyncio.sleep(fault.seconds)
            if is_alone:  # else another fault may have kept back what was on its way
                assert await vigil.held(fault.cluster) == before, f"{fault.cluster} changed while it was STALE"

        where = f"{fault.role} {fault.cluster}".rstrip()
        self._tell(f"  {fault.kind}: {where}")
        taken_over = partial(vigil.wait_state, fault.cluster, ClusterState.LIVE)
        await inflict(self._subject, fault, lasting=lasting, taken_over=taken_over)
        self._tell(f"  runs again: {where}")

    async def _converge(
        self, report: RoundReport, fed: InventoryClient, types: list[str], recorders: Sequence[Recorder]
    ) -> None:
        """Waits until both sides and all watches agree.

        Raises:
            AssertionError: they do not, with the first differences.
            TestbedError: a cluster does not become LIVE, or a process ended.
        """
        begin = time.monotonic()
        await self._subject.federation.wait_state(ClusterState.LIVE, timeout=CONVERGED_WITHIN)
        report.objects = await assert_equal(self._subject.bed, fed, self._subject.clusters, timeout=CONVERGED_WITHIN)
        report.seconds_until_converged = round(time.monotonic() - begin, 1)
        answer = await fed.list(types, timeout=60)
        assert answer.complete
        assert {cluster.state for cluster in answer.clusters.values()} == {ClusterState.LIVE}
        for recorder in recorders:
            recorder.check_running()
            await recorder.wait_for({item.key: item.revision for item in answer.items}, timeout=60)
            assert all(state is ClusterState.LIVE for state in recorder.members.values()), recorder.members


async def _replay(plan: Round, fed: InventoryClient, types: list[str], events: Sequence[Event]) -> int:
    """Watches once more from a cursor in the past: exactly what followed has to come again."""
    seen = [event for event in events if event.type is not EventType.BOOKMARK and event.cursor]
    start = plan.randomness("replay").randrange(len(seen))
    wanted = [_content(event) for event in seen[start + 1 :]]
    found: list[Any] = []
    watch = fed.watch(types, cursor=seen[start].cursor, bookmark_interval=1, timeout=60)
    async with aclosing(watch) as replayed:
        async for event in replayed:
            if event.type is not EventType.BOOKMARK:
                found.append(_content(event))
            elif event.revision >= seen[-1].revision:
                break
    assert found == wanted, f"a watch from revision {seen[start].revision} brought something else than before"
    return len(found)


def _content(event: Event) -> tuple[Any, ...]:
    return event.type, event.revision, event.cluster, event.object


def _resumes(fed: InventoryClient) -> int:
    return int(fed.statistics()["resumes"])


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [line for each in error.exceptions for line in _leaves(each)]
    return [f"{type(error).__name__}: {error}"]


def _summary(report: RoundReport) -> str:
    if report.difference:
        return f"  DIFFERENCE in round {report.number}: {report.difference}"
    return (
        f"  equal after {report.seconds_until_converged:g} s: {report.objects} objects, {report.answers} answers "
        f"during the faults, {sum(report.events.values())} events, {report.replayed} of them replayed"
    )


async def _synced(recorder: Recorder) -> None:
    async with asyncio.timeout(60):
        await recorder.synced.wait()


async def _run(report: Report, rounds: Sequence[Round], file: Path, tell: Tell) -> None:
    subject = FederatedBed()
    try:
        await subject.start()
        report.rounds = await FaultRun(subject, tell=tell).run(rounds)
    finally:
        await subject.close()
        if report.is_good and report.rounds:
            subject.remove()
        else:
            report.folder = str(subject.folder)
            tell(f"data and logs: {subject.folder}\nrepeat it: {report.repeat}")
        write_report(report, file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 where all was equal, 1 where not."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fault_run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is done [default: 1]")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds [default: 10]")
    parser.add_argument("--first-round", type=int, default=0, help="number of the first one [default: 0]")
    parser.add_argument("--report", type=Path, default=Path("build/torture.json"), help="file [default: %(default)s]")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    given = parser.parse_args(arguments)
    configure_logging("error")
    rounds = list(draw(given.seed, given.rounds, first=given.first_round))
    _tell(f"seed {given.seed}")
    for each in rounds:
        _tell(str(each))
    if given.plan:
        return 0
    repeat = f"python -m tests.robustness.fault_run --seed {given.seed} --rounds {given.rounds}"
    repeat += f" --first-round {given.first_round}" if given.first_round else ""
    report = Report(given.seed, repeat=repeat)
    asyncio.run(_run(report, rounds, given.report, _tell))
    return 0 if report.is_good and report.rounds else 1


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

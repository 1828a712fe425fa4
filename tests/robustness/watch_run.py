"""Watches under load, compaction and restarts, each history put to the watch checks.

`python -m tests.robustness.watch_run --seed S --seconds N` writes a report, and ends with exit code 1 where a check is
broken, leaving data and logs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from federator.api.cluster import ClusterState
from federator.client import Event, EventType, InventoryClient
from federator.errors import AggregatorUnreachable, FederatorError
from federator.observability.logs import configure_logging
from federator.testing.testbed import Testbed
from tests.integration.federation.truth import all_types, assert_equal
from tests.robustness.federated_bed import FederatedBed, SpecialFederation
from tests.robustness.inflict import inflict
from tests.robustness.plan import CLUSTERS, Fault, Kind, Role, Round
from tests.robustness.report_file import write_report
from tests.robustness.vigil import Vigil
from tests.robustness.watch_checks.aggregator_process import FLOOR, JOURNAL
from tests.robustness.watch_checks.asked import everything
from tests.robustness.watch_checks.checks import CHECKS, broken_by
from tests.robustness.watch_checks.clients import CLIENTS
from tests.robustness.watch_checks.history import EXPIRED, PRESENT, History
from tests.robustness.watch_checks.journal import compacted, ledger_record
from tests.robustness.watch_checks.recorder import Manner, WatchRecorder
from tests.robustness.watch_checks.reference import Reference
from tests.robustness.watch_load import WatchLoad

RATE = 8.0
"""Operations per second in each cluster of each of the two loads, at most."""

HISTORY = 12.0
"""Seconds of history: some clients are away for longer."""

GRACE = 6.0
"""Seconds after its start in which the aggregator forgets nothing: most clients are to find what they missed."""

HEARTBEAT = 1.0
"""Seconds, however hasty a run is. An agent that is frozen is told to be gone after two."""

RING_ENTRIES = 48
"""Entries that watches find in memory: a burst or two, so that they fall back on the ledger all the time."""

CONVERGED_WITHIN = 120.0
"""Seconds."""

_FLOOR_EVERY = 0.1
"""Seconds between two looks at how far the reference is."""

_PROBE_EVERY = 1.0
"""Seconds between two watches from a cursor of the past, during the run."""

_REPLAYS_EVERY, _MOST_REPLAYS = 0.45, 40
"""Watches from a cursor of the past, at the end: one for so many seconds of the run, up to so many."""

_LARGE_AT = (0.2, 0.6)
"""Parts of the run after which large objects change."""

Tell = Callable[[str], None]


class ForgetfulFederation(SpecialFederation):
    """A federation whose aggregator forgets early and keeps a journal."""

    aggregator_module = "tests.robustness.watch_checks.aggregator_process"

    @property
    def journal(self) -> Path:
        """What its ledger did."""
        return self.folder / "state" / JOURNAL

    @property
    def floor(self) -> Path:
        """Where its ledger is told how far the reference is."""
        return self.folder / "state" / FLOOR


class HastyForgetfulFederation(ForgetfulFederation):
    """One whose agents soon try again."""

    agent_module = "tests.robustness.hasty"


class WatchBed(FederatedBed):
    """The bed of the fault runs with a forgetful aggregator.

    Attributes:
        haste: how much faster than written down here history passes, faults follow, clients come and go.
    """

    federation: ForgetfulFederation

    def __init__(self, *, haste: float = 1.0, clusters: Sequence[str] = CLUSTERS, bed: Testbed | None = None) -> None:
        """Describes it; `clusters` and `bed` are the base class's."""
        self.haste = haste
        super().__init__(
            ForgetfulFederation if haste == 1 else HastyForgetfulFederation,
            clusters=clusters,
            bed=bed,
            aggregator_arguments=(
                f"--history={HISTORY / haste:g}",
                f"--grace={GRACE / haste:g}",
                f"--compaction-interval={0.5 / haste:g}",
                f"--heartbeat-interval={HEARTBEAT:g}",
                f"--ring-entries={RING_ENTRIES}",
            ),
        )

    async def start(self) -> None:
        """As the base class says."""
        await super().start()
        await asyncio.gather(*(WatchLoad.prepare(plane) for plane in self.bed))


class Seen(msgspec.Struct):
    """What one client saw, in numbers.

    Attributes:
        parts: beginnings.
        calls: of Watch.
        messages: that came.
        changes: events that each have a place in the order.
        bookmarks: that came.
        torn: messages in whose middle the client went away.
        expired: calls that were refused, or ended, because history was compacted.
    """

    parts: int
    calls: int
    messages: int
    changes: int
    bookmarks: int
    torn: int
    expired: int

    @classmethod
    def of(cls, *histories: History) -> Seen:
        """Counts."""
        parts = [part for history in histories for part in history.parts]
        calls = [call for part in parts for call in part.calls]
        messages = [message for call in calls for message in call.messages]
        types = Counter(event.type for message in messages for event in message.events[: message.taken])
        return cls(
            parts=len(parts),
            calls=len(calls),
            messages=len(messages),
            changes=sum(1 for part in parts for _ in part.changes()),
            bookmarks=types[EventType.BOOKMARK],
            torn=sum(message.taken < len(message.events) for message in messages),
            expired=sum(call.end == EXPIRED for call in calls),
        )


class WatchReport(msgspec.Struct):
    """What happened in a run.

    Attributes:
        seed: of the run.
        seconds: of load and faults that were asked for, of which a hasty run takes a part only.
        faults: what was done, in words.
        traffic: operations of the loads by kind, over all clusters.
        clients: what each saw, by name.
        probes: watches from a cursor of the past during the run.
        replays: such watches at the end.
        changes: events of the reference.
        commits: commits that the ledger told of; `joint_commits` of them have more than one entry.
        joint_commits: see there.
        sessions: sessions of agents.
        compactions: how often history was forgotten.
        objects: objects compared, byte for byte, with what the apiservers list.
        checking_seconds: how long the checks took.
        broken: what is wrong, a line each.
        folder: data and logs, where something is.
        repeat: the command that repeats it.
    """

    seed: int
    seconds: float
    faults: list[str] = []
    traffic: dict[str, int] = {}
    clients: dict[str, Seen] = {}
    probes: Seen | None = None
    replays: Seen | None = None
    changes: int = 0
    commits: int = 0
    joint_commits: int = 0
    sessions: int = 0
    compactions: int = 0
    objects: int = 0
    checking_seconds: float = 0.0
    broken: list[str] = []
    folder: str = ""
    repeat: str = ""


def draw_faults(seed: int, seconds: float, *, haste: float = 1.0, clusters: Sequence[str] = CLUSTERS) -> list[Fault]:
    """Draws the faults of a run, one after another.

    In every run the aggregator is restarted and killed and an agent is superseded; a long one has more of the kind.
    `Fault.at` is the time since the one before.
    """
    source = random.Random(f"{seed} watch faults")
    first = [(Kind.RESTART, Role.AGGREGATOR), (Kind.KILL, Role.AGGREGATOR), (Kind.SUPERSEDE, Role.AGENT)]
    source.shuffle(first)
    others = [
        *first,
        (Kind.KILL, Role.AGGREGATOR),
        (Kind.RESTART, Role.AGGREGATOR),
        (Kind.PAUSE, Role.AGGREGATOR),
        (Kind.KILL, Role.AGENT),
        (Kind.PAUSE, Role.AGENT),
        (Kind.RESTART, Role.AGENT),
        (Kind.KILL, Role.APISERVER),
        (Kind.RESTART, Role.CONTROL_PLANE),
    ]
    number = max(len(first), round(seconds / 10))
    return [
        Fault(
            at=round(source.uniform(1, 4) / haste, 1),
            kind=kind,
            role=role,
            cluster="" if role is Role.AGGREGATOR else source.choice(clusters),
            seconds=round(source.uniform(0.2, 2) / haste, 1),
            until_stale=kind is Kind.SUPERSEDE,
        )
        for kind, role in [*first, *(source.choice(others) for _ in range(number))][:number]
    ]


class WatchRun:
    """One run over a federation that stands."""

    def __init__(self, subject: WatchBed, report: WatchReport, *, tell: Tell = lambda _: None) -> None:
        """Does nothing yet.

        Args:
            subject: what is watched; running.
            report: is filled in.
            tell: takes a line of progress.
        """
        self._subject = subject
        self._report = report
        self._tell = tell
        self._loads = [WatchLoad(plane, self._source(f"load {plane.name}")) for plane in subject.bed]
        plan = Round(number=0, seed=report.seed, faults=(), load_seconds=report.seconds, late_watch_at=0)
        self._traffic = [subject.traffic(cluster, plan) for cluster in subject.clusters]
        self._recorders = [
            WatchRecorder(
                subject.federation.address, asked.name, asked, manner.hastened(subject.haste), self._source(asked.name)
            )
            for asked, manner in CLIENTS
        ]
        self._seconds = report.seconds / subject.haste
        self._replays_wanted = min(round(self._seconds / _REPLAYS_EVERY), _MOST_REPLAYS)
        self._probes: list[History] = []
        self._replays: list[History] = []

    async def run(self) -> None:
        """Runs, and fills the report in."""
        async with self._subject.federation.client() as fed:
            types = await all_types(fed)
            whole = WatchRecorder(
                self._subject.federation.address, "everything", everything(types), Manner(bookmarks=1), self._source("")
            )
            async with asyncio.TaskGroup() as watching:
                tasks = [watching.create_task(whole.run(), name="reference")]
                tasks.append(watching.create_task(self._tell_floor(whole), name="floor"))
                await whole.reached(0)
                tasks += [watching.create_task(each.run(), name=each.history.client) for each in self._recorders]
                await self._disturb(fed, whole)
                await self._replay(_last(whole.history))
                revision = await self._come_to_rest(fed, types)
                for recorder in self._recorders:
                    recorder.settle()
                async with asyncio.timeout(CONVERGED_WITHIN):
                    await asyncio.gather(*(each.reached(revision) for each in (whole, *self._recorders)))
                self._tell("  all clients are there")
                lists = [await self._listed(fed, recorder.history) for recorder in self._recorders]
                for task in tasks:
                    task.cancel()
        self._check(whole.history, lists)

    async def _tell_floor(self, whole: WatchRecorder) -> None:
        """Keeps the aggregator from forgetting what the reference has not seen."""
        file = self._subject.federation.floor
        while True:
            new = file.with_suffix(".new")
            new.write_text(str(max(whole.after, 0)))
            new.rename(file)
            await asyncio.sleep(_FLOOR_EVERY)

    async def _disturb(self, fed: InventoryClient, whole: WatchRecorder) -> None:
        """Loads, faults and probes, for the seconds of the run and until the last fault is over."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(load.run(RATE), name="load") for load in self._loads]
            running += [tasks.create_task(load.run(RATE), name="traffic") for load in self._traffic]
            running.append(tasks.create_task(self._enlarge(), name="large objects"))
            running.append(tasks.create_task(self._probe(whole), name="probes"))
            lasts = tasks.create_task(asyncio.sleep(self._seconds), name="load lasts")
            subject = self._subject
            for fault in draw_faults(
                self._report.seed, self._report.seconds, haste=subject.haste, clusters=subject.clusters
            ):
                self._report.faults.append(str(fault))
                await asyncio.sleep(fault.at)
                await self._inflict(fault, fed)
                await _answered(fed)
            await lasts
            for task in running:
                task.cancel()
        await asyncio.gather(*(load.finish() for load in self._traffic))
        self._tell("  load ends, everything runs")

    async def _inflict(self, fault: Fault, fed: InventoryClient) -> None:
        vigil = Vigil(fed, self._subject.clusters)

        async def lasting() -> None:
            if fault.until_stale:
                await vigil.wait_state(fault.cluster, ClusterState.STALE)
            await asyncio.sleep(fault.seconds)

        self._tell(f"  {fault}")
        await inflict(
            self._subject,
            fault,
            lasting=lasting,
            taken_over=partial(vigil.wait_state, fault.cluster, ClusterState.LIVE),
        )
        self._tell("  runs again")

    async def _enlarge(self) -> None:
        done = 0.0
        for part, load in zip(_LARGE_AT, self._loads, strict=False):
            await asyncio.sleep((part - done) * self._seconds)
            await load.enlarge()
            done = part

    async def _probe(self, whole: WatchRecorder) -> None:
        """Watches from cursors of the past while everything goes on, until cancelled."""
        source = self._source("probes")
        async with asyncio.TaskGroup() as probes:
            while True:
                await asyncio.sleep(_PROBE_EVERY / self._subject.haste)
                recorder = source.choice(self._recorders)
                places = _places(recorder.history)
                if not places:
                    continue
                edge = compacted(self._subject.federation.journal)
                kept = [event for event in places if event.revision >= edge]
                # Half of them where compaction comes past next, so that it does while they read.
                chosen = kept[0] if kept and source.random() < 0.5 else source.choice(places)
                up_to = _last(whole.history)
                probes.create_task(self._replay_one(recorder.history, chosen, up_to, self._probes), name="probe")

    async def _replay(self, revision: int) -> None:
        """Watches from cursors of the past, all at once, while history is still there."""
        source = self._source("replays")
        edge = compacted(self._subject.federation.journal)
        async with asyncio.TaskGroup() as replays:
            for number in range(self._replays_wanted):
                history = source.choice(self._recorders).history
                places = _places(history)
                # Most of them inside the history, of which little is left.
                kept = [event for event in places if event.revision >= edge]
                chosen = source.choice(kept if kept and number % 4 else places)
                replays.create_task(self._replay_one(history, chosen, revision, self._replays), name="replay")
        self._tell(f"  {self._replays_wanted} replays")

    async def _replay_one(self, history: History, chosen: Event, up_to: int, into: list[History]) -> None:
        manner = Manner(bookmarks=1, previous=up_to % 2 == 0)
        again = WatchRecorder(
            self._subject.federation.address,
            f"{history.client}, again from {chosen.revision}",
            history.asked,
            manner,
            self._source("replay"),
        )
        into.append(await again.replay(chosen.cursor, chosen.revision, up_to))

    async def _come_to_rest(self, fed: InventoryClient, types: list[str]) -> int:
        """Waits until all clusters are LIVE and all is as the apiservers list it; returns the revision."""
        await self._subject.federation.wait_state(ClusterState.LIVE, timeout=CONVERGED_WITHIN)
        self._report.objects = await assert_equal(
            self._subject.bed, fed, self._subject.clusters, timeout=CONVERGED_WITHIN
        )
        return (await fed.list(types, timeout=60)).revision

    async def _listed(self, fed: InventoryClient, history: History) -> list[str]:
        """What a client holds in the end that it would not be listed, or the other way round."""
        request: Any = history.asked.request
        while True:
            try:
                answer = await fed.list(
                    request["resources"],
                    clusters=request["clusters"],
                    namespace=request["namespace"],
                    name=request["name"],
                    labels=request["label_selector"],
                    fields=request["field_selector"],
                    timeout=60,
                )
                break
            except AggregatorUnreachable:
                await asyncio.sleep(1)
        held: dict[Any, int] = {}
        part = history.parts[-1]
        for obj in part.initial or ():
            held[obj.key] = obj.revision
        for event in part.changes():
            if event.object is not None and event.type is EventType.DELETED:
                held.pop(event.object.key, None)
            elif event.object is not None:
                held[event.object.key] = event.object.revision
        listed = {item.key: item.revision for item in answer.items}
        differing = sorted(key for key in held.keys() | listed.keys() if held.get(key) != listed.get(key))
        return [f"{history.client}: holds {held.get(key)}, lists {listed.get(key)} of {key}" for key in differing[:3]]

    def _check(self, whole: History, lists: Sequence[Sequence[str]]) -> None:
        report = self._report
        record = ledger_record(self._subject.federation.journal)
        reference = Reference(whole, record)
        histories = [recorder.history for recorder in self._recorders]
        begin = time.monotonic()
        report.broken += [line for each in lists for line in each]
        report.broken += broken_by([whole, *histories, *self._probes, *self._replays], reference)
        report.checking_seconds = round(time.monotonic() - begin, 1)
        statistics = [each.statistics() for each in self._loads] + [each.statistics() for each in self._traffic]
        report.traffic = dict(sum(map(Counter, statistics), Counter()))
        report.clients = {history.client: Seen.of(history) for history in (whole, *histories)}
        report.probes, report.replays = Seen.of(*self._probes), Seen.of(*self._replays)
        report.changes = len(reference.changes)
        report.commits = len(record.commits)
        report.joint_commits = sum(len(commit) > 1 for commit in record.commits)
        report.sessions, report.compactions = len(record.sessions), len(record.compactions)

    def _source(self, use: str) -> random.Random:
        return random.Random(f"{self._report.seed} watch {use}")


async def _answered(fed: InventoryClient) -> None:
    """Waits until the aggregator answers: one that is only just starting cannot end in order yet."""
    async with asyncio.timeout(CONVERGED_WITHIN):
        while True:
            try:
                await fed.clusters(timeout=30)
            except AggregatorUnreachable:
                await asyncio.sleep(0.1)
            else:
                return


def _places(history: History) -> list[Event]:
    """The events from which a watch can be continued."""
    return [event for part in history.parts for event in part.taken() if event.cursor]


def _last(history: History) -> int:
    return max((part.end for part in history.parts), default=PRESENT)


async def watch_run(subject: WatchBed, report: WatchReport, tell: Tell = lambda _: None) -> None:
    """Runs once over a bed that stands. What breaks off is in the report, as is what is broken."""
    try:
        await WatchRun(subject, report, tell=tell).run()
    except* (AssertionError, TimeoutError, FederatorError) as failures:
        report.broken += _leaves(failures)


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [line for each in error.exceptions for line in _leaves(each)]
    return [f"{type(error).__name__}: {error}"]


async def _run(report: WatchReport, file: Path, tell: Tell) -> None:
    subject = WatchBed()
    finished = False
    try:
        await subject.start()
        await watch_run(subject, report, tell)
        finished = True
    finally:
        await subject.close()
        if finished and not report.broken:
            subject.remove()
        else:
            report.folder = str(subject.folder)
            tell(f"data and logs: {subject.folder}\nrepeat it: {report.repeat}")
        write_report(report, file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 where no check is broken, 1 where one is."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.watch_run", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is done [default: 1]")
    parser.add_argument("--seconds", type=float, default=60, help="of load and faults [default: 60]")
    parser.add_argument("--report", type=Path, default=Path("build/watch-run.json"), help="file [default: %(default)s]")
    given = parser.parse_args(arguments)
    configure_logging("error")
    repeat = f"python -m tests.robustness.watch_run --seed {given.seed} --seconds {given.seconds:g}"
    report = WatchReport(given.seed, given.seconds, repeat=repeat)
    _tell(repeat)
    asyncio.run(_run(report, given.report, _tell))
    for line in report.broken:
        _tell(f"BROKEN {line}")
    if not report.broken:
        _tell(f"{len(CHECKS)} checks hold over {report.changes} changes in {len(report.clients)} histories")
    return 1 if report.broken else 0


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

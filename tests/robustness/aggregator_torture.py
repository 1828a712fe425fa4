"""Kills an aggregator under load, again and again, and looks whether it comes to what its agents' clusters have.

`python -m tests.robustness.aggregator_torture --kills 50 --agents 20 --seed 1` writes a report, and ends with exit code
1 at the first difference, leaving data and log. With `--empty-every 5` every fifth kill takes the ledger with it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import msgspec

from federator.client import EventType, InventoryClient, InventoryObject
from federator.errors import FederatorError, UnknownResourceType
from federator.observability.logs import configure_logging
from federator.testing import FakeApiServer
from federator.testing.federation import Federation
from tests.integration.federation.recorder import OBJECT_EVENTS, Recorder
from tests.integration.federation.truth import Key
from tests.robustness.linked_bed import TYPES, Member, State
from tests.robustness.push_relay import Pushed, PushRelay
from tests.robustness.report_file import write_report

RATE = 12.0
"""Changes a second in each cluster."""

NAMES = 40
"""Pods of each cluster that come, go and change."""

CONVERGED_WITHIN = 60.0
"""Seconds after which what has not come together never will."""

Tell = Callable[[str], None]


class Kill(msgspec.Struct, frozen=True):
    """When the aggregator is killed.

    Attributes:
        number: in the run.
        event: what the time counts from: its start, so that it may not have opened its ledger yet, or that it has
            answered.
        seconds: after the event.
        is_emptied: its ledger is removed.
    """

    number: int
    event: Literal["started", "answered"]
    seconds: float
    is_emptied: bool


def draw_kill(seed: int, number: int, *, empty_every: int = 0) -> Kill:
    """A kill depends on the seed and its own number only."""
    source = random.Random(f"{seed} kill {number}")
    is_early = source.random() < 0.25
    return Kill(
        number,
        "started" if is_early else "answered",
        source.uniform(0.2, 1.5) if is_early else source.uniform(0, 2) ** 2 / 2,
        is_emptied=empty_every > 0 and number % empty_every == empty_every - 1,
    )


class Report(msgspec.Struct):
    """What happened in a run.

    Attributes:
        seed: of the run.
        agents: clusters, each with an agent that lives through the whole run.
        kills: done, of which `while_starting` before the aggregator had answered, and `emptied` with its ledger.
        while_starting: see there.
        emptied: see there.
        seconds: of the run; `longest` from a start after a kill until all was equal.
        longest: see there.
        changes: made in the clusters.
        acknowledged: frames that were told to be durable, all of them found again.
        states: of objects in them, each looked for in what a client saw.
        sessions: of agents; `resumed` of them where they had been.
        resumed: see there.
        objects: compared in the end, byte for byte.
        events: that the client saw, over all resumes.
        lists: that apiservers were asked for after the first ones; each emptied ledger needs one for each type.
        most_listings: that were under way at once.
        difference: what was wrong; empty in a good run.
        folder: what is left, where there was a difference.
        repeat: the command that repeats it.
    """

    seed: int
    agents: int
    kills: int = 0
    while_starting: int = 0
    emptied: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    changes: int = 0
    acknowledged: int = 0
    states: int = 0
    sessions: int = 0
    resumed: int = 0
    objects: int = 0
    events: int = 0
    lists: int = 0
    most_listings: int = 0
    difference: str = ""
    folder: str = ""
    repeat: str = ""


class Difference(Exception):
    """Something is not as it has to be."""


class AggregatorTorture:
    """An aggregator in a process of its own, agents of fake apiservers in this one, and a relay that keeps account."""

    def __init__(self, report: Report, folder: Path, *, empty_every: int = 0, tell: Tell = lambda _: None) -> None:
        """Does nothing yet.

        Args:
            report: is filled in; its seed decides what is done.
            folder: for the ledger and the log; exists and is empty.
            empty_every: each so many kills one takes the ledger with it; 0 for never.
            tell: takes a line of progress.
        """
        self._report = report
        self._folder = folder
        self._empty_every = empty_every
        self._tell = tell
        self._members: list[Member] = []
        self._relay = PushRelay(f"unix:{folder / 'ingest.sock'}")
        self._federation = Federation(
            Path(), (), folder=folder, aggregator_arguments=(f"--ingest-listen=unix:{folder / 'ingest.sock'}",)
        )
        self._seen: set[Pushed] = set()
        self._events = 0
        self._first_lists = 0

    async def run(self, first: int, kills: int) -> None:
        """Runs kills, up to the first with a difference, which the report then has."""
        begin = time.monotonic()
        try:
            async with AsyncExitStack() as stack:
                stack.callback(self._federation.close)
                await self._start(stack)
                fed = await stack.enter_async_context(self._federation.client())
                await self._converged(fed)
                self._first_lists = sum(member.lists() for member in self._members)
                async with _PatientRecorder(fed, TYPES) as recorder:
                    async with asyncio.timeout(CONVERGED_WITHIN):
                        await recorder.synced.wait()
                    for number in range(first, first + kills):
                        await self._kill(
                            draw_kill(self._report.seed, number, empty_every=self._empty_every), fed, recorder
                        )
                await self._compare(fed)
        except (Difference, AssertionError, FederatorError, TimeoutError) as error:
            self._report.difference = f"{type(error).__name__}: {error}"
            self._report.folder = str(self._folder)
        self._count()
        self._report.seconds = round(time.monotonic() - begin, 1)

    async def _start(self, stack: AsyncExitStack) -> None:
        relay = f"unix:{self._folder / 'relay.sock'}"
        await stack.enter_async_context(self._relay.open(relay))
        for number in range(self._report.agents):
            apiserver = await stack.enter_async_context(FakeApiServer())
            for each in range(NAMES // 2):
                apiserver.put("pods", f"p{each}", spec={"text": "x" * 400})
            self._members.append(Member(f"c{number:02}", apiserver, self._folder))
        self._federation.start_aggregator()
        for member in self._members:
            member.start_agent(relay, backoff_max=1.0)
            stack.push_async_callback(member.stop_agent)

    async def _kill(self, kill: Kill, fed: InventoryClient, recorder: Recorder) -> None:
        """Kills it under load, starts it again, ends the load, and waits until all is equal."""
        async with asyncio.TaskGroup() as tasks:
            loads = [tasks.create_task(self._load(member, kill.number), name="load") for member in self._members]
            if kill.event == "answered":
                await asyncio.sleep(kill.seconds)
            self._federation.kill("aggregator")
            if kill.is_emptied:
                self._empty()
            self._federation.start_aggregator()
            if kill.event == "started":
                # It was killed while it served, and once more while it starts.
                await asyncio.sleep(kill.seconds)
                self._federation.kill("aggregator")
                self._federation.start_aggregator()
            begin = time.monotonic()
            await asyncio.sleep(0.3)
            for load in loads:
                load.cancel()
        self._report.kills += 1
        self._report.while_starting += kill.event == "started"
        self._report.emptied += kill.is_emptied
        revisions = await self._converged(fed)
        self._report.longest = max(self._report.longest, round(time.monotonic() - begin, 1))
        await self._check_watch(recorder, revisions)
        self._tell(f"{kill}: equal after {time.monotonic() - begin:.1f} s")

    async def _load(self, member: Member, number: int) -> None:
        """Changes pods of one cluster until cancelled: puts, deletes, and makes anew under the same name."""
        source = random.Random(f"{self._report.seed} {number} {member.name}")
        apiserver = member.apiserver
        there = {pod["metadata"]["name"] for pod in apiserver.list("pods")}
        while True:
            name = f"p{source.randrange(NAMES)}"
            kind = source.random()
            if name in there and kind < 0.3:
                apiserver.delete("pods", name)
                there.discard(name)
                if kind < 0.15:
                    apiserver.put("pods", name, spec={"text": "y" * 400})
                    there.add(name)
            else:
                there.add(name)
                apiserver.put("pods", name, labels={"step": str(source.random())}, spec={"text": "x" * 400})
            self._report.changes += 1
            await asyncio.sleep(source.uniform(0.5, 1.5) / RATE)

    def _empty(self) -> None:
        """What was in the ledger counts no more, for agents and for the client."""
        shutil.rmtree(self._folder / "state")
        self._relay.forget()
        self._seen.clear()

    async def _converged(self, fed: InventoryClient) -> dict[Key, int]:
        """Waits until the aggregator has what the apiservers have; returns the revisions.

        Raises:
            Difference: it does not come to that.
        """
        deadline = time.monotonic() + CONVERGED_WITHIN
        wanted = {key: version for member in self._members for key, version in _there(member)}
        found: dict[Key, tuple[str, str]] = {}
        cause = "it gave no answer"
        while time.monotonic() < deadline:
            if not self._federation.processes["aggregator"].running:
                raise Difference(
                    f"the aggregator ended by itself: {self._federation.processes['aggregator'].log_tail()}"
                )
            try:
                answer = await fed.list(TYPES, timeout=20)
            except FederatorError as error:
                cause = str(error)
            else:
                found = {_key(item): (item.uid, item.resource_version) for item in answer.items}
                if found == wanted and answer.complete and len(answer.clusters) == len(self._members):
                    return {_key(item): item.revision for item in answer.items}
                cause = _differences(wanted, found) or f"incomplete: {answer.clusters}"
            self._check_relay()
            await asyncio.sleep(0.1)
        raise Difference(f"not equal after {CONVERGED_WITHIN:g} s: {cause}")

    async def _check_watch(self, recorder: Recorder, revisions: dict[Key, int]) -> None:
        """The client holds the same, and has seen every state that was acknowledged."""
        self._check_relay()
        async with asyncio.timeout(CONVERGED_WITHIN):
            while {_key(obj): obj.revision for obj in recorder.state.values()} != revisions:
                recorder.check_running()
                await asyncio.sleep(0.05)
        for event in recorder.events:
            if event.object is not None and event.type in OBJECT_EVENTS and event.type is not EventType.DELETED:
                self._seen.add(_pushed(event.object))
        self._events += len(recorder.events)
        recorder.events.clear()
        lost = self._relay.acknowledged - self._seen
        if lost:
            raise Difference(f"{len(lost)} acknowledged states that no client saw, such as {sorted(lost)[:3]}")
        self._report.states += len(self._relay.acknowledged)
        self._relay.acknowledged.clear()

    def _check_relay(self) -> None:
        if self._relay.broken:
            raise Difference("; ".join(self._relay.broken[:3]))

    async def _compare(self, fed: InventoryClient) -> None:
        """All of it, byte for byte.

        Raises:
            Difference: it differs.
        """
        theirs: dict[Key, State] = {}
        for member in self._members:
            theirs |= await member.listed()
        answer = await fed.list(TYPES, timeout=60)
        mine = {_key(item): (item.uid, item.api_version, item.body) for item in answer.items}
        if mine != theirs:
            raise Difference(_differences(theirs, mine))
        self._report.objects = len(mine)

    def _count(self) -> None:
        counts = self._relay.counts
        self._report.acknowledged = counts["acknowledged"]
        self._report.sessions = counts["sessions"]
        self._report.resumed = counts["resumed"]
        self._report.events = self._events
        self._report.lists = sum(member.lists() for member in self._members) - self._first_lists
        self._report.most_listings = self._relay.most_listings


class _PatientRecorder(Recorder):
    """One that starts over, too, while no agent has told an emptied aggregator yet which types there are."""

    async def _run(self) -> None:
        while True:
            try:
                await super()._run()
            except UnknownResourceType:
                self._options["cursor"] = None
                await asyncio.sleep(0.05)
            else:
                return


def _there(member: Member) -> Sequence[tuple[Key, tuple[str, str]]]:
    found = []
    for resource in TYPES:
        plural, _, group = resource.partition(".")
        for obj in member.apiserver.list(resource):
            metadata = obj["metadata"]
            key = member.name, group, plural, metadata.get("namespace", ""), metadata["name"]
            found.append((key, (metadata["uid"], metadata["resourceVersion"])))
    return found


def _key(item: InventoryObject) -> Key:
    return item.cluster_id, item.group, item.resource, item.namespace, item.name


def _pushed(obj: InventoryObject) -> Pushed:
    return Pushed(*_key(obj), obj.uid, obj.resource_version)


def _differences(wanted: Mapping[Key, object], found: Mapping[Key, object]) -> str:
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    return f"missing {missing[:3]}, extra {extra[:3]}, different {other[:3]}" if missing or extra or other else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 where all was as it has to be, 1 where not."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.aggregator_torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="number of kills [default: 50]")
    parser.add_argument("--agents", type=int, default=20, help="number of clusters [default: 20]")
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is done [default: 1]")
    parser.add_argument("--first-kill", type=int, default=0, help="number of the first one [default: 0]")
    parser.add_argument(
        "--empty-every", type=int, default=0, help="so many kills take the ledger along [default: none]"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("build/aggregator-torture.json"), help="file [default: %(default)s]"
    )
    given = parser.parse_args(arguments)
    configure_logging("error")
    repeat = (
        f"python -m tests.robustness.aggregator_torture --seed {given.seed} --kills {given.kills} "
        f"--agents {given.agents} --first-kill {given.first_kill} --empty-every {given.empty_every}"
    )
    _tell(repeat)
    folder = Path(tempfile.mkdtemp(prefix="aggregator-torture-"))
    report = Report(given.seed, given.agents, repeat=repeat)
    torture = AggregatorTorture(report, folder, empty_every=given.empty_every, tell=_tell)
    asyncio.run(torture.run(given.first_kill, given.kills))
    if not report.difference:
        shutil.rmtree(folder)
    write_report(report, given.report)
    _tell(_summary(report))
    return 1 if report.difference else 0


def _summary(report: Report) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in msgspec.to_builtins(report).items() if value
    )


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

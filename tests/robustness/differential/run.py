"""A differential run: an apiserver that is written to, pairs of followers, faults; and what has to be equal then."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import msgspec

from federator._aio.task_group import task_group
from federator.errors import FederatorError
from federator.kube import MemberClient
from federator.testing.control_plane import ControlPlane
from federator.testing.fault_proxy import Conditions, FaultProxy
from federator.testing.kubeconfig import write_kubeconfig
from tests.robustness.differential.checks import broken_order, differences, repeated, skipped
from tests.robustness.differential.clientgo_program import provide
from tests.robustness.differential.followers import ClientGoFollower, FederatorFollower, Follower
from tests.robustness.differential.load import RESOURCES, Load
from tests.robustness.differential.script import Fault, Kind, Script
from tests.robustness.differential.told import outcome

FEDERATOR = "federator"
CLIENT_GO = "client-go"

RATE = 4.0
"""Operations per second of each worker, at most."""

EQUAL_WITHIN = 150.0
"""Seconds after which what has not come together never will: two of the longest delays of a reflector, and more."""

_POLL = 0.25

_NAMED = 20
"""Lines of what is broken that are printed; the report's file has all."""

_ROUGH = Conditions(delay=0.05, jitter=0.04, loss=0.05, slice_bytes=97)
_RESET_BY_CHANCE = Conditions(reset=0.05)

Tell = Callable[[str], None]


class FollowerReport(msgspec.Struct):
    """What one follower was told, to be read beside the other's.

    Attributes:
        name: side, number of the pair, and how it asks for what exists.
        events: calls of its handlers, by kind; `tombstone` of the deletions were seen by absence only, `repeated`
            of the updates told of no change.
        skipped: real states that it was not told.
        requests: by kind: list, watch-list, watch.
        seconds_until_equal: from the last write and the end of all faults until it had everything; None where it
            never had.
    """

    name: str
    events: dict[str, int] = {}
    skipped: int = 0
    requests: dict[str, int] = {}
    seconds_until_equal: float | None = None

    def __str__(self) -> str:
        events, requests = _counts(self.events), _counts(self.requests)
        equal = "never equal" if self.seconds_until_equal is None else f"equal after {self.seconds_until_equal:g} s"
        return f"{self.name}: {events}; {self.skipped} skipped; {requests}; {equal}"


class Report(msgspec.Struct):
    """What happened in a run.

    Attributes:
        seed: of its script.
        seconds: of its script.
        faults: what went wrong, in words.
        operations: of the load, by kind.
        states: in the history of all keys, deletions included.
        objects: that exist in the end, those that nobody wrote included.
        followers: a report each.
        broken: what is wrong; empty in a good run.
    """

    seed: int
    seconds: float
    faults: list[str]
    operations: dict[str, int] = {}
    states: int = 0
    objects: int = 0
    followers: list[FollowerReport] = []
    broken: list[str] = []

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.states} states and deletions, {self.objects} objects; {_counts(self.operations)}",
            *map(str, self.followers),
            *(f"BROKEN {line}" for line in self.broken[:_NAMED]),
        ]
        return "\n  ".join(lines)


async def differential_run(script: Script, folder: Path, *, tell: Tell = lambda _: None) -> Report:
    """Runs a script on a control plane of its own. What breaks off is in the report, as is what is not as it should be.

    Args:
        script: what goes wrong when.
        folder: takes kubeconfigs and logs.
        tell: takes lines of progress.

    Raises:
        TestbedError: the control plane or client-go's program cannot be built or started.
    """
    report = Report(script.seed, script.seconds, [str(fault) for fault in script.faults])
    program = await provide()
    async with ControlPlane("differential") as plane:
        run = DifferentialRun(plane, program, script, report, folder, tell=tell)
        try:
            await run.run()
        except* (AssertionError, TimeoutError, FederatorError) as failures:
            report.broken += _leaves(failures)
    return report


class DifferentialRun:
    """One run over a control plane that stands."""

    def __init__(
        self, plane: ControlPlane, program: Path, script: Script, report: Report, folder: Path, *, tell: Tell
    ) -> None:
        """Does nothing yet; arguments as of `differential_run`, and the program of client-go's side."""
        self._plane = plane
        self._program = program
        self._script = script
        self._report = report
        self._folder = folder
        self._tell = tell
        self._load = Load(plane, script.randomness("load"))
        self._links: Mapping[str, FaultProxy] = {}
        self._followers: list[Follower] = []
        self._equal_after: dict[str, float] = {}

    async def run(self) -> None:
        """Fills in the report.

        Raises:
            AssertionError, FederatorError, TimeoutError: it could not be brought to its end.
        """
        await self._load.prepare()
        async with AsyncExitStack() as stack:
            target = f"127.0.0.1:{self._plane.port}"
            self._links = {
                side: await stack.enter_async_context(FaultProxy(target, seed=self._script.seed))
                for side in (FEDERATOR, CLIENT_GO)
            }
            member = MemberClient.from_kubeconfig(path=self._kubeconfig(FEDERATOR))
            client = await stack.enter_async_context(member)
            kubeconfig = self._kubeconfig(CLIENT_GO)
            ending = asyncio.Event()
            async with task_group() as tasks:
                load = tasks.create_task(self._load.run(RATE, ending), name="load")
                faults = tasks.create_task(self._inflict_all(), name="faults")
                begin = time.monotonic()
                for number, at in enumerate(self._script.pairs):
                    await asyncio.sleep(begin + at - time.monotonic())
                    for follower in self._pair(number, client, kubeconfig):
                        self._followers.append(await stack.enter_async_context(follower))
                await asyncio.sleep(begin + self._script.seconds - time.monotonic())
                await faults
                ending.set()
                await load
            await self._load.finish()
            self._tell("  load and faults are over")
            try:
                await self._converge()
            finally:
                self._check()

    def _kubeconfig(self, side: str) -> Path:
        access = self._plane.access._replace(server=f"https://{self._links[side].address}")
        return write_kubeconfig(self._folder / f"{side}.kubeconfig", [access])

    def _pair(
        self, number: int, client: MemberClient, kubeconfig: Path
    ) -> tuple[AbstractAsyncContextManager[Follower], AbstractAsyncContextManager[Follower]]:
        """Two that start at the same time; of two pairs one begins by watch-lists and one by lists."""
        watch_list = number % 2 == 0
        name = f"{number}, {'watch-list' if watch_list else 'list'}"
        ours = FederatorFollower(f"{FEDERATOR} {name}", client, RESOURCES, watch_list=watch_list)
        theirs = ClientGoFollower.running(
            f"{CLIENT_GO} {name}",
            self._program,
            kubeconfig,
            RESOURCES,
            watch_list=watch_list,
            log=self._folder / f"{CLIENT_GO}-{self._script.seed}-{number}.log",
        )
        return ours.running(), theirs

    async def _inflict_all(self) -> None:
        for fault in self._script.faults:
            await asyncio.sleep(fault.after)
            self._tell(f"  {fault}")
            await self._inflict(fault)

    async def _inflict(self, fault: Fault) -> None:
        links = self._links.values()
        match fault.kind:
            case Kind.RESET:
                for link in links:
                    link.reset_connections()
            case Kind.CUT:
                for link in links:
                    link.cut_after(fault.size, "down")
            case Kind.REFUSE:
                for link in links:
                    link.refuse_connections()
                    link.reset_connections()
            case Kind.BLACK_HOLE | Kind.BEHIND:
                for link in links:
                    link.black_hole()
            case Kind.DEAF:
                for link in links:
                    link.black_hole("down")
            case Kind.ROUGH | Kind.RESET_BY_CHANCE:
                for link in links:
                    link.apply(_ROUGH if fault.kind is Kind.ROUGH else _RESET_BY_CHANCE)
        await self._inflict_on_server(fault)
        if fault.kind is not Kind.CUT:  # which is over by itself, when so much has come
            for link in links:
                link.heal()

    async def _inflict_on_server(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.PAUSE:
                self._plane.pause()
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    self._plane.resume()
            case Kind.RESTART:
                await self._plane.stop()
                await asyncio.sleep(fault.seconds)
                await self._plane.start()
            case Kind.KILL_APISERVER | Kind.KILL_ALL:
                self._plane.kill(*(("kube-apiserver", "etcd") if fault.kind is Kind.KILL_ALL else ()))
                await asyncio.sleep(fault.seconds)
                await self._plane.start()
            case Kind.BEHIND:
                await asyncio.sleep(fault.seconds / 2)  # changes that nobody follows, before its history ends
                self._plane.kill()
                await self._plane.start()
                await asyncio.sleep(fault.seconds / 2)
            case _:
                await asyncio.sleep(fault.seconds)

    async def _converge(self) -> None:
        """Waits until all stores and all that was told come to what is listed.

        Raises:
            AssertionError: they do not, with the first differences.
        """
        for link in self._links.values():
            link.heal()
        begin = time.monotonic()
        listed = await self._load.listed()
        self._report.objects = len(listed)
        written = {key: state for key, state in listed.items() if key in self._load.history.keys}
        assert not (wrong := differences("the history", self._load.history.held(), "a list", written)), wrong
        while True:
            wrong = []
            for follower in self._followers:
                held = await follower.held()
                lines = differences(follower.name, held, "a list", listed)
                lines += differences(f"what {follower.name} was told", outcome(follower.told), "a list", listed)
                if not lines:
                    self._equal_after.setdefault(follower.name, round(time.monotonic() - begin, 1))
                wrong += lines
            if not wrong:
                return
            assert time.monotonic() - begin < EQUAL_WITHIN, "\n".join(wrong)
            await asyncio.sleep(_POLL)

    def _check(self) -> None:
        """Looks at all that was told."""
        history = self._load.history
        self._report.operations = dict(self._load.statistics())
        self._report.states = sum(len(history.of(key)) for key in history.keys)
        for follower in self._followers:
            events: Counter[str] = Counter(each.type for each in follower.told)
            events.update(
                tombstone=sum(each.is_tombstone for each in follower.told),
                repeated=repeated(follower.told),
            )
            self._report.followers.append(
                FollowerReport(
                    follower.name,
                    events=dict(events),
                    skipped=skipped(follower.told, history),
                    requests=dict(follower.requests),
                    seconds_until_equal=self._equal_after.get(follower.name),
                )
            )
            # Its handlers that want no resyncs are told of them all the same, as long as nobody wants any.
            repeats = isinstance(follower, ClientGoFollower)
            broken = broken_order(follower.told, history, repeats=repeats)
            self._report.broken += [f"{follower.name}: {line}" for line in broken]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [line for each in error.exceptions for line in _leaves(each)]
    return [f"{type(error).__name__}: {error}"]

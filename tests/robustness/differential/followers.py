"""Two that follow an apiserver and write down what they are told: federator's informers, and client-go's."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from federator._aio.task_group import task_group
from federator.api.delta import Tombstone
from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import ListWatch, SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from tests.robustness.differential.history import Held, Key, State
from tests.robustness.differential.told import Told

_ANSWER_WITHIN = 60.0
"""Seconds for a snapshot, or an end, of the other program, on a machine with other things to do."""


class Follower(Protocol):
    """One that follows."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def told(self) -> Sequence[Told]:
        """What its handlers were told so far; per type in that order."""
        ...

    @property
    def requests(self) -> Mapping[str, int]:
        """How many it had sent when it was last asked what it holds, by kind: list, watch-list, watch."""
        ...

    async def held(self) -> Held:
        """What its stores hold.

        Raises:
            AssertionError: it runs no more, or does not answer.
        """
        ...


class FederatorFollower:
    """Federator's informers, in this process."""

    def __init__(self, name: str, client: MemberClient, resources: Sequence[ResourceType], *, watch_list: bool) -> None:
        """Prepares an informer for each type.

        Args:
            name: what it is called.
            client: open.
            resources: what to follow.
            watch_list: asks for what exists by watch-lists.
        """
        self.name = name
        self.told: list[Told] = []
        self.requests: Counter[str] = Counter()
        self._informers: dict[str, SharedInformer] = {}
        for each in resources:
            counting = _Counting(ResourceListWatch(client, each), self.requests)
            informer = SharedInformer(counting, name=f"{name} {each.resource}", use_watch_list=watch_list)
            informer.add_event_handler(_Recorder(each.resource, self.told))
            self._informers[each.resource] = informer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FederatorFollower]:
        """Follows while the context is open."""
        async with task_group() as tasks:
            running = [tasks.create_task(each.run(), name=each.name) for each in self._informers.values()]
            try:
                yield self
            finally:
                for task in running:
                    task.cancel()

    async def held(self) -> Held:
        """What its stores hold."""
        return {
            Key(resource, obj.key): _state(obj)
            for resource, informer in self._informers.items()
            for obj in informer.indexer.list()
        }


class _Recorder:
    """A handler that writes down what it is told."""

    def __init__(self, resource: str, told: list[Told]) -> None:
        self._resource = resource
        self._told = told

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        self._told.append(Told("add", self._key(obj), _state(obj), is_initial=is_initial))

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        self._told.append(Told("update", self._key(new), _state(new), old=_state(old)))

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        last = obj.object if isinstance(obj, Tombstone) else obj
        assert last is not None
        self._told.append(Told("delete", self._key(obj), _state(last), is_tombstone=isinstance(obj, Tombstone)))

    def _key(self, obj: KubeObject | Tombstone) -> Key:
        return Key(self._resource, obj.key)


class _Counting:
    """A ListWatch that counts requests."""

    def __init__(self, list_watch: ListWatch, requests: Counter[str]) -> None:
        self._list_watch = list_watch
        self._requests = requests

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self._requests["list"] += 1
        return await self._list_watch.list(options, known=known)

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self._requests["watch-list" if options.send_initial_events else "watch"] += 1
        async with self._list_watch.watch(options) as events:
            yield events


def _state(obj: KubeObject) -> State:
    return State(obj.uid, obj.resource_version)


class _Line(msgspec.Struct):
    """What `tests/peers/clientgo` writes: a call of a handler, or a snapshot."""

    type: Literal["add", "update", "delete", "snapshot"]
    resource: str = ""
    key: str = ""
    state: _StateText | None = None
    old: _StateText | None = None
    initial: bool = False
    tombstone: bool = False
    held: dict[str, dict[str, _StateText]] = {}
    requests: dict[str, int] = {}


class _StateText(msgspec.Struct):
    uid: str
    version: str

    @property
    def state(self) -> State:
        return State(self.uid, self.version)


class ClientGoFollower:
    """Client-go's informers, in a process of their own, which ends with this one: its input ends then."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        """Takes a process that runs; see `running`."""
        self.name = name
        self.told: list[Told] = []
        self.requests: Mapping[str, int] = {}
        self._process = process
        self._log = log
        self._snapshots: asyncio.Queue[Held] = asyncio.Queue()

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        name: str,
        program: Path,
        kubeconfig: Path,
        resources: Sequence[ResourceType],
        *,
        watch_list: bool,
        log: Path,
    ) -> AsyncIterator[ClientGoFollower]:
        """Follows while the context is open.

        Args:
            name: what it is called.
            program: built.
            kubeconfig: whose current context names the apiserver.
            resources: what to follow.
            watch_list: asks for what exists by watch-lists.
            log: takes what client-go logs.

        Raises:
            AssertionError: the program did not end in order.
        """
        types = ",".join(f"{each.api_version}/{each.resource}" for each in resources)
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                program,
                f"-kubeconfig={kubeconfig}",
                f"-resources={types}",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=16 * 1024 * 1024,  # a snapshot is one line
                env={**os.environ, "KUBE_FEATURE_WatchListClient": str(watch_list).lower()},
            )
        follower = cls(name, process, log)
        try:
            async with task_group() as tasks:
                tasks.create_task(follower._read(), name=f"{name} output")
                yield follower
                assert process.stdin is not None
                process.stdin.close()
                async with asyncio.timeout(_ANSWER_WITHIN):
                    assert await process.wait() == 0, follower._failure()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def held(self) -> Held:
        """What its stores hold."""
        assert self._process.stdin is not None
        assert self._process.returncode is None, self._failure()
        self._process.stdin.write(b"snapshot\n")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN):
                return await self._snapshots.get()
        except TimeoutError:
            raise AssertionError(f"{self.name} does not answer: {self._failure()}") from None

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            line = msgspec.json.decode(text, type=_Line)
            if line.type == "snapshot":
                self.requests = line.requests
                held = {
                    Key(resource, key): each.state for resource, of in line.held.items() for key, each in of.items()
                }
                self._snapshots.put_nowait(held)
            else:
                assert line.state is not None
                self.told.append(
                    Told(
                        line.type,
                        Key(line.resource, line.key),
                        line.state.state,
                        old=line.old.state if line.old else None,
                        is_initial=line.initial,
                        is_tombstone=line.tombstone,
                    )
                )

    def _failure(self) -> str:
        tail = self._log.read_text(errors="replace")[-2000:]
        return f"{self.name}, exit code {self._process.returncode}; the end of its log:\n{tail}"

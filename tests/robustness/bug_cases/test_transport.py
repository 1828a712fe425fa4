"""Transport and liveness: connections that break, or do not break and bring nothing."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient
from structlog.typing import EventDict

import federator
from federator.agent.informers import Informers
from federator.agent.member import KubeMember
from federator.agent.outbox import Outbox
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID, TypeState
from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.resource import GroupResource, ResourceType
from federator.cache import SharedInformerFactory
from federator.cache.backoff import BASE, CAP, FACTOR, JITTER
from federator.cache.clock import loop_time
from federator.cache.delta_fifo import DeltaFIFO
from federator.cache.indexer import Indexer
from federator.cache.reflector import Reflector
from federator.cache.reflector_status import ReflectorState
from federator.cache.stream_guard import GRACE, MIN_SILENCE, SilentWatch
from federator.errors import KubeStatusError, MemberUnreachable
from federator.kube import KubeconfigCredentials, MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.robustness.bug_cases.follower import (
    CONFIG_MAPS,
    PODS,
    Follower,
    assert_polite,
    both_ways,
    is_watch_list,
    truth,
    until,
    version_of,
)
from tests.scale import scale, scaled

pytestmark = pytest.mark.looptime

TWO_BOOKMARKS = 130.0
"""Seconds after which a server has sent two bookmarks, so that silence means something."""

# ------------------------------------------------------------------------------------------------------- 1, 2: silence


@both_ways
async def test_bug01_a_lost_network_is_noticed_and_the_watch_goes_on_where_it_was(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a")
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        await follower.synced()
        await asyncio.sleep(TWO_BOOKMARKS)
        server.put("configmaps", "b")
        await until(lambda: "b" in follower.held)
        last_heard, begin, last_version = loop_time(), server.requests.total, server.resource_version
        server.go_dark()
        server.put("configmaps", "c")
        server.delete("configmaps", "a")

        await until(lambda: follower.status.error)
        assert isinstance(follower.status.error, SilentWatch)
        assert loop_time() - last_heard <= MIN_SILENCE + 2
        await asyncio.sleep(120)
        assert (follower.status.attempts > 1, follower.status.failing_since is not None) == (True, True)
        assert "a" in follower.held, "an outage deletes nothing"

        server.come_back()
        await until(lambda: follower.held == truth(server))
        await asyncio.sleep(5)
        healthy = follower.status
        assert (healthy.state, healthy.error) == (ReflectorState.WATCHING, None)
        assert follower.told == [("add", "a"), ("add", "b"), ("add", "c"), ("delete", "a")]
        since = server.requests.of(since=begin)
        assert {each.verb for each in since} == {"watch"}
        assert {version_of(each) for each in since} == {last_version}
        assert not any(map(is_watch_list, since))


async def test_bug01_without_bookmarks_a_dead_watch_ends_with_its_length(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.bookmark_interval = None
    async with Follower(client) as follower:
        await follower.synced()
        watch = server.watches("configmaps")[0]
        opened, begin, version = loop_time(), server.requests.total, server.resource_version
        watch.black_hole()
        server.put("configmaps", "a")
        await until(lambda: follower.held == truth(server))
        assert loop_time() - opened <= float(watch.request.query["timeoutSeconds"]) + GRACE + 2
        assert_resumed(server, begin, version)


def assert_resumed(server: FakeApiServer, begin: int, version: str) -> None:
    """One watch, from the version given; before it at most a look, at one object, whether the cluster was restored."""
    watches = server.requests.of("watch", since=begin)
    assert [(version_of(each), is_watch_list(each)) for each in watches] == [(version, False)]
    assert [each.query["limit"] for each in server.requests.of("list", since=begin)] in ([], ["1"])


@asynccontextmanager
async def agent_informers(client: MemberClient, *types: ResourceType) -> AsyncIterator[Informers]:
    informers = Informers(
        KubeMember(client),
        Outbox(),
        AgentSettings(cluster_id=ClusterID("c"), aggregator="unix:/run/x.sock"),
        secrets_key=None,
        types_may_have_changed=lambda: None,
    )
    informers.set_types(types)
    running = asyncio.create_task(informers.run())
    try:
        yield informers
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_bug02_one_silent_watch_is_seen_from_outside_and_dialled_again(
    server: FakeApiServer, client: MemberClient
) -> None:
    def unheard(resource: str) -> float:
        (last,) = (
            health.reflector.last_received for health in informers.health() if health.resource_type.resource == resource
        )
        return loop_time() - (last or 0.0)

    def states() -> set[TypeState]:
        return {health.state for health in informers.health()}

    async with agent_informers(client, CONFIG_MAPS, PODS) as informers:
        await until(lambda: states() == {TypeState.LIVE})
        await asyncio.sleep(TWO_BOOKMARKS)
        begin = server.requests.total
        # The connection stands, and so would its keepalive: nothing below the watch ever fails.
        server.watches("configmaps")[0].black_hole()
        last_heard = unheard("configmaps")
        await asyncio.sleep(MIN_SILENCE - last_heard - 1)
        assert (unheard("configmaps") > MIN_SILENCE - 2, unheard("pods") < 62) == (True, True)
        assert dict(informers.proofs())[GroupResource("", "configmaps")] == unheard("configmaps")

        server.put("configmaps", "a")
        await asyncio.sleep(5)
        assert unheard("configmaps") <= 5
        assert [str(each.verb) for each in server.requests.of(since=begin)] == ["watch"]
        assert states() == {TypeState.LIVE}


# ------------------------------------------------------------------------------------------------- 3: dials that fail

Trouble = AbstractAsyncContextManager[None]


@asynccontextmanager
async def resets(server: FakeApiServer) -> AsyncIterator[None]:
    injection = server.fail("*", "*", faults.Reset(), times=None)
    yield
    injection.cancel()


@asynccontextmanager
async def hang_ups(server: FakeApiServer) -> AsyncIterator[None]:
    injection = server.fail("*", "*", faults.Fin(), times=None)
    yield
    injection.cancel()


@asynccontextmanager
async def html(server: FakeApiServer) -> AsyncIterator[None]:
    injection = server.fail("*", "*", faults.HtmlError(502), times=None)
    yield
    injection.cancel()


@asynccontextmanager
async def refusals(server: FakeApiServer) -> AsyncIterator[None]:
    server.refuse_connections()
    yield
    await server.accept_connections()


@asynccontextmanager
async def tls_eof(server: FakeApiServer) -> AsyncIterator[None]:
    """Something takes connections at the same port and ends each in the middle of the handshake."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.close()

    server.refuse_connections()
    async with await asyncio.start_server(leave, "127.0.0.1", server.port, reuse_port=True):
        yield
    await server.accept_connections()


@pytest.mark.parametrize("trouble", [resets, hang_ups, tls_eof, refusals, html])
@both_ways
async def test_bug03_dials_that_fail_are_repeated_with_growing_delays(
    tmp_path: Path, trouble: Callable[[FakeApiServer], Trouble], *, use_watch_list: bool
) -> None:
    async with FakeApiServer(tls=trouble is tls_eof, too_large_wait=0) as server:
        server.put("configmaps", "a")
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        async with (
            MemberClient.from_kubeconfig(path=kubeconfig) as client,
            Follower(client, use_watch_list=use_watch_list) as follower,
        ):
            await follower.synced()
            watch = await server.wait_for_watch("configmaps")
            async with trouble(server):
                watch.reset()
                server.put("configmaps", "b")
                server.delete("configmaps", "a")
                await until(lambda: len(follower.delays) >= 9)
                assert follower.status.attempts >= 9
                assert isinstance(follower.status.error, KubeStatusError if trouble is html else MemberUnreachable)
            await until(lambda: follower.held == truth(server))
            assert_growing(follower.delays)
            assert follower.is_running
            assert not [each for each in server.requests.of("list") if not version_of(each)]
            assert_polite(server)


async def test_bug03_a_name_that_does_not_resolve_is_asked_again(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    async def resolve(host: str, port: int, **_: object) -> list[object]:
        nonlocal attempts
        attempts += 1
        assert host == "member.example"
        if attempts <= 9:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    server.put("configmaps", "a")
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", "member.example"))
    async with MemberClient.from_kubeconfig(path=kubeconfig) as client, Follower(client) as follower:
        await until(lambda: len(follower.delays) >= 9)
        assert isinstance(follower.status.error, MemberUnreachable)
        assert follower.status.error.cause == "the name does not resolve"
        await follower.synced()
        assert follower.held == truth(server)
        assert_growing(follower.delays)


def assert_growing(delays: list[float]) -> None:
    """The schedule was drawn from for each attempt, and nobody asked without a pause."""
    assert len(delays) >= 9
    for number, delay in enumerate(delays):
        step = min(BASE * FACTOR**number, CAP)
        assert step <= delay < step * (1 + JITTER)


# ---------------------------------------------------------------------------------------------- 4: the client's limits


async def test_bug04_no_library_default_ends_a_long_idle_watch(server: FakeApiServer, client: MemberClient) -> None:
    fifo = DeltaFIFO(Indexer())
    length = 3600
    reflector = Reflector(
        ResourceListWatch(client, CONFIG_MAPS), fifo, name="idle", min_watch_timeout=length, uniform=lambda: 0.0
    )
    running = asyncio.create_task(reflector.run())
    try:
        await asyncio.sleep(length - 1)
        (watch,) = server.requests
        assert (watch.live, watch.query["timeoutSeconds"]) == (True, str(length))
        assert server.statistics()["accepted_connections"] == 1
        await asyncio.sleep(2)
        assert watch.outcome == "complete"
        assert reflector.statistics()["failures"] == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --------------------------------------------------------------------------------- 6: nothing comes out of the decoder


class StuckListWatch:
    """A real one whose first stream is stuck for ever behind its first events."""

    def __init__(self, list_watch: ResourceListWatch, events: int) -> None:
        self._list_watch = list_watch
        self._events = events

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        return await self._list_watch.list(options, known=known)

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        async with self._list_watch.watch(options) as events, aclosing(self._stuck(events)) as stuck:
            yield stuck

    async def _stuck(self, events: AsyncIterator[WatchEvent]) -> AsyncGenerator[WatchEvent]:
        async for event in events:
            if self._events == 0:
                self._events = -1
                await asyncio.Event().wait()
            self._events -= 1
            yield event


@pytest.mark.parametrize("bookmarks", [0, 2])
async def test_bug06_a_stream_that_is_stuck_inside_is_ended_from_outside(
    server: FakeApiServer, client: MemberClient, bookmarks: int
) -> None:
    initial_events_end = 1
    stuck = StuckListWatch(ResourceListWatch(client, CONFIG_MAPS), initial_events_end + bookmarks)
    async with Follower(stuck) as follower:
        await follower.synced()
        (first,) = server.requests
        version = server.resource_version
        if bookmarks:
            await asyncio.sleep(TWO_BOOKMARKS)
        put_at = loop_time()
        server.put("configmaps", "a")
        await until(lambda: follower.held == truth(server))
        bound = MIN_SILENCE if bookmarks else float(first.query["timeoutSeconds"]) + GRACE
        assert loop_time() - put_at <= bound + 2
        assert_resumed(server, 1, version)
        assert follower.told == [("add", "a")]


# -------------------------------------------------------------------------------------------------- 7: ends of streams

PART_OF_A_FRAME = 40


@pytest.mark.parametrize(
    "end",
    [
        faults.End(after_events=None, after_bytes=PART_OF_A_FRAME),
        faults.Fin(after_bytes=PART_OF_A_FRAME),
        faults.Reset(after_bytes=PART_OF_A_FRAME),
        faults.Drain(after_events=None, after_bytes=PART_OF_A_FRAME),
    ],
    ids=["last chunk", "FIN in a chunk", "RST", "drained"],
)
async def test_bug07_all_ends_of_a_stream_are_alike(
    server: FakeApiServer, client: MemberClient, logs: list[EventDict], end: faults.Cut
) -> None:
    async with Follower(client) as follower:
        await follower.synced()
        server.fail("watch", "configmaps", end)
        server.end_watches()
        cut = await server.wait_for_request("watch", "configmaps", count=2)
        await asyncio.sleep(5)
        version = server.resource_version
        server.put("configmaps", "a")
        await until(lambda: follower.held == truth(server))
        assert (cut.bytes_sent, cut.outcome) == (PART_OF_A_FRAME, end.how.value)
        assert [(each.verb, version_of(each), is_watch_list(each)) for each in server.requests.of(since=1)] == [
            ("watch", version, False)
        ] * 2
        assert follower.told == [("add", "a")]
        assert (follower.status.error, follower.delays, follower.failures) == (None, [], [])
        assert not [entry for entry in logs if logging.getLevelNamesMapping()[entry["log_level"].upper()] > 20]


# ------------------------------------------------------------------------------------ 9: a control plane that restarts

REFLECTORS = scale(50, quick=25)
RETRY_AFTER = 5


@scaled
@both_ways
async def test_bug09_a_rolling_restart_makes_no_storm(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a")
    # The selectors tell whose request is whose.
    selectors = [f"none!={number}" for number in range(REFLECTORS)]
    async with AsyncExitStack() as stack:
        followers = [
            await stack.enter_async_context(
                Follower(
                    ResourceListWatch(client, CONFIG_MAPS, label_selector=selector),
                    name=selector,
                    use_watch_list=use_watch_list,
                )
            )
            for selector in selectors
        ]
        for follower in followers:
            await follower.synced()
        await server.wait_for_watch("configmaps", count=REFLECTORS)
        await asyncio.sleep(5)
        begin, version = server.requests.total, server.resource_version
        for selector in selectors:
            server.fail(
                "watch",
                "configmaps",
                faults.HttpError(429, retry_after=RETRY_AFTER),
                times=3,
                where=lambda request, selector=selector: request.query["labelSelector"] == selector,  # type: ignore[misc]
            )
        server.reset_connections()
        server.put("configmaps", "b")
        server.compact()
        await until(lambda: all(follower.held == truth(server) for follower in followers))
        await asyncio.sleep(60)

        since = server.requests.of("*", "configmaps", since=begin)
        assert not [each for each in since if not version_of(each)], "none asks for a consistent read"
        by_selector = [[each for each in since if each.query["labelSelector"] == selector] for selector in selectors]
        for requests in by_selector:
            dials, sync = requests[:4], requests[4]
            assert [(each.verb, each.status, version_of(each)) for each in dials] == [
                *[("watch", 429, version)] * 3,
                ("watch", 200, version),
            ]
            gaps = [after.started - before.started for before, after in itertools.pairwise(dials)]
            assert all(RETRY_AFTER <= gap <= RETRY_AFTER + 2 * BASE * FACTOR**2 for gap in gaps)
            assert (sync.verb, version_of(sync)) == ("watch" if use_watch_list else "list", version)
            assert [is_watch_list(each) for each in requests[4:]] == ([True] if use_watch_list else [False, False]), (
                "one sync, and then a watch"
            )
        for number in range(1, 4):
            starts = sorted(requests[number].started for requests in by_selector)
            jitter = BASE * FACTOR ** (number - 1) * JITTER
            assert starts[-1] - starts[0] > jitter / 2, "spread over the window of the step"
            assert max(after - before for before, after in itertools.pairwise(starts)) < jitter / 2, "without clusters"


# ------------------------------------------------------------------------------------ 10: everything is refused at once

TYPES = 90


def numbered(number: int) -> ResourceType:
    return ResourceType(
        group="example.com", version="v1", resource=f"things{number}", kind=f"Thing{number}", namespaced=True
    )


class GatedCredentials:
    """A kubeconfig's credentials that come when the gate is open; counts how often they were asked for."""

    def __init__(self, credentials: KubeconfigCredentials) -> None:
        self.name = credentials.name
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self._credentials = credentials

    async def connect(self) -> ApiClient:
        self.asked += 1
        await self.gate.wait()
        return await self._credentials.connect()


async def test_bug10_a_cluster_that_refuses_everybody_freezes_nothing(server: FakeApiServer, tmp_path: Path) -> None:
    types = [server.add_resource(numbered(number)) for number in range(TYPES)]
    for resource_type in types:
        server.put(resource_type.resource, "a")
    token = tmp_path / "token"
    token.write_text("first")
    server.require_token("first")
    credentials = GatedCredentials(
        KubeconfigCredentials(path=server.kubeconfig(tmp_path / "kubeconfig", token_file=token))
    )
    async with MemberClient(credentials, clock=asyncio.get_running_loop().time) as client:
        factory = SharedInformerFactory(functools.partial(ResourceListWatch, client))
        listers = [factory.lister(resource_type) for resource_type in types]

        def answers() -> list[list[str]]:
            return [[obj.name for obj in lister.list()] for lister in listers]

        async with factory:
            await factory.wait_for_cache_sync(timeout=60)
            begin, versions = server.requests.total, server.resource_version
            server.require_token("second")
            credentials.gate.clear()
            server.end_watches()
            await server.wait_for(lambda: len(refusals_since(server, begin)) == TYPES)
            new = server.add_resource(numbered(TYPES))
            server.put(new.resource, "a")
            listers.append(factory.lister(new))
            factory.start()
            # As long as no credentials come, all wait for one refresh, and whoever asks the caches is answered.
            for _ in range(30):
                await asyncio.sleep(10)
                assert answers() == [["a"]] * TYPES + [[]]
            assert credentials.asked == 2

            token.write_text("second")
            credentials.gate.set()
            await factory.wait_for_cache_sync(timeout=60)
            for resource_type in types:
                server.put(resource_type.resource, "b")
            server.delete(new.resource, "a")
            await until(lambda: answers() == [["a", "b"]] * TYPES + [[]])
            assert credentials.asked == 2
            assert len(refusals_since(server, begin)) <= TYPES + 1, "each was refused once"
            assert not server.requests.of("list")
            resumed = [
                each for each in server.requests.of("watch", since=begin) if not each.path.endswith(new.resource)
            ]
            assert {int(version_of(each) or 0) <= int(versions) for each in resumed} == {True}
            assert not any(map(is_watch_list, resumed))


def test_bug10_there_is_no_lock_to_hold() -> None:
    """None is held while the network is waited for, and none are taken in different orders, where there is none."""
    folder = Path(federator.__file__).parent
    sources = [path for part in ("cache", "kube") for path in folder.joinpath(part).rglob("*.py")]
    assert len(sources) > 20
    assert not [path.name for path in sources if re.search(r"\b(R?Lock|Condition|Barrier)\(", path.read_text())]


def refusals_since(server: FakeApiServer, begin: int) -> list[int]:
    return [each.status for each in server.requests.of(since=begin) if each.status == 401]

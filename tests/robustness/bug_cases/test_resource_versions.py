"""ResourceVersions: where a watch goes on, and when it must not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.typing import EventDict

from federator.agent.informers import Informers, TypeHealth
from federator.agent.member import KubeMember
from federator.agent.outbox import Outbox
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID, TypeState
from federator.cache.clock import loop_time
from federator.cache.reflector import PROBE_AFTER
from federator.cache.reflector_status import ReflectorState
from federator.cache.stream_guard import INITIAL_SILENCE, MIN_SILENCE, SilentWatch
from federator.kube import MemberClient
from federator.testing import FakeApiServer, faults
from federator.testing.fake_api_server import Request
from federator.testing.fake_api_server.faults import Fault
from federator.testing.fake_api_server.status import Json
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
from tests.robustness.bug_cases.load_balancer import LoadBalancer

pytestmark = pytest.mark.looptime

# ----------------------------------------------------------------------------------------- 19, 20: after an ERROR event


@both_ways
@pytest.mark.parametrize(
    "error",
    [
        faults.ErrorEvent(500, metadata=False),
        faults.ErrorEvent(429, metadata=False),
        faults.ErrorEvent(410, metadata=False),
        faults.Frame(b'{"type":"ERROR","object":{}}\n'),
        faults.Frame(b'{"type":"ERROR","object":null}\n'),
        faults.Frame(b'{"type":"ERROR"}\n'),
        faults.Frame.garbage(),
        faults.Frame.unknown_type(),
    ],
    ids=["500", "429", "410", "empty", "null", "no object", "no JSON", "unknown type"],
)
async def test_bug19_an_error_without_metadata_leaves_the_version_alone(
    server: FakeApiServer, client: MemberClient, error: Fault, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a")
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        await follower.synced()
        watch = await server.wait_for_watch("configmaps")
        await asyncio.sleep(5)
        begin, version = server.requests.total, server.resource_version
        server.fail("watch", "configmaps", error)
        watch.end()
        await server.wait_for_request("watch", since=begin)
        server.put("configmaps", "b")
        await until(lambda: follower.held == truth(server))
        await asyncio.sleep(5)
        since = server.requests.of(since=begin)
        assert [version_of(each) for each in since[:2]] == [version, version]
        assert not [each for each in since if not version_of(each)]
        assert len(follower.delays) == 1, "not a busy loop"
        assert follower.status.error is None


@both_ways
async def test_bug20_what_happened_in_a_gap_is_told_once_each(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    for name in ("stays", "changes", "goes"):
        server.put("configmaps", name)
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        await follower.synced()
        watch = await server.wait_for_watch("configmaps")
        await asyncio.sleep(5)
        begin, version = server.requests.total, server.resource_version
        follower.told.clear()
        server.refuse_connections()
        watch.reset()
        server.put("configmaps", "comes")
        server.touch("configmaps", "changes")
        server.delete("configmaps", "goes")
        server.compact()
        await asyncio.sleep(60)
        await server.accept_connections()
        await until(lambda: follower.held == truth(server))
        await asyncio.sleep(60)

        resynced = [("update", "stays")]  # with the version it had
        changes = [each for each in follower.told if each not in resynced]
        assert sorted(changes) == [("add", "comes"), ("tombstone", "goes"), ("update", "changes")]
        expired, sync, *rest = server.requests.of(since=begin)
        assert (expired.verb, version_of(expired), is_watch_list(expired)) == ("watch", version, False)
        assert (sync.verb, version_of(sync)) == ("watch" if use_watch_list else "list", version)
        assert [(each.verb, version_of(each)) for each in rest] == (
            [] if use_watch_list else [("watch", server.resource_version)]
        )


# ----------------------------------------------------------------------------- 21: a beginning that comes in no order


async def test_bug21_a_watch_list_that_breaks_off_counts_for_nothing(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.put("configmaps", "old")
    for number in range(8):
        server.touch("configmaps", "old")
        server.put("pods", f"busy-{number}")
    server.put("configmaps", "ghost")
    # The newest comes first, so that the last version seen is long past.
    server.fail("watch", "configmaps", faults.Reset(after_events=2))
    async with Follower(client) as follower:
        await server.wait_for(lambda: server.requests.total and not server.requests[0].live)
        assert (follower.held, follower.told) == ({}, [])
        server.delete("configmaps", "ghost")
        await follower.synced()
        assert follower.held == truth(server)
        assert follower.told == [("add", "old")]
        first, second = server.requests
        assert (version_of(first), version_of(second), is_watch_list(second)) == (None, None, True)


def without_version(body: Json) -> Json:
    body["metadata"]["resourceVersion"] = "0"
    return body


async def test_bug21_a_watch_from_anywhere_is_not_resumed_from_its_middle(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.put("configmaps", "old")
    server.put("configmaps", "ghost")
    first_versions = set(truth(server).values())
    # A server whose lists have no version to watch from; its watches begin with what exists, the newest first.
    server.fail("list", "configmaps", faults.Rewrite(without_version))
    server.fail("watch", "configmaps", faults.Reset(after_events=2))
    async with Follower(client, use_watch_list=False) as follower:
        await server.wait_for_request("watch")
        await server.wait_for(lambda: not server.requests.of("watch")[0].live)
        server.delete("configmaps", "ghost")
        await until(lambda: follower.held == truth(server))
        await asyncio.sleep(60)
        assert not first_versions & {version_of(each) for each in server.requests}
        assert [each for each in follower.told if each[1] == "ghost"] == [("add", "ghost"), ("tombstone", "ghost")]
        assert [each.verb for each in server.requests] == ["list", "watch", "list", "watch"]


# ------------------------------------------------------------------------------------------ 23: a replica that lags


@both_ways
@pytest.mark.parametrize("dialect", ["natural", "cause", "cause-message", "message"])
async def test_bug23_a_replica_that_lags_is_asked_for_the_newest_once(
    server: FakeApiServer, tmp_path: Path, dialect: str, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a")
    async with server.replica() as second, LoadBalancer(server) as balancer:
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace(str(server.port), str(balancer.port)))
        async with (
            MemberClient.from_kubeconfig(path=kubeconfig) as client,
            Follower(client, use_watch_list=use_watch_list) as follower,
        ):
            await follower.synced()
            second.fall_behind()
            server.touch("configmaps", "a")
            server.put("configmaps", "b")
            version = server.resource_version
            await until(lambda: follower.held == truth(server))
            held = follower.held
            await asyncio.sleep(5)

            if dialect != "natural":
                says = faults.TooLargeResourceVersion(dialect)  # type: ignore[arg-type]
                second.fail("watch" if use_watch_list else "list", "configmaps", says)
            balancer.target = second
            server.watches()[0].error(500)
            await until(lambda: follower.failures, step=0.01)
            server.reset_connections()
            await second.wait_for(lambda: second.watches() and second.watches()[0].request.events >= use_watch_list)
            await asyncio.sleep(30)
            assert follower.held == held, "never older than before"

            too_large, consistent, *rest = second.requests
            verb = "watch" if use_watch_list else "list"
            assert (too_large.verb, version_of(too_large)) == (verb, version)
            assert (consistent.verb, consistent.query.get("resourceVersion", "")) == (verb, "")
            assert consistent.started - too_large.started < 0.1, "at once"
            assert [(each.verb, version_of(each)) for each in rest] == ([] if use_watch_list else [("watch", version)])
            assert len(follower.delays) == 1, "for the error on the first one"

            second.catch_up()
            server.delete("configmaps", "a")
            await until(lambda: follower.held == truth(server))
            assert ("delete", "a") in follower.told
        assert_polite(second)


# ------------------------------------------------------------------------------------- 24: a cluster that was restored


@both_ways
@pytest.mark.parametrize("cut_watches", [False, True])
async def test_bug24_a_restored_cluster_is_noticed_and_read_anew(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool, cut_watches: bool
) -> None:
    server.skip_to(990)
    for number in range(10):
        server.put("configmaps", f"m-{number}")
    backup = server.snapshot()
    states: list[Mapping[str, str]] = []
    async with Follower(client, use_watch_list=use_watch_list) as follower:

        def is_true() -> bool:
            if not states or states[-1] != follower.held:
                states.append(follower.held)
            return follower.held == truth(server)

        await follower.synced()
        for number in range(200):
            server.put("configmaps", f"m-{number % 15}", data={"n": str(number)})
        await until(is_true)
        await asyncio.sleep(2 * 60 + 10)  # two bookmarks
        before, begin, restored_at = follower.held, server.requests.total, loop_time()
        states.clear()
        follower.told.clear()
        server.restore(backup, cut_watches=cut_watches)
        for number in range(9):
            server.touch("configmaps", f"m-{number}")
        server.delete("configmaps", "m-9")
        await until(is_true)

        assert loop_time() - restored_at <= PROBE_AFTER + MIN_SILENCE
        assert follower.statistics("reflector")["epoch"] == 1
        assert states == [before, truth(server)], "in one step"
        gone = {f"m-{number}" for number in range(9, 15)}
        assert {name for what, name in follower.told if what == "tombstone"} == gone
        assert len(follower.told) == 15
        sync = [each for each in server.requests.of(since=begin) if each.query.get("limit") != "1"]
        assert [(each.verb, version_of(each)) for each in sync if not version_of(each)] == [
            ("watch" if use_watch_list else "list", None)
        ]
        # And then it goes on from the versions there are now.
        server.put("configmaps", "later")
        await until(is_true, timeout=5)


# ------------------------------------------------------------------- 27, 28: watch-lists that are never finished


@asynccontextmanager
async def closing_watch_lists(server: FakeApiServer, after: float) -> AsyncIterator[None]:
    """Something between ends each watch-list after some seconds."""

    async def close() -> None:
        number = 0
        while True:
            request = await server.wait_for_request("watch", since=number, timeout=1e6)
            number = request.number
            await asyncio.sleep(after)
            for watch in server.watches():
                if watch.request is request and is_watch_list(request):
                    watch.end()

    closing = asyncio.create_task(close(), name="closing watch-lists")
    try:
        yield
    finally:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)


@pytest.mark.parametrize(
    ("bookmark_interval", "closed_after", "bound"),
    [
        (10.0, None, 90.0),
        (60.0, None, 30.0),
        (None, None, 30.0),
        (None, 5.0, 10.0),
        (None, 0.0, 0.0),
    ],
    ids=["many plain bookmarks", "few plain bookmarks", "nothing", "closed at 5 s", "closed at once"],
)
async def test_bug27_a_watch_list_without_end_is_listed_instead(
    server: FakeApiServer,
    client: MemberClient,
    bookmark_interval: float | None,
    closed_after: float | None,
    bound: float,
) -> None:
    server.watch_list = "endless"
    server.bookmark_interval = bookmark_interval
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    async with contextlib.AsyncExitStack() as stack:
        if closed_after is not None:
            await stack.enter_async_context(closing_watch_lists(server, closed_after))
        began = loop_time()
        follower = await stack.enter_async_context(Follower(client))
        await follower.synced()
        assert loop_time() - began <= bound + 5
        assert follower.held == truth(server)
        assert sorted(follower.told) == [("add", "a"), ("add", "b")]
        assert len(watch_lists(server)) <= 2

        # It is remembered: the next time nobody tries again.
        begin = server.requests.total
        follower.informer.request_relist()
        await server.wait_for_request("list", since=begin, timeout=600)
        server.put("configmaps", "c")
        await until(lambda: follower.held == truth(server))
        assert not [each for each in watch_lists(server) if each.number > begin]


def watch_lists(server: FakeApiServer) -> list[Request]:
    return [each for each in server.requests.of("watch") if is_watch_list(each)]


async def test_bug28_an_unfinished_sync_says_what_it_waits_for(server: FakeApiServer, client: MemberClient) -> None:
    server.watch_list = "endless"
    server.bookmark_interval = None
    server.put("configmaps", "a")
    injection = server.fail("list", "configmaps", faults.BlackHole(), times=None)
    async with Follower(client) as follower:
        began = loop_time()
        await asyncio.sleep(INITIAL_SILENCE - 1)
        status = follower.status
        assert (status.state, status.attempts, status.last_received) == (ReflectorState.LISTING, 0, began)
        assert status.waiting_for == "the bookmark that ends a watch-list, for 29 s; last event 29 s ago"
        await asyncio.sleep(5)
        status = follower.status
        assert (status.waiting_for, status.attempts, status.last_received) == ("a list", 1, began)
        assert isinstance(status.error, SilentWatch)
        injection.cancel()
        await follower.synced()
        assert follower.held == truth(server)
        await until(lambda: not follower.status.waiting_for)


async def test_bug28_an_agent_says_which_type_of_which_cluster_does_not_sync(
    server: FakeApiServer, client: MemberClient, logs: list[EventDict]
) -> None:
    server.fail("list", "configmaps", faults.HttpError(500, message="the backend is on fire"), times=None)
    settings = AgentSettings(cluster_id=ClusterID("eu-1"), aggregator="unix:/run/x.sock")
    informers = Informers(KubeMember(client), Outbox(), settings, secrets_key=None, types_may_have_changed=lambda: None)
    informers.set_types([CONFIG_MAPS, PODS])
    running = asyncio.create_task(informers.run())

    def health() -> Mapping[str, TypeHealth]:
        return {each.resource_type.resource: each for each in informers.health()}

    try:
        await asyncio.sleep(30)
        failing = health()["configmaps"]
        assert (failing.state, health()["pods"].state) == (TypeState.STALE, TypeState.LIVE)
        assert "the backend is on fire" in failing.reason
        assert failing.reflector.attempts >= 2
        (told,) = [entry for entry in logs if entry["event"] == "type changed state" and entry["state"] == "STALE"]
        assert (told["cluster"], told["type"], told["log_level"]) == ("eu-1", "v1 configmaps", "warning")
        assert told["cause"] == failing.reason

        server.heal()
        await until(lambda: health()["configmaps"].state is TypeState.LIVE)
        assert health()["configmaps"].reason == ""
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

"""Each transition of the Reflector, and where it goes another way than client-go on purpose, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import EventDict

from federator.cache import Backoff, SharedInformer
from federator.cache.clock import loop_time
from federator.cache.reflector_status import ReflectorState
from federator.cache.stream_guard import GRACE, SilentWatch
from federator.errors import CredentialsError, KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.kube.credentials import KubeconfigCredentials
from federator.testing import FakeApiServer, faults
from tests.conformance.rig import CONFIG_MAPS, LONG, Rig, no_jitter, settle, status_frame, versions, waits

pytestmark = pytest.mark.looptime

EITHER_WAY = pytest.mark.parametrize("use_watch_list", [True, False], ids=["watch-list", "list"])


def syncs(server: FakeApiServer) -> list[str]:
    """The versions of the lists and watch-lists so far: of all that learns what exists."""
    return [
        request.query.get("resourceVersion", "")
        for request in server.requests
        if request.verb == "list" or "sendInitialEvents" in request.query
    ]


# ---------------------------------------------------------------- learning what exists


@pytest.mark.parametrize("dialect", ["expired", "in-stream expired", "cause", "cause-message", "message"])
async def test_sm03_a_watch_list_from_a_version_that_is_not_there_is_asked_anew_at_once(
    server: FakeApiServer, client: MemberClient, dialect: Any
) -> None:
    """The version counts as unavailable: the next one asks for the newest, in the same round."""
    server.put("configmaps", "a")
    known = server.resource_version
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        match dialect:
            case "expired":
                server.fail("watch", "*", faults.HttpError(410))
            case "in-stream expired":
                server.fail("watch", "*", faults.ErrorEvent(410))
            case _:
                server.fail("watch", "*", faults.TooLargeResourceVersion(dialect))
        watch.error(410)
        await server.wait_for_request("watch", count=3)
        await rig.store.until(lambda: len(rig.store.calls) == 2)
        (await server.wait_for_watch()).error(410)
        await server.wait_for_request("watch", count=4, timeout=LONG)
    assert syncs(server) == ["", known, "", known]
    assert not server.requests.of("list")
    assert waits(server.requests.of("watch"))[1] == pytest.approx(0, abs=0.1)
    assert len(rig.failures) == 2, "the two watches that expired"


async def test_sm03_an_unavailable_version_is_not_asked_for_until_a_sync_succeeds(
    server: FakeApiServer, client: MemberClient
) -> None:
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        watch = await rig.synced(server)
        known = server.resource_version
        server.fail("list", "*", faults.HttpError(410))
        server.fail("list", "*", faults.HttpError(500), times=2)
        watch.error(410)
        await server.wait_for_request("watch", count=2, timeout=LONG)
        (await server.wait_for_watch()).error(410)
        await server.wait_for_request("list", count=6, timeout=LONG)
    assert syncs(server) == ["0", known, "", "", "", known]


async def test_sm02_refused_dials_of_a_watch_list_are_tried_again_later(
    server: FakeApiServer, client: MemberClient
) -> None:
    """And not listed in their place, which would be refused as well."""
    server.refuse_connections()
    rig = Rig(client)
    async with rig.running():
        await asyncio.sleep(2.0)
        await server.accept_connections()
        await rig.synced(server)
    assert rig.dials.waits == pytest.approx([0.8, 1.6], abs=0.1)
    assert syncs(server) == [""]
    assert rig.failures == []


# ---------------------------------------------------------------- watching


@EITHER_WAY
@pytest.mark.parametrize("ending", ["end", "drain", "fin", "reset"])
async def test_sm07_a_watch_that_ends_is_resumed_at_once_where_it_was(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool, ending: str
) -> None:
    """No delay, no list, and what happened meanwhile is told."""
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        server.put("configmaps", "a")
        await rig.store.until(lambda: rig.store.objects)
        known = server.resource_version
        getattr(watch, ending)()
        server.put("configmaps", "b")
        server.delete("configmaps", "a")
        await rig.store.until(lambda: rig.store.names == ["b"])
        assert rig.reflector.status().attempts == 0
    assert versions(server, "watch")[1:] == [known]
    assert rig.dials.waits[-1] == pytest.approx(0, abs=0.1)
    assert len(syncs(server)) == 1


async def test_sm07_a_watch_that_ends_at_its_length_is_resumed(server: FakeApiServer, client: MemberClient) -> None:
    rig = Rig(client)
    async with rig.running():
        await server.wait_for_request("watch", count=4, timeout=LONG)
    assert waits(server.requests.of("watch")) == pytest.approx([300] * 3, abs=1)
    assert (len(syncs(server)), rig.failures) == (1, [])


@EITHER_WAY
@pytest.mark.parametrize("fault", [faults.HttpError(410), faults.ErrorEvent(410)], ids=["dial", "in-stream"])
async def test_sm11_an_expired_watch_leads_to_a_sync_from_what_is_known(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool, fault: faults.Fault
) -> None:
    """Not from "": that would cost the server's etcd a quorum read."""
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        await asyncio.sleep(2)
        server.put("configmaps", "a")
        await rig.store.until(lambda: rig.store.objects)
        known = server.resource_version
        server.fail("watch", "*", fault)
        watch.end()
        await server.wait_for(lambda: len(syncs(server)) == 2)
    assert syncs(server)[1] == known
    assert [failure.is_expired for failure in rig.failures if isinstance(failure, KubeStatusError)] == [True]


async def test_sm11_history_that_is_really_gone_is_made_up_for_by_one_sync(
    server: FakeApiServer, client: MemberClient
) -> None:
    """Each change is told once, what is gone is gone."""
    for name in ("a", "b", "c"):
        server.put("configmaps", name)
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        watch.end()
        server.delete("configmaps", "a")
        server.touch("configmaps", "b")
        server.put("configmaps", "d")
        server.compact()
        await rig.store.until(lambda: rig.store.names == ["b", "c", "d"])
    assert len(rig.store.calls) == 2
    assert not server.requests.of("list")


@EITHER_WAY
@pytest.mark.parametrize("code", [400, 403, 404, 503, 504])
async def test_sm13_other_errors_of_a_stream_lead_to_a_delay_and_a_sync(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool, code: int
) -> None:
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        at = asyncio.get_running_loop().time()
        watch.error(code)
        await server.wait_for(lambda: len(syncs(server)) == 2)
        assert asyncio.get_running_loop().time() - at == pytest.approx(0.8, abs=0.1)
    assert [getattr(failure, "code", 0) for failure in rig.failures] == [code]


@pytest.mark.parametrize("fault", [faults.HttpError(500), faults.HttpError(403), faults.HtmlError(502)])
async def test_sm14_a_dial_that_fails_is_told_delayed_and_synced(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault
) -> None:
    server.fail("watch", "*", fault)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_request("watch", count=2)
    assert len(rig.failures) == 1
    assert syncs(server) == ["0", server.resource_version]
    assert waits(server.requests.of("list")) == pytest.approx([0.8], abs=0.1)


# ---------------------------------------------------------------- delays and error handler


async def test_sm17_failures_of_all_kinds_share_one_schedule(server: FakeApiServer, client: MemberClient) -> None:
    """The wait begins when a round has ended; the first round waits for nothing."""
    server.fail("list", "*", faults.HttpError(500))
    server.fail("list", "*", faults.Delay(5.0), faults.HttpError(503))
    server.fail("watch", "*", faults.HttpError(429))
    server.fail("watch", "*", faults.ErrorEvent(504))
    rig = Rig(client, use_watch_list=False)
    began = asyncio.get_running_loop().time()
    async with rig.running():
        await server.wait_for_request("watch", count=3, timeout=LONG)
    assert rig.dials.times[0] == pytest.approx(began, abs=0.1)
    # list, list after 0.8, list 1.6 after the second's end, watch at once, watch after 3.2, list after 6.4, watch
    assert rig.dials.waits == pytest.approx([0.8, 5 + 1.6, 0, 3.2, 6.4, 0], abs=0.1)


@pytest.mark.parametrize(("healthy", "delay"), [(100, 6.4), (130, 0.8)])
async def test_sm17_the_schedule_starts_over_after_two_minutes_of_health_only(
    server: FakeApiServer, client: MemberClient, healthy: float, delay: float
) -> None:
    """Where client-go starts over two minutes after its last start, also amid an outage: see RF12 for that."""
    server.fail("watch", "*", faults.HttpError(429), times=3)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        watch = await server.wait_for_watch(timeout=LONG)
        await asyncio.sleep(healthy)
        at = asyncio.get_running_loop().time()
        watch.error(429)
        again = await server.wait_for_request("watch", count=5, timeout=LONG)
    assert again.started - at == pytest.approx(delay, abs=0.2)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_sm17_a_retry_after_that_is_longer_is_honoured(
    server: FakeApiServer, client: MemberClient, verb: str
) -> None:
    server.fail(verb, "*", faults.HttpError(429, retry_after=20))
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_request(verb, count=2, timeout=LONG)
    assert waits(server.requests.of(verb)) == pytest.approx([20], abs=0.1)


async def test_sm17_many_that_are_asked_to_wait_alike_do_not_come_back_together(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.fail("watch", "*", faults.HttpError(429, retry_after=20))
    rig = Rig(client, use_watch_list=False, backoff=Backoff(uniform=lambda: 0.5))
    async with rig.running():
        await server.wait_for_request("watch", count=2, timeout=LONG)
    assert waits(server.requests.of("watch")) == pytest.approx([20.4], abs=0.1)


async def test_sm18_the_error_handler_is_told_of_each_failed_round_and_set_before_the_start(
    server: FakeApiServer, client: MemberClient
) -> None:
    """The last one that is set; what is merely dialled again is no failed round."""
    server.fail("watch", "*", faults.HttpError(429))
    server.fail("watch", "*", faults.HttpError(500))
    informer = SharedInformer(
        ResourceListWatch(client, CONFIG_MAPS),
        name="maps",
        use_watch_list=False,
        backoff=Backoff(uniform=no_jitter),
    )
    first, second = list[Exception](), list[Exception]()
    informer.set_watch_error_handler(first.append)
    informer.set_watch_error_handler(second.append)
    running = asyncio.create_task(informer.run())
    await server.wait_for_watch(timeout=LONG)
    with pytest.raises(RuntimeError, match="before the informer runs"):
        informer.set_watch_error_handler(first.append)
    assert (first, [getattr(error, "code", 0) for error in second]) == ([], [500])
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(("code", "level"), [(410, "debug"), (500, "warning")])
async def test_sm18_expiry_is_everyday_other_failures_are_warnings(
    server: FakeApiServer, client: MemberClient, logs: list[EventDict], code: int, level: str
) -> None:
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="maps")
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    (await server.wait_for_watch()).error(code)
    await server.wait_for_request("watch", count=2, timeout=LONG)
    assert [entry["log_level"] for entry in logs if entry.get("informer") == "maps"] == [level]
    running.cancel()
    await asyncio.wait([running])


# ---------------------------------------------------------------- streams that fall silent


async def test_deviate2_a_silent_stream_is_dialled_again(server: FakeApiServer, client: MemberClient) -> None:
    """DEVIATE-2: 90 s after the last byte, of a server that has sent a bookmark; resumed, not listed."""
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        await asyncio.sleep(70.0)
        assert rig.store.calls[-1].startswith("bookmark")
        watch.black_hole()
        await server.wait_for_request("watch", count=2, timeout=LONG)
        assert isinstance(rig.reflector.status().error, SilentWatch)
        server.put("configmaps", "a")
        await rig.store.until(lambda: rig.store.objects)
    assert waits(server.requests.of("watch")) == pytest.approx([60 + 90], abs=1)
    assert (len(syncs(server)), rig.failures) == (1, [])


async def test_deviate2_wider_gaps_between_bookmarks_are_borne(server: FakeApiServer, client: MemberClient) -> None:
    """DEVIATE-2: one and a half times the widest."""
    server.bookmark_interval = 100.0
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        await asyncio.sleep(110.0)
        watch.black_hole()
        await server.wait_for_request("watch", count=2, timeout=LONG)
    assert waits(server.requests.of("watch")) == pytest.approx([100 + 150], abs=1)


@EITHER_WAY
async def test_deviate2_without_bookmarks_the_length_is_the_bound(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """DEVIATE-2: and 15 s on top, as the server is the one to end it."""
    server.bookmark_interval = None
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        watch.black_hole()
        await server.wait_for_request("watch", count=2, timeout=LONG)
    assert waits(server.requests.of("watch")) == pytest.approx([300 + GRACE], abs=1)


# ---------------------------------------------------------------- clusters that are restored


def restored(server: FakeApiServer) -> Callable[[], None]:
    """Has a backup made, then some history; returns what restores it."""
    server.put("configmaps", "old")
    backup = server.snapshot()
    server.put("configmaps", "lost")
    server.skip_to(int(server.resource_version) + 100)
    server.put("configmaps", "lost-too")
    return lambda: server.restore(backup)


@EITHER_WAY
async def test_deviate3_a_cluster_restored_behind_an_open_watch_is_noticed(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """DEVIATE-3: a watch from a version of the future says nothing; after two minutes of that it is looked at."""
    restore = restored(server)
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        await rig.synced(server)
        assert rig.store.names == ["lost", "lost-too", "old"]
        await asyncio.sleep(70)
        restore()
        await rig.store.until(lambda: rig.store.names == ["old"])
        assert rig.reflector.epoch == 1
        server.put("configmaps", "new")
        await rig.store.until(lambda: rig.store.names == ["new", "old"])
    probes = [request for request in server.requests.of("list") if request.query.get("limit") == "1"]
    assert [probe.query for probe in probes] == [{"limit": "1"}]
    assert rig.store.calls[-2] == f"replace old@{int(server.resource_version) - 1}"


@EITHER_WAY
async def test_deviate3_a_cluster_restored_while_away_is_noticed_by_the_sync(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """DEVIATE-3: the version that is known is too large, what comes for "" is older: nothing of before is trusted."""
    restore = restored(server)
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        known = server.resource_version
        restore()
        watch.error(410)
        await rig.store.until(lambda: rig.store.names == ["old"])
        await settle()
        assert (rig.reflector.epoch, rig.reflector.last_sync_resource_version) == (1, server.resource_version)
    assert syncs(server) == ["" if use_watch_list else "0", known, ""]


async def test_deviate3_a_quiet_type_is_looked_at_and_nothing_happens(
    server: FakeApiServer, client: MemberClient
) -> None:
    """DEVIATE-3: without bookmarks, when its watch is due anyway."""
    server.bookmark_interval = None
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
        await server.wait_for_request("watch", count=3, timeout=LONG)
    assert [request.query for request in server.requests.of("list")] == [{"limit": "1"}] * 2
    assert (rig.reflector.epoch, len(rig.store.calls), rig.failures) == (0, 1, [])


# ---------------------------------------------------------------- credentials and rights


async def with_token(server: FakeApiServer, tmp_path: Path) -> tuple[Path, MemberClient]:
    token = tmp_path / "token"
    token.write_text("first")
    server.require_token("first")
    kubeconfig = server.kubeconfig(tmp_path / "with-token", token_file=token)
    # Its pause between refreshes is on the loop's clock too, or the loop's would run far ahead meanwhile.
    return token, MemberClient(KubeconfigCredentials("fake", kubeconfig), clock=loop_time)


async def test_deviate4_a_401_refreshes_the_credentials_once_and_asks_again(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """DEVIATE-4: at once, and it is no failure."""
    token, client = await with_token(server, tmp_path)
    async with client:
        rig = Rig(client)
        async with rig.running():
            watch = await rig.synced(server)
            server.require_token("second")
            token.write_text("second")
            watch.end()
            server.put("configmaps", "a")
            await rig.store.until(lambda: rig.store.objects)
        assert client.statistics()["credential_refreshes"] == 1
    assert [request.status for request in server.requests] == [200, 401, 200]
    assert (len(syncs(server)), rig.reflector.status().error) == (1, None)


async def test_deviate4_credentials_that_stay_refused_change_nothing_that_is_held(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """DEVIATE-4: until they are accepted."""
    server.put("configmaps", "a")
    token, client = await with_token(server, tmp_path)
    async with client:
        rig = Rig(client)
        async with rig.running():
            watch = await rig.synced(server)
            server.require_token("second")
            watch.end()
            await asyncio.sleep(60)
            assert rig.store.names == ["a"]
            assert isinstance(rig.reflector.status().error, CredentialsError)
            token.write_text("second")
            server.put("configmaps", "b")
            await rig.store.until(lambda: rig.store.names == ["a", "b"])


@EITHER_WAY
@pytest.mark.parametrize("code", [403, 404])
async def test_deviate4_what_is_refused_stays_held_and_is_named(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool, code: int
) -> None:
    """DEVIATE-4: it is asked again and again, less and less often."""
    server.put("configmaps", "a")
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        refusal = server.fail("*", "configmaps", faults.HttpError(code), times=None)
        watch.send({"type": "ERROR", "object": status_frame(code, "")})
        await asyncio.sleep(60)
        status = rig.reflector.status()
        assert (rig.store.names, status.state) == (["a"], ReflectorState.BACKING_OFF)
        assert isinstance(status.error, KubeStatusError)
        assert status.error.code == code
        assert status.failing_since is not None
        assert 5 <= len(rig.failures) <= 7
        refusal.cancel()
        server.put("configmaps", "b")
        await rig.store.until(lambda: rig.store.names == ["a", "b"])
        await asyncio.sleep(2)
        assert rig.reflector.status().error is None

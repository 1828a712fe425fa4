"""What client-go's reflector tests check, over HTTP."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import msgspec
import pytest

from federator.api.list_watch import ListOptions
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import Backoff, SharedInformer
from federator.cache.reflector import VeryShortWatch
from federator.cache.reflector_status import ReflectorState
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.rig import (
    CONFIG_MAPS,
    LONG,
    PATH,
    Rig,
    config_map,
    ended,
    send,
    settle,
    status_frame,
    until_names,
    versions,
    waits,
)

pytestmark = pytest.mark.looptime

DEPLOYMENTS = ResourceType(group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True)
NEARLY_ONE = 0.999999


# ---------------------------------------------------------------- starting and stopping


async def test_rf01_an_error_event_has_the_response_closed(server: FakeApiServer, client: MemberClient) -> None:
    """RF01 CloseWatchChannelOnError: the server would have gone on."""
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        send(watch, "ERROR", status_frame(410, "Expired"))
        await server.wait_for(lambda: watch.request.outcome == "client closed")


async def test_rf02_stop_ends_the_run_and_closes_the_watch(server: FakeApiServer, client: MemberClient) -> None:
    """RF02 RunUntil."""
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
    await server.wait_for(lambda: watch.request.outcome == "client closed")
    assert rig.reflector.status().state is ReflectorState.STOPPED
    assert (rig.reflector.status().error, rig.failures) == (None, [])


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_rf03_the_resync_comes_after_its_period(client: MemberClient, use_watch_list: bool) -> None:
    """RF03 ResyncChan, and only where somebody wants it."""
    wanted = [True, False, True]
    rig = Rig(
        client,
        use_watch_list=use_watch_list,
        resync_period=lambda: 10.0,
        should_resync=lambda: wanted.pop(0),
    )
    async with rig.running():
        await asyncio.sleep(35.0)
    assert rig.store.resync_times == pytest.approx([10.0, 30.0], abs=0.5)


async def test_rf04_stopped_before_it_ran_it_asks_nothing(server: FakeApiServer, client: MemberClient) -> None:
    """RF04 WatchStoppedBefore."""
    async with Rig(client).running():
        pass
    await settle()
    assert server.requests.total == 0


@pytest.mark.parametrize("ending", ["stop", "error", "relist", "silence"])
async def test_rf05_whatever_ends_a_watch_it_is_closed(
    server: FakeApiServer, client: MemberClient, ending: str
) -> None:
    """RF05 WatchStoppedAfter."""
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        await rig.store.until(lambda: rig.store.calls)
        if ending == "error":
            send(watch, "ERROR", status_frame(500, "InternalError"))
        elif ending == "relist":
            rig.reflector.request_relist()
        elif ending == "silence":
            watch.black_hole()
        if ending != "stop":
            await server.wait_for_request("watch", count=2, timeout=LONG)
    await server.wait_for(lambda: not watch.request.live)
    assert watch.request.outcome == ("black hole" if ending == "silence" else "client closed")
    await server.wait_for(lambda: not server.watches())


@pytest.mark.parametrize("where", ["watch-list", "list", "watch", "stream", "delay"])
async def test_rf06_stop_is_prompt_wherever_it_comes_and_no_failure(
    server: FakeApiServer, client: MemberClient, where: str
) -> None:
    """RF06 HandleWatchStoppedBefore/After."""
    match where:
        case "watch-list" | "list":
            server.fail("*", "configmaps", faults.BlackHole())
        case "watch":
            server.fail("watch", "configmaps", faults.BlackHole())
        case "delay":
            server.fail("*", "configmaps", faults.HttpError(429), times=None)
    rig = Rig(client, use_watch_list=where == "watch-list")
    async with rig.running() as task:
        await server.wait_for_request("watch" if where in {"watch-list", "watch", "stream"} else "list")
        await settle()
        before = asyncio.get_running_loop().time()
    assert task.cancelled()
    assert asyncio.get_running_loop().time() == pytest.approx(before, abs=0.1)
    assert len(rig.failures) == (1 if where == "delay" else 0)
    assert rig.reflector.status().state is ReflectorState.STOPPED


async def test_rf07_a_watch_without_events_that_ends_within_a_second_is_a_failure(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF07 HandleWatchResultChanClosedBefore/After: it is listed anew, after a delay."""
    server.fail("watch", "configmaps", faults.End(after_events=0))
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_request("watch", count=2)
    assert [type(failure) for failure in rig.failures] == [VeryShortWatch]
    assert versions(server, "list") == ["0", server.resource_version]
    assert waits(server.requests.of("list")) == pytest.approx([0.8], abs=0.1)


async def test_rf08_events_are_applied_and_the_last_one_gives_the_version(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF08 WatchHandler: 55, then 32: the last, not the highest. What is of another type gives none."""
    server.put("configmaps", "foo")
    server.put("configmaps", "bar")
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        send(watch, "MODIFIED", {**config_map("bar", 99), "kind": "Secret"})
        send(watch, "DELETED", config_map("foo", 40))
        send(watch, "MODIFIED", config_map("bar", 55))
        send(watch, "ADDED", config_map("baz", 32))
        send(watch, "MODIFIED", {**config_map("bar", 98), "kind": "Secret"})
        watch.end()
        await server.wait_for_watch()
        await server.wait_for_request("watch", count=2)
    assert rig.store.calls[1:] == ["delete foo@40", "update bar@55", "add baz@32"]
    assert versions(server, "watch") == ["", "32"]
    assert client.statistics()["skipped_objects"] == 2


async def test_rf09_stopped_while_events_come_it_tells_none_of_what_follows(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF09 StopWatch."""
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        server.put("configmaps", "a")
        await rig.store.until(lambda: rig.store.objects)
    server.put("configmaps", "b")
    await server.wait_for(lambda: watch.request.outcome == "client closed")
    assert rig.store.names == ["a"]


# ---------------------------------------------------------------- what is asked


async def test_rf10_the_options_of_a_watch_list_and_of_the_watch_after_it(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF10 ListAndWatch; W1, W2, W3."""
    server.put("configmaps", "a")
    rig = Rig(client)
    async with rig.running():
        (await rig.synced(server)).end()
        second = await server.wait_for_request("watch", count=2)
        known = server.resource_version
        (await rig.synced(server)).error(410)
        await server.wait_for_request("watch", count=3)
    first, _, third = server.requests.of("watch")
    watch_list = {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": "300",
    }
    assert first.query == watch_list
    assert second.query == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": known,
        "timeoutSeconds": "300",
    }
    assert third.query == {**watch_list, "resourceVersion": known}
    assert not server.requests.of("list")


async def test_rf10_the_options_of_the_classic_list_and_watch(server: FakeApiServer, client: MemberClient) -> None:
    """RF10 ListAndWatch; L1, L2, W3."""
    server.put("configmaps", "a")
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        (await rig.synced(server)).error(410)
        await server.wait_for_request("watch", count=2)
    known = server.resource_version
    first, second = server.requests.of("list")
    assert first.query == {"resourceVersion": "0", "limit": "500"}
    assert second.query == {"resourceVersion": known}
    watch = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": known, "timeoutSeconds": "300"}
    assert [request.query for request in server.requests.of("watch")] == [watch, watch]


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_rf11_after_each_failure_the_store_is_what_the_server_has(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """RF11 ListAndWatchWithErrors: of the list, of the dial, of the stream; and what is held survives each."""
    store = (rig := Rig(client, use_watch_list=use_watch_list)).store
    server.put("configmaps", "a")
    async with rig.running():
        await store.until(lambda: store.names == ["a"])
        for verb, code in (("list", 500), ("watch", 500), ("watch", 403)):
            watch = await server.wait_for_watch()
            server.fail(verb, "configmaps", faults.HttpError(code))
            known = store.names
            send(watch, "ERROR", status_frame(500, "InternalError"))
            await ended(server, watch)
            assert store.names == known
            server.put("configmaps", f"{verb}-{code}")
            server.delete("configmaps", known[0])
            await until_names(store, [obj["metadata"]["name"] for obj in server.list("configmaps")])
    assert len(store.names) == 1


# ---------------------------------------------------------------- delays


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 1.0), (NEARLY_ONE, 2.0)], ids=["least", "most"])
async def test_rf12_refused_dials_back_off_and_lead_to_no_list(
    server: FakeApiServer, client: MemberClient, draw: float, factor: float
) -> None:
    """RF12 InitConnBackoff: 0.8 s, doubled up to 30 s; each up to twice as long."""
    server.put("configmaps", "a")
    rig = Rig(client, backoff=Backoff(uniform=lambda: draw))
    async with rig.running():
        watch = await server.wait_for_watch()
        await rig.store.until(lambda: rig.store.calls)
        server.refuse_connections()
        watch.reset()
        while len(rig.dials.times) < 11:  # noqa: ASYNC110 - nobody answers, so there is no event to wait for
            await asyncio.sleep(1)
        await server.accept_connections()
        server.put("configmaps", "b")
        await rig.store.until(lambda: rig.store.names == ["a", "b"])
    expected = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]
    assert rig.dials.waits[1:10] == pytest.approx([wait * factor for wait in expected], abs=0.1)
    assert [call for call in rig.store.calls if call.startswith("replace")] == [rig.store.calls[0]]
    assert not server.requests.of("list")
    assert rig.failures == []


async def test_rf13_a_schedule_of_delays_of_ones_own(server: FakeApiServer, client: MemberClient) -> None:
    """RF13 CustomBackoff: 10, 20, 40, 80, 100 ms are 250."""
    server.fail("watch", "configmaps", faults.HttpError(429), times=5)
    rig = Rig(client, backoff=Backoff(base=0.01, cap=0.1, jitter=0.0))
    async with rig.running():
        await server.wait_for_request("watch", count=6)
    assert rig.dials.waits == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1], abs=0.005)
    assert rig.dials.times[5] - rig.dials.times[0] == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("fault", [faults.HttpError(429), faults.ErrorEvent(429)], ids=["dial", "in-stream"])
async def test_rf14_too_many_requests_draws_one_delay(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault
) -> None:
    """RF14 BackoffOnTooManyRequests."""
    server.fail("watch", "configmaps", fault, times=2)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_request("watch", count=3)
    assert waits(server.requests.of("watch")) == pytest.approx([0.8, 1.6], abs=0.1)


async def test_rf15_too_many_requests_lead_to_no_list(server: FakeApiServer, client: MemberClient) -> None:
    """RF15 NoRelistOnTooManyRequests: one list, five watches; and a longer Retry-After is honoured."""
    server.fail("watch", "configmaps", faults.HttpError(429, retry_after=5))
    server.fail("watch", "configmaps", faults.ErrorEvent(429))
    server.fail("watch", "configmaps", faults.HttpError(429), times=2)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_request("watch", count=5, timeout=LONG)
    assert (len(server.requests.of("list")), len(server.requests.of("watch"))) == (1, 5)
    assert waits(server.requests.of("watch")) == pytest.approx([5.0, 1.6, 3.2, 6.4], abs=0.1)
    assert len(set(versions(server, "watch"))) == 1


EACH_SECOND = (faults.Delay(1.0), faults.ErrorEvent(500))


@pytest.mark.parametrize(("window", "retries"), [(0.0, 0), (30.5, 31)])
async def test_rf16_internal_errors_of_a_stream_are_borne_for_a_while(
    server: FakeApiServer, client: MemberClient, window: float, retries: int
) -> None:
    """RF16 RetryInternalError: one each second, the window begins with the first."""
    server.fail("watch", "configmaps", *EACH_SECOND, times=None)
    rig = Rig(client, use_watch_list=False, max_internal_error_retry=window)
    async with rig.running():
        second = await server.wait_for_request("list", count=2, timeout=LONG)
    assert len([watch for watch in server.requests.of("watch") if watch.number < second.number]) == 1 + retries


async def test_rf16_a_minute_without_them_begins_a_new_while(server: FakeApiServer, client: MemberClient) -> None:
    """RF16: nine retries, a minute of success, and 31 more."""
    server.fail("watch", "configmaps", *EACH_SECOND, times=9)
    server.fail("watch", "configmaps", faults.Delay(61.0), faults.ErrorEvent(500))
    server.fail("watch", "configmaps", *EACH_SECOND, times=100)
    rig = Rig(client, use_watch_list=False, max_internal_error_retry=30.5)
    async with rig.running():
        second = await server.wait_for_request("list", count=2, timeout=LONG)
    assert len([watch for watch in server.requests.of("watch") if watch.number < second.number]) == 1 + 40


async def test_rf17_an_error_of_the_stores_resync_ends_the_round_but_not_the_run(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF17 Resync."""
    rig = Rig(client, resync_period=lambda: 10.0)
    rig.store.resync_error = ValueError("cannot")
    async with rig.running() as task:
        await server.wait_for_request("watch", count=2, timeout=LONG)
        assert not task.done()
    assert rig.failures == [rig.store.resync_error]
    assert server.requests[-1].query["sendInitialEvents"] == "true"


# ---------------------------------------------------------------- lists


async def test_rf18_an_explicit_page_size_holds_for_every_list(server: FakeApiServer, client: MemberClient) -> None:
    """RF18 WatchListPageSize: pages of 4, also from a known version; L4: later pages by their token alone."""
    for number in range(10):
        server.put("configmaps", f"a{number}")
    rig = Rig(client, use_watch_list=False, page_size=4)
    async with rig.running():
        (await server.wait_for_watch()).error(410)
        await server.wait_for_request("watch", count=2)
    known = server.resource_version
    assert len(rig.store.objects) == 10
    # The first list comes from the server's cache, which takes no limit.
    first, second, third, fourth = server.requests.of("list")
    assert first.query == {"resourceVersion": "0", "limit": "4"}
    assert second.query == {"resourceVersion": known, "limit": "4"}
    for page in (third, fourth):
        assert set(page.query) == {"limit", "continue"}
        assert page.query["limit"] == "4"


async def test_rf19_lists_from_a_known_version_have_no_limit(server: FakeApiServer, client: MemberClient) -> None:
    """RF19 NotPaginatingNotConsistentReads: with one they would mean exactly that version."""
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        (await server.wait_for_watch()).error(410)
        await server.wait_for_request("list", count=2)
    assert [request.query.get("limit") for request in server.requests.of("list")] == ["500", None]


async def test_rf20_a_server_without_watch_cache_keeps_being_asked_in_pages(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF20 PaginatingNonConsistentReadsIfWatchCacheDisabled."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    # What a server without the cache sends for "0": a page and a token.
    paged = msgspec.json.decode(await client.get(PATH, [("limit", "1")]))
    server.requests.clear()
    server.fail("list", "configmaps", faults.Rewrite(lambda body: {**paged, "kind": body["kind"]}))
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        (await server.wait_for_watch()).error(410)
        await server.wait_for_request("watch", count=2)
    asked = [(request.query.get("resourceVersion"), request.query["limit"]) for request in server.requests.of("list")]
    assert asked == [("0", "500"), (None, "500"), (server.resource_version, "500")]
    assert rig.store.names == ["a", "b"]


async def test_rf21_the_next_list_asks_for_not_older_than_what_is_known(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF21 ResyncWithResourceVersion."""
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        watch = await rig.synced(server)
        server.put("configmaps", "a")
        await rig.store.until(lambda: rig.store.objects)
        known = server.resource_version
        watch.error(410)
        await server.wait_for_request("list", count=2)
    assert versions(server, "list") == ["0", known]


async def test_rf22_an_expired_version_is_followed_at_once_by_a_consistent_list(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF22 ExpiredExactResourceVersion, L3: in the same attempt, with the limit it had."""
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        watch = await server.wait_for_watch()
        server.fail("list", "configmaps", faults.HttpError(410))
        watch.error(410)
        await server.wait_for_request("watch", count=2)
    lists = server.requests.of("list")
    assert versions(server, "list") == ["0", server.resource_version, ""]
    assert "limit" not in lists[2].query
    assert waits(lists)[1] == pytest.approx(0, abs=0.1)
    assert len(rig.failures) == 1, "the watch that expired, and nothing after it"


async def test_rf23_expiry_amid_pages_leads_to_one_full_list_of_the_same_version(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF23 FullListIfExpired: and not to the "inconsistent" token that the 410 offers."""
    for number in range(10):
        server.put("configmaps", f"a{number}")
    known = server.resource_version
    rig = Rig(client, use_watch_list=False, page_size=4)
    async with rig.running():
        watch = await server.wait_for_watch()
        server.fail(
            "list",
            "configmaps",
            faults.HttpError(410, details={"continue": "inconsistent"}),
            where=lambda request: "continue" in request.query,
        )
        watch.error(410)
        await server.wait_for_request("watch", count=2)
    lists = server.requests.of("list")
    assert versions(server, "list") == ["0", known, "", known]
    assert [request.query.get("limit") for request in lists] == ["4", "4", "4", None]
    assert "continue" not in lists[3].query
    assert len(rig.store.objects) == 10


TOO_LARGE = (
    faults.TooLargeResourceVersion("cause"),
    # With a message of its own that says nothing, so that only the cause's tells.
    faults.HttpError(504, message="x", details={"causes": [{"message": "Too large resource version"}]}),
    faults.TooLargeResourceVersion("message"),
)


async def test_rf24_a_version_the_server_has_not_seen_leads_to_a_consistent_list(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF24 FullListIfTooLarge, in the words of three ages of servers."""
    rig = Rig(client, use_watch_list=False)
    expected = ["0"]
    async with rig.running():
        for round_, fault in enumerate(TOO_LARGE, 1):
            watch = await rig.synced(server)
            server.put("configmaps", "a", data={"round": str(round_)})
            await rig.store.until(lambda: rig.store.versions[-1] == server.resource_version)
            expected += [server.resource_version, ""]
            server.fail("list", "configmaps", fault)
            watch.error(410)
            await server.wait_for_request("watch", count=round_ + 1)
    assert versions(server, "list") == expected
    assert waits(server.requests.of("list"))[1::2] == pytest.approx([0, 0, 0], abs=0.1)


@pytest.mark.parametrize("metadata_only", [False, True])
async def test_rf25_what_is_expected_follows_from_the_type(
    server: FakeApiServer, client: MemberClient, metadata_only: bool
) -> None:
    """RF25 TypeDescription, ExpectedGVK: the type is always given, what is of another group or kind is left out."""
    server.put("deployments", "web", spec={"replicas": 1})
    rig = Rig(client, resource_type=DEPLOYMENTS, metadata_only=metadata_only)
    async with rig.running():
        watch = await server.wait_for_watch("deployments.apps")
        await rig.store.until(lambda: rig.store.objects)
        sent = "meta.k8s.io/v1", "PartialObjectMetadata"
        own = sent if metadata_only else ("apps/v1", "Deployment")
        for name, version, kind in (("group", "extensions/v1", own[1]), ("kind", own[0], "Pod"), ("right", *own)):
            send(watch, "ADDED", {**config_map(name, 1000), "apiVersion": version, "kind": kind})
        await rig.store.until(lambda: "right" in rig.store.objects)
    assert rig.store.names == ["right", "web"]
    for obj in rig.store.objects.values():
        assert obj.raw.startswith(b'{"apiVersion":"apps/v1","kind":"Deployment",')


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(300, ["300", "599"]), (1, ["300", "599"]), (1800, ["1800", "3599"])],
    ids=["default", "1 s", "30 min"],
)
async def test_rf26_the_length_of_a_watch(
    server: FakeApiServer, client: MemberClient, asked: int, expected: list[str]
) -> None:
    """RF26 WatchTimeout: evenly from [min, 2 * min); below 300 s is ignored."""
    draws = [0.0, NEARLY_ONE]
    rig = Rig(client, min_watch_timeout=asked, uniform=lambda: draws.pop(0))
    async with rig.running():
        (await server.wait_for_watch()).end()
        await server.wait_for_request("watch", count=2)
    assert [request.query["timeoutSeconds"] for request in server.requests.of("watch")] == expected


async def test_rf27_the_store_is_told_every_version(server: FakeApiServer, client: MemberClient) -> None:
    """RF27 ResourceVersionUpdate: of the list, of an event, of a bookmark, of a deletion; R3."""
    server.skip_to(9)
    server.put("configmaps", "a")
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        server.skip_to(19)
        server.touch("configmaps", "a")
        server.skip_to(30)
        watch.bookmark()
        server.skip_to(39)
        server.delete("configmaps", "a")
        await rig.store.until(lambda: rig.store.versions[-1] == "40")
        watch.end()
        await server.wait_for_request("watch", count=2)
    assert rig.store.calls == ["replace a@10", "update a@20", "bookmark @30", "delete a@40"]
    assert versions(server, "watch") == ["", "40"]


async def test_rf28_an_object_that_is_kept_does_not_keep_its_page(server: FakeApiServer, client: MemberClient) -> None:
    """RF28 ListExtract."""
    for number in range(60):
        server.put("configmaps", f"a{number:02}", data={"filling": f"{number:02}" * 50_000})
    list_watch = ResourceListWatch(client, CONFIG_MAPS)
    # The server's copies are made before the count begins.
    await list_watch.list(ListOptions(resource_version="0"))
    gc.collect()
    tracemalloc.start()
    try:
        kept = (await list_watch.list(ListOptions(resource_version="0"))).objects[30]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.name == "a30"
    assert len(kept.raw) > 100_000
    assert held < 1_500_000, "the page has 6 MB"


async def test_rf29_an_object_that_storage_cannot_read_any_more_goes_with_the_next_list(
    server: FakeApiServer, client: MemberClient
) -> None:
    """RF29 ReplacesStoreOnUnsafeDelete: it was deleted without an event, the watch says so by an internal error."""
    server.put("configmaps", "corrupt")
    server.put("configmaps", "sound")
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        await rig.store.until(lambda: rig.store.names == ["corrupt", "sound"])
        with server.losing_events():
            server.delete("configmaps", "corrupt")
        watch.error(500, reason="StorageReadError", message="corrupt object has been deleted")
        await rig.store.until(lambda: rig.store.names == ["sound"])
    assert isinstance(rig.failures[0], KubeStatusError)
    assert rig.failures[0].status_reason == "StorageReadError"


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_rf30_the_transform_sees_each_object_once(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """RF30 RespectStoreTransformer; T1: once where client-go transforms the initial objects twice: three calls."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    calls: list[str] = []

    def transform(obj: KubeObject) -> KubeObject:
        calls.append(obj.name)
        return msgspec.structs.replace(obj, raw=b"transformed")

    informer = SharedInformer(
        ResourceListWatch(client, CONFIG_MAPS), name="maps", transform=transform, use_watch_list=use_watch_list
    )
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    server.put("configmaps", "c")
    await server.wait_until_sent()
    while informer.indexer.get_by_key("default/c") is None:  # noqa: ASYNC110 - the Indexer has no event
        await asyncio.sleep(0.01)
    assert sorted(calls) == ["a", "b", "c"]
    assert [obj.raw for obj in informer.indexer.list()] == [b"transformed"] * 3
    running.cancel()
    await asyncio.wait([running])


async def test_rf31_tables_are_no_objects(server: FakeApiServer, client: MemberClient) -> None:
    """RF31 IsUnsupportedTableObject, D9: a list is refused, an event left out and counted."""
    server.put("configmaps", "a")
    server.fail("list", "configmaps", faults.Rewrite(faults.table))
    server.fail("watch", "configmaps", faults.Frame.table())
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await server.wait_for_watch()
        server.put("configmaps", "b")
        await rig.store.until(lambda: rig.store.names == ["a", "b"])
    assert [str(failure) for failure in rig.failures] == [f"500 InternalError: {PATH}: a Table instead of a list"]
    assert client.statistics()["skipped_objects"] == 1

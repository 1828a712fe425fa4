"""What client-go's watch-list tests check, over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from federator.api.list_watch import ListOptions
from federator.api.object import KubeObject
from federator.cache.reflector_status import ReflectorState
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.consistency import ATTEMPTS, Inconsistent, check_consistency
from tests.conformance.rig import (
    CONFIG_MAPS,
    LONG,
    Rig,
    config_map,
    send,
    send_end_of_initial_events,
    settle,
    status_frame,
    versions,
    waits,
)

pytestmark = pytest.mark.looptime


def kinds(server: FakeApiServer) -> list[str]:
    """The lists, watch-lists and watches so far, in order."""
    return [
        "list" if request.verb == "list" else ("watch-list" if "sendInitialEvents" in request.query else "watch")
        for request in server.requests
    ]


@pytest.mark.parametrize("reason", ["the server does not know it", "the user does not want it"])
async def test_wl01_without_watch_lists_it_lists(server: FakeApiServer, client: MemberClient, reason: str) -> None:
    """WL01: the server's gate is off, or the client opted out."""
    server.put("configmaps", "a")
    if refuses := reason.startswith("the server"):
        server.watch_list = "off"
    rig = Rig(client, use_watch_list=refuses)
    async with rig.running():
        await rig.synced(server)
    assert kinds(server) == (["watch-list"] if refuses else []) + ["list", "watch"]
    assert rig.store.calls == [f"replace a@{server.resource_version}"]
    assert rig.failures == []


async def test_wl02_it_says_what_it_waits_for(server: FakeApiServer, client: MemberClient) -> None:
    """WL02: in its status, where client-go writes a warning every 10 s; nothing where no watch-list is under way."""
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        await asyncio.sleep(10.0)
        waiting = "the bookmark that ends a watch-list, for 10 s; "
        assert rig.reflector.status().waiting_for == waiting + "no event yet"
        send(watch, "ADDED", config_map("a", 5))
        await asyncio.sleep(12.0)
        assert rig.reflector.status().waiting_for.endswith("for 22 s; last event 12 s ago")
        send_end_of_initial_events(watch, 7)
        await rig.store.until(lambda: rig.store.calls)
        assert rig.reflector.status().waiting_for == ""
    classic = Rig(client, use_watch_list=False)
    async with classic.running():
        await classic.synced(server)
        await asyncio.sleep(30.0)
        assert classic.reflector.status().waiting_for == ""


@pytest.mark.parametrize("sent", [0, 2])
async def test_wl03_only_the_bookmark_gives_a_version(server: FakeApiServer, client: MemberClient, sent: int) -> None:
    """WL03: none without an event, none from ADDED ones."""
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        for number in range(sent):
            send(watch, "ADDED", config_map(f"a{number}", 50 + number))
        await settle()
        assert (rig.reflector.last_sync_resource_version, rig.store.calls) == ("", [])
        send_end_of_initial_events(watch, 60)
        await rig.store.until(lambda: rig.store.calls)
        await settle()
        assert rig.reflector.last_sync_resource_version == "60"


async def test_wl04_without_its_bookmark_nothing_is_synced(server: FakeApiServer, client: MemberClient) -> None:
    """WL04."""
    server.put("configmaps", "a")
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        await server.wait_for_watch()
        await asyncio.sleep(25.0)
        assert (rig.store.calls, rig.store.objects) == ([], {})
        assert rig.reflector.status().state is ReflectorState.LISTING
        assert rig.reflector.status().last_proof is None


async def test_wl04_with_its_bookmark_it_is_synced_and_goes_on(server: FakeApiServer, client: MemberClient) -> None:
    """WL04: one request for both."""
    server.put("configmaps", "a")
    listed = server.resource_version
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
        server.put("configmaps", "b")
        await rig.store.until(lambda: "b" in rig.store.objects)
    assert rig.store.calls == [f"replace a@{listed}", f"add b@{server.resource_version}"]
    assert kinds(server) == ["watch-list"]


@pytest.mark.parametrize(
    "fault",
    [faults.HttpError(422), faults.HttpError(403), faults.HttpError(500), faults.ErrorEvent(500), faults.End()],
    ids=["Invalid", "Forbidden", "dial 500", "in-stream 500", "very short"],
)
async def test_wl04_any_other_failure_is_followed_by_a_list_this_time(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault
) -> None:
    """WL04: at once; the next round tries a watch-list again."""
    server.put("configmaps", "a")
    server.fail("watch", "configmaps", fault)
    rig = Rig(client)
    async with rig.running():
        (await rig.synced(server)).error(410)
        await server.wait_for_request("watch", count=3)
    assert kinds(server) == ["watch-list", "list", "watch", "watch-list"]
    assert waits(list(server.requests))[:2] == pytest.approx([0, 0], abs=0.1)


async def test_wl04_changes_amid_the_initial_events_are_honoured(server: FakeApiServer, client: MemberClient) -> None:
    """WL04: a MODIFIED replaces, a DELETED takes away."""
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        send(watch, "ADDED", config_map("a", 3))
        send(watch, "ADDED", config_map("b", 4))
        send(watch, "MODIFIED", config_map("a", 5))
        send(watch, "DELETED", config_map("b", 6))
        send_end_of_initial_events(watch, 6)
        await rig.store.until(lambda: rig.store.calls)
    assert rig.store.calls == ["replace a@6"]
    assert rig.store.objects["a"].resource_version == "5"


async def test_wl04_told_to_slow_down_it_tries_again_later(server: FakeApiServer, client: MemberClient) -> None:
    """WL04: 429 twice, then it works; three watches, no list."""
    server.fail("watch", "configmaps", faults.HttpError(429), times=2)
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
    assert kinds(server) == ["watch-list"] * 3
    assert waits(list(server.requests)) == pytest.approx([0.8, 1.6], abs=0.1)


async def test_wl04_a_stream_that_ends_early_is_begun_anew(server: FakeApiServer, client: MemberClient) -> None:
    """WL04: at once, and with nothing twice; what was deleted meanwhile is not told."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    server.fail("watch", "configmaps", faults.End(after_events=1))
    rig = Rig(client)
    async with rig.running():
        await server.wait_for(lambda: any(not request.live for request in server.requests))
        server.delete("configmaps", "b")
        await rig.synced(server)
    assert kinds(server) == ["watch-list"] * 2
    assert waits(list(server.requests)) == pytest.approx([0], abs=0.1)
    assert [call.split("@")[0] for call in rig.store.calls] == ["replace a"]


async def test_wl04_a_stream_that_ends_later_is_resumed_as_a_watch(server: FakeApiServer, client: MemberClient) -> None:
    """WL04, W3."""
    rig = Rig(client)
    async with rig.running():
        (await rig.synced(server)).end()
        await server.wait_for_request("watch", count=2)
    assert kinds(server) == ["watch-list", "watch"]
    assert versions(server, "watch") == ["", server.resource_version]


async def test_wl04_the_resumed_watch_has_expired(server: FakeApiServer, client: MemberClient) -> None:
    """WL04: the round ends with that error; the next begins with what is known."""
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        known = server.resource_version
        watch.end()
        server.fail("watch", "configmaps", faults.ErrorEvent(410))
        await server.wait_for_request("watch", count=3)
    assert kinds(server) == ["watch-list", "watch", "watch-list"]
    assert versions(server, "watch") == ["", known, known]
    assert [getattr(failure, "is_expired", False) for failure in rig.failures] == [True]


@pytest.mark.parametrize("value", ["false", "True", ""])
async def test_wl04_the_end_has_to_say_true(server: FakeApiServer, client: MemberClient, value: str) -> None:
    """WL04: the annotation with any other value is a bookmark like others."""
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        watch = await server.wait_for_watch()
        send_end_of_initial_events(watch, 7, value=value)
        await settle()
        assert rig.store.calls == []
        send_end_of_initial_events(watch, 8)
        await rig.store.until(lambda: rig.store.calls)
    assert rig.store.calls == ["replace @8"]


OPTIONS: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "nothing": ({}, True, True),
    "any": ({"resource_version": "0"}, True, True),
    "a version": ({"resource_version": "5"}, True, True),
    "pages": ({"limit": 500}, True, True),
    "a version in pages": ({"resource_version": "5", "limit": 500}, True, True),
    "not older than": ({"resource_version": "5", "resource_version_match": "NotOlderThan"}, True, False),
    "not older than any": ({"resource_version": "0", "resource_version_match": "NotOlderThan"}, True, False),
    "not older than nothing": ({"resource_version_match": "NotOlderThan"}, False, False),
    "exactly": ({"resource_version": "5", "resource_version_match": "Exact"}, True, False),
    "exactly any": ({"resource_version": "0", "resource_version_match": "Exact"}, False, False),
    "watch-list": (
        {"resource_version": "5", "resource_version_match": "NotOlderThan", "send_initial_events": True},
        False,
        True,
    ),
    "consistent watch-list": ({"resource_version_match": "NotOlderThan", "send_initial_events": True}, False, True),
    "watch-list without match": ({"send_initial_events": True}, False, False),
    "exact watch-list": ({"resource_version_match": "Exact", "send_initial_events": True}, False, False),
    "a page of a match": (
        {"resource_version": "5", "resource_version_match": "NotOlderThan", "continue_token": "x"},
        False,
        False,
    ),
}


@pytest.mark.parametrize(("options", "list_allowed", "watch_allowed"), OPTIONS.values(), ids=OPTIONS)
async def test_wl05_which_options_may_stand_together(
    server: FakeApiServer, client: MemberClient, options: dict[str, Any], list_allowed: bool, watch_allowed: bool
) -> None:
    """WL05: no list is turned into a watch-list here, the Reflector makes each request's options itself.

    So the table is of what a server takes: an option that got lost on the way would change the answer.
    """
    server.skip_to(10)
    list_watch = ResourceListWatch(client, CONFIG_MAPS)
    asked = ListOptions(**options)

    async def allowed(verb: str) -> bool:
        try:
            if verb == "list":
                await list_watch.list(asked)
            else:
                async with list_watch.watch(asked):
                    pass
        except KubeStatusError as error:
            assert error.code == 422
            return False
        return True

    assert (await allowed("list"), await allowed("watch")) == (list_allowed, watch_allowed)


async def test_wl05_a_reflector_never_asks_what_a_server_does_not_take(
    server: FakeApiServer, client: MemberClient
) -> None:
    """WL05: through sync, resumption, expiry, a list in pages and one at a version that is not there."""
    for number in range(5):
        server.put("configmaps", f"a{number}")
    for use_watch_list in (True, False):
        rig = Rig(client, use_watch_list=use_watch_list, page_size=2)
        async with rig.running():
            (await rig.synced(server)).end()
            seen = server.requests.total
            await server.wait_for_request("watch", since=seen)
            for fault in (faults.HttpError(410), faults.TooLargeResourceVersion(), faults.HttpError(500)):
                seen = server.requests.total
                server.fail("*", "configmaps", fault)
                (await server.wait_for_watch(timeout=LONG)).error(410)
                await server.wait_for_request("watch", since=seen, count=2 - (not use_watch_list), timeout=LONG)
    assert {request.status for request in server.requests} - {200} == {410, 500, 504}
    assert not server.requests.refused_versions


# ---------------------------------------------------------------- the consistency checker


async def synced(server: FakeApiServer, client: MemberClient) -> tuple[Rig, ResourceListWatch]:
    for number in range(3):
        server.put("configmaps", f"a{number}", data={"n": str(number)})
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
    server.requests.clear()
    return rig, ResourceListWatch(client, CONFIG_MAPS)


async def test_wl07_a_watch_list_is_what_a_list_at_its_version_is(server: FakeApiServer, client: MemberClient) -> None:
    """WL07: byte for byte, also when more has happened since; exactly that version, without the classic limit."""
    rig, list_watch = await synced(server, client)
    version = rig.store.versions[0]
    server.delete("configmaps", "a0")
    server.touch("configmaps", "a1")
    assert await check_consistency(list_watch, rig.store.objects.values(), version)
    assert server.requests[0].query == {"resourceVersion": version, "resourceVersionMatch": "Exact"}


@pytest.mark.parametrize("difference", ["missing", "surplus", "state", "bytes"])
async def test_wl07_a_difference_is_told(server: FakeApiServer, client: MemberClient, difference: str) -> None:
    """WL07."""
    rig, list_watch = await synced(server, client)
    objects = dict(rig.store.objects)
    first = objects["a0"]
    match difference:
        case "missing":
            del objects["a0"]
        case "surplus":
            objects["more"] = msgspec.structs.replace(first, name="a0more")
        case "state":
            objects["a0"] = msgspec.structs.replace(first, resource_version="1")
        case "bytes":
            objects["a0"] = msgspec.structs.replace(first, raw=first.raw.replace(b'"0"', b'"9"'))
    with pytest.raises(Inconsistent, match="default/a0"):
        await check_consistency(list_watch, objects.values(), rig.store.versions[0])


@pytest.mark.parametrize(
    ("version", "options"),
    [("", None), ("0", None), ("5", ListOptions(resource_version="0")), ("5", ListOptions(continue_token="x"))],
)
async def test_wl07_what_has_no_version_is_not_compared(
    server: FakeApiServer, client: MemberClient, version: str, options: ListOptions | None
) -> None:
    """WL07: nothing is asked for it."""
    assert not await check_consistency(ResourceListWatch(client, CONFIG_MAPS), [], version, options=options)
    assert server.requests.total == 0


async def test_wl07_failing_lists_are_tried_again_and_transforms_are_applied(
    server: FakeApiServer, client: MemberClient
) -> None:
    """WL07: a limited number of times."""
    rig, list_watch = await synced(server, client)

    def transform(obj: KubeObject) -> KubeObject:
        return msgspec.structs.replace(obj, raw=obj.name.encode())

    objects = [transform(obj) for obj in rig.store.objects.values()]
    version = rig.store.versions[0]
    server.fail("list", "configmaps", faults.HttpError(500), times=ATTEMPTS - 1)
    assert await check_consistency(list_watch, objects, version, transform=transform)
    with pytest.raises(Inconsistent):
        await check_consistency(list_watch, objects, version)
    server.fail("list", "configmaps", faults.HttpError(500), times=ATTEMPTS)
    with pytest.raises(KubeStatusError):
        await check_consistency(list_watch, objects, version, transform=transform)


# ---------------------------------------------------------------- an end that never comes


async def test_deviate1_a_server_that_never_ends_the_initial_events_is_listed_from_then_on(
    server: FakeApiServer, client: MemberClient
) -> None:
    """DEVIATE-1: client-go tries for ever; here after 30 s of silence or two ends, and it is remembered."""
    server.put("configmaps", "a")
    server.watch_list = "endless"
    rig = Rig(client)
    async with rig.running():
        listed = await server.wait_for_request("list", timeout=LONG)
        assert listed.started == pytest.approx(30, abs=1)
        watch = await rig.synced(server)
        assert rig.store.names == ["a"]
        send(watch, "ERROR", status_frame(410, "Expired"))
        await server.wait_for_request("watch", count=3, timeout=LONG)
    assert kinds(server) == ["watch-list", "list", "watch", "list", "watch"]


async def test_deviate1_two_that_end_early_are_enough(server: FakeApiServer, client: MemberClient) -> None:
    """DEVIATE-1."""
    server.put("configmaps", "a")
    server.watch_list = "endless"
    server.fail("watch", "configmaps", faults.End(after_events=1), times=2)
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
    assert kinds(server) == ["watch-list", "watch-list", "list", "watch"]


async def test_deviate1_a_server_that_has_finished_one_before_is_listed_only_this_time(
    server: FakeApiServer, client: MemberClient
) -> None:
    """DEVIATE-1: it is slow at the moment, and its watch-lists are good."""
    server.put("configmaps", "a")
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        server.watch_list = "endless"
        watch.error(410)
        await server.wait_for_request("list", timeout=LONG)
        watch = await server.wait_for_watch(timeout=LONG)
        server.watch_list = "on"
        watch.error(410)
        await server.wait_for_request("watch", count=4, timeout=LONG)
    assert kinds(server) == ["watch-list", "watch-list", "list", "watch", "watch-list"]

"""What client-go's retry watcher and retry-with-deadline tests check, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from federator.api.list_watch import WatchEvent
from federator.cache import retry_watch
from federator.cache.internal_errors import InternalErrorWindow
from federator.errors import InvalidInput, KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.rig import CONFIG_MAPS, LONG, Rig, settle, status_frame, versions, waits

pytestmark = pytest.mark.looptime


async def follow(client: MemberClient, since: str, seen: list[WatchEvent], count: int) -> None:
    events = retry_watch(ResourceListWatch(client, CONFIG_MAPS), since)
    async with aclosing(events), asyncio.timeout(LONG):
        async for event in events:
            seen.append(event)
            if len(seen) == count:
                break


def names(seen: list[WatchEvent]) -> list[str]:
    return [f"{event.type} {event.object.name}" for event in seen]


@pytest.mark.parametrize("version", ["", "0"])
async def test_rw01_it_begins_only_where_it_can_resume(
    server: FakeApiServer, client: MemberClient, version: str
) -> None:
    """RW01."""
    with pytest.raises(InvalidInput, match="resource_version"):
        await follow(client, version, [], 1)
    assert server.requests.total == 0


RECOVERABLE: dict[str, Callable[[FakeApiServer], object]] = {
    "refused": lambda server: None,
    "reset before the answer": lambda server: server.fail("watch", "*", faults.Reset(), times=2),
    "dial 410": lambda server: server.fail("watch", "*", faults.HttpError(410)),
    "dial 401": lambda server: server.fail("watch", "*", faults.HttpError(401), times=2),
    "dial 403": lambda server: server.fail("watch", "*", faults.HttpError(403)),
    "dial 429": lambda server: server.fail("watch", "*", faults.HttpError(429, retry_after=7)),
    "dial 500": lambda server: server.fail("watch", "*", faults.HttpError(500)),
    "a proxy's page": lambda server: server.fail("watch", "*", faults.HtmlError(502)),
    "nothing": lambda server: server.fail("watch", "*", faults.End()),
    "timeout": lambda server: server.fail("watch", "*", faults.ErrorEvent(504)),
    "internal": lambda server: server.fail("watch", "*", faults.ErrorEvent(500)),
    "odd code": lambda server: server.fail("watch", "*", faults.ErrorEvent(999, reason="NeverSeen")),
    "odd object": lambda server: server.fail("watch", "*", faults.Frame(b'{"type":"ERROR","object":{"a":1}}\n')),
    "garbage": lambda server: server.fail("watch", "*", faults.Frame.garbage()),
}


@pytest.mark.parametrize("failure", RECOVERABLE)
async def test_rw02_it_goes_on_unless_it_is_certain_that_it_cannot(
    server: FakeApiServer, client: MemberClient, failure: str
) -> None:
    """RW02: and from where it was."""
    seen: list[WatchEvent] = []
    following = asyncio.create_task(follow(client, server.resource_version, seen, 2))
    watch = await server.wait_for_watch()
    server.put("configmaps", "a")
    await server.wait_until_sent()
    RECOVERABLE[failure](server)
    if failure == "refused":
        server.refuse_connections()
        watch.reset()
        await asyncio.sleep(5)
        await server.accept_connections()
    else:
        watch.end()
    server.put("configmaps", "b")
    await following
    assert names(seen) == ["ADDED a", "ADDED b"]
    assert set(versions(server, "watch")[1:]) == {seen[0].object.resource_version}


@pytest.mark.parametrize("code", [410, 401, 403])
async def test_rw03_it_ends_where_the_open_watch_is_told_so(
    server: FakeApiServer, client: MemberClient, code: int
) -> None:
    """RW03."""
    server.fail("watch", "*", faults.ErrorEvent(code))
    with pytest.raises(KubeStatusError) as raised:
        await follow(client, "4", [], 1)
    assert (raised.value.code, raised.value.in_stream) == (code, True)
    assert len(server.requests) == 1


@pytest.mark.parametrize("closes", [1, 2, 3, 4])
async def test_rw04_it_resumes_without_loss_or_repeat(server: FakeApiServer, client: MemberClient, closes: int) -> None:
    """RW04: the versions have gaps."""
    since = server.resource_version
    for number in range(1, 6):
        server.skip_to(10 * number)
        server.put("configmaps", f"a{number}")
    server.fail("watch", "*", faults.End(after_events=1), times=closes)
    seen: list[WatchEvent] = []
    await follow(client, since, seen, 5)
    assert [event.object.resource_version for event in seen] == ["11", "21", "31", "41", "51"]
    assert versions(server, "watch") == [since, "11", "21", "31", "41"][: closes + 1]
    assert waits(list(server.requests)) == pytest.approx([1.0] * closes, abs=0.1)


async def test_rw05_it_can_be_left_with_events_unread(server: FakeApiServer, client: MemberClient) -> None:
    """RW05: the watch is closed."""
    since = server.resource_version
    for number in range(5):
        server.put("configmaps", f"a{number}")
    seen: list[WatchEvent] = []
    await follow(client, since, seen, 1)
    assert names(seen) == ["ADDED a0"]
    await server.wait_for(lambda: not server.watches())
    assert server.requests[0].outcome == "client closed"


async def test_rw06_bookmarks_are_progress_and_not_given(server: FakeApiServer, client: MemberClient) -> None:
    """RW06."""
    seen: list[WatchEvent] = []
    following = asyncio.create_task(follow(client, server.resource_version, seen, 1))
    watch = await server.wait_for_watch()
    assert watch.request.query["allowWatchBookmarks"] == "true"
    watch.bookmark("50")
    watch.end()
    second = await server.wait_for_request("watch", count=2)
    assert second.query["resourceVersion"] == "50"
    assert seen == []
    following.cancel()
    await asyncio.wait([following])


# ---------------------------------------------------------------- for how long internal errors are borne


def test_rd01_the_window_of_internal_errors() -> None:
    """RD01: never when 0; from the first error on; a run ends after a minute without."""
    now = 100.0
    never, window = (InternalErrorWindow(seconds, clock=lambda: now) for seconds in (0.0, 30.0))
    borne: list[tuple[float, bool]] = []
    for now in (100.0, 110.0, 130.0, 131.0, 190.9, 250.9, 280.9, 281.0):
        assert not never.failed()
        borne.append((now, window.failed()))
    # At 190.9 the run from 100 on goes on, as 59.9 s are no minute; at 250.9 a new one begins.
    assert [time for time, may in borne if may] == [100.0, 110.0, 130.0, 250.9, 280.9]


@pytest.mark.parametrize("reason", ["Timeout", "ServiceUnavailable"])
async def test_rd01_other_errors_are_not_borne(server: FakeApiServer, client: MemberClient, reason: str) -> None:
    """RD01: they lead to a list also within the window."""
    rig = Rig(client, use_watch_list=False, max_internal_error_retry=30.0)
    async with rig.running():
        watch = await rig.synced(server)
        watch.send({"type": "ERROR", "object": status_frame({"Timeout": 504}.get(reason, 503), reason)})
        await server.wait_for_request("list", count=2)
        await settle()
    assert len(rig.failures) == 1

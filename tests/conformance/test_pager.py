"""What client-go's pager tests check, over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from federator.api.list_watch import ListOptions
from federator.cache import each_item
from federator.cache.pager import list_all
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from federator.testing.fake_api_server import Request
from tests.conformance.rig import CONFIG_MAPS, settle

pytestmark = pytest.mark.looptime

PREFETCHES = pytest.mark.parametrize("prefetch", [0, 1, 10])


def fill(server: FakeApiServer, number: int) -> list[str]:
    names = [f"a{count:02}" for count in range(number)]
    for name in names:
        server.put("configmaps", name)
    return names


def is_later_page(request: Request) -> bool:
    return "continue" in request.query


@pytest.mark.parametrize(("objects", "pages"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (6, 3)])
async def test_pg01_pages_are_joined_under_the_first_pages_version(
    server: FakeApiServer, client: MemberClient, objects: int, pages: int
) -> None:
    """PG01: of two objects each; "paginated" only from the second page on, by its token and not by what is left."""
    names = fill(server, objects)
    listed_at = server.resource_version
    listed = await list_all(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2))
    assert [obj.name for obj in listed.page.objects] == names
    assert (listed.page.resource_version, listed.page.continue_token) == (listed_at, "")
    assert listed.paginated is (pages > 1)
    assert len(server.requests) == pages


async def test_pg01_the_later_pages_are_of_the_first_ones_state(server: FakeApiServer, client: MemberClient) -> None:
    """PG01: what is written between two pages is in none."""
    names = fill(server, 4)
    listed_at = server.resource_version
    server.fail("list", "configmaps", faults.Delay(1.0), where=is_later_page)
    listing = asyncio.create_task(list_all(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2)))
    await server.wait_for_request("list", count=2)
    server.put("configmaps", "later")
    listed = await listing
    assert (listed.page.resource_version, [obj.name for obj in listed.page.objects]) == (listed_at, names)


@pytest.mark.parametrize("match", ["", "NotOlderThan"])
async def test_pg02_expiry_on_a_later_page_leads_to_one_full_list(
    server: FakeApiServer, client: MemberClient, match: str
) -> None:
    """PG02: with the original version and match, without limit and token."""
    names = fill(server, 5)
    version = server.resource_version
    server.fail("list", "configmaps", faults.HttpError(410), where=is_later_page)
    options = ListOptions(resource_version=version, resource_version_match=match, limit=2)
    listed = await list_all(ResourceListWatch(client, CONFIG_MAPS), options)
    assert [obj.name for obj in listed.page.objects] == names
    assert listed.paginated
    asked = {"resourceVersion": version, **({"resourceVersionMatch": match} if match else {})}
    assert [request.query for request in server.requests if not is_later_page(request)] == [
        {**asked, "limit": "2"},
        asked,
    ]
    assert len(server.requests) == 3


@pytest.mark.parametrize(("code", "skip"), [(410, 0), (500, 0), (500, 1)])
async def test_pg02_what_else_fails_is_the_callers(
    server: FakeApiServer, client: MemberClient, code: int, skip: int
) -> None:
    """PG02: expiry of the first page, and any other failure of a later one."""
    fill(server, 3)
    server.fail("list", "configmaps", faults.HttpError(code), skip=skip)
    with pytest.raises(KubeStatusError) as raised:
        await list_all(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2))
    assert raised.value.code == code
    assert len(server.requests) == 1 + skip


async def test_pg03_later_pages_are_asked_for_by_their_token_alone(server: FakeApiServer, client: MemberClient) -> None:
    """PG03, L4: version and match are cleared, limit and selectors stay."""
    for number in range(5):
        server.put("configmaps", f"a{number}", labels={"app": "web"})
    options = ListOptions(resource_version=server.resource_version, resource_version_match="NotOlderThan", limit=2)
    listed = await list_all(ResourceListWatch(client, CONFIG_MAPS, label_selector="app=web"), options)
    assert len(listed.page.objects) == 5
    for request in list(server.requests)[1:]:
        assert set(request.query) == {"labelSelector", "limit", "continue"}


async def collect(client: MemberClient, seen: list[str], prefetch: int, *, until: str = "") -> None:
    items = each_item(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2), prefetch=prefetch)
    async with aclosing(items):
        async for obj in items:
            seen.append(obj.name)
            if obj.name == until:
                raise ZeroDivisionError


@PREFETCHES
async def test_pg04_each_item_comes_once_in_order(server: FakeApiServer, client: MemberClient, prefetch: int) -> None:
    """PG04."""
    names, seen = fill(server, 7), list[str]()
    await collect(client, seen, prefetch)
    assert seen == names


@PREFETCHES
async def test_pg04_a_failure_comes_after_the_items_before_it(
    server: FakeApiServer, client: MemberClient, prefetch: int
) -> None:
    """PG04: expiry too; a full list in its place would give items twice."""
    names, seen = fill(server, 7), list[str]()
    server.fail("list", "configmaps", faults.HttpError(410), skip=2)
    with pytest.raises(KubeStatusError) as raised:
        await collect(client, seen, prefetch)
    assert raised.value.is_expired
    assert seen == names[:4]


@PREFETCHES
async def test_pg04_a_reader_that_raises_stops_it(server: FakeApiServer, client: MemberClient, prefetch: int) -> None:
    """PG04: no page is asked for any more, and none is left under way."""
    names, seen = fill(server, 12), list[str]()
    server.fail("list", "configmaps", faults.BlackHole(), skip=1)
    with pytest.raises(ZeroDivisionError):
        await collect(client, seen, prefetch, until=names[0])
    await settle()
    asked = len(server.requests)
    assert seen == names[:1]
    assert asked <= 2
    await server.wait_for(lambda: not any(request.live for request in server.requests))
    await asyncio.sleep(10)
    assert len(server.requests) == asked


@PREFETCHES
async def test_pg04_a_reader_that_is_cancelled_stops_it(
    server: FakeApiServer, client: MemberClient, prefetch: int
) -> None:
    """PG04: while a page is under way."""
    names, seen = fill(server, 6), list[str]()
    server.fail("list", "configmaps", faults.BlackHole(), skip=1)
    reading = asyncio.create_task(collect(client, seen, prefetch))
    await server.wait_for_request("list", count=2)
    await settle()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert seen == names[:2]
    await server.wait_for(lambda: not any(request.live for request in server.requests))


@pytest.mark.parametrize(("prefetch", "fetched"), [(0, 1), (1, 2), (10, 8)])
async def test_pg05_pages_fetched_ahead_are_bounded(
    server: FakeApiServer, client: MemberClient, prefetch: int, fetched: int
) -> None:
    """PG05: of eight pages, with one item read."""
    fill(server, 16)
    items = each_item(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2), prefetch=prefetch)
    async with aclosing(items):
        assert (await anext(items)).name == "a00"
        await asyncio.sleep(10)
        assert len(server.requests) == fetched


async def test_only_the_token_says_whether_more_follows(server: FakeApiServer, client: MemberClient) -> None:
    """Section 1.1: `remainingItemCount` is a hint; a wrong one changes nothing."""
    names = fill(server, 3)

    def lie(body: dict[str, object]) -> dict[str, object]:
        metadata = msgspec.convert(body["metadata"], dict[str, object])
        return {**body, "metadata": {**metadata, "remainingItemCount": 0 if "continue" in metadata else 99}}

    server.fail("list", "configmaps", faults.Rewrite(lie), times=None)
    listed = await list_all(ResourceListWatch(client, CONFIG_MAPS), ListOptions(limit=2))
    assert [obj.name for obj in listed.page.objects] == names

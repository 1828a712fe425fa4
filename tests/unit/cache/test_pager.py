"""Lists that come in pages."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from federator.api.list_watch import ListOptions, ListPage
from federator.cache.pager import each_item, list_all
from federator.errors import KubeStatusError
from tests.unit.cache.doubles import ScriptedListWatch, expired, page, pod


@pytest.mark.parametrize("pages", [1, 2, 3])
async def test_pg01_pages_are_joined_under_the_first_pages_version(pages: int) -> None:
    """PG01: one, two, three pages; "paginated" only from the second page on."""
    script = [
        page(10 + n, pod(f"p{n}", n + 1), continue_token=f"token-{n}" if n < pages - 1 else "") for n in range(pages)
    ]
    listed = await list_all(ScriptedListWatch(script), ListOptions(resource_version="0", limit=1))
    assert listed.paginated is (pages > 1)
    assert listed.page.resource_version == "10"
    assert [obj.name for obj in listed.page.objects] == [f"p{n}" for n in range(pages)]
    assert listed.page.continue_token == ""


async def test_pg01_an_empty_list() -> None:
    """PG01: no objects."""
    listed = await list_all(ScriptedListWatch([page(10)]), ListOptions(resource_version="0", limit=500))
    assert listed == (page(10), False)


async def test_pg02_expiry_on_a_later_page_leads_to_one_full_list_with_the_original_version() -> None:
    """PG02, RF23: no limit, no token, and not the inconsistent token that the 410 may carry."""
    list_watch = ScriptedListWatch([page(10, pod("a", 1), continue_token="next"), expired(), page(12, pod("b", 2))])
    options = ListOptions(resource_version="10", resource_version_match="NotOlderThan", limit=4)
    listed = await list_all(list_watch, options)
    assert listed.page == page(12, pod("b", 2))
    assert listed.paginated
    assert list_watch.lists[2] == ListOptions(resource_version="10", resource_version_match="NotOlderThan")


@pytest.mark.parametrize("after_pages", [0, 1])
async def test_pg02_other_failures_and_expiry_of_the_first_page_are_the_callers(after_pages: int) -> None:
    """PG02."""
    failure = KubeStatusError(500, "InternalError", "no") if after_pages else expired()
    list_watch = ScriptedListWatch([page(10, continue_token="next")] * after_pages + [failure])
    with pytest.raises(KubeStatusError) as raised:
        await list_all(list_watch, ListOptions(resource_version="10", limit=4))
    assert raised.value is failure


async def test_pg03_later_pages_are_asked_for_by_token_alone() -> None:
    """PG03, L4: version and match are cleared, the limit stays."""
    list_watch = ScriptedListWatch([page(10, continue_token="next"), page(11)])
    await list_all(list_watch, ListOptions(resource_version="7", resource_version_match="NotOlderThan", limit=4))
    assert list_watch.lists[1] == ListOptions(continue_token="next", limit=4)


async def test_what_was_skipped_is_reported_over_all_pages() -> None:
    script = [ListPage("10", [], "next", skipped=("a",)), ListPage("10", [], skipped=("b",))]
    listed = await list_all(ScriptedListWatch(script), ListOptions(limit=1))
    assert listed.page.skipped == ("a", "b")


def paged(pages: int, *, fails: Exception | None = None) -> ScriptedListWatch:
    """Pages of two objects each, the last followed by a failure where one is given."""
    script: list[ListPage | Exception] = []
    for n in range(pages):
        token = f"token-{n}" if fails is not None or n < pages - 1 else ""
        script.append(page(10, pod(f"a{n}", n + 1), pod(f"b{n}", n + 1), continue_token=token))
    return ScriptedListWatch([*script, fails] if fails is not None else script)


async def names(list_watch: ScriptedListWatch, prefetch: int, seen: list[str], *, until: str = "") -> None:
    options = ListOptions(resource_version="0", limit=2)
    async with aclosing(each_item(list_watch, options, prefetch=prefetch)) as items:
        async for obj in items:
            seen.append(obj.name)
            if obj.name == until:
                raise ZeroDivisionError


@pytest.mark.parametrize("prefetch", [0, 1, 10])
async def test_pg04_each_item_comes_once_in_order(prefetch: int) -> None:
    """PG04."""
    seen: list[str] = []
    await names(paged(3), prefetch, seen)
    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("prefetch", [0, 1, 10])
async def test_pg04_expiry_yields_the_items_before_it(prefetch: int) -> None:
    """PG04: there is no full list in its place, since that would give items twice."""
    seen: list[str] = []
    with pytest.raises(KubeStatusError) as raised:
        await names(paged(2, fails=expired()), prefetch, seen)
    assert raised.value.is_expired
    assert seen == ["a0", "b0", "a1", "b1"]


@pytest.mark.parametrize("prefetch", [0, 1, 10])
async def test_pg04_an_exception_or_cancellation_of_the_reader_stops_it_at_once(prefetch: int) -> None:
    """PG04: nothing is left running."""
    before = asyncio.all_tasks()
    seen: list[str] = []
    list_watch = paged(2)
    with pytest.raises(ZeroDivisionError):
        await names(list_watch, prefetch, seen, until="a0")
    assert seen == ["a0"]
    assert asyncio.all_tasks() == before
    never = ScriptedListWatch()
    reading = asyncio.create_task(names(never, prefetch, seen))
    await never.exhausted.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(("prefetch", "fetched"), [(0, 1), (1, 2), (10, 8)])
async def test_pg05_pages_fetched_ahead_are_bounded(prefetch: int, fetched: int) -> None:
    """PG05: with one item read of eight pages, that many were asked for."""
    list_watch = paged(8)
    async with aclosing(each_item(list_watch, ListOptions(limit=2), prefetch=prefetch)) as items:
        assert (await anext(items)).name == "a0"
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(list_watch.lists) == fetched

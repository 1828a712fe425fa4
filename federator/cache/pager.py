"""Lists that come in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from federator.api.list_watch import Known, ListOptions, ListPage, nothing_known
from federator.api.object import KubeObject
from federator.cache.list_watch import ListWatch
from federator.errors import KubeStatusError


class PagedList(NamedTuple):
    """A whole list.

    Attributes:
        page: all objects under the first page's resourceVersion.
        paginated: the server sent it in more than one page.
    """

    page: ListPage
    paginated: bool


async def list_all(list_watch: ListWatch, options: ListOptions, *, known: Known = nothing_known) -> PagedList:
    """Lists everything, following continue tokens; what is known in its present state is given again as it is.

    When the history behind a continue token expires midway, one full list is made with the original resourceVersion
    and no limit; the "inconsistent" token the server may offer is never used, as its pages mix two states.

    Raises:
        KubeStatusError: a page failed, the first also by expiry; what to do then is the caller's to decide.
        MemberUnreachable: a page could not be had.
    """
    first = await list_watch.list(options, known=known)
    if not first.continue_token:
        return PagedList(first, False)
    objects, skipped = list(first.objects), list(first.skipped)
    continue_token = first.continue_token
    while continue_token:
        try:
            page = await list_watch.list(_following(options, continue_token), known=known)
        except KubeStatusError as error:
            if not error.is_expired:
                raise
            return PagedList(await list_watch.list(msgspec.structs.replace(options, limit=0), known=known), True)
        objects += page.objects
        skipped += page.skipped
        continue_token = page.continue_token
    return PagedList(ListPage(first.resource_version, objects, skipped=tuple(skipped)), True)


PREFETCHED_PAGES = 5
"""Pages fetched ahead of whoever reads item by item."""


async def each_item(
    list_watch: ListWatch, options: ListOptions, *, prefetch: int = PREFETCHED_PAGES
) -> AsyncGenerator[KubeObject]:
    """Gives everything item by item, holding no more than a few pages (client-go: ListPager.EachListItem).

    Closing it stops fetching at once; use it with `contextlib.aclosing` where it may be left early.

    Args:
        list_watch: the server's side.
        options: with a limit; without one all comes in one page.
        prefetch: pages fetched ahead of the reader; 0 fetches the next page when the last one is read.

    Raises:
        KubeStatusError: a page failed, by expiry too, after the items before it were given: from here on there is no
            way to go on with the same state.
        MemberUnreachable: a page could not be had.
    """
    pages = _pages(list_watch, options)
    async with aclosing(_ahead(pages, prefetch) if prefetch else pages) as given:
        async for page in given:
            for obj in page.objects:
                yield obj


async def _pages(list_watch: ListWatch, options: ListOptions) -> AsyncGenerator[ListPage]:
    page = await list_watch.list(options)
    yield page
    while page.continue_token:
        page = await list_watch.list(_following(options, page.continue_token))
        yield page


def _following(options: ListOptions, continue_token: str) -> ListOptions:
    """A later page is asked for by its token, which has the version in it; the server refuses both together."""
    return msgspec.structs.replace(
        options, continue_token=continue_token, resource_version="", resource_version_match=""
    )


async def _ahead(pages: AsyncGenerator[ListPage], depth: int) -> AsyncGenerator[ListPage]:
    """Reads ahead of the reader by some pages."""
    room = asyncio.Semaphore(depth)
    fetched: asyncio.Queue[ListPage | None] = asyncio.Queue()

    async def fetch() -> None:
        try:
            async with aclosing(pages):
                await room.acquire()
                async for page in pages:
                    fetched.put_nowait(page)
                    await room.acquire()
        finally:
            fetched.put_nowait(None)

    fetching = asyncio.create_task(fetch(), name="pages ahead")
    try:
        while (page := await fetched.get()) is not None:
            room.release()
            yield page
        await fetching
    finally:
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)

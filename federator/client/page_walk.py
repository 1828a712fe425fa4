"""Lists, in one stream or page by page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from federator.client.connection import Connection
from federator.client.object import InventoryObject
from federator.client.result import ListPage
from federator.errors import AggregatorUnreachable, WatchTooSlow
from federator.v1 import inventory_pb2

_FIRST_DELAY = 0.2
_MAX_DELAY = 5.0
"""Seconds between attempts for one page; jittered by half."""

_ATTEMPTS = 15
"""For one page: some 50 s, in which an aggregator of a million objects has started again."""


async def list_stream(
    connection: Connection, request: inventory_pb2.ListRequest, timeout: float | None
) -> AsyncGenerator[ListPage, None]:
    """Makes one call, and yields its parts as they come; the last one has the summary.

    Raises:
        AggregatorUnreachable: it ended before that, too.
        FederatorError: as the aggregator refused it.
    """
    whole = False
    async with connection.call(lambda stub: stub.List, request, timeout) as call:
        async for response in call:
            connection.reached = True
            part = ListPage.from_message(response)
            whole = part.summary is not None
            yield part
    if not whole:
        raise AggregatorUnreachable(connection.address, "the list ended before its last page")


async def walk_pages(
    connection: Connection, request: inventory_pb2.ListRequest, timeout: float | None
) -> AsyncGenerator[ListPage, None]:
    """Makes a call for each page, and yields it whole, with its summary; all pages are of one revision.

    A page whose connection is lost is asked for again, unless it is the first: until then nothing is pinned.

    Args:
        connection: where it is asked for.
        request: of the first page, with a page size; its token is kept up to date here.
        timeout: seconds for all of it; None for as long as it takes.

    Raises:
        PageTokenExpired: history behind the revision was compacted meanwhile.
        AggregatorUnreachable: it stayed out of reach, or the time has passed.
        FederatorError: as the aggregator refused it.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    attempts = 0
    while True:
        remaining = None if deadline is None else max(0.0, deadline - loop.time())
        try:
            page = await _whole_page(connection, request, remaining)
        except (AggregatorUnreachable, WatchTooSlow):
            attempts += 1
            is_late = deadline is not None and loop.time() >= deadline
            if not request.page_token or attempts >= _ATTEMPTS or connection.closed or is_late:
                raise
            await asyncio.sleep(min(_MAX_DELAY, _FIRST_DELAY * 2**attempts) * random.uniform(0.5, 1.0))
            continue
        attempts = 0
        yield page
        assert page.summary is not None  # else `list_stream` has raised
        request.page_token = page.summary.next_page_token
        if not request.page_token:
            return


async def _whole_page(connection: Connection, request: inventory_pb2.ListRequest, timeout: float | None) -> ListPage:
    objects: list[InventoryObject] = []
    summary = None
    async with aclosing(list_stream(connection, request, timeout)) as parts:
        async for part in parts:
            objects.extend(part.objects)
            summary = part.summary
    return ListPage(tuple(objects), summary)

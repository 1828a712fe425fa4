"""A watch that goes on where it ended, without a store (client-go: RetryWatcher)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus

import structlog

from federator.api.list_watch import ListOptions, WatchEvent, WatchEventType
from federator.cache.list_watch import ListWatch
from federator.errors import CredentialsError, InvalidInput, KubeStatusError, MemberUnreachable

log = structlog.get_logger(__name__)

RESTART_DELAY = 1.0
"""Least seconds between two dials."""

_FINAL = frozenset({HTTPStatus.GONE, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


async def retry_watch(
    list_watch: ListWatch, resource_version: str, *, restart_delay: float = RESTART_DELAY
) -> AsyncGenerator[WatchEvent]:
    """Gives every event after a version once, over as many watches as that takes.

    It retries unless it is certain that it cannot go on; who wants to give up sooner sets a timeout around it.
    Bookmarks are taken as progress and not given. Closing it closes the watch.

    Args:
        list_watch: the server's side.
        resource_version: where to begin, as a list gave it.
        restart_delay: least seconds between two dials; a longer Retry-After is honoured.

    Raises:
        InvalidInput: the version is "" or "0", from which nothing can be resumed.
        KubeStatusError: the open watch was told 410 (list anew), 401 or 403.
    """
    if resource_version in ("", "0"):
        raise InvalidInput("resource_version", resource_version, "a version as a list gave it")
    while True:
        options = ListOptions(resource_version=resource_version, allow_bookmarks=True)
        delay = restart_delay
        try:
            async with list_watch.watch(options) as events:
                async for event in events:
                    if event.object.resource_version:
                        resource_version = event.object.resource_version
                    if event.type is not WatchEventType.BOOKMARK:
                        yield event
        except KubeStatusError as error:
            if error.in_stream and error.code in _FINAL:
                raise
            delay = max(delay, error.retry_after or 0.0)
            log.debug("watch failed, dialling again", cause=str(error))
        except (MemberUnreachable, CredentialsError) as error:
            log.debug("watch failed, dialling again", cause=str(error))
        await asyncio.sleep(delay)

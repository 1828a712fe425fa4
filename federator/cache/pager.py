"""Lists that come in pages."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from federator.api.list_watch import Known, ListOptions, ListPage, nothing_known
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
        following = msgspec.structs.replace(
            options, continue_token=continue_token, resource_version="", resource_version_match=""
        )
        try:
            page = await list_watch.list(following, known=known)
        except KubeStatusError as error:
            if not error.is_expired:
                raise
            return PagedList(await list_watch.list(msgspec.structs.replace(options, limit=0), known=known), True)
        objects += page.objects
        skipped += page.skipped
        continue_token = page.continue_token
    return PagedList(ListPage(first.resource_version, objects, skipped=tuple(skipped)), True)

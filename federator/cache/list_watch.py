"""The seam to an apiserver: what a Reflector asks of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known


class ListWatch(Protocol):
    """Lists and watches one resource type of one cluster, perhaps narrowed to a namespace or selector.

    Failures are raised, never returned:

    * `KubeStatusError`: the server answered with a failure Status; `in_stream` tells an ERROR frame from a reply.
    * `MemberUnreachable`: refused, reset, DNS, TLS or time-out while a request was being opened or a list being read.
    * `CredentialsError`: no usable credentials.

    A watch that ends cleanly or probably cleanly (last chunk, FIN, reset between frames) ends its iterator.
    """

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        """Sends one LIST request and returns its one page; following `continue_token` is the caller's work.

        What is `known` in the state that the server tells may be given again as it is.
        """
        ...

    def watch(self, options: ListOptions) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Opens a watch. Entering sends the request; leaving, for whatever reason, closes the response at once."""
        ...

"""List, watch and get of one resource type of one member cluster (client-go: ListWatch)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from http import HTTPStatus
from urllib.parse import quote

import msgspec
import structlog

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, WatchEventType, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.errors import KubeStatusError
from federator.kube.frame_reader import Frame, FrameReader
from federator.kube.list_reader import ListBody, ListMeta, ListReader
from federator.kube.member_client import MemberClient, Query
from federator.kube.object_decoder import PARTIAL_METADATA_KIND, ObjectDecoder, UnusableObject
from federator.kube.status import frame_error, is_status, undecodable

_ITEMS_PER_SLICE = 500
"""Items decoded before other tasks get their turn: about 5 ms."""

_EVENT_TYPES = {str(member): member for member in WatchEventType}

log = structlog.get_logger(__name__)


class ResourceListWatch:
    """Lists, watches and gets one type, optionally in one namespace or by selectors.

    Failures are raised as federator's errors: KubeStatusError (a failure code, a list that cannot be read, or an ERROR
    frame, then with `in_stream`), MemberUnreachable, CredentialsError. An object that cannot be used is skipped, named
    in `ListPage.skipped` or the log, and counted in the client's statistics; the rest is served.

    With `metadata_only` nothing but metadata is asked for, and a server that answers with more is refused.
    """

    def __init__(
        self,
        client: MemberClient,
        resource_type: ResourceType,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> None:
        self._client = client
        self._type = resource_type
        self._path = resource_type.path(namespace)
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._selectors = (("labelSelector", label_selector), ("fieldSelector", field_selector))
        self._metadata_only = metadata_only
        self._decoder = ObjectDecoder(resource_type, metadata_only=metadata_only)

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        """Sends one LIST request and returns its page. Blocks the loop for a few milliseconds at a time.

        The body is decoded as it comes and is never in memory as a whole. Cancelling it closes the connection.
        """
        accept = self._accept(f"{PARTIAL_METADATA_KIND}List")
        reader = ListReader()
        page = Page(self._decoder, known)
        body = self._client.stream(self._path, self._query(options), accept=accept, verb="list")
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                await page.take(reader.feed(chunk))
        end = self._checked_end(reader)
        await page.take(end.items or [])
        if page.skipped:
            self._client.count_skipped_objects(len(page.skipped))
            log.warning(
                "list items skipped",
                context=self._client.context,
                path=self._path,
                count=len(page.skipped),
                first=page.skipped[0],
            )
        metadata = end.metadata or ListMeta()
        return ListPage(metadata.resource_version or "", page.objects, metadata.continue_ or "", tuple(page.skipped))

    async def get(self, namespace: str, name: str) -> KubeObject | None:
        """Reads one object as it is now, with the bytes that it has in a list.

        Args:
            namespace: the object's, empty for cluster-scoped types; another one than this is narrowed to may be asked.
            name: the object's name.

        Returns:
            The object; None where there is none, or where the selectors leave it out.

        Raises:
            KubeStatusError, MemberUnreachable, CredentialsError: as `list`; an object that cannot be used is an
                internal error (500) here.
        """
        if self._label_selector or self._field_selector:
            return await self._get_selected(namespace, name)
        path = f"{self._type.path(namespace)}/{quote(name, safe='')}"
        try:
            body = await self._client.get(path, accept=self._accept(PARTIAL_METADATA_KIND))
        except KubeStatusError as error:
            # What no apiserver wrote, such as a proxy's page, says nothing about the object.
            if error.code == HTTPStatus.NOT_FOUND and error.status_reason == "NotFound":
                return None
            raise
        try:
            return self._decoder.decode(body.strip())  # an apiserver ends what is no list with a newline
        except UnusableObject as error:
            self._client.count_skipped_objects(1)
            raise undecodable(f"{path}: {error}", in_stream=False) from None

    async def _get_selected(self, namespace: str, name: str) -> KubeObject | None:
        """A GET takes no selectors; a list of one name does."""
        field_selector = ",".join(filter(None, (self._field_selector, f"metadata.name={name}")))
        only = ResourceListWatch(
            self._client,
            self._type,
            namespace=namespace,
            label_selector=self._label_selector,
            field_selector=field_selector,
            metadata_only=self._metadata_only,
        )
        page = await only.list(ListOptions())
        if page.skipped:
            raise undecodable(f"{only._path}: {page.skipped[0]}", in_stream=False)
        return next(iter(page.objects), None)

    def watch(self, options: ListOptions) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Opens a watch and gives its events, each as soon as its last byte is here.

        The iterator ends where the watch ends, cleanly or by a connection that broke: what came of an unfinished frame
        is dropped. An ERROR frame, or a frame that is none, is raised after the events before it. Leaving the context
        closes the connection at once.
        """
        return self._watch(options)

    @asynccontextmanager
    async def _watch(self, options: ListOptions) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        query = [("watch", "1"), *self._query(options)]
        accept = self._accept(PARTIAL_METADATA_KIND)
        async with (
            self._client.watch(self._path, query, accept=accept, length=options.timeout_seconds) as chunks,
            aclosing(self._events(chunks)) as events,
        ):
            yield events

    async def _events(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent]:
        reader = FrameReader()
        skipped = 0
        async for chunk in chunks:
            for frame in reader.feed(chunk):
                self._client.count_watch_frame()
                try:
                    event = self._event(frame)
                except UnusableObject as error:
                    self._client.count_skipped_objects(1)
                    # A server may send nothing else: the first tells, the rest is counted.
                    log.log(
                        logging.DEBUG if skipped else logging.WARNING,
                        "watch event skipped",
                        context=self._client.context,
                        path=self._path,
                        cause=str(error),
                    )
                    skipped += 1
                    continue
                yield event

    def _event(self, frame: Frame) -> WatchEvent:
        event_type = _EVENT_TYPES.get(frame.type)
        if event_type is None:
            raise _frame_failure(frame)
        if event_type is WatchEventType.BOOKMARK:
            return self._decoder.decode_bookmark(frame.object)
        return WatchEvent(event_type, self._decoder.decode(frame.object))

    def _checked_end(self, reader: ListReader) -> ListBody:
        try:
            end = reader.finish()
        except msgspec.MsgspecError as error:
            raise undecodable(f"{self._path}: the list cannot be read: {error}", in_stream=False) from None
        if end.kind in {"Status", "Table"}:
            raise undecodable(f"{self._path}: a {end.kind} instead of a list", in_stream=False)
        if self._metadata_only and end.kind != f"{PARTIAL_METADATA_KIND}List":
            raise undecodable(f"{self._path}: a {end.kind}, though only metadata was asked for", in_stream=False)
        if end.metadata is None or not end.metadata.resource_version:
            raise undecodable(f"{self._path}: a list without metadata.resourceVersion", in_stream=False)
        return end

    def _query(self, options: ListOptions) -> Query:
        values = (
            *self._selectors,
            ("limit", str(options.limit or "")),
            ("continue", options.continue_token),
            ("resourceVersion", options.resource_version),
            ("resourceVersionMatch", options.resource_version_match),
            ("timeoutSeconds", str(options.timeout_seconds or "")),
            ("allowWatchBookmarks", "true" if options.allow_bookmarks else ""),
            ("sendInitialEvents", "true" if options.send_initial_events else ""),
        )
        return [(name, value) for name, value in values if value]

    def _accept(self, partial_kind: str) -> str:
        if not self._metadata_only:
            return "application/json"
        return f"application/json;as={partial_kind};g=meta.k8s.io;v=v1,application/json"


class Page:
    """Collects the objects of one page."""

    def __init__(self, decoder: ObjectDecoder, known: Known = nothing_known) -> None:
        self.objects: list[KubeObject] = []
        self.skipped: list[str] = []
        self._decode = decoder.decode
        self._known = known

    async def take(self, items: Sequence[msgspec.Raw]) -> None:
        """Decodes the next items of the page."""
        for position, item in enumerate(items, 1):
            if not position % _ITEMS_PER_SLICE:
                await asyncio.sleep(0)
            try:
                self.objects.append(self._decode(item, self._known))
            except UnusableObject as error:
                self.skipped.append(f"item {len(self.objects) + len(self.skipped)}: {error}")


def _frame_failure(frame: Frame) -> KubeStatusError:
    """The error of a frame that is no event: ERROR, a bare Status, or something the API does not know."""
    if frame.type == "ERROR" or (not frame.type and is_status(frame.object)):
        return frame_error(frame.object)
    return undecodable(f"a watch event of the unknown type {frame.type[:64]!r}", in_stream=True)

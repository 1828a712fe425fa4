"""IngestServicer: lets agents in and runs their sessions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import structlog

from federator.aggregator.ingest.freshness_sink import FreshnessSink
from federator.aggregator.ingest.identity import peer_cluster_id
from federator.aggregator.ingest.known_types import KnownTypes
from federator.aggregator.ingest.lifecycle import Candidate, ClusterLifecycle, Opened
from federator.aggregator.ingest.session import Session
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ingest.shared import Shared
from federator.aggregator.ingest.stored_digests import StoredDigests
from federator.aggregator.ledger.damage import STATE_LOST
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterRecord, TypeRecord
from federator.api.cluster import ClusterID, TypeState
from federator.api.label import check_cluster_labels
from federator.api.resource import GroupResource
from federator.errors import FederatorError, InvalidInput
from federator.v1 import ingest_pb2, ingest_pb2_grpc
from federator.wire.body import Dictionary
from federator.wire.digest import PROTOCOL
from federator.wire.resource_type import resource_type_from_proto, resource_type_to_proto
from federator.wire.status import aio_error_boundary

log = structlog.get_logger(__name__)

MAX_TYPES = 10_000
"""Types in one Hello; a cluster with many CustomResourceDefinitions has some hundreds."""

Context = grpc.aio.ServicerContext[ingest_pb2.PushRequest, ingest_pb2.PushResponse]


class IngestServicer(ingest_pb2_grpc.IngestServiceServicer):
    """The service that agents push to. It has a listener of its own, in the one process that may append."""

    def __init__(
        self,
        ledger: Ledger,
        lifecycle: ClusterLifecycle,
        freshness: FreshnessSink,
        settings: IngestSettings | None = None,
        *,
        digests: StoredDigests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serves once it is added to a server.

        Args:
            ledger: what is appended to.
            lifecycle: decides who is let in.
            freshness: hears of signs of life.
            settings: window, heartbeat, deadline of Hello, places for listings; None for the defaults.
            digests: of what is stored.
            clock: monotonic seconds; what is done about digests that differ goes by it.
        """
        self._ledger = ledger
        self._lifecycle = lifecycle
        self._freshness = freshness
        self._settings = settings or IngestSettings()
        self._shared = Shared(ledger, lifecycle, freshness, digests, self._settings, clock=clock)
        lifecycle.on_departed(self.forget)
        self._open: set[_SessionEnd] = set()
        self._sessions: set[Session] = set()
        self._ends: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._is_closed = False

    @aio_error_boundary
    async def Push(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """One session. See ingest.proto."""
        try:
            hello = await self._hello(context)
            cluster_id = peer_cluster_id(context, hello)
            end = _SessionEnd()
            opened = await self._lifecycle.open(_candidate(cluster_id, hello, end))
        except FederatorError as error:
            self._refusals[error.reason] += 1
            raise
        self._freshness.unread_groups(cluster_id, hello.unread_groups)
        await self._serve(opened, context, end, hello)

    def close(self) -> None:
        """Ends all sessions, and those to come, as soon as they open. Call it before the server is stopped."""
        self._is_closed = True
        for end in self._open:
            end(None)

    def offer(self, dictionary: Dictionary) -> None:
        """Gives a new dictionary to the agents that collect its type."""
        for session in self._sessions:
            session.offer(dictionary)

    def request_listing(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        """Asks the agent of a cluster, if it has a session, to list a type anew."""
        for session in self._sessions:
            session.request_listing(cluster_id, resource)

    def forget(self, cluster_id: ClusterID) -> None:
        """Drops what was counted of a cluster that has left."""
        self._shared.counts.forget(cluster_id)
        self._shared.mismatches.forget(cluster_id)

    def statistics(self) -> Mapping[str, object]:
        """Sessions open, types whose digests differ, and totals.

        `session_ends` by reason ("goodbye", "broken", "stopped", or the error's), `refusals` of Hello by reason; the
        others are those of SessionCounts and of Admission.
        """
        return {
            "sessions": len(self._open),
            "session_ends": dict(self._ends),
            "refusals": dict(self._refusals),
            "mismatches": len(self._shared.mismatches),
            **self._shared.counts.statistics(),
            **self._shared.admission.statistics(),
        }

    async def _hello(self, context: Context) -> ingest_pb2.Hello:
        try:
            async with asyncio.timeout(self._settings.hello_timeout):
                request: object = await context.read()
        except TimeoutError:
            raise InvalidInput("frame", "nothing", f"Hello within {self._settings.hello_timeout:g} s") from None
        if not isinstance(request, ingest_pb2.PushRequest) or not request.HasField("hello"):
            raise InvalidInput("frame", "something else", "Hello as the first frame")
        return request.hello

    async def _serve(self, opened: Opened, context: Context, end: _SessionEnd, hello: ingest_pb2.Hello) -> None:
        record = opened.record
        log.info("session opened", cluster=record.cluster_id, term=record.term, snapshot_all=opened.snapshot_all)
        reason = "broken"
        self._open.add(end)
        if self._is_closed:
            end(None)
        try:
            await context.write(ingest_pb2.PushResponse(welcome=self._welcome(opened, hello)))
            session = Session(context, record, self._shared, end.future, KnownTypes(hello.types))
            for dictionary in self._ledger.bodies.newest().values():
                if dictionary.dictionary_id not in hello.dictionary_ids:
                    session.offer(dictionary)
            if not opened.snapshot_all:  # else the agent lists everything by itself
                for known in self._ledger.types(record.cluster_id):
                    if (known.state, known.reason) == (TypeState.SYNCING, STATE_LOST):
                        session.request_listing(record.cluster_id, known.type.group_resource)
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
            reason = "stopped" if end.future.done() else "goodbye"
        except FederatorError as error:
            reason = error.reason
            raise
        finally:
            self._open.discard(end)
            self._ends[reason] += 1
            self._lifecycle.closed(record.cluster_id, record.term, has_left=reason == "goodbye")
            log.info("session ended", cluster=record.cluster_id, term=record.term, reason=reason)

    def _welcome(self, opened: Opened, hello: ingest_pb2.Hello) -> ingest_pb2.Welcome:
        named = {(described.group, described.resource) for described in hello.types}
        unnamed = (held for held in opened.held_types if held.group_resource not in named)
        return ingest_pb2.Welcome(
            term=opened.record.term,
            durable_sequence=opened.record.durable_sequence,
            snapshot_all=opened.snapshot_all,
            window_bytes=self._settings.window_bytes,
            heartbeat_interval_ms=int(self._settings.heartbeat_interval * 1000),
            held_types=map(resource_type_to_proto, unnamed),
            dictionary_ids=filter(self._ledger.bodies.__contains__, hello.dictionary_ids),
            protocol=PROTOCOL,
            floors=map(_floor, self._ledger.types(opened.record.cluster_id)),
        )


def _floor(record: TypeRecord) -> ingest_pb2.TypeFloor:
    group, resource = record.type.group_resource
    return ingest_pb2.TypeFloor(
        group=group, resource=resource, resource_version=record.low_water, generation=record.generation
    )


class _SessionEnd:
    """Ends one session from outside, once."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: FederatorError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)
            self.future.exception()  # a session that ends by itself at this moment never asks


def _candidate(cluster_id: ClusterID, hello: ingest_pb2.Hello, end: _SessionEnd) -> Candidate:
    for field in ("cluster_uid", "agent_instance"):
        if not 0 < len(getattr(hello, field)) <= _MAX_TEXT:
            raise InvalidInput(field, getattr(hello, field)[:_MAX_TEXT], f"1 to {_MAX_TEXT} characters")
    if len(hello.types) > MAX_TYPES:
        raise InvalidInput("types", len(hello.types), f"at most {MAX_TYPES}")
    labels = dict(hello.labels)
    check_cluster_labels(labels, field="labels")
    record = ClusterRecord(
        cluster_id,
        hello.cluster_uid,
        display_name=hello.display_name[:_MAX_TEXT],
        server_version=hello.server_version[:_MAX_TEXT],
        source=hello.source[:_MAX_TEXT],
        namespace=hello.namespace[:_MAX_TEXT],
        label_selector=hello.label_selector,
        agent_instance=hello.agent_instance,
        labels=labels,
    )
    return Candidate(record, tuple(map(resource_type_from_proto, hello.types)), hello.replace, end)


_MAX_TEXT = 256
"""Characters of a text in Hello that are kept."""

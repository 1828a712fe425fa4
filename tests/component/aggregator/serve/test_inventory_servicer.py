"""The inventory service over a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest

from federator.aggregator.ledger.records import Batch, Put
from federator.aggregator.query.listing import PAGE_BYTES, PART_BYTES
from federator.aggregator.serve import inventory_servicer
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.cursor import CursorCodec
from federator.errors import (
    AggregatorUnreachable,
    AmbiguousName,
    CursorAhead,
    CursorExpired,
    CursorForeign,
    CursorForged,
    CursorMalformed,
    FederatorError,
    InvalidInput,
    LimitReached,
    MalformedSelector,
    NotFreshYet,
    ObjectNotFound,
    UnknownCluster,
    UnknownResourceType,
    WatchTooSlow,
)
from federator.v1 import inventory_pb2, types_pb2
from federator.v1.inventory_pb2 import GetRequest, ListRequest, Selection, WatchRequest
from federator.wire.status import from_rpc_error
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, delete, eventually, put
from tests.unit.aggregator.serve.recorder import ADDED, BOOKMARK, CLUSTER, DELETED, INITIAL_END, key_of


@pytest.fixture
async def federation() -> Federation:
    """Two clusters with a pod of the same name each, one with a node and a deployment."""
    federation = Federation()
    for cluster in ("eu-1", "us-1"):
        await federation.join(cluster)
        await federation.commit(cluster, put("web", labels={"app": "web", "in": cluster}, node="n1"), put("db"))
    await federation.commit("eu-1", put("n1", namespace=""), type=NODES)
    await federation.commit("eu-1", put("web"), type=DEPLOYMENTS)
    return federation


async def _failure(call: Awaitable[object]) -> FederatorError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value, "here")


async def _listed(
    federation: Federation, request: ListRequest
) -> tuple[list[inventory_pb2.ListResponse], inventory_pb2.ListSummary]:
    async with federation.serving() as stub:
        pages = [page async for page in stub.List(request)]
    assert all(not page.HasField("summary") for page in pages[:-1])
    return pages, pages[-1].summary


class Client:
    """Reads a watch event by event."""

    def __init__(self, call: AsyncIterator[inventory_pb2.WatchResponse]) -> None:
        self._call = call
        self._events: list[inventory_pb2.WatchEvent] = []

    async def next(self) -> inventory_pb2.WatchEvent:
        while not self._events:
            self._events = list((await anext(self._call)).events)
        return self._events.pop(0)

    async def until(self, event_type: int) -> list[inventory_pb2.WatchEvent]:
        """Events up to and including the first of a type."""
        events = [await self.next()]
        while events[-1].type != event_type:
            events.append(await self.next())
        return events


# ------------------------------------------------------------------------------------------------------------- Get


async def test_get_reads_one_object_with_its_freshness(federation: Federation) -> None:
    async with federation.serving() as stub:
        response = await stub.Get(GetRequest(cluster_id="us-1", resource="po", namespace="shop", name="web"))
        assert key_of(response.object) == "us-1//pods/shop/web"
        assert b'"in":"us-1"' in response.object.body
        assert response.revision == federation.ledger.revision
        assert response.freshness.cluster_id == "us-1"
        assert response.freshness.state == types_pb2.CLUSTER_STATE_LIVE
        assert not response.freshness.incomplete_types
        only_one = await stub.Get(GetRequest(resource="deployments", namespace="shop", name="web"))
        assert only_one.object.cluster_id == "eu-1"
        node = await stub.Get(GetRequest(resource="node", name="n1"))
        assert node.object.namespace == ""
    assert federation.servicer.statistics()["answers_get_complete"] == 3


async def test_get_of_a_stale_cluster_says_so(federation: Federation) -> None:
    await federation.ledger.set_cluster_state(ClusterID("us-1"), ClusterState.STALE, "agent silent")
    async with federation.serving() as stub:
        response = await stub.Get(GetRequest(cluster_id="us-1", resource="pods", namespace="shop", name="web"))
    (incomplete,) = response.freshness.incomplete_types
    assert (incomplete.state, incomplete.reason) == (types_pb2.TYPE_STATE_STALE, "agent silent")
    assert federation.servicer.statistics()["answers_get_partial"] == 1


async def test_get_refuses_by_name(federation: Federation) -> None:
    async with federation.serving() as stub:

        async def refused(**fields: Any) -> FederatorError:
            return await _failure(stub.Get(GetRequest(**fields)))

        ambiguous = await refused(resource="pods", namespace="shop", name="web")
        assert isinstance(ambiguous, AmbiguousName)
        assert ambiguous.clusters == ("eu-1", "us-1")
        missing = await refused(resource="pods", namespace="shop", name="nope")
        assert isinstance(missing, ObjectNotFound)
        assert (missing.resource, missing.name, missing.namespace) == ("pods", "nope", "shop")
        unknown = await refused(cluster_id="eu-9", resource="pods", namespace="shop", name="web")
        assert isinstance(unknown, UnknownCluster)
        assert unknown.known == ("eu-1", "us-1")
        assert isinstance(await refused(resource="widgets", name="x"), UnknownResourceType)
        for field, fields in {
            "name": {"resource": "pods", "namespace": "shop"},
            "namespace": {"resource": "pods", "name": "web"},
            "resource": {"resource": "all", "namespace": "shop", "name": "web"},
            "cluster_id": {"cluster_id": "EU", "resource": "pods", "namespace": "shop", "name": "web"},
        }.items():
            invalid = await refused(**fields)
            assert isinstance(invalid, InvalidInput)
            assert invalid.field == field
        assert isinstance(await refused(name="x"), InvalidInput)


# ------------------------------------------------------------------------------------------------------------ List


async def test_list_is_exact_at_its_revision_and_says_how_fresh_it_is(federation: Federation) -> None:
    (page,), summary = await _listed(federation, ListRequest(selection=Selection(resources=["pods", "deploy"])))
    assert [key_of(message) for message in page.objects] == [
        "eu-1/apps/deployments/shop/web",
        "eu-1//pods/shop/db",
        "eu-1//pods/shop/web",
        "us-1//pods/shop/db",
        "us-1//pods/shop/web",
    ]
    assert summary.revision == federation.ledger.revision
    assert federation.ledger.cursors.decode(summary.cursor) == summary.revision
    assert (summary.total, summary.complete) == (5, True)
    assert [cluster.cluster_id for cluster in summary.clusters] == ["eu-1", "us-1"]
    assert all(cluster.HasField("seen_age_ms") and cluster.HasField("proved_age_ms") for cluster in summary.clusters)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(resources=["pods"], clusters=["eu-*"]), ["eu-1//pods/shop/db", "eu-1//pods/shop/web"]),
        (Selection(resources=["pods"], clusters=["*", "!eu-1"], name="web"), ["us-1//pods/shop/web"]),
        (Selection(resources=["pods"], label_selector="in=us-1"), ["us-1//pods/shop/web"]),
        (Selection(resources=["pods"], label_selector="!app", clusters=["us-1"]), ["us-1//pods/shop/db"]),
        (Selection(resources=["pods"], field_selector="spec.nodeName=n1", clusters=["us-1"]), ["us-1//pods/shop/web"]),
        (Selection(resources=["pods"], field_selector="metadata.labels.in=us-1"), ["us-1//pods/shop/web"]),
        (Selection(resources=["pods"], namespace="other"), []),
        (Selection(resources=["nodes", "pods"], namespace="other"), ["eu-1//nodes//n1"]),
    ],
)
async def test_list_selects(federation: Federation, selection: Selection, expected: list[str]) -> None:
    (page,), summary = await _listed(federation, ListRequest(selection=selection))
    assert [key_of(message) for message in page.objects] == expected
    assert summary.total == len(expected)


async def test_a_limit_leaves_the_total(federation: Federation) -> None:
    (page,), summary = await _listed(federation, ListRequest(selection=Selection(resources=["pods"]), limit=1))
    assert (len(page.objects), summary.total) == (1, 4)


async def test_long_lists_come_in_parts(federation: Federation) -> None:
    for number in range(12):
        await federation.commit("eu-1", put(f"big-{number:02}", data="x" * (PART_BYTES // 4)))
    pages, summary = await _listed(federation, ListRequest(selection=Selection(resources=["pods"], clusters=["eu-1"])))
    assert len(pages) == 4
    assert all(page.ByteSize() < PART_BYTES * 1.1 for page in pages)
    assert sum(len(page.objects) for page in pages) == summary.total == 14


async def test_an_incomplete_list_names_who_is_missing_and_why(federation: Federation) -> None:
    await federation.ledger.set_type_state(ClusterID("us-1"), PODS, TypeState.DENIED, "pods is forbidden")
    await federation.join("ap-1", state=ClusterState.SYNCING)
    _, summary = await _listed(federation, ListRequest(selection=Selection(resources=["pods"])))
    assert not summary.complete
    incomplete = {cluster.cluster_id: [t.reason for t in cluster.incomplete_types] for cluster in summary.clusters}
    assert incomplete == {"ap-1": ["cluster is SYNCING"], "eu-1": [], "us-1": ["pods is forbidden"]}
    _, narrower = await _listed(federation, ListRequest(selection=Selection(resources=["pods"], clusters=["eu-1"])))
    assert narrower.complete
    statistics = federation.servicer.statistics()
    assert (statistics["answers_list_partial"], statistics["answers_list_complete"]) == (1, 1)


@pytest.mark.parametrize(
    ("selection", "error", "field"),
    [
        (Selection(), InvalidInput, "selection.resources"),
        (Selection(resources=[""]), InvalidInput, "selection.resources"),
        (Selection(resources=["pods"], clusters=[""]), MalformedSelector, "selection.clusters"),
        (Selection(resources=["pods"], clusters=["EU-1"]), MalformedSelector, "selection.clusters"),
        (Selection(resources=["pods"], label_selector="a=b=c"), MalformedSelector, "selection.label_selector"),
        (Selection(resources=["pods"], field_selector="a"), MalformedSelector, "selection.field_selector"),
        (Selection(resources=["pods"], namespace="a/b"), InvalidInput, "selection.namespace"),
        (Selection(resources=["pods"], name="a\0b"), InvalidInput, "selection.name"),
        (Selection(resources=["widgets"]), UnknownResourceType, None),
        (Selection(resources=["pods"], clusters=["eu-9"]), UnknownCluster, None),
        (Selection(resources=["pods"], clusters=["*", "!eu-9"]), UnknownCluster, None),
    ],
)
async def test_what_is_not_allowed_is_refused_by_field(
    federation: Federation, selection: Selection, error: type[FederatorError], field: str | None
) -> None:
    async with federation.serving() as stub:
        for call in (stub.List(ListRequest(selection=selection)), stub.Watch(WatchRequest(selection=selection))):
            refused = await _failure(anext(aiter(call)))
            assert type(refused) is error
            assert getattr(refused, "field", None) == field


# ----------------------------------------------------------------------------------------------------------- Watch


async def test_a_watch_begins_with_the_list_and_goes_on_with_changes(federation: Federation) -> None:
    async with federation.serving() as stub:
        selection = Selection(resources=["pods"], label_selector="app=web")
        client = Client(aiter(stub.Watch(WatchRequest(selection=selection))))
        *initial, end = await client.until(INITIAL_END)
        assert [(event.type, key_of(event.object)) for event in initial] == [
            (ADDED, "eu-1//pods/shop/web"),
            (ADDED, "us-1//pods/shop/web"),
        ]
        assert not any(event.cursor for event in initial)
        assert end.cursor
        assert [fresh.cluster_id for fresh in end.freshness] == ["eu-1", "us-1"]
        await federation.commit("eu-1", put("web", labels={"app": "db"}), put("new", labels={"app": "web"}))
        left, came = await client.next(), await client.next()
        assert (left.type, key_of(left.object)) == (DELETED, "eu-1//pods/shop/web")
        assert b'"in":"eu-1"' in left.object.body
        assert (came.type, key_of(came.object)) == (ADDED, "eu-1//pods/shop/new")

        resumed = Client(aiter(stub.Watch(WatchRequest(selection=selection, cursor=left.cursor))))
        assert await resumed.next() == came


async def test_a_list_and_a_watch_from_its_cursor_leave_no_gap(federation: Federation) -> None:
    _, summary = await _listed(federation, ListRequest(selection=Selection(resources=["pods"])))
    await federation.commit("eu-1", delete("web"))
    async with federation.serving() as stub:
        request = WatchRequest(selection=Selection(resources=["pods"]), cursor=summary.cursor)
        event = await Client(aiter(stub.Watch(request))).next()
    assert (event.type, key_of(event.object)) == (DELETED, "eu-1//pods/shop/web")


async def test_the_cursor_of_a_list_is_good_before_watches_were_told_of_what_it_has(federation: Federation) -> None:
    federation.hub.flush()
    federation.hub._pause = 3600
    async with federation.serving() as stub:
        await federation.commit("eu-1", put("new"))
        assert federation.hub.revision < federation.ledger.revision
        pages = [page async for page in stub.List(ListRequest(selection=Selection(resources=["pods"])))]
        request = WatchRequest(selection=Selection(resources=["pods"]), cursor=pages[-1].summary.cursor)
        client = Client(aiter(stub.Watch(request)))
        await eventually(lambda: federation.hub.statistics()["watchers_live"] == 1)
        federation.hub._pause = 0
        await federation.commit("eu-1", put("newer"))
        assert (await client.next()).object.name == "newer"


async def test_bookmarks_are_asked_for_in_milliseconds_and_not_below_a_bound(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_servicer, "MIN_BOOKMARK_INTERVAL", 0.5)
    loop = asyncio.get_running_loop()
    async with federation.serving() as stub:
        request = WatchRequest(selection=Selection(resources=["pods"]), bookmark_interval_ms=1)
        client = Client(aiter(stub.Watch(request)))
        await client.until(INITIAL_END)
        began = loop.time()
        (bookmark,) = await client.until(BOOKMARK)
        assert 0.45 < loop.time() - began < 5
        assert bookmark.revision == federation.ledger.revision
        assert [fresh.cluster_id for fresh in bookmark.freshness] == ["eu-1", "us-1"]


async def test_clusters_come_and_go_on_an_open_watch(federation: Federation) -> None:
    async with federation.serving() as stub:
        client = Client(aiter(stub.Watch(WatchRequest(selection=Selection(resources=["pods"], clusters=["eu-*"])))))
        await client.until(INITIAL_END)
        await federation.ledger.set_cluster_state(ClusterID("us-1"), ClusterState.STALE)
        await federation.ledger.set_cluster_state(ClusterID("eu-1"), ClusterState.STALE, "agent silent")
        await federation.join("eu-2")
        await federation.commit("eu-2", put("web"))
        *clusters, added = await client.until(ADDED)
        assert {event.type for event in clusters} == {CLUSTER}
        assert [(event.cluster.cluster_id, event.cluster.state) for event in clusters] == [
            ("eu-1", types_pb2.CLUSTER_STATE_STALE),
            ("eu-2", types_pb2.CLUSTER_STATE_JOINING),
            ("eu-2", types_pb2.CLUSTER_STATE_LIVE),
        ]
        assert all(event.cursor for event in clusters)
        assert key_of(added.object) == "eu-2//pods/shop/web"


async def test_cursors_that_are_not_good_are_refused_by_kind(federation: Federation) -> None:
    good = federation.ledger.cursors
    changed = bytearray(base64.urlsafe_b64decode(good.encode(5)))
    changed[-1] ^= 1
    cases: list[tuple[bytes, type[FederatorError]]] = [
        (b"nonsense", CursorMalformed),
        (good.encode(5)[:20], CursorMalformed),
        (good.encode(federation.ledger.revision) * 2, CursorMalformed),
        (base64.urlsafe_b64encode(changed), CursorForged),
        (CursorCodec(good.ledger_id, b"guessed").encode(federation.ledger.revision), CursorForged),
        (CursorCodec(b"another!", good.secret).encode(federation.ledger.revision), CursorForeign),
        (good.encode(federation.ledger.revision + 1), CursorAhead),
        (good.encode(5), CursorExpired),
    ]
    async with federation.serving() as stub:
        for cursor, error in cases:
            request = WatchRequest(selection=Selection(resources=["pods"]), cursor=cursor)
            refused = await _failure(anext(aiter(stub.Watch(request))))
            assert type(refused) is error
            if isinstance(refused, CursorExpired):
                assert (refused.revision, refused.oldest) == (5, federation.ledger.oldest_revision)
            if isinstance(refused, CursorAhead):
                assert refused.newest == federation.ledger.revision
    assert federation.hub.statistics()["watch_ends_expired"] == 1


async def test_a_client_that_does_not_read_is_told_its_last_cursor_and_holds_nobody_up() -> None:
    """It stalls; another client gets everything; it wakes, and from its last cursor on misses nothing."""
    federation = Federation(write_seconds=0.5, max_entries=16)
    await federation.join("a")
    selection = Selection(resources=["pods"])

    async def is_told_slow_under_load() -> None:
        for number in itertools.count():
            await federation.commit("a", put("x", n=number, data="x" * (PAGE_BYTES // 2)))
            await asyncio.sleep(0.01)
            if "watch_ends_slow" in federation.hub.statistics():
                return

    async def follow(client: Client, revisions: list[int]) -> None:
        event = await client.next()
        while event.object.name != "last":
            revisions.append(event.revision)
            event = await client.next()
        revisions.append(event.revision)

    async with federation.serving() as stub, asyncio.timeout(30):
        slow = aiter(stub.Watch(WatchRequest(selection=selection)))
        healthy = Client(aiter(stub.Watch(WatchRequest(selection=selection))))
        end = (await Client(slow).until(INITIAL_END))[-1]
        # Opened before the load too, or its first revision is a later one.
        by_healthy = [(await healthy.until(INITIAL_END))[-1].revision]
        following = asyncio.create_task(follow(healthy, by_healthy))
        await is_told_slow_under_load()

        received, cursor = [end.revision], end.cursor
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for response in slow:
                received += [event.revision for event in response.events]
                cursor = response.events[-1].cursor
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        told = from_rpc_error(raised.value, "here")
        assert isinstance(told, WatchTooSlow)
        assert federation.ledger.cursors.decode(told.cursor) in received

        resumed = Client(aiter(stub.Watch(WatchRequest(selection=selection, cursor=cursor))))
        await federation.commit("a", put("last"))
        await follow(resumed, received)
        await following
    assert received == by_healthy == list(range(end.revision, federation.ledger.revision + 1))


async def test_a_list_that_is_not_read_ends_and_lets_its_pin_go() -> None:
    federation = Federation(write_seconds=0.2)
    await federation.join("a")
    for number in range(30):
        await federation.commit("a", put(f"p{number:02}", data="x" * PAGE_BYTES))
    async with federation.serving() as stub:
        call = stub.List(ListRequest(selection=Selection(resources=["pods"])))
        await anext(aiter(call))
        assert federation.servicer.statistics()["pinned_readers"] == 1
        await eventually(lambda: federation.servicer.statistics()["pinned_readers"] == 0)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in call:
                pass
        told = from_rpc_error(raised.value, "here")
        assert isinstance(told, WatchTooSlow)
        assert told.cursor == b""


async def test_a_client_that_leaves_is_counted_and_leaves_nothing(federation: Federation) -> None:
    async with federation.serving() as stub:
        call = stub.Watch(WatchRequest(selection=Selection(resources=["pods"])))
        await Client(aiter(call)).until(INITIAL_END)
        assert federation.hub.statistics()["watchers_live"] == 1
        call.cancel()
        await eventually(lambda: federation.hub.statistics()["watchers_live"] == 0)
        statistics = federation.servicer.statistics()
        assert (statistics["watch_ends_client"], statistics["pinned_readers"]) == (1, 0)


async def test_a_stopping_aggregator_tells_its_watchers_to_come_back(federation: Federation) -> None:
    async with federation.serving() as stub:
        client = Client(aiter(stub.Watch(WatchRequest(selection=Selection(resources=["pods"])))))
        await client.until(INITIAL_END)
        commit = await federation.commit("eu-1", put("last"))
        federation.hub.close()
        added, bookmark = await client.next(), await client.next()
        assert (added.type, bookmark.type) == (ADDED, BOOKMARK)
        assert federation.ledger.cursors.decode(bookmark.cursor) == bookmark.revision == commit.revision
        assert isinstance(await _failure(client.next()), AggregatorUnreachable)
    assert federation.hub.statistics()["watch_ends_shutdown"] == 1


async def test_no_transition_of_a_cluster_ends_a_watch_of_another(federation: Federation) -> None:
    async with federation.serving() as stub:
        selections = [Selection(resources=["pods"], clusters=clusters) for clusters in (["eu-1"], ["!us-1"], [])]
        clients = [Client(aiter(stub.Watch(WatchRequest(selection=selection)))) for selection in selections]
        for client in clients:
            await client.until(INITIAL_END)
        steps = (
            ClusterState.STALE,
            ClusterState.RECOVERING,
            ClusterState.LIVE,
            ClusterState.STALE,
            ClusterState.REMOVED,
        )
        for state in steps:
            await federation.ledger.set_cluster_state(ClusterID("us-1"), state)
        await federation.join("us-1", state=ClusterState.SYNCING)
        await federation.ledger.set_cluster_state(ClusterID("us-1"), ClusterState.LIVE)
        await federation.commit("eu-1", put("after-all"))
        one, others, everything = [await client.until(ADDED) for client in clients]
        assert [key_of(event.object) for event in (*one, *others)] == ["eu-1//pods/shop/after-all"] * 2
        *clusters, added = everything
        assert key_of(added.object) == "eu-1//pods/shop/after-all"
        names = [inventory_pb2.ClusterTransition.Name(event.cluster.transition) for event in clusters]
        assert [name.removeprefix("CLUSTER_TRANSITION_") for name in names] == [
            *("STALE", "UNSPECIFIED", "RECOVERED", "STALE", "REMOVED"),
            *("JOINED", "UNSPECIFIED", "SYNCED"),
        ]


async def test_the_state_before_a_change_is_sent_on_request(federation: Federation) -> None:
    async with federation.serving() as stub:
        request = WatchRequest(selection=Selection(resources=["pods"], clusters=["eu-1"]), with_previous=True)
        client = Client(aiter(stub.Watch(request)))
        *initial, _ = await client.until(INITIAL_END)
        assert not any(event.HasField("previous") for event in initial)
        await federation.commit("eu-1", put("web", labels={"app": "new"}), delete("db"), put("fresh"))
        modified, deleted, added = [await client.next() for _ in range(3)]
        assert b'"app":"new"' in modified.object.body
        assert b'"app":"web"' in modified.previous.body
        assert modified.previous.revision < modified.object.revision
        assert deleted.previous == deleted.object
        assert not added.HasField("previous")


async def test_more_watches_than_allowed_are_refused_with_when_to_come_back(federation: Federation) -> None:
    federation.hub._max_watches = 1
    async with federation.serving() as stub:
        request = WatchRequest(selection=Selection(resources=["pods"]))
        call = stub.Watch(request)
        await Client(aiter(call)).until(INITIAL_END)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await anext(aiter(stub.Watch(request)))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        refused = from_rpc_error(raised.value, "here")
        assert isinstance(refused, LimitReached)
        assert (refused.what, refused.limit) == ("watches", 1)
        call.cancel()
        await eventually(lambda: federation.hub.statistics()["watchers_live"] == 0)
        await Client(aiter(stub.Watch(request))).until(INITIAL_END)


# ---------------------------------------------------------------------------------------------------- read your writes


async def _bookmark(federation: Federation, version: str, *changes: Put) -> None:
    cluster_id = ClusterID("eu-1")
    term = federation.ledger.clusters()[cluster_id].term
    await federation.ledger.append(Batch(cluster_id, term, 0, PODS, changes, low_water=version))


FRESH = inventory_pb2.FreshAsOf(cluster_id="eu-1", resource="pods", resource_version="500")


async def test_answers_wait_for_what_they_have_to_contain(federation: Federation) -> None:
    selection = Selection(resources=["pods"], clusters=["eu-1"])
    written = GetRequest(cluster_id="eu-1", resource="pods", namespace="shop", name="written", fresh_as_of=[FRESH])
    async with federation.serving() as stub, asyncio.TaskGroup() as tasks:

        async def first_page() -> list[str]:
            return [key_of(each) for each in (await anext(aiter(stub.List(asked)))).objects]

        async def first_events() -> list[str]:
            events = await Client(aiter(stub.Watch(WatchRequest(selection=selection, fresh_as_of=[FRESH])))).until(
                INITIAL_END
            )
            return [key_of(event.object) for event in events[:-1]]

        async def got() -> list[str]:
            return [key_of((await stub.Get(written)).object)]

        asked = ListRequest(selection=selection, fresh_as_of=[FRESH])
        answers = [tasks.create_task(each()) for each in (got, first_page, first_events)]
        await eventually(lambda: federation.servicer.statistics()["waiting_for_freshness"] == 3)
        await _bookmark(federation, "499")
        await _bookmark(federation, "501", put("written", resource_version="500"))
        for answer in answers:
            assert "eu-1//pods/shop/written" in await answer
    assert federation.servicer.statistics()["waiting_for_freshness"] == 0


async def test_what_is_not_there_in_time_is_told_as_unavailable(federation: Federation) -> None:
    await _bookmark(federation, "499")
    selection = Selection(resources=["pods"])
    fields: dict[str, Any] = {"fresh_as_of": [FRESH], "fresh_within_ms": 50}
    async with federation.serving() as stub:
        calls = (
            stub.Get(GetRequest(resource="pods", namespace="shop", name="web", cluster_id="eu-1", **fields)),
            anext(aiter(stub.List(ListRequest(selection=selection, **fields)))),
            anext(aiter(stub.Watch(WatchRequest(selection=selection, **fields)))),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            told = from_rpc_error(raised.value, "here")
            assert isinstance(told, NotFreshYet)
            assert (told.cluster_id, told.resource, told.low_water, told.state) == ("eu-1", "pods", "499", "LIVE")
            assert told.proved_age is not None
            assert told.helps_to_wait


async def test_a_caller_that_leaves_while_it_waits_leaves_nothing(federation: Federation) -> None:
    async with federation.serving() as stub:
        call = stub.Get(GetRequest(resource="pods", namespace="shop", name="web", fresh_as_of=[FRESH]))
        waiting = asyncio.create_task(call.wait_for_connection())
        await eventually(lambda: federation.servicer.statistics()["waiting_for_freshness"] == 1)
        call.cancel()
        await eventually(lambda: federation.servicer.statistics()["waiting_for_freshness"] == 0)
        waiting.cancel()
    assert not federation.view.freshness._waiting


# ------------------------------------------------------------------------------------------------ clusters and types


async def test_clusters_are_told_with_state_and_freshness(federation: Federation) -> None:
    await federation.join("ap-1", [PODS], state=ClusterState.SYNCING)
    await federation.ledger.set_cluster_state(ClusterID("us-1"), ClusterState.REMOVED)
    async with federation.serving() as stub:
        response = await stub.ListClusters(inventory_pb2.ListClustersRequest())
        assert response.revision == federation.ledger.revision
        ap, eu = response.clusters
        assert (ap.cluster_id, ap.state, ap.objects) == ("ap-1", types_pb2.CLUSTER_STATE_SYNCING, 0)
        assert (eu.cluster_id, eu.state, eu.objects) == ("eu-1", types_pb2.CLUSTER_STATE_LIVE, 4)
        assert eu.cluster_uid == "uid-of-eu-1"
        assert eu.HasField("seen_age_ms")
        assert [(fresh.resource, fresh.state) for fresh in eu.types] == [
            ("nodes", types_pb2.TYPE_STATE_LIVE),
            ("pods", types_pb2.TYPE_STATE_LIVE),
            ("deployments", types_pb2.TYPE_STATE_LIVE),
        ]
        removed = await stub.ListClusters(inventory_pb2.ListClustersRequest(clusters=["us-1"]))
        assert [cluster.state for cluster in removed.clusters] == [types_pb2.CLUSTER_STATE_REMOVED]
        some = await stub.ListClusters(inventory_pb2.ListClustersRequest(clusters=["e*"]))
        assert [cluster.cluster_id for cluster in some.clusters] == ["eu-1"]
        unknown = await _failure(stub.ListClusters(inventory_pb2.ListClustersRequest(clusters=["eu-9"])))
        assert isinstance(unknown, UnknownCluster)


async def test_types_are_told_with_who_serves_them(federation: Federation) -> None:
    await federation.join("ap-1", [PODS])
    async with federation.serving() as stub:
        response = await stub.ListResourceTypes(inventory_pb2.ListResourceTypesRequest())
    served = {(t.type.group, t.type.resource): (t.type.kind, list(t.clusters)) for t in response.types}
    assert served == {
        ("", "nodes"): ("Node", ["eu-1", "us-1"]),
        ("", "pods"): ("Pod", ["ap-1", "eu-1", "us-1"]),
        ("apps", "deployments"): ("Deployment", ["eu-1", "us-1"]),
    }
    assert list(served) == sorted(served)

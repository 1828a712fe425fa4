"""Watches that select clusters by their labels, while these change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import grpc
import pytest

from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.messages import selection_from_proto
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import SelectionChanged
from federator.v1 import inventory_pb2
from federator.wire.status import from_rpc_error
from tests.unit.aggregator.federation import Federation, put
from tests.unit.aggregator.serve.recorder import BOOKMARK, CLUSTER, INITIAL_END, key_of, new_watch, responses

PROD, TEST = {"env": "prod"}, {"env": "test"}
IN_PROD = inventory_pb2.Selection(resources=["pods"], cluster_selector="env=prod")


class Followed:
    """What a watch has told before it stood at a revision, or ended."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.ended: SelectionChanged | None = None


async def follow(
    federation: Federation, selection: Selection, *, after: int | None, until: Callable[[], int]
) -> Followed:
    followed = Followed()
    try:
        async with aclosing(responses(new_watch(federation, selection, after=after))) as taken:
            async for response in taken:
                for event in response.events:
                    if event.type == CLUSTER:
                        followed.told.append(f"CLUSTER {event.cluster.cluster_id}")
                    elif event.type not in {BOOKMARK, INITIAL_END}:
                        kind = inventory_pb2.WatchEventType.Name(event.type).removeprefix("WATCH_EVENT_TYPE_")
                        followed.told.append(f"{kind} {key_of(event.object)}")
                if response.events[-1].type == BOOKMARK and response.events[-1].revision >= until():
                    return followed
    except SelectionChanged as error:
        followed.ended = error
    return followed


@pytest.fixture
async def federation() -> Federation:
    federation = Federation()
    await federation.join("a", labels=PROD)
    await federation.join("b", labels=TEST)
    return federation


def _asked(federation: Federation, message: inventory_pb2.Selection = IN_PROD) -> Selection:
    return selection_from_proto(message, federation.view)


async def test_clusters_are_watched_by_their_labels_also_those_that_join(federation: Federation) -> None:
    start, selection = federation.ledger.revision, _asked(federation)
    await federation.commit("a", put("x"))
    await federation.commit("b", put("x"))
    await federation.join("c", (), labels=PROD)
    await federation.join("d", (), labels=TEST)
    await federation.commit("c", put("x"))
    await federation.commit("d", put("x"))
    end = federation.ledger.revision
    followed = await follow(federation, selection, after=start, until=lambda: end)
    assert followed.ended is None
    assert followed.told == ["ADDED a//pods/shop/x", "CLUSTER c", "CLUSTER c", "ADDED c//pods/shop/x"]


@pytest.mark.parametrize(
    ("cluster", "labels", "is_selected"), [("a", TEST, False), ("b", PROD, True), ("a", {}, False)]
)
async def test_a_change_of_labels_ends_the_watch_behind_everything_before_it(
    federation: Federation, cluster: str, labels: dict[str, str], is_selected: bool
) -> None:
    start, selection = federation.ledger.revision, _asked(federation)
    await federation.commit("a", put("x"))
    await federation.join(cluster, (), labels=labels)
    await federation.commit("a", put("y"))
    await federation.commit("b", put("y"))
    changed = federation.ledger.clusters()[ClusterID(cluster)].labels_revision
    followed = await follow(federation, selection, after=start, until=lambda: federation.ledger.revision)
    assert followed.told == ["ADDED a//pods/shop/x"]
    assert followed.ended is not None
    assert (followed.ended.cluster_id, followed.ended.is_selected) == (cluster, is_selected)
    assert federation.ledger.cursors.decode(followed.ended.cursor) == changed

    again = await follow(federation, _asked(federation), after=changed, until=lambda: federation.ledger.revision)
    assert again.ended is None
    assert (
        again.told
        == {
            "a": [],
            "b": ["ADDED a//pods/shop/y", "ADDED b//pods/shop/y"],
        }[cluster]
    )


async def test_a_change_that_decides_nothing_is_no_event(federation: Federation) -> None:
    start, selection = federation.ledger.revision, _asked(federation)
    await federation.join("a", (), labels={**PROD, "region": "eu"})
    await federation.join("b", (), labels={})
    await federation.commit("a", put("x"))
    end = federation.ledger.revision
    followed = await follow(federation, selection, after=start, until=lambda: end)
    assert followed.ended is None
    assert followed.told == ["ADDED a//pods/shop/x"]


async def test_a_watch_without_a_cluster_selector_hears_nothing_of_labels(federation: Federation) -> None:
    start = federation.ledger.revision
    selection = _asked(federation, inventory_pb2.Selection(resources=["pods"]))
    await federation.join("a", (), labels=TEST)
    await federation.commit("a", put("x"))
    end = federation.ledger.revision
    followed = await follow(federation, selection, after=start, until=lambda: end)
    assert followed.ended is None
    assert followed.told == ["ADDED a//pods/shop/x"]


async def test_a_cluster_that_a_glob_leaves_out_ends_no_watch(federation: Federation) -> None:
    start = federation.ledger.revision
    message = inventory_pb2.Selection(resources=["pods"], cluster_selector="env=prod", clusters=["!b"])
    selection = _asked(federation, message)
    await federation.join("b", (), labels=PROD)
    end = federation.ledger.revision
    assert (await follow(federation, selection, after=start, until=lambda: end)).ended is None


async def test_a_cluster_that_comes_back_with_other_labels_ends_the_watch(federation: Federation) -> None:
    start, selection = federation.ledger.revision, _asked(federation)
    await federation.ledger.set_cluster_state(ClusterID("b"), ClusterState.REMOVED)
    await federation.join("b", (), labels=PROD)
    followed = await follow(federation, selection, after=start, until=lambda: federation.ledger.revision)
    assert followed.ended is not None
    assert (followed.ended.cluster_id, followed.ended.is_selected) == ("b", True)


async def test_a_waiting_watch_hears_of_a_change_at_once(federation: Federation) -> None:
    """Also of a cluster that it did not select, of which nothing else would wake it."""
    watch = new_watch(federation, _asked(federation), after=federation.ledger.revision, bookmark_interval=3600)
    messages = watch.messages()
    async with aclosing(messages):
        waiting = asyncio.ensure_future(anext(messages))
        while not watch.is_waiting:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        await federation.join("b", (), labels=PROD)
        with pytest.raises(SelectionChanged):
            await waiting


async def test_a_selection_is_resolved_as_of_where_a_watch_goes_on(federation: Federation) -> None:
    before = federation.ledger.revision
    await federation.join("a", (), labels=TEST)
    labels = federation.view.cluster_labels
    asked = _asked(federation)
    then, now = asked.as_of(labels, before), asked.as_of(labels, federation.ledger.revision)
    assert then is not None
    assert now is not None
    assert then.has_cluster(ClusterID("a"))
    assert not now.has_cluster(ClusterID("a"))
    labels.load(federation.ledger)  # as after a restart
    assert _asked(federation).as_of(labels, before) is None
    left_out = inventory_pb2.Selection(resources=["pods"], cluster_selector="env=test", clusters=["b"])
    unchanged = _asked(federation, left_out).as_of(labels, before)
    assert unchanged is not None
    assert unchanged.has_cluster(ClusterID("b"))


async def test_over_the_wire_a_cursor_of_before_a_restart_is_told_to_start_over(federation: Federation) -> None:
    cursor = federation.ledger.cursors.encode(federation.ledger.revision)
    await federation.join("a", (), labels=TEST)
    federation.view.cluster_labels.load(federation.ledger)  # as after a restart
    async with federation.serving() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Watch(inventory_pb2.WatchRequest(selection=IN_PROD, cursor=cursor)):
                pass
    error = from_rpc_error(refused.value, "")
    assert isinstance(error, SelectionChanged)
    assert (error.cursor, error.cluster_id) == (b"", "a")


async def test_lists_watches_and_freshness_mean_the_same_clusters(federation: Federation) -> None:
    await federation.join("c", labels={**PROD, "region": "eu"})
    for cluster in "abc":
        await federation.commit(cluster, put("x"))
    async with federation.serving() as stub:
        for selector, expected in {
            "env=prod": {"a", "c"},
            "region": {"c"},
            "env!=prod": {"b"},
            "env=dev": set(),
        }.items():
            selection = inventory_pb2.Selection(resources=["pods"], cluster_selector=selector)
            listed = [part async for part in stub.List(inventory_pb2.ListRequest(selection=selection))]
            assert {each.cluster_id for part in listed for each in part.objects} == expected
            assert {each.cluster_id for each in listed[-1].summary.clusters} == expected
            told: set[str] = set()
            call = stub.Watch(inventory_pb2.WatchRequest(selection=selection))
            async for response in call:
                told |= {event.object.cluster_id for event in response.events if event.HasField("object")}
                if response.events[-1].type == INITIAL_END:
                    assert {each.cluster_id for each in response.events[-1].freshness} == expected
                    break
            call.cancel()
            assert told == expected
        clusters = (await stub.ListClusters(inventory_pb2.ListClustersRequest())).clusters
        assert {each.cluster_id: dict(each.labels) for each in clusters} == {
            "a": PROD,
            "b": TEST,
            "c": {"env": "prod", "region": "eu"},
        }

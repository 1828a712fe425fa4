"""Watches, and how they survive their connection."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest

from federator.api.cluster import ClusterState
from federator.client import (
    ClusterTransition,
    Event,
    EventType,
    FreshAsOf,
    InventoryClient,
    TransitionType,
    aconnect,
)
from federator.errors import (
    AggregatorUnreachable,
    CursorExpired,
    CursorForeign,
    FederatorError,
    LimitReached,
    NotFreshYet,
    SelectionChanged,
    WatchTooSlow,
)
from federator.v1 import inventory_pb2, types_pb2
from tests.component.client.conftest import FIRST_DELAY
from tests.component.client.scripted_inventory import ScriptedInventory, event, freshness, inventory_object, serving


async def take(client: InventoryClient, count: int, cursor: bytes | None = None) -> list[Event]:
    taken: list[Event] = []
    async with aclosing(client.watch("pods", cursor=cursor)) as events:
        async for one in events:
            taken.append(one)
            if len(taken) == count:
                break
    return taken


def told(events: list[Event]) -> list[str]:
    return [f"{one.type} {one.object.name}" if one.object else str(one.type) for one in events]


async def test_every_type_of_event_with_what_it_carries(client: InventoryClient, inventory: ScriptedInventory) -> None:
    transition = inventory_pb2.ClusterEvent(
        cluster_id="ap-1",
        state=types_pb2.CLUSTER_STATE_STALE,
        previous_state=types_pb2.CLUSTER_STATE_LIVE,
        reason="silent",
        transition=inventory_pb2.CLUSTER_TRANSITION_STALE,
    )
    joined = inventory_pb2.ClusterEvent(cluster_id="us-2", state=types_pb2.CLUSTER_STATE_JOINING)
    inventory.watches = [
        [
            event(EventType.ADDED, inventory_object("eu-1", "a"), revision=1),
            event(EventType.INITIAL_END, cursor=b"c1", revision=2, freshness=[freshness("eu-1")]),
            event(
                EventType.MODIFIED,
                inventory_object("eu-1", "a"),
                cursor=b"c2",
                revision=3,
                previous=inventory_object("eu-1", "a", revision=1),
            ),
            event(EventType.CLUSTER, cursor=b"c3", revision=4, cluster=transition),
            event(EventType.CLUSTER, cursor=b"c4", revision=5, cluster=joined),
            event(EventType.DELETED, inventory_object("eu-1", "a"), cursor=b"c5", revision=6),
            event(EventType.BOOKMARK, cursor=b"c6", revision=7, freshness=[freshness("eu-1")]),
        ]
    ]
    taken = await take(client, 7)
    assert told(taken) == ["ADDED a", "INITIAL_END", "MODIFIED a", "CLUSTER", "CLUSTER", "DELETED a", "BOOKMARK"]
    assert [one.revision for one in taken] == [1, 2, 3, 4, 5, 6, 7]
    assert [one.cursor for one in taken] == [b"", b"c1", b"c2", b"c3", b"c4", b"c5", b"c6"]
    assert taken[3].cluster is not None
    assert (taken[3].cluster.state, taken[3].cluster.previous_state) == (ClusterState.STALE, ClusterState.LIVE)
    assert taken[3].cluster.reason == "silent"
    assert taken[3].cluster.type is TransitionType.STALE
    assert taken[2].previous is not None
    assert (taken[2].previous.name, taken[2].previous.revision) == ("a", 1)
    assert [one.previous for one in taken if one is not taken[2]] == [None] * 6
    assert taken[4].cluster is not None
    assert taken[4].cluster.previous_state is None
    assert taken[4].cluster.type is None
    assert taken[6].freshness[0].cluster_id == "eu-1"


@pytest.mark.parametrize("number", [number for number in inventory_pb2.ClusterTransition.values() if number])
async def test_every_transition_has_a_type(number: inventory_pb2.ClusterTransition.ValueType) -> None:
    message = inventory_pb2.ClusterEvent(cluster_id="a", state=types_pb2.CLUSTER_STATE_LIVE, transition=number)
    kind = ClusterTransition.from_message(message).type
    assert kind is not None
    assert inventory_pb2.ClusterTransition.Value(f"CLUSTER_TRANSITION_{kind}") == number


async def test_what_the_beginning_has_to_contain_is_asked_once(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    """A resumed watch has it already: its cursor stands after it."""
    inventory.watches = [
        [grpc.StatusCode.UNAVAILABLE],
        [event(EventType.INITIAL_END, cursor=b"c1"), grpc.StatusCode.UNAVAILABLE],
        [event(EventType.BOOKMARK, cursor=b"c2")],
    ]
    client._connection.reached = True
    fresh = FreshAsOf("eu-1", "pods", "7")
    watch = client.watch("pods", fresh_as_of=fresh, fresh_within=2.5, with_previous=True)
    async with aclosing(watch) as events:
        async for one in events:
            if one.type is EventType.BOOKMARK:
                break
    asked = inventory_pb2.FreshAsOf(cluster_id="eu-1", resource="pods", resource_version="7")
    assert [list(request.fresh_as_of) for request in inventory.requests] == [[asked], [asked], []]
    assert inventory.requests[0].fresh_within_ms == 2500
    assert all(request.with_previous for request in inventory.requests)


async def test_what_is_not_fresh_in_time_is_raised(client: InventoryClient, inventory: ScriptedInventory) -> None:
    refusal = NotFreshYet(
        "eu-1", "pods", "9", low_water="7", state="LIVE", cause="late", proved_age=1.0, helps_to_wait=True
    )
    inventory.watches = [[refusal]]
    client._connection.reached = True
    with pytest.raises(NotFreshYet) as raised:
        await take(client, 1)
    assert (raised.value.low_water, raised.value.helps_to_wait) == ("7", True)


async def test_selection_cursor_and_interval_are_asked_for(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.watches = [[event(EventType.BOOKMARK, cursor=b"c1")]]
    watch = client.watch("pods,nodes", fields="spec.nodeName=n1", cursor=b"c0", bookmark_interval=2.5, name="web-0")
    async with aclosing(watch) as events:
        await anext(events)
    (asked,) = inventory.requests
    assert list(asked.selection.resources) == ["pods", "nodes"]
    assert (asked.selection.field_selector, asked.selection.name) == ("spec.nodeName=n1", "web-0")
    assert (asked.cursor, asked.bookmark_interval_ms) == (b"c0", 2500)


@pytest.mark.parametrize(
    "loss",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        WatchTooSlow(b"c2", 10.0),
        LimitReached("watches", 1),
        None,
    ],
    ids=str,
)
async def test_a_lost_watch_goes_on_after_its_last_event(
    client: InventoryClient, inventory: ScriptedInventory, loss: object
) -> None:
    inventory.watches = [
        [
            event(EventType.INITIAL_END, cursor=b"c1"),
            event(EventType.ADDED, inventory_object("eu-1", "a"), cursor=b"c2"),
            loss,
        ],
        [event(EventType.DELETED, inventory_object("eu-1", "a"), cursor=b"c3")],
    ]
    lost: list[FederatorError] = []
    taken: list[Event] = []
    watch = client.watch(
        "pods", on_disconnect=lambda error, delay: lost.append(error) if delay <= FIRST_DELAY else None
    )
    async with aclosing(watch) as events:
        async for one in events:
            taken.append(one)
            if one.type is EventType.DELETED:
                assert client.statistics()["watches"] == 1
                break
    assert told(taken) == ["INITIAL_END", "ADDED a", "DELETED a"]
    assert [request.cursor for request in inventory.requests] == [b"", b"c2"]
    assert len(lost) == 1
    assert client.statistics()["resumes"] == 1
    assert client.statistics()["watches"] == 0


async def test_a_watch_lost_before_its_first_cursor_says_that_it_starts_over(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    added = event(EventType.ADDED, inventory_object("eu-1", "a"))
    inventory.watches = [
        [added, grpc.StatusCode.UNAVAILABLE],
        [event(EventType.INITIAL_END, cursor=b"c1")],
    ]
    assert told(await take(client, 3)) == ["ADDED a", "RELISTED", "INITIAL_END"]
    assert [request.cursor for request in inventory.requests] == [b"", b""]


async def test_it_survives_a_restart_of_the_aggregator() -> None:
    inventory = ScriptedInventory()
    inventory.watches = [
        [event(EventType.INITIAL_END, cursor=b"c1"), asyncio.Event()],
        [event(EventType.ADDED, inventory_object("eu-1", "a"), cursor=b"c2")],
    ]
    attempts: asyncio.Queue[FederatorError] = asyncio.Queue(10)

    async def follow(address: str, first: asyncio.Event) -> list[Event]:
        async with aconnect(address) as client:
            taken = []
            watch = client.watch("pods", on_disconnect=lambda error, _: attempts.put_nowait(error))
            async with aclosing(watch) as events:
                async for one in events:
                    taken.append(one)
                    first.set()
                    if len(taken) == 2:
                        break
            return taken

    first = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        async with serving(inventory):
            following = tasks.create_task(follow(inventory.address, first), name="following")
            await first.wait()
        for _ in range(2):
            assert isinstance(await attempts.get(), AggregatorUnreachable)
        async with serving(inventory, inventory.address):
            assert told(await following) == ["INITIAL_END", "ADDED a"]
    assert [request.cursor for request in inventory.requests] == [b"", b"c1"]


@pytest.mark.parametrize("refusal", [CursorExpired(5, 9), CursorForeign(b"c1")], ids=lambda error: error.reason)
async def test_a_cursor_that_is_refused_on_the_way_ends_the_watch(
    client: InventoryClient, inventory: ScriptedInventory, refusal: FederatorError
) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1"), grpc.StatusCode.UNAVAILABLE], [refusal]]
    with pytest.raises(type(refusal)) as raised:
        await take(client, 2)
    assert str(raised.value) == str(refusal)


async def test_a_fault_that_comes_again_at_once_ends_the_watch(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.watches = [
        [event(EventType.INITIAL_END, cursor=b"c1"), grpc.StatusCode.INTERNAL],
        [grpc.StatusCode.INTERNAL],
    ]
    with pytest.raises(FederatorError, match="INTERNAL"):
        await take(client, 2)


async def test_without_resume_the_loss_is_raised(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1")], []]
    events = client.watch("pods", resume=False)
    await anext(events)
    with pytest.raises(AggregatorUnreachable, match="ended the watch"):
        await anext(events)


async def test_leaving_cancels_the_call(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1")]]
    await take(client, 1)
    async with asyncio.timeout(5):
        await inventory.watch_closed.wait()


async def test_cancelling_the_reader_cancels_the_call(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1")]]
    reading = asyncio.create_task(take(client, 2), name="reading")
    async with asyncio.timeout(5):
        await inventory.watch_opened.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await inventory.watch_closed.wait()
    assert client.statistics()["watches"] == 0


async def test_a_timeout_ends_the_watch_without_an_error(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1")]]
    async with asyncio.timeout(5):
        taken = [one async for one in client.watch("pods", timeout=0.5)]
    assert told(taken) == ["INITIAL_END"]


async def test_closing_the_client_ends_its_watches(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.watches = [[event(EventType.INITIAL_END, cursor=b"c1")]]
    events = client.watch("pods")
    await anext(events)
    following = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(5):
        with pytest.raises(AggregatorUnreachable):
            await following


def changed(cursor: bytes = b"c9") -> SelectionChanged:
    return SelectionChanged(cursor, "eu-2", is_selected=True)


@pytest.mark.parametrize("cursor", [b"c9", b""])
async def test_a_watch_of_the_present_state_starts_over_when_labels_change_what_is_selected(
    client: InventoryClient, inventory: ScriptedInventory, cursor: bytes
) -> None:
    inventory.watches = [
        [
            event(EventType.ADDED, inventory_object("eu-1", "a"), revision=1),
            event(EventType.INITIAL_END, cursor=b"c1", revision=1),
            event(EventType.MODIFIED, inventory_object("eu-1", "a"), cursor=b"c2", revision=2),
            changed(cursor),
        ],
        [
            event(EventType.ADDED, inventory_object("eu-1", "a"), revision=3),
            event(EventType.ADDED, inventory_object("eu-2", "b"), revision=3),
        ],
    ]
    assert told(await take(client, 6)) == ["ADDED a", "INITIAL_END", "MODIFIED a", "RELISTED", "ADDED a", "ADDED b"]
    assert [request.cursor for request in inventory.requests] == [b"", b""]


async def test_a_watch_from_a_cursor_ends_when_labels_change_what_is_selected(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.watches = [
        [event(EventType.MODIFIED, inventory_object("eu-1", "a"), cursor=b"c2", revision=2), changed()],
        [event(EventType.MODIFIED, inventory_object("eu-2", "b"), cursor=b"c10", revision=10)],
    ]
    async with aclosing(client.watch("pods", cursor=b"c1", cluster_labels="env=prod")) as events:
        assert told([await anext(events)]) == ["MODIFIED a"]
        with pytest.raises(SelectionChanged) as raised:
            await anext(events)
    assert (raised.value.cursor, raised.value.cluster_id, raised.value.is_selected) == (b"c9", "eu-2", True)
    assert told(await take(client, 1, raised.value.cursor)) == ["MODIFIED b"]
    assert [request.cursor for request in inventory.requests] == [b"c1", b"c9"]
    assert inventory.requests[0].selection.cluster_selector == "env=prod"

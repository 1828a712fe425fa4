"""Lists page by page, on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from federator.api.cluster import TypeState
from federator.client import InventoryClient, Limits, Scan, page_walk
from federator.errors import AggregatorUnreachable, InvalidInput, PageTokenExpired
from federator.v1 import inventory_pb2, types_pb2
from tests.component.client.scripted_inventory import ScriptedInventory, freshness, inventory_object

Step = Any


def told(*names: str, token: bytes = b"", **summary: Any) -> list[inventory_pb2.ListResponse]:
    """A page in two parts."""
    objects = [inventory_object("eu-1", name) for name in names]
    return [
        inventory_pb2.ListResponse(objects=objects[:1]),
        inventory_pb2.ListResponse(
            objects=objects[1:],
            summary=inventory_pb2.ListSummary(revision=7, total=4, next_page_token=token, **summary),
        ),
    ]


def scripted(*scripts: Sequence[Step]) -> Callable[[inventory_pb2.ListRequest], Sequence[Step]]:
    """Answers one call after the other."""
    left = list(scripts)
    return lambda request: left.pop(0)


async def _walk(client: InventoryClient, **arguments: Any) -> list[list[str]]:
    async with aclosing(client.pages("pods", page_size=2, **arguments)) as pages:
        return [[item.name for item in page.objects] async for page in pages]


async def test_pages_follow_their_tokens_and_all_else_stays(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.list_pages = scripted(told("a", "b", token=b"t1"), told("c", token=b"t2"), told("d"))
    pages = await _walk(
        client, order_by="name desc", read_mask="spec.nodeName,status.phase", limit=9, at=5, limits=Limits(time=1.5)
    )
    assert pages == [["a", "b"], ["c"], ["d"]]
    assert [asked.page_token for asked in inventory.requests] == [b"", b"t1", b"t2"]
    for asked in inventory.requests:
        assert (asked.order_by, asked.page_size, asked.limit, asked.at_revision) == ("name desc", 2, 9, 5)
        assert list(asked.read_mask) == ["spec.nodeName", "status.phase"]
        assert asked.limits == inventory_pb2.Limits(time_ms=1500)


async def test_a_walk_may_begin_at_any_token(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = scripted(told("d"))
    assert await _walk(client, page_token=b"t2") == [["d"]]


async def test_a_page_that_is_lost_amid_its_objects_is_asked_for_again(
    client: InventoryClient, inventory: ScriptedInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_walk, "_FIRST_DELAY", 0)
    lost = [told("c", "d")[0], grpc.StatusCode.UNAVAILABLE]
    inventory.list_pages = scripted(told("a", "b", token=b"t1"), lost, lost, told("c", "d"))
    assert await _walk(client) == [["a", "b"], ["c", "d"]]
    assert [asked.page_token for asked in inventory.requests] == [b"", b"t1", b"t1", b"t1"]


async def test_a_first_page_that_is_lost_is_told(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = scripted([grpc.StatusCode.UNAVAILABLE])
    with pytest.raises(AggregatorUnreachable):
        await _walk(client)


async def test_a_refusal_is_not_repeated(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = scripted(told("a", token=b"t1"), [PageTokenExpired(7, 9)])
    with pytest.raises(PageTokenExpired) as expired:
        await _walk(client)
    assert (int(expired.value.revision), int(expired.value.oldest)) == (7, 9)


async def test_the_timeout_is_for_the_whole_walk(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = scripted(told("a", token=b"t1"), [asyncio.Event()])
    with pytest.raises(AggregatorUnreachable, match="timeout"):
        await _walk(client, timeout=0.05)


async def test_one_page_and_what_it_says(client: InventoryClient, inventory: ScriptedInventory) -> None:
    live = inventory_pb2.TypeFreshness(resource="pods", state=types_pb2.TYPE_STATE_LIVE, resource_version="12")
    cluster = freshness("eu-1")
    cluster.types.append(live)
    scan = inventory_pb2.Scan(objects=9, history=True)
    inventory.list_pages = scripted(told("a", "b", token=b"t1", clusters=[cluster], scan=scan), told())
    page = await client.list(
        "pods", page_size=2, page_token=b"t0", count_only=True, at=datetime(2026, 11, 29, tzinfo=UTC)
    )
    assert ([item.name for item in page.items], page.next_page_token) == (["a", "b"], b"t1")
    assert page.scan == Scan(objects=9, history=True)
    (of_type,) = page.clusters["eu-1"].types  # type: ignore[index]
    assert (of_type.state, of_type.resource_version) == (TypeState.LIVE, "12")
    (asked,) = inventory.requests
    assert (asked.page_size, asked.page_token, asked.count_only) == (2, b"t0", True)
    assert asked.at_time_ms == 1_795_910_400_000
    assert (await client.list("pods")).scan is None


@pytest.mark.parametrize("at", [-1, datetime(2026, 11, 29), datetime(1969, 1, 1, tzinfo=UTC), 1 << 64])
async def test_what_is_no_moment_is_not_asked_for(
    client: InventoryClient, inventory: ScriptedInventory, at: int | datetime
) -> None:
    with pytest.raises(InvalidInput):
        await client.list("pods", at=at)
    assert inventory.requests == []

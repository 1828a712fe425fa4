from __future__ import annotations

import pytest

from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.listing import PART_BYTES, Listing, present_listing
from federator.aggregator.query.sorting import SLICE
from federator.api.resource import GroupResource
from federator.api.selector import FieldSelector
from federator.errors import RevisionExpired
from federator.v1 import inventory_pb2
from tests.turns import counted_turns
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, put
from tests.unit.aggregator.serve.recorder import key_of

EVERYTHING = Selection(frozenset({PODS.group_resource, NODES.group_resource, DEPLOYMENTS.group_resource}))


async def _objects(listing: Listing) -> list[inventory_pb2.InventoryObject]:
    return [inventory_pb2.InventoryObject.FromString(encoded) async for part in listing.parts() for encoded in part]


async def _federation() -> Federation:
    federation = Federation()
    for cluster in ("b", "a"):
        await federation.join(cluster)
        await federation.commit(cluster, put("n1", namespace=""), type=NODES)
        await federation.commit(cluster, put("web"), type=DEPLOYMENTS)
        for namespace in ("shop-2", "shop", "shop.x"):
            changes = [put(name, namespace=namespace, status={"phase": name}) for name in ("y", "x")]
            await federation.commit(cluster, *changes)
    return federation


async def test_objects_come_by_type_cluster_namespace_and_name() -> None:
    federation = await _federation()
    listing = present_listing(federation.view, federation.ledger, EVERYTHING)
    objects = await _objects(listing)
    keys = [(str(GroupResource(m.group, m.resource)), m.cluster_id, m.namespace, m.name) for m in objects]
    assert keys == sorted(keys)
    assert len(keys) == listing.found == 16
    assert [key_of(message) for message in objects[4:8]] == [
        *("a//pods/shop/x", "a//pods/shop/y", "a//pods/shop-2/x", "a//pods/shop-2/y")
    ]


async def test_any_field_selects_and_is_counted() -> None:
    federation = await _federation()
    selection = Selection(
        frozenset({PODS.group_resource}), fields=FieldSelector.parse("status.phase=x,metadata.name!=y")
    )
    listing = present_listing(federation.view, federation.ledger, selection)
    objects = await _objects(listing)
    assert [message.name for message in objects] == ["x"] * 6
    assert listing.found == 6


async def test_parts_are_cut_by_bytes() -> None:
    federation = Federation()
    await federation.join("a")
    sizes = {"p0": 100, "p1": PART_BYTES // 2, "p2": PART_BYTES // 2, "p3": PART_BYTES * 2, "p4": 100}
    for name, size in sizes.items():
        await federation.commit("a", put(name, data="x" * size))
    listing = present_listing(federation.view, federation.ledger, Selection(frozenset({PODS.group_resource})))
    parts = [
        [inventory_pb2.InventoryObject.FromString(encoded).name for encoded in part] async for part in listing.parts()
    ]
    assert parts == [["p0", "p1"], ["p2"], ["p3"], ["p4"]]


async def test_reading_many_objects_leaves_the_loop_its_turns() -> None:
    federation = Federation()
    await federation.join("a")
    for start in range(0, SLICE * 10, 100):
        await federation.commit("a", *(put(f"p{number}") for number in range(start, start + 100)))
    with counted_turns() as turns:
        await _objects(present_listing(federation.view, federation.ledger, Selection(frozenset({PODS.group_resource}))))
    assert turns.taken >= 9


async def test_without_a_pin_a_compacted_listing_is_told_and_never_short() -> None:
    federation = Federation(max_entries=1)
    await federation.join("a")
    await federation.commit("a", put("x", labels={"v": "1"}))
    listing = present_listing(federation.view, federation.ledger, Selection(frozenset({PODS.group_resource})))
    await federation.commit("a", put("x", labels={"v": "2"}))
    await federation.ledger.compact(federation.ledger.revision)
    with pytest.raises(RevisionExpired):
        await _objects(listing)


async def test_nothing_selected_is_no_part() -> None:
    federation = Federation()
    await federation.join("a")
    listing = present_listing(federation.view, federation.ledger, EVERYTHING)
    assert await _objects(listing) == []
    assert listing.found == 0

"""Aggregates, on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from federator.client import (
    AggregateFunction,
    FreshAsOf,
    Group,
    InventoryClient,
    Limits,
    Measure,
    MeasureValue,
    Scan,
)
from federator.errors import QueryTooCostly
from federator.v1 import inventory_pb2
from tests.component.client.scripted_inventory import ScriptedInventory, freshness


async def test_a_whole_question_and_its_answer(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.aggregate = inventory_pb2.AggregateResponse(
        groups=[
            inventory_pb2.Group(
                keys=[inventory_pb2.GroupKey(value="eu-1"), inventory_pb2.GroupKey(value="")],
                measures=[inventory_pb2.MeasureValue(value="1500m", number=1.5, ignored=2)],
            ),
            inventory_pb2.Group(
                keys=[inventory_pb2.GroupKey(value="us-1"), inventory_pb2.GroupKey()],
                measures=[inventory_pb2.MeasureValue()],
            ),
        ],
        total_groups=7,
        summary=inventory_pb2.ListSummary(
            revision=884213,
            total=12,
            complete=True,
            clusters=[freshness("eu-1"), freshness("us-1")],
            scan=inventory_pb2.Scan(objects=12, history=True),
        ),
    )
    result = await client.aggregate(
        "pods",
        group_by=["cluster", "label:app"],
        measures=[Measure(AggregateFunction.SUM, "spec.cpu"), Measure(AggregateFunction.COUNT)],
        top=2,
        clusters="eu-*,us-*",
        cluster_labels="env=prod",
        namespace="shop",
        name="web",
        labels="app=web",
        fields="spec.a=b",
        uid="u1",
        owner_uid="u2",
        at=datetime(2026, 11, 30, tzinfo=UTC),
        limits=Limits(time=1.5),
        fresh_as_of=FreshAsOf("eu-1", "pods", "9"),
        fresh_within=2,
    )
    assert result.groups == (
        Group(("eu-1", ""), (MeasureValue("1500m", 1.5, 2),)),
        Group(("us-1", None), (MeasureValue(""),)),
    )
    assert (result.total_groups, result.total, result.revision, result.complete) == (7, 12, 884213, True)
    assert list(result.clusters) == ["eu-1", "us-1"]
    assert result.scan == Scan(12, True)
    (asked,) = inventory.requests
    assert asked == inventory_pb2.AggregateRequest(
        selection=inventory_pb2.Selection(
            resources=["pods"],
            clusters=["eu-*", "us-*"],
            cluster_selector="env=prod",
            namespace="shop",
            name="web",
            label_selector="app=web",
            field_selector="spec.a=b",
            uid="u1",
            owner_uid="u2",
        ),
        group_by=["cluster", "label:app"],
        measures=[
            inventory_pb2.Measure(function=inventory_pb2.AGGREGATE_FUNCTION_SUM, field="spec.cpu"),
            inventory_pb2.Measure(function=inventory_pb2.AGGREGATE_FUNCTION_COUNT),
        ],
        top=2,
        at_time_ms=1_795_996_800_000,
        fresh_as_of=[inventory_pb2.FreshAsOf(cluster_id="eu-1", resource="pods", resource_version="9")],
        fresh_within_ms=2000,
        limits=inventory_pb2.Limits(time_ms=1500),
    )


async def test_a_count_is_the_total(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.aggregate = inventory_pb2.AggregateResponse(summary=inventory_pb2.ListSummary(total=12))
    result = await client.count("pods", labels="app=web", at=9)
    assert (result.total, result.complete, result.scan) == (12, False, None)
    (asked,) = inventory.requests
    assert (asked.at_revision, asked.selection.label_selector) == (9, "app=web")
    assert not asked.group_by
    assert not asked.measures


@pytest.mark.parametrize("function", AggregateFunction)
async def test_every_function_has_its_number(
    client: InventoryClient, inventory: ScriptedInventory, function: AggregateFunction
) -> None:
    await client.aggregate("pods", measures=Measure(function, "spec.x"))
    (measure,) = inventory.requests[0].measures
    assert inventory_pb2.AggregateFunction.Name(measure.function).endswith(f"_{function.upper()}")


async def test_a_refusal_is_raised(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.aggregate = QueryTooCostly("groups", 10_000)
    with pytest.raises(QueryTooCostly) as refused:
        await client.aggregate("pods", group_by=[".metadata.name"])
    assert refused.value.limit == "groups"

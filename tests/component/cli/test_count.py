"""`federator count` against an aggregator on a real port."""

from __future__ import annotations

import json

import pytest

from federator.errors import QueryTooCostly, UnknownResourceType
from federator.v1 import inventory_pb2, types_pb2
from federator.v1.inventory_pb2 import AggregateFunction
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory, freshness

LIVE = (freshness("eu-1"), freshness("us-2"))
Measured = str | tuple[str, float | None, int]


def answer(
    *groups: tuple[tuple[str | None, ...], tuple[Measured, ...]],
    total_groups: int = 0,
    total: int = 12,
    complete: bool = True,
    clusters: tuple[inventory_pb2.ClusterFreshness, ...] = LIVE,
) -> inventory_pb2.AggregateResponse:
    return inventory_pb2.AggregateResponse(
        groups=[
            inventory_pb2.Group(
                keys=[inventory_pb2.GroupKey(value=key) for key in keys], measures=map(_measured, measures)
            )
            for keys, measures in groups
        ],
        total_groups=total_groups or len(groups),
        summary=inventory_pb2.ListSummary(revision=884213, total=total, complete=complete, clusters=clusters),
    )


def _measured(measured: Measured) -> inventory_pb2.MeasureValue:
    if isinstance(measured, str):
        return inventory_pb2.MeasureValue(value=measured)
    value, number, ignored = measured
    return inventory_pb2.MeasureValue(value=value, number=number, ignored=ignored)


async def test_a_count(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.aggregate = answer(((), ("12",)))
    done = await federator("count", "pods,svc")
    assert (done.code, done.out, done.err) == (0, "COUNT\n12\n", "")
    (asked,) = inventory.requests
    assert list(asked.selection.resources) == ["pods", "svc"]
    assert not asked.group_by
    assert asked.measures == [inventory_pb2.Measure(function=inventory_pb2.AGGREGATE_FUNCTION_COUNT)]


async def test_groups_are_a_table(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.aggregate = answer((("eu-1", "web", "n1"), ("1500m", "8")), (("us-2", None, ""), ("", "4")))
    done = await federator("count", "pods", "--by", "cluster, label:app,.spec.nodeName", "--sum=spec.cpu")
    assert done.out == (
        "CLUSTER   APP      SPEC.NODENAME   SUM(SPEC.CPU)   COUNT\n"
        "eu-1      web      n1              1500m           8\n"
        "us-2      <none>   <none>          <none>          4\n"
    )
    (asked,) = inventory.requests
    assert list(asked.group_by) == ["cluster", "label:app", ".spec.nodeName"]
    bare = await federator("count", "pods", "--by", "cluster,label:app,.spec.nodeName", "--sum=x", "--no-headers")
    assert "CLUSTER" not in bare.out


async def test_every_condition_reaches_the_aggregator(federator: Federator, inventory: ScriptedInventory) -> None:
    done = await federator(
        *("count", "po", "-n=shop", "-lapp=web", "--field-selector", "a=b", "-C", "prod-*,!ap-*"),
        *("--cluster-selector", "env=prod", "--top", "3", "--at", "77"),
        *("--by", r".a\,b,node", "--distinct", "d", "--max", "x", "--min", "m", "--sum", "s", "--sum", "t"),
    )
    assert done.code == 0
    (asked,) = inventory.requests
    assert asked == inventory_pb2.AggregateRequest(
        selection=inventory_pb2.Selection(
            resources=["po"],
            clusters=["prod-*", "!ap-*"],
            namespace="shop",
            label_selector="app=web",
            field_selector="a=b",
            cluster_selector="env=prod",
        ),
        group_by=[r".a\,b", "node"],
        measures=[
            inventory_pb2.Measure(function=AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function}"), field=field)
            for function, field in [
                ("SUM", "s"),
                ("SUM", "t"),
                ("MIN", "m"),
                ("MAX", "x"),
                ("DISTINCT", "d"),
                ("COUNT", ""),
            ]
        ],
        top=3,
        at_revision=77,
    )
    assert "as of revision" in done.err


async def test_json(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.aggregate = answer((("eu-1", None), (("1Gi", 1073741824.0, 2), ("8", 8.0, 0))), total_groups=9)
    done = await federator("count", "pods", "--by=cluster,label:app", "--sum=mem", "--top=1", "-o", "json")
    assert json.loads(done.out) == {
        "revision": 884213,
        "complete": True,
        "total": 12,
        "totalGroups": 9,
        "groupBy": ["cluster", "label:app"],
        "groups": [
            {
                "keys": ["eu-1", None],
                "measures": [
                    {"function": "sum", "field": "mem", "value": "1Gi", "number": 1073741824.0, "ignored": 2},
                    {"function": "count", "field": "", "value": "8", "number": 8.0, "ignored": 0},
                ],
            }
        ],
    }
    assert done.err == (
        "Note: 1 of 9 groups shown, because of --top.\nNote: sum(mem) leaves out 2 values that cannot be added up.\n"
    )


async def test_csv(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.aggregate = answer((('a,"b"', "1"), ("8",)), ((None, ""), ("4",)))
    done = await federator("count", "pods", "--by=label:app,.spec.x", "-ocsv")
    assert done.out == 'label:app,.spec.x,count\n"a,""b""",1,8\n,,4\n'
    bare = await federator("count", "pods", "--by=label:app,.spec.x", "-ocsv", "--no-headers")
    assert bare.out == '"a,""b""",1,8\n,,4\n'


async def test_what_is_not_live_is_named(federator: Federator, inventory: ScriptedInventory) -> None:
    stale = (freshness("eu-1"), freshness("us-2", types_pb2.CLUSTER_STATE_STALE))
    inventory.aggregate = answer(((), ("0",)), total=0, complete=False, clusters=stale)
    done = await federator("count", "pods")
    assert (done.code, done.out) == (0, "COUNT\n0\n")
    assert done.err.startswith("No resources found in 2 clusters.\nWarning: us-2 STALE")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("pods", "-o", "yaml"), 2, "--output"),
        (("pods", "svc"), 2, "svc"),
        ((",",), 2, "TYPE"),
        (("pods", "--top", "-1"), 2, "--top"),
        (("pods", "--at", "tomorrow"), 2, "--at"),
        ((), 2, "TYPE"),
    ],
)
async def test_wrong_input_is_named(
    federator: Federator, inventory: ScriptedInventory, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = await federator("count", *arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert not inventory.requests


async def test_a_refusal_has_its_exit_code(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.aggregate = QueryTooCostly("groups", 10_000)
    assert (await federator("count", "pods", "--by", ".metadata.name")).code == 1
    inventory.aggregate = UnknownResourceType("pod5")
    done = await federator("count", "pod5")
    assert (done.code, done.out) == (1, "")
    assert "pod5" in done.err

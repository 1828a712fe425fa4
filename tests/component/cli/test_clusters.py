from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml

from federator.v1 import inventory_pb2, types_pb2
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory


def cluster(cluster_id: str, state: types_pb2.ClusterState.ValueType, **fields: Any) -> inventory_pb2.Cluster:
    return inventory_pb2.Cluster(
        cluster_id=cluster_id,
        display_name=cluster_id.upper(),
        cluster_uid="u-1",
        state=state,
        server_version="v1.37.2",
        source="kubeconfig",
        state_since_ms=int((time.time() - 3600) * 1000),
        **fields,
    )


def answer() -> inventory_pb2.ListClustersResponse:
    return inventory_pb2.ListClustersResponse(
        revision=7,
        clusters=[
            cluster(
                "ap-1",
                types_pb2.CLUSTER_STATE_STALE,
                objects=41230,
                seen_age_ms=94_000,
                proved_age_ms=151_000,
                reason="agent silent",
            ),
            cluster(
                "us-2",
                types_pb2.CLUSTER_STATE_SYNCING,
                types=[inventory_pb2.TypeFreshness(resource="pods", state=types_pb2.TYPE_STATE_SYNCING)],
            ),
        ],
    )


async def test_the_table(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = answer()
    assert await federator("clusters", "-C=eu-*,us-2") == (
        0,
        "CLUSTER   STATE     OBJECTS   SEEN   PROVED   VERSION   SOURCE\n"
        "ap-1      STALE     41230     94s    2m31s    v1.37.2   kubeconfig\n"
        "us-2      SYNCING   0         -      -        v1.37.2   kubeconfig\n",
        "",
    )
    (asked,) = inventory.requests
    assert list(asked.clusters) == ["eu-*", "us-2"]


async def test_wide(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = answer()
    header, first, second = (await federator("clusters", "-o", "wide")).out.splitlines()
    assert header.split()[-4:] == ["SINCE", "UID", "DISPLAY-NAME", "REASON"]
    assert first.endswith("60m     u-1   AP-1           agent silent")
    assert second.endswith("US-2           <none>")


async def test_wide_says_which_types_cannot_be_followed_and_why(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    def fresh(resource: str, state: types_pb2.TypeState.ValueType, reason: str = "") -> inventory_pb2.TypeFreshness:
        return inventory_pb2.TypeFreshness(group="apps", resource=resource, state=state, reason=reason)

    denied, stale = types_pb2.TYPE_STATE_DENIED, types_pb2.TYPE_STATE_STALE
    healthy = [fresh("a", types_pb2.TYPE_STATE_LIVE), fresh("b", types_pb2.TYPE_STATE_NOT_COLLECTED, "left out")]
    few = [*healthy, fresh("c", denied, "cannot list c"), fresh("d", stale, "500")]
    many = [*few, *(fresh(f"e{number}", denied, "no") for number in range(4))]
    inventory.clusters = inventory_pb2.ListClustersResponse(
        clusters=[cluster("a", types_pb2.CLUSTER_STATE_LIVE, types=types) for types in (healthy, few, many)]
        + [cluster("b", types_pb2.CLUSTER_STATE_STALE, types=few, reason="agent silent")]
    )
    _, *rows = (await federator("clusters", "-o", "wide")).out.splitlines()
    said = "c.apps DENIED: cannot list c; d.apps STALE: 500"
    expected = ["<none>", said, f"{said}; e0.apps DENIED: no; and 3 more", "agent silent"]
    assert [
        row.partition("A   ")[2].strip() if row.startswith("a") else row.split("   ")[-1].strip() for row in rows
    ] == expected


async def test_json(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = answer()
    told = json.loads((await federator("clusters", "-o=json")).out)
    assert told["revision"] == 7
    first, second = told["clusters"]
    assert (first["clusterId"], first["state"], first["provedAgeSeconds"]) == ("ap-1", "STALE", 151.0)
    assert second["seenAgeSeconds"] is None
    assert second["types"][0]["state"] == "SYNCING"


async def test_yaml(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = answer()
    told = yaml.safe_load((await federator("clusters", "-o", "yaml")).out)
    assert told == json.loads((await federator("clusters", "-o", "json")).out)
    assert told["clusters"][0]["stateSince"] == pytest.approx(time.time() - 3600, abs=60)


async def test_a_format_that_there_is_not(federator: Federator, inventory: ScriptedInventory) -> None:
    assert (await federator("clusters", "-o", "jsonl")).code == 2


async def test_none(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = inventory_pb2.ListClustersResponse()
    assert await federator("clusters") == (0, "", "No clusters found.\n")


def labelled() -> inventory_pb2.ListClustersResponse:
    labels: dict[str, dict[str, str]] = {
        "a": {"env": "prod", "example.com/region": "eu"},
        "b": {"env": "test"},
        "c": {},
    }
    return inventory_pb2.ListClustersResponse(
        clusters=[cluster(name, types_pb2.CLUSTER_STATE_LIVE, labels=of) for name, of in labels.items()]
    )


async def test_labels_are_shown_in_columns(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = labelled()
    lines = (await federator("clusters", "-L=env,example.com/region", "-L", "tier", "--show-labels")).out.splitlines()
    assert [line.split()[7:] for line in lines] == [
        ["ENV", "REGION", "TIER", "LABELS"],
        ["prod", "eu", "<none>", "env=prod,example.com/region=eu"],
        ["test", "<none>", "<none>", "env=test"],
        ["<none>", "<none>", "<none>", "<none>"],
    ]


async def test_clusters_are_chosen_by_labels(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.clusters = labelled()
    done = await federator("clusters", "-l", "env!=test", "-o", "json")
    assert {each["clusterId"]: each["labels"] for each in json.loads(done.out)["clusters"]} == {
        "a": {"env": "prod", "example.com/region": "eu"},
        "c": {},
    }
    refused = await federator("clusters", "-l", "env in")
    assert refused.code == 2
    assert "labels, at its end: 'env in' is not allowed" in refused.err

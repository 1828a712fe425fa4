"""`federator changes`."""

from __future__ import annotations

import json

import pytest

from federator.errors import RevisionExpired
from federator.v1 import inventory_pb2
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory, freshness, inventory_object
from tests.component.client.test_past import THEN_MS, gap


def change(kind: str, name: str, revision: int, **fields: object) -> inventory_pb2.ObjectChange:
    number = inventory_pb2.WatchEventType.Value(f"WATCH_EVENT_TYPE_{kind}")
    known = {"versions": 1, "time_ms": THEN_MS, "object": inventory_object("eu-1", name, revision=revision)} | fields
    return inventory_pb2.ObjectChange(type=number, revision=revision, **known)  # type: ignore[arg-type]


@pytest.fixture
def changed(inventory: ScriptedInventory) -> ScriptedInventory:
    node = inventory_object("eu-1", "n1", namespace="", resource="nodes", kind="Node")
    inventory.change_parts = [
        inventory_pb2.GetChangesResponse(
            changes=[
                change("MODIFIED", "web", 9, versions=3, previous_revision=2, patch=b'[{"op":"remove","path":"/a"}]'),
                change("DELETED", "n1", 11, object=node, previous_revision=1),
            ],
            summary=inventory_pb2.ChangesSummary(
                after_revision=4,
                until_revision=12,
                total=5,
                complete=True,
                clusters=[freshness("eu-1")],
                gaps=[inventory_pb2.ClusterGap(cluster_id="eu-1", gap=gap(6, 7))],
            ),
        )
    ]
    return inventory


async def test_the_table(federator: Federator, changed: ScriptedInventory) -> None:
    assert await federator("changes", "pods,nodes", "--after", "4", "--limit", "2") == (
        0,
        "EVENT      CLUSTER   TYPE    NAMESPACE   NAME   TIME                   VERSIONS   REVISION\n"
        "MODIFIED   eu-1      pods    shop        web    2026-11-29T10:00:00Z   3          9\n"
        '  {"op":"remove","path":"/a"}\n'
        "DELETED    eu-1      nodes   -           n1     2026-11-29T10:00:00Z   1          11\n",
        "Note: 2 of 5 changes shown, because of --limit.\n"
        "Warning: 2026-11-29T10:00–2026-11-29T10:00Z eu-1 was not live (agent silent): "
        "changes inside are known only by their result.\n",
    )
    (asked,) = changed.requests
    assert (asked.after_revision, asked.WhichOneof("until"), asked.limit) == (4, None, 2)
    assert list(asked.selection.resources) == ["pods", "nodes"]
    assert (asked.with_patches, asked.with_transient) == (False, False)


async def test_what_is_asked(federator: Federator, changed: ScriptedInventory) -> None:
    code, _, _ = await federator(
        "changes", "pods/web", "--after=2026-11-29T10:00:00Z", "--until", "12", "-n", "shop", "-l", "app=web",
        "--field-selector", "a=b", "-C", "eu-*,!eu-9", "--cluster-selector", "env=prod", "--transient", "-p",
    )  # fmt: skip
    assert code == 0
    (asked,) = changed.requests
    assert asked == inventory_pb2.GetChangesRequest(
        selection=inventory_pb2.Selection(
            resources=["pods"],
            clusters=["eu-*", "!eu-9"],
            namespace="shop",
            name="web",
            label_selector="app=web",
            field_selector="a=b",
            cluster_selector="env=prod",
        ),
        after_time_ms=THEN_MS,
        until_revision=12,
        with_transient=True,
        with_patches=True,
    )


async def test_json_and_lines_of_it(federator: Federator, changed: ScriptedInventory) -> None:
    _, out, _ = await federator("changes", "pods", "--after", "4", "-o", "json")
    document = json.loads(out)
    assert {name: document[name] for name in ("afterRevision", "untilRevision", "total", "complete")} == {
        "afterRevision": 4,
        "untilRevision": 12,
        "total": 5,
        "complete": True,
    }
    assert document["gaps"][0]["cluster"] == "eu-1"
    modified, deleted = document["changes"]
    assert modified["patch"] == [{"op": "remove", "path": "/a"}]
    assert (deleted["patch"], deleted["previousRevision"]) == (None, 1)
    assert deleted["object"]["metadata"]["annotations"] == {"federator.io/cluster": "eu-1"}
    _, out, _ = await federator("changes", "pods", "--after", "4", "-o=jsonl")
    assert [json.loads(line) for line in out.splitlines()] == document["changes"]


async def test_nothing_changed(federator: Federator, inventory: ScriptedInventory) -> None:
    summary = inventory_pb2.ChangesSummary(complete=True, clusters=[freshness("eu-1"), freshness("us-1")])
    inventory.change_parts = [inventory_pb2.GetChangesResponse(summary=summary)]
    assert await federator("changes", "pods", "--after", "2h") == (0, "", "No changes found in 2 clusters.\n")


@pytest.mark.parametrize("arguments", [(), ("--after", "soon"), ("--after", "1", "-o", "yaml")])
async def test_what_makes_no_question_is_refused(
    federator: Federator, inventory: ScriptedInventory, arguments: tuple[str, ...]
) -> None:
    assert (await federator("changes", "pods", *arguments)).code == 2
    assert not inventory.requests


async def test_what_is_compacted_has_its_exit_code(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.change_parts = [RevisionExpired(3, 7)]
    code, _, err = await federator("changes", "pods", "--after", "3")
    assert code == 4
    assert "7" in err

"""`federator history`."""

from __future__ import annotations

import json
import re

import pytest

from federator.errors import AmbiguousName, RevisionExpired
from federator.v1 import inventory_pb2, types_pb2
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory, freshness, inventory_object
from tests.component.client.test_past import gap, history_summary, version


def body(revision: int, ready: int, image: str = "nginx:1") -> inventory_pb2.InventoryObject:
    return inventory_object(
        "eu-1",
        "web",
        revision=revision,
        spec={"containers": [{"name": "web", "image": image}]},
        status={"ready": ready},
    )


def patch(*operations: object) -> bytes:
    return json.dumps(operations).encode()


@pytest.fixture
def lived(inventory: ScriptedInventory) -> ScriptedInventory:
    replica = {"op": "replace", "path": "/status/ready", "value": 2}
    version_ = {"op": "replace", "path": "/metadata/resourceVersion", "value": "9"}
    image = {"op": "replace", "path": "/spec/containers/0/image", "value": "nginx:2"}
    inventory.history_parts = [
        inventory_pb2.GetHistoryResponse(
            entries=[
                version(12, "DELETED", previous_revision=9, object=body(9, 2, "nginx:2")),
                version(9, previous_revision=8, patch=patch(replica, version_), object=body(9, 2, "nginx:2")),
                version(8, previous_revision=5, patch=patch(image), object=body(8, 3, "nginx:2")),
                inventory_pb2.HistoryEntry(gap=gap(6, 7)),
                version(5, "ADDED", object=body(5, 3)),
            ],
            summary=history_summary(),
        )
    ]
    return inventory


async def test_the_table(federator: Federator, lived: ScriptedInventory) -> None:
    assert await federator("history", "pods/web", "-n=shop", "-C", "eu-1") == (
        0,
        "REVISION   TIME                                 EVENT      FIELDS\n"
        "12         2026-11-29T10:00:12Z                 DELETED    -\n"
        "9          2026-11-29T10:00:09Z                 MODIFIED   .status.ready 3 → 2\n"
        "8          2026-11-29T10:00:08Z                 MODIFIED   .spec.containers[web].image nginx:1 → nginx:2\n"
        "- gap      2026-11-29T10:00–2026-11-29T10:00Z   STALE      eu-1 was not live (agent silent): "
        "changes inside are known only by their result\n"
        "5          2026-11-29T10:00:05Z                 ADDED      -\n",
        "",
    )
    (asked,) = lived.requests
    assert (asked.cluster_id, asked.resource, asked.namespace, asked.name) == ("eu-1", "pods", "shop", "web")
    assert (asked.limit, asked.with_objects, asked.since_ms) == (100, True, 0)


async def test_patches(federator: Federator, lived: ScriptedInventory) -> None:
    code, out, _ = await federator("history", "pods", "web", "-p", "--no-headers")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("9 ")
    assert lines[2:4] == [
        '  {"op":"replace","path":"/status/ready","value":2}',
        '  {"op":"replace","path":"/metadata/resourceVersion","value":"9"}',
    ]
    assert lines[4].startswith("8 ")
    assert lines[-1].startswith("5 ")


async def test_json_and_lines_of_it(federator: Federator, lived: ScriptedInventory) -> None:
    _, out, _ = await federator("history", "eu-1//pods/shop/web", "-o", "json")
    document = json.loads(out)
    assert {name: document[name] for name in ("cluster", "revision", "oldestRevision", "nextBeforeRevision")} == {
        "cluster": "eu-1",
        "revision": 20,
        "oldestRevision": 2,
        "nextBeforeRevision": None,
    }
    assert [entry["type"] for entry in document["entries"]] == ["DELETED", "MODIFIED", "MODIFIED", "GAP", "ADDED"]
    assert document["entries"][2]["patch"] == [
        {"op": "replace", "path": "/spec/containers/0/image", "value": "nginx:2"}
    ]
    assert document["entries"][3] == {
        "type": "GAP",
        "fromRevision": 6,
        "toRevision": 7,
        "from": "2026-11-29T10:00:06Z",
        "to": "2026-11-29T10:00:07Z",
        "state": "STALE",
        "reason": "agent silent",
    }
    (asked,) = lived.requests
    assert (asked.cluster_id, asked.namespace, asked.with_objects) == ("eu-1", "shop", False)
    _, out, _ = await federator("history", "pods/web", "-o=jsonl")
    assert [json.loads(line) for line in out.splitlines()] == document["entries"]


async def test_it_asks_on_until_there_is_enough(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.history_parts = [
        inventory_pb2.GetHistoryResponse(entries=[version(9)] * 1000, summary=history_summary(next_before_revision=9))
    ]
    code, out, err = await federator("history", "pods/web", "--limit", "3000", "--before", "30", "-o", "jsonl")
    assert (code, len(out.splitlines())) == (0, 3000)
    assert [(asked.before_revision, asked.limit) for asked in inventory.requests] == [(30, 1000), (9, 1000), (9, 1000)]
    assert "go on with --before 9" in err


async def test_what_is_not_live_or_not_known_is_said(federator: Federator, inventory: ScriptedInventory) -> None:
    stale = freshness("eu-1", types_pb2.CLUSTER_STATE_STALE)
    inventory.history_parts = [
        inventory_pb2.GetHistoryResponse(
            entries=[inventory_pb2.HistoryEntry(gap=gap(6, 0)), version(5, previous_revision=4)],
            summary=history_summary(freshness=stale),
        )
    ]
    code, out, err = await federator("history", "pods/web", "--since", "2026-11-29T10:00:00Z")
    assert code == 0
    assert re.search(r"- gap +2026-11-29T10:00Z–now +STALE +eu-1 is not live", out)
    assert "what was before is not known any more" in out
    assert "1 of 1 clusters not live" in err
    assert inventory.requests[0].since_ms == 1_795_946_400_000
    inventory.history_parts = [inventory_pb2.GetHistoryResponse(summary=history_summary())]
    assert await federator("history", "pods/web") == (0, "", "No versions found.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pods",),
        ("pods", "a", "b"),
        ("pods,nodes", "a"),
        ("pods/a", "pods/b"),
        ("pods/a", "--since", "884213"),
        ("pods/a", "--since", "yesterday"),
        ("pods/a", "-o", "yaml"),
        ("pods/a", "--limit", "0"),
        ("eu-1//pods/shop/web", "-C", "eu-2"),
    ],
)
async def test_what_makes_no_question_is_refused(
    federator: Federator, inventory: ScriptedInventory, arguments: tuple[str, ...]
) -> None:
    assert (await federator("history", *arguments)).code == 2
    assert not inventory.requests


async def test_errors_have_their_exit_codes(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.history_parts = [RevisionExpired(3, 7)]
    assert (await federator("history", "pods/web", "--before", "3")).code == 4
    inventory.history_parts = [AmbiguousName("pods", "web", ("eu-1", "us-1"))]
    code, _, err = await federator("history", "pods/web")
    assert code == 1
    assert "eu-1" in err

"""`federator get` against an aggregator on a real port."""

from __future__ import annotations

import json
import re
from typing import Any

import grpc
import pytest
import yaml

from federator.client import EventType
from federator.errors import CursorExpired, CursorForeign, RevisionExpired, SelectionChanged, UnknownResourceType
from federator.v1 import inventory_pb2, types_pb2
from tests.component.cli.conftest import Federator
from tests.component.client.scripted_inventory import ScriptedInventory, event, freshness, inventory_object

LIVE = (freshness("eu-1"), freshness("us-2"))


def answer(
    *objects: inventory_pb2.InventoryObject,
    clusters: tuple[inventory_pb2.ClusterFreshness, ...] = LIVE,
    complete: bool = True,
    total: int | None = None,
) -> list[inventory_pb2.ListResponse]:
    summary = inventory_pb2.ListSummary(
        revision=884213,
        cursor=b"c1",
        total=len(objects) if total is None else total,
        complete=complete,
        clusters=clusters,
    )
    return [inventory_pb2.ListResponse(objects=objects), inventory_pb2.ListResponse(summary=summary)]


def pod(cluster_id: str, name: str, phase: str = "Running", **manifest: Any) -> inventory_pb2.InventoryObject:
    running = {"containerStatuses": [{"name": "c", "ready": True, "restartCount": 0, "state": {"running": {}}}]}
    return inventory_object(
        cluster_id, name, spec={"containers": [{"name": "c"}]}, status={"phase": phase} | running, **manifest
    )


def deployment(cluster_id: str, name: str) -> inventory_pb2.InventoryObject:
    return inventory_object(
        cluster_id,
        name,
        group="apps",
        resource="deployments",
        kind="Deployment",
        spec={"replicas": 2},
        status={"readyReplicas": 1},
    )


def rows(text: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.rstrip()) for line in text.splitlines()]


def without_age(text: str) -> str:
    """The text without what depends on the time of day: the cells of AGE, which come last here."""
    return re.sub(r"(?m) +(AGE|[0-9][0-9a-z]*|<invalid>)$", "", text)


async def test_the_table(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "web-6c9f7d9c4b-2xk8p"), pod("us-2", "web-0", "Pending", namespace="s"))
    done = await federator("get", "pods")
    assert done.code == 0
    assert done.err == ""
    assert without_age(done.out) == (
        "CLUSTER   NAMESPACE   NAME                   READY   STATUS    RESTARTS\n"
        "eu-1      shop        web-6c9f7d9c4b-2xk8p   1/1     Running   0\n"
        "us-2      s           web-0                  1/1     Pending   0\n"
    )
    (asked,) = inventory.requests
    assert list(asked.selection.resources) == ["pods"]
    assert list(asked.selection.clusters) == []
    assert asked.selection.namespace == ""


async def test_every_condition_reaches_the_aggregator(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "web-0"))
    done = await federator(
        "get",
        "po,svc",
        "-n=shop",
        "-lapp=web",
        "--field-selector",
        "spec.nodeName=n1",
        "-C",
        "prod-*,!ap-*",
        "--limit=7",
    )
    assert done.code == 0
    assert "NAMESPACE" not in done.out
    (asked,) = inventory.requests
    selection = asked.selection
    assert list(selection.resources) == ["po", "svc"]
    assert list(selection.clusters) == ["prod-*", "!ap-*"]
    assert (selection.namespace, selection.label_selector, selection.field_selector, asked.limit) == (
        "shop",
        "app=web",
        "spec.nodeName=n1",
        7,
    )


@pytest.mark.parametrize("spelling", [("-o", "wide"), ("-owide",), ("-o=wide",), ("--output=wide",)])
async def test_all_spellings_of_an_option(
    federator: Federator, inventory: ScriptedInventory, spelling: tuple[str, ...]
) -> None:
    inventory.list_pages = answer(pod("eu-1", "web-0"))
    done = await federator("get", "pods", "-A", *spelling)
    assert rows(done.out)[0][-4:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]


async def test_several_types_are_blocks_of_typed_names(federator: Federator, inventory: ScriptedInventory) -> None:
    node = inventory_object("eu-1", "n1", namespace="", resource="nodes", kind="Node")
    inventory.list_pages = answer(deployment("eu-1", "web"), node, pod("eu-1", "web-0"))
    done = await federator("get", "deploy,no,po")
    assert done.out.count("\n\n") == 2
    first, second, third = done.out.split("\n\n")
    assert rows(first)[1][:3] == ["eu-1", "shop", "deployment.apps/web"]
    assert rows(second)[0][:3] == ["CLUSTER", "NAME", "STATUS"]
    assert rows(second)[1][:3] == ["eu-1", "node/n1", "Unknown"]
    assert rows(third)[1][2] == "pod/web-0"
    bare = await federator("get", "deploy,no,po", "--no-headers")
    assert "\n\n" not in bare.out
    assert "NAME" not in bare.out
    inventory.list_pages = answer(pod("eu-1", "web-0"))
    alone = await federator("get", "deploy,po")
    assert rows(alone.out)[1][2] == "pod/web-0"


async def test_labels(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "a", metadata={"labels": {"b": "2", "a": "1"}}), pod("eu-1", "b"))
    done = await federator("get", "pods", "--show-labels")
    assert [row[-1] for row in rows(done.out)] == ["LABELS", "a=1,b=2", "<none>"]


async def test_a_name_that_several_clusters_have_is_several_rows(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    inventory.list_pages = answer(pod("eu-1", "web-0"), pod("us-2", "web-0"))
    done = await federator("get", "pod/web-0")
    assert [row[0] for row in rows(done.out)] == ["CLUSTER", "eu-1", "us-2"]
    (asked,) = inventory.requests
    assert (list(asked.selection.resources), asked.selection.name) == (["pod"], "web-0")


async def test_keys_are_printed_and_taken_back(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(deployment("eu-1", "web"), pod("us-2", "web-0"))
    printed = await federator("get", "all", "-o", "name")
    assert printed.out == "eu-1/apps/deployments/shop/web\nus-2//pods/shop/web-0\n"
    inventory.requests.clear()
    await federator("get", *printed.out.split())
    asked = [request.selection for request in inventory.requests]
    assert [(*s.clusters, *s.resources, s.namespace, s.name) for s in asked] == [
        ("eu-1", "deployments.apps", "shop", "web"),
        ("us-2", "pods", "shop", "web-0"),
    ]


async def test_json_is_a_list_or_the_one_object(federator: Federator, inventory: ScriptedInventory) -> None:
    web = pod("eu-1", "web-0", metadata={"annotations": {"a": "1"}})
    inventory.list_pages = answer(web)
    listed = json.loads((await federator("get", "pods", "-o=json")).out)
    assert (listed["apiVersion"], listed["kind"], listed["metadata"]) == ("v1", "List", {"resourceVersion": "884213"})
    (item,) = listed["items"]
    assert item["metadata"]["annotations"] == {"a": "1", "federator.io/cluster": "eu-1"}
    assert set(item["metadata"]) == {"name", "uid", "resourceVersion", "creationTimestamp", "namespace", "annotations"}
    assert json.loads((await federator("get", "pod", "web-0", "-ojson")).out) == item
    inventory.list_pages = answer(web, pod("us-2", "web-0"))
    assert json.loads((await federator("get", "pod", "web-0", "-ojson")).out)["kind"] == "List"


async def test_yaml(federator: Federator, inventory: ScriptedInventory) -> None:
    config = inventory_object(
        "eu-1", "c", resource="configmaps", kind="ConfigMap", data={"on": "1e3", "y": "no", "z": "a\nb\n"}
    )
    inventory.list_pages = answer(config)
    done = await federator("get", "cm", "c", "-o", "yaml")
    assert '  "on": "1e3"\n  "y": "no"\n  z: |\n    a\n    b\n' in done.out
    assert yaml.safe_load(done.out)["data"] == {"on": "1e3", "y": "no", "z": "a\nb\n"}
    assert done.out.startswith("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n")


async def test_json_lines(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "a"), pod("us-2", "b"))
    done = await federator("get", "pods", "-o", "jsonl")
    assert [json.loads(line)["metadata"]["name"] for line in done.out.splitlines()] == ["a", "b"]


@pytest.mark.parametrize("output", ["wide", "name", "jsonl"])
async def test_nothing_found(federator: Federator, inventory: ScriptedInventory, output: str) -> None:
    inventory.list_pages = answer()
    assert await federator("get", "pods", "-o", output) == (0, "", "No resources found in 2 clusters.\n")


async def test_nothing_found_is_a_document_too(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer()
    done = await federator("get", "pods", "-o", "json")
    assert (json.loads(done.out)["items"], done.err) == ([], "")


async def test_names_that_nobody_has(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = lambda request: answer(*([pod("eu-1", "a")] if request.selection.name == "a" else []))
    done = await federator("get", "pods", "a", "b", "c", "-n", "shop")
    assert done.code == 1
    assert rows(done.out)[1][:2] == ["eu-1", "a"]
    assert done.err.splitlines() == [
        "Error: pods 'b' not found in namespace 'shop' of any cluster",
        "Error: pods 'c' not found in namespace 'shop' of any cluster",
    ]
    assert (await federator("get", "pod", "b", "-o", "json")).out == ""


async def test_a_name_that_nobody_has_is_not_watched_for(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer()
    done = await federator("get", "pods", "b", "-w")
    assert (done.code, done.out, done.err) == (1, "", "Error: pods 'b' not found in any cluster\n")
    assert len(inventory.requests) == 1


async def test_what_is_not_live_is_named(federator: Federator, inventory: ScriptedInventory) -> None:
    denied = inventory_pb2.TypeFreshness(resource="pods", state=types_pb2.TYPE_STATE_DENIED)
    clusters = (
        freshness("ap-1", types_pb2.CLUSTER_STATE_STALE, proved_age_ms=151_000),
        freshness("eu-1", incomplete_types=[denied]),
        freshness("us-2", types_pb2.CLUSTER_STATE_SYNCING, proved_age_ms=None),
    )
    inventory.list_pages = answer(pod("ap-1", "web-0"), clusters=clusters, complete=False)
    done = await federator("get", "pods")
    assert done.code == 0
    assert done.err.splitlines() == [
        "Warning: ap-1 STALE, proved up to 2m31s ago; us-2 SYNCING. 2 of 3 clusters not live.",
        "Warning: pods DENIED in eu-1.",
    ]
    inventory.list_pages = answer(pod("eu-1", "web-0"), complete=False)
    assert (await federator("get", "pods")).err == (
        "Warning: objects may be missing: an agent collects only part of what was asked for.\n"
    )


async def test_a_limit_says_what_it_hides(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "web-0"), total=3)
    done = await federator("get", "pods", "--limit", "1")
    assert done.err == "Note: 1 of 3 objects shown, because of --limit.\n"


async def test_a_list_is_asked_for_page_by_page(federator: Federator, inventory: ScriptedInventory) -> None:
    def pages(request: inventory_pb2.ListRequest) -> list[inventory_pb2.ListResponse]:
        first = not request.page_token
        told = answer(pod("eu-1", "a") if first else pod("us-2", "b"), total=2)
        told[-1].summary.next_page_token = b"t2" if first else b""
        return told

    inventory.list_pages = pages
    done = await federator("get", "pods", "--sort-by", "{.metadata.name}")
    assert (done.code, [row[2] for row in rows(done.out)], done.err) == (0, ["NAME", "a", "b"], "")
    assert [(asked.page_size, asked.page_token, asked.order_by) for asked in inventory.requests] == [
        (500, b"", ".metadata.name"),
        (500, b"t2", ".metadata.name"),
    ]
    inventory.requests.clear()
    inventory.list_pages = answer(pod("eu-1", "a"))
    await federator("get", "pods", "--chunk-size", "0", "--sort-by=age desc,name")
    (asked,) = inventory.requests
    assert (asked.page_size, asked.order_by) == (0, "age desc,name")


async def test_the_past(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "a"))
    done = await federator("get", "pods", "--at", "2026-11-29T10:00:00Z")
    assert done.err == "Note: as of revision 884213; how fresh the clusters are is of now.\n"
    await federator("get", "pods", "--at", "884200")
    assert [(asked.WhichOneof("at"), asked.at_time_ms or asked.at_revision) for asked in inventory.requests] == [
        ("at_time_ms", 1_795_946_400_000),
        ("at_revision", 884200),
    ]
    inventory.list_pages = [RevisionExpired(884200, 884210)]
    done = await federator("get", "pods", "--at", "884200")
    assert (done.code, done.out) == (4, "")


async def test_a_sorted_list_is_followed_by_changes_as_they_come(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    inventory.list_pages = answer(pod("eu-1", "b"))
    inventory.watches = [[event(EventType.ADDED, pod("eu-1", "a"), cursor=b"c2"), CursorForeign(b"c2")]]
    done = await federator("get", "pods", "-w", "--sort-by", "name")
    assert [row[2] for row in rows(done.out)] == ["NAME", "b", "a"]
    assert done.err.startswith("Note: --sort-by sorts the list, not the changes after it.\n")


async def test_custom_resources_have_the_columns_of_their_definitions(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    columns = [
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    definition = inventory_object(
        "eu-1",
        "certificates.cert-manager.io",
        namespace="",
        resource="customresourcedefinitions",
        spec={"versions": [{"name": "v1", "additionalPrinterColumns": columns}]},
    )
    certificate = inventory_object(
        "eu-1",
        "web",
        group="cert-manager.io",
        resource="certificates",
        kind="Certificate",
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    )

    def pages(request: inventory_pb2.ListRequest) -> list[inventory_pb2.ListResponse]:
        return answer(certificate if request.selection.resources[0] == "certificates" else definition)

    inventory.list_pages = pages
    done = await federator("get", "certificates")
    assert rows(done.out)[0] == ["CLUSTER", "NAMESPACE", "NAME", "READY", "AGE"]
    assert rows(done.out)[1][:4] == ["eu-1", "shop", "web", "True"]
    asked = inventory.requests[1].selection
    assert (list(asked.resources), asked.name) == (
        ["customresourcedefinitions.apiextensions.k8s.io"],
        "certificates.cert-manager.io",
    )
    inventory.list_pages = lambda request: (
        answer(certificate) if request.selection.resources[0] == "certificates" else [UnknownResourceType("crd")]
    )
    assert rows((await federator("get", "certificates")).out)[0] == ["CLUSTER", "NAMESPACE", "NAME", "AGE"]


async def test_watch_goes_on_where_the_list_ended(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "a"))
    stale = inventory_pb2.ClusterEvent(
        cluster_id="ap-1",
        state=types_pb2.CLUSTER_STATE_STALE,
        previous_state=types_pb2.CLUSTER_STATE_LIVE,
        reason="agent silent",
    )
    inventory.watches = [
        [
            event(EventType.ADDED, pod("us-2", "a-longer-name", "Pending"), cursor=b"c2"),
            event(EventType.CLUSTER, cursor=b"c3", cluster=stale),
            event(EventType.BOOKMARK, cursor=b"c4"),
            event(EventType.DELETED, pod("eu-1", "a"), cursor=b"c5"),
            CursorExpired(5, 9),
        ]
    ]
    done = await federator("get", "pods", "-w", "--output-watch-events")
    assert without_age(done.out) == (
        "EVENT      CLUSTER   NAMESPACE   NAME   READY   STATUS    RESTARTS\n"
        "ADDED      eu-1      shop        a      1/1     Running   0\n"
        "ADDED      us-2      shop        a-longer-name   1/1     Pending   0\n"
        "DELETED    eu-1      shop        a               1/1     Running   0\n"
    )
    assert done.err.splitlines() == [
        "Note: ap-1 is STALE (was LIVE): agent silent",
        "Error: revision 5 is compacted; the oldest to be had is 9",
    ]
    assert done.code == 4
    assert inventory.requests[1].cursor == b"c1"


async def test_watch_of_several_types(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(deployment("eu-1", "web"))
    inventory.watches = [
        [
            event(EventType.ADDED, pod("eu-1", "web-0"), cursor=b"c2"),
            event(EventType.MODIFIED, deployment("eu-1", "web"), cursor=b"c3"),
            CursorForeign(b"c3"),
        ]
    ]
    done = await federator("get", "deployments,pods", "-w")
    blocks = done.out.split("\n\n")
    assert [rows(block)[0][-3] for block in blocks] == ["UP-TO-DATE", "STATUS", "UP-TO-DATE"]
    assert [rows(block)[1][2] for block in blocks] == ["deployment.apps/web", "pod/web-0", "deployment.apps/web"]
    assert done.code == 4


async def test_watch_as_documents(federator: Federator, inventory: ScriptedInventory) -> None:
    def script() -> None:
        inventory.list_pages = answer(pod("eu-1", "a"))
        inventory.watches = [[event(EventType.DELETED, pod("eu-1", "a"), cursor=b"c2"), CursorForeign(b"c2")]]

    script()
    lines = (await federator("get", "pods", "-w", "-o", "jsonl", "--output-watch-events")).out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["ADDED", "DELETED"]
    assert json.loads(lines[0])["object"]["metadata"]["name"] == "a"
    script()
    documents = list(yaml.safe_load_all((await federator("get", "pods", "-w", "-o", "yaml")).out))
    assert [document["kind"] for document in documents] == ["Pod", "Pod"]
    script()
    assert (await federator("get", "pods", "-w", "-o", "name")).out == "eu-1//pods/shop/a\n" * 2


async def test_watch_only_lists_nothing(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "a"))
    inventory.watches = [[event(EventType.ADDED, pod("eu-1", "b"), cursor=b"c2"), CursorForeign(b"c2")]]
    done = await federator("get", "pods", "--watch-only")
    assert [row[2] for row in rows(done.out)] == ["NAME", "b"]
    assert inventory.requests[0].count_only
    assert inventory.requests[1].cursor == b"c1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pods", "-o", "xml"), "Error: --output: 'xml' is not allowed; allowed: wide, json, yaml, name, jsonl\n"),
        (
            ("pods", "a", "b", "-w"),
            "Error: --watch: 'pods a b' is not allowed; allowed: TYPE[,TYPE...], at most one NAME",
        ),
        (("pods", "-w", "--limit", "3"), "Error: --watch: 'pods' is not allowed"),
        (("pods", "--watch-only", "--at", "2h"), "Error: --watch: 'pods' is not allowed"),
        (("pods", "--at", "yesterday"), "Error: --at: 'yesterday' is not allowed; allowed: a revision"),
        (("pods", "--sort-by", "{.a[?(@.b)]}"), "Error: --sort-by: '{.a[?(@.b)]}' is not allowed"),
        (("pods", "--chunk-size", "10001"), "Error: --chunk-size: '10001' is not allowed"),
        (("pods/a", "b"), "Error: argument: 'b' is not allowed; allowed: TYPE[,TYPE...]"),
        (("pods/a/b",), "Error: argument: 'pods/a/b' is not allowed"),
        (
            ("eu-1//pods/shop/a", "-n", "x"),
            "Error: argument: 'eu-1//pods/shop/a' is not allowed; allowed: a key without",
        ),
        (("//pods/shop/a",), "Error: key: '//pods/shop/a' is not allowed"),
        ((",",), "Error: TYPE: ',' is not allowed"),
        (("pods", "-C", " ,"), "Error: clusters: ' ,' is not allowed; allowed: globs of ClusterIDs between commas"),
        ((), "Error: Missing argument 'WHAT'."),
        (("pods", "--limit", "-1"), "Error: --limit: '-1' is not allowed; allowed: greater than or equal to 0"),
        (("pods", "--bogus"), "Error: No such option: --bogus"),
    ],
    ids=str,
)
async def test_misuse(federator: Federator, arguments: tuple[str, ...], message: str) -> None:
    done = await federator("get", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert done.err.count("\n") == 1


async def test_refusals(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [UnknownResourceType("pads")]
    done = await federator("get", "pads")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: no member cluster serves a resource type 'pads'")


async def test_a_lost_connection_is_said_once_and_mended(
    federator: Federator, inventory: ScriptedInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federator.client.watch._FIRST_DELAY", 0.01)
    inventory.list_pages = answer()
    inventory.watches = [
        [grpc.StatusCode.UNAVAILABLE],
        [grpc.StatusCode.UNAVAILABLE],
        [event(EventType.ADDED, pod("eu-1", "a"), cursor=b"c2"), CursorForeign(b"c2")],
    ]
    done = await federator("get", "pods", "-w")
    assert [row[2] for row in rows(done.out)] == ["NAME", "a"]
    assert done.err.splitlines() == [
        "No resources found in 2 clusters.",
        f"Warning: cannot reach the aggregator at {inventory.address}: scripted; trying again every few seconds.",
        "Note: connected again; nothing was missed.",
        f"Error: {CursorForeign(b'c2')}",
    ]


async def test_clusters_are_chosen_by_their_labels(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(pod("eu-1", "web"))
    assert (await federator("get", "pods", "--cluster-selector", "env=prod,region notin (us)")).code == 0
    assert inventory.requests[0].selection.cluster_selector == "env=prod,region notin (us)"
    refused = await federator("get", "eu-1//pods/shop/web", "--cluster-selector", "env=prod")
    assert refused.code == 2
    assert "--cluster-selector" in refused.err


async def test_a_cluster_that_comes_into_the_selection_is_listed_and_followed(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    def pages(request: inventory_pb2.ListRequest) -> list[inventory_pb2.ListResponse]:
        return answer(pod("us-2", "new")) if request.selection.clusters else answer(pod("eu-1", "web"))

    inventory.list_pages = pages
    inventory.watches = [
        [SelectionChanged(b"c2", "us-2", is_selected=True)],
        [SelectionChanged(b"c3", "eu-1", is_selected=False)],
        [event(EventType.MODIFIED, pod("us-2", "new"), cursor=b"c4", revision=4), CursorExpired(4, 9)],
        [],
    ]
    done = await federator("get", "pods", "-w", "--no-headers", "--cluster-selector=env=prod", "-o", "name")
    assert done.out.splitlines() == ["eu-1//pods/shop/web", "us-2//pods/shop/new", "us-2//pods/shop/new"]
    assert "the labels of cluster 'us-2' have changed: it is selected now, which it was not." in done.err
    assert "the labels of cluster 'eu-1' have changed: it is not selected any more." in done.err
    watched = [request for request in inventory.requests if isinstance(request, inventory_pb2.WatchRequest)]
    assert [request.cursor for request in watched] == [b"c1", b"c2", b"c3"]
    (listed,) = [
        request
        for request in inventory.requests
        if isinstance(request, inventory_pb2.ListRequest) and request.selection.clusters
    ]
    assert list(listed.selection.clusters) == ["us-2"]
    assert listed.selection.cluster_selector == "env=prod"
    assert done.code == 4


async def test_a_selection_that_changed_unseen_ends_the_watch(
    federator: Federator, inventory: ScriptedInventory
) -> None:
    inventory.list_pages = answer(pod("eu-1", "web"))
    inventory.watches = [[SelectionChanged(b"", "us-2", is_selected=False)], []]
    done = await federator("get", "pods", "-w", "--cluster-selector=env=prod", "-o", "name")
    assert done.code == 1
    assert "start over" in done.err

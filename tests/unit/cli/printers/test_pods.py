from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from federator.cli.printers.pods import PODS
from tests.unit.cli.printers import examples

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PODS_BY_NAME = {example["metadata"]["name"]: example for example in examples() if example["kind"] == "Pod"}


def cells(pod: dict[str, Any], *, wide: bool = False) -> tuple[str, ...]:
    if pod["metadata"].get("deleted"):
        pod["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
    return PODS.cells(pod, NOW, wide=wide)


@pytest.mark.parametrize(
    ("name", "ready", "status", "restarts"),
    [
        ("running", "2/2", "Running", "3 (331d ago)"),
        ("crash-looping", "0/1", "CrashLoopBackOff", "12 (28d ago)"),
        ("completed", "0/1", "Completed", "0"),
        ("failed", "0/2", "Signal:9", "0"),
        ("evicted", "0/1", "Evicted", "0"),
        ("not-ready", "1/2", "NotReady", "0"),
        ("init-waiting", "0/1", "Init:1/2", "1"),
        ("init-failed", "0/1", "Init:ExitCode:3", "4 (27d ago)"),
        ("init-backing-off", "0/1", "Init:CrashLoopBackOff", "4"),
        ("sidecar", "2/2", "Running", "2 (26d ago)"),
        ("gated", "0/1", "SchedulingGated", "0"),
        ("terminating", "0/1", "Terminating", "0"),
        ("lost", "0/1", "Unknown", "0"),
    ],
)
def test_ready_status_and_restarts(name: str, ready: str, status: str, restarts: str) -> None:
    assert cells(PODS_BY_NAME[name])[1:4] == (ready, status, restarts)


def container(state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    return {"name": "c", "ready": ready, "restartCount": 0, "state": state}


COMPLETED = container({"terminated": {"exitCode": 0, "reason": "Completed"}})
RUNNING = container({"running": {}}, ready=True)
FAILED = container({"terminated": {"exitCode": 1, "reason": "Error"}})


@pytest.mark.parametrize(
    ("containers", "conditions", "status"),
    [
        ([COMPLETED, RUNNING], {"Ready": "True"}, "Running"),
        ([COMPLETED, RUNNING], {"Ready": "False"}, "NotReady"),
        ([COMPLETED, FAILED], {}, "Error"),
        ([FAILED, COMPLETED], {}, "Error"),
        ([container({"terminated": {"exitCode": 2}})], {}, "ExitCode:2"),
        ([container({"waiting": {"reason": "ImagePullBackOff"}}), FAILED], {}, "ImagePullBackOff"),
        ([container({"waiting": {}})], {}, "Pending"),
        ([], {}, "Pending"),
    ],
)
def test_which_container_speaks_for_the_pod(
    containers: list[dict[str, Any]], conditions: dict[str, str], status: str
) -> None:
    given = [{"type": kind, "status": value} for kind, value in conditions.items()]
    pod = {
        "metadata": {"name": "p"},
        "status": {"phase": "Pending", "containerStatuses": containers, "conditions": given},
    }
    assert cells(pod)[2] == status


@pytest.mark.parametrize(("initialized", "status"), [("True", "CrashLoopBackOff"), ("False", "Init:Error")])
def test_containers_speak_before_init_containers_once_the_pod_was_initialized(initialized: str, status: str) -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"initContainers": [{"name": "c"}]},
        "status": {
            "conditions": [{"type": "Initialized", "status": initialized}],
            "initContainerStatuses": [FAILED],
            "containerStatuses": [container({"waiting": {"reason": "CrashLoopBackOff"}})],
        },
    }
    assert cells(pod)[2] == status


def test_a_sidecar_that_has_not_started_holds_the_pod_up() -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {"initContainers": [{"name": "c", "restartPolicy": "Always"}], "containers": [{"name": "a"}]},
        "status": {"initContainerStatuses": [container({"running": {}}) | {"started": False}]},
    }
    assert cells(pod)[1:3] == ("0/2", "Init:0/1")
    pod["status"]["initContainerStatuses"] = [RUNNING | {"started": True}]
    assert cells(pod)[1] == "1/2"


def test_a_finished_pod_that_is_deleted_stays_finished() -> None:
    pod = {"metadata": {"name": "p", "deletionTimestamp": "2026-11-29T11:00:00Z"}, "status": {"phase": "Succeeded"}}
    assert cells(pod)[2] == "Succeeded"


def test_wide() -> None:
    assert cells(PODS_BY_NAME["running"], wide=True)[5:] == ("10.0.0.7", "n1", "<none>", "1/2")
    assert cells(PODS_BY_NAME["gated"], wide=True)[5:] == ("<none>", "<none>", "<none>", "<none>")


def test_metadata_alone_is_printed_too() -> None:
    pod = {"metadata": {"name": "p", "creationTimestamp": "2026-11-29T11:00:00Z"}}
    assert cells(pod) == ("p", "0/0", "", "0", "60m")

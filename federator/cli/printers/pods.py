"""Pods: the cells that take more than looking a value up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from federator.cli.age import human_duration, parse_timestamp
from federator.cli.printers.printer import (
    Cell,
    Manifest,
    Printer,
    age_of,
    columns,
    count_at,
    dig,
    entries_at,
    mapping_at,
    name_of,
    text_at,
)


class _Restarts(NamedTuple):
    """Restarts, and when the last of them was."""

    total: int = 0
    last: datetime | None = None

    def plus(self, container: Manifest) -> _Restarts:
        finished = parse_timestamp(dig(container, "lastState", "terminated", "finishedAt"))
        last = max(filter(None, (self.last, finished)), default=None)
        return _Restarts(self.total + count_at(container, "restartCount"), last)

    def text(self, now: datetime) -> str:
        if self.total == 0 or self.last is None:
            return str(self.total)
        return f"{self.total} ({human_duration((now - self.last).total_seconds())} ago)"


class _Summary(NamedTuple):
    """What the containers of a pod, or one kind of them, come to.

    Attributes:
        reason: the STATUS they call for; empty where they call for none.
        ready: number of ready containers.
        restarts: of all of them.
        sidecar_restarts: of the init containers that go on running.
    """

    reason: str
    ready: int
    restarts: _Restarts
    sidecar_restarts: _Restarts = _Restarts()


def _ended(terminated: Manifest) -> str:
    """Why a container ended: its reason, else the signal or the exit code."""
    if reason := text_at(terminated, "reason"):
        return reason
    if signal := count_at(terminated, "signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{count_at(terminated, 'exitCode')}"


def _init_containers(pod: Manifest, sidecars: set[str]) -> _Summary:
    """Goes through the init containers up to the first that holds the pod up."""
    ready, restarts, sidecar_restarts = 0, _Restarts(), _Restarts()
    for index, container in enumerate(entries_at(pod, "status", "initContainerStatuses")):
        restarts = restarts.plus(container)
        is_sidecar = text_at(container, "name") in sidecars
        if is_sidecar:
            sidecar_restarts = sidecar_restarts.plus(container)
        terminated = dig(container, "state", "terminated")
        waiting = text_at(container, "state", "waiting", "reason")
        if terminated is not None and count_at(terminated, "exitCode") == 0:
            continue
        if is_sidecar and container.get("started") is True:
            ready += container.get("ready") is True
            continue
        if terminated is not None:
            reason = f"Init:{_ended(terminated)}"
        elif waiting and waiting != "PodInitializing":
            reason = f"Init:{waiting}"
        else:
            reason = f"Init:{index}/{len(entries_at(pod, 'spec', 'initContainers'))}"
        return _Summary(reason, ready, restarts, sidecar_restarts)
    return _Summary("", ready, restarts, sidecar_restarts)


def _containers(pod: Manifest, reason: str) -> _Summary:
    """Goes through the containers backwards, so that the first of several reasons is shown."""
    ready, restarts, running, failure = 0, _Restarts(), False, ""
    for container in reversed(entries_at(pod, "status", "containerStatuses")):
        restarts = restarts.plus(container)
        terminated = dig(container, "state", "terminated")
        if waiting := text_at(container, "state", "waiting", "reason"):
            reason = waiting
        elif terminated is not None:
            reason = _ended(terminated)
            if count_at(terminated, "exitCode") != 0:
                failure = reason
        elif container.get("ready") is True and dig(container, "state", "running") is not None:
            running = True
            ready += 1
    if reason == "Completed":
        if running and _has_condition(pod, "Ready"):
            reason = "Running"
        elif failure:
            reason = failure
        elif running:
            reason = "NotReady"
    return _Summary(reason, ready, restarts)


def _has_condition(pod: Manifest, kind: str) -> bool:
    return any(
        condition.get("type") == kind and condition.get("status") == "True"
        for condition in entries_at(pod, "status", "conditions")
    )


def _summary(pod: Manifest) -> _Summary:
    """READY, STATUS and RESTARTS of a pod that is not being deleted."""
    reason = text_at(pod, "status", "reason") or text_at(pod, "status", "phase")
    for condition in entries_at(pod, "status", "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    init = _init_containers(pod, _sidecars(pod))
    if init.reason and not _has_condition(pod, "Initialized"):
        return init
    main = _containers(pod, init.reason or reason)
    last = max(filter(None, (init.sidecar_restarts.last, main.restarts.last)), default=None)
    restarts = _Restarts(init.sidecar_restarts.total + main.restarts.total, last)
    return _Summary(main.reason, init.ready + main.ready, restarts)


def _sidecars(pod: Manifest) -> set[str]:
    """Names of the init containers that go on running beside the others."""
    return {
        text_at(container, "name")
        for container in entries_at(pod, "spec", "initContainers")
        if container.get("restartPolicy") == "Always"
    }


def _status(pod: Manifest, reason: str) -> str:
    if dig(pod, "metadata", "deletionTimestamp") is None:
        return reason
    if text_at(pod, "status", "reason") == "NodeLost":
        return "Unknown"
    if text_at(pod, "status", "phase") in {"Succeeded", "Failed"}:
        return reason
    return "Terminating"


def _readiness_gates(pod: Manifest) -> str:
    gates = [text_at(gate, "conditionType") for gate in entries_at(pod, "spec", "readinessGates")]
    if not gates:
        return "<none>"
    return f"{sum(_has_condition(pod, gate) for gate in gates)}/{len(gates)}"


def _pod(pod: Manifest, now: datetime) -> Sequence[Cell]:
    summary = _summary(pod)
    total = len(entries_at(pod, "spec", "containers")) + len(_sidecars(pod))
    addresses = entries_at(pod, "status", "podIPs")
    return (
        name_of(pod),
        f"{summary.ready}/{total}",
        _status(pod, summary.reason),
        summary.restarts.text(now),
        age_of(pod, now),
        (text_at(addresses[0], "ip") if addresses else "") or "<none>",
        text_at(pod, "spec", "nodeName") or "<none>",
        text_at(pod, "status", "nominatedNodeName") or "<none>",
        _readiness_gates(pod),
    )


def container_cells(pod_spec: object) -> tuple[str, str]:
    """The cells CONTAINERS and IMAGES of whatever has a pod template."""
    containers = entries_at(mapping_at(pod_spec), "containers")
    return (
        ",".join(text_at(container, "name") for container in containers),
        ",".join(text_at(container, "image") for container in containers),
    )


PODS = Printer(columns("NAME,READY,STATUS,RESTARTS,AGE,IP*,NODE*,NOMINATED NODE*,READINESS GATES*"), _pod)

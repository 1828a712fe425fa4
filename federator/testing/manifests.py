"""Objects of a plausible fleet, as JSON. Sizes and label counts are those of everyday workloads."""

from __future__ import annotations

from typing import Any

MANAGED_BY = "federator-testbed"
"""Value of the label app.kubernetes.io/managed-by on everything that is made here."""

_CREATED = "2026-01-01T00:00:00Z"

_SOON = {
    f"{stage}.stage.kwok.x-k8s.io/{when}": duration
    for stage in ("pod-create", "pod-ready")
    for when, duration in (("delay", "100ms"), ("jitter-delay", "500ms"))
} | {"pod-delete.stage.kwok.x-k8s.io/delay": "100ms"}
"""Annotations of pods: kwok lets each step of their lives take up to half a second instead of up to five."""


def labels(app: str, *, version: str = "1.0.0", track: str = "stable") -> dict[str, str]:
    """The labels of one application's objects."""
    return {
        "app.kubernetes.io/name": app,
        "app.kubernetes.io/instance": app,
        "app.kubernetes.io/version": version,
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "tier": "backend" if len(app) % 2 else "frontend",
        "track": track,
    }


def namespace(name: str) -> dict[str, Any]:
    """A namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, "team": name}},
    }


def deployment(namespace: str, name: str, *, replicas: int, version: str = "1.0.0") -> dict[str, Any]:
    """A Deployment of one container."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name, "labels": labels(name, version=version)},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": name}},
            "template": {
                "metadata": {"labels": labels(name, version=version), "annotations": dict(_SOON)},
                # Nothing has to be wound up; with the default, each pod would take half a minute to go.
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container(name, version)]},
            },
        },
    }


def stored_pod(namespace: str, name: str, *, app: str, node: str, uid: str) -> dict[str, Any]:
    """A Running pod as an apiserver keeps it in etcd; about 5 KB as it is read, managedFields included."""
    containers = [container(app, "1.0.0"), container(f"{app}-proxy", "2.3.1")]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "creationTimestamp": _CREATED,
            "labels": {**labels(app), "pod-template-hash": "7c5ddbdf54"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
            "managedFields": [_managed_by_controller(containers), _managed_by_kubelet()],
        },
        "spec": {"nodeName": node, "containers": containers},
        "status": {
            "phase": "Running",
            "podIP": "10.1.0.1",
            "podIPs": [{"ip": "10.1.0.1"}],
            "hostIP": "192.0.2.1",
            "startTime": _CREATED,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": _CREATED}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "name": each["name"],
                    "image": each["image"],
                    "ready": True,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": _CREATED}},
                }
                for each in containers
            ],
        },
    }


def config_map(namespace: str, name: str, *, revision: int) -> dict[str, Any]:
    """A ConfigMap of about 1 KB whose content depends on `revision`."""
    lines = "\n".join(f"feature.{number}.enabled = {(number + revision) % 3 == 0}" for number in range(24))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": labels(name)},
        "data": {"app.properties": lines, "revision": str(revision)},
    }


def service(namespace: str, name: str) -> dict[str, Any]:
    """A ClusterIP Service in front of the Deployment of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": labels(name)},
        "spec": {
            "selector": {"app.kubernetes.io/instance": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    }


def image(app: str, version: str) -> str:
    """Image of an application; nothing ever pulls it."""
    return f"registry.example.com/{app}:{version}"


def container(name: str, version: str) -> dict[str, Any]:
    """The one container of an application."""
    return {
        "name": name,
        "image": image(name, version),
        "ports": [{"name": "http", "containerPort": 8080}],
        "env": [
            {"name": "LOG_LEVEL", "value": "info"},
            {"name": "REGION", "value": "eu-central"},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"cpu": "500m", "memory": "512Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 10},
    }


def _managed_by_controller(containers: list[dict[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        f'k:{{"name":"{each["name"]}"}}': {".": {}, **{f"f:{field}": {} for field in each}} for each in containers
    }
    owned = {"f:metadata": {"f:labels": {f"f:{label}": {} for label in labels("")}}, "f:spec": {"f:containers": fields}}
    return _managed("kube-controller-manager", owned)


def _managed_by_kubelet() -> dict[str, Any]:
    return _managed("kubelet", {"f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:podIP": {}}})


def _managed(manager: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }

"""A sample as of a living cluster, small and made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from tests.bench.corpus import Sampled

Json = dict[str, Any]

_APPLICATIONS = (
    ("billing", "cart-0", "5fb66786c", ("9lq9x", "hbf47"), "prrgr"),
    ("search", "cart-1", "666b646597", ("jv9nf", "5vdpn"), "z784z"),
    ("search", "cart-2", "77cd5c8f9d", ("x2b8t", "q4w6z"), "k9m2p"),
)
"""Namespace, name, hash of the template, suffixes of the pods and of the EndpointSlice."""


def made_sample() -> list[Sampled]:
    """Three applications with all that belongs to them, in two namespaces, on two nodes."""
    return list(_objects(count(1)))


def _objects(numbers: Iterator[int]) -> Iterator[Sampled]:
    def made(kind: str, namespace: str, name: str, content: Json, *, group: str = "", **metadata: Any) -> Sampled:
        resource = f"{kind.lower()}s"
        own = {"name": name, **({"namespace": namespace} if namespace else {})}
        own |= {"uid": _uid(next(numbers)), "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
        raw = msgspec.json.encode({"apiVersion": "v1", "kind": kind, "metadata": own | metadata, **content})
        of_type = ResourceType(group=group, version="v1", resource=resource, kind=kind, namespaced=bool(namespace))
        return Sampled(of_type, KubeObject(namespace, name, (own | metadata)["uid"], "7", raw))

    for place in (0, 1):
        yield made("Node", "", f"node-{place}", {"status": {"nodeInfo": {"machineID": "", "bootID": ""}}})
    for namespace in ("billing", "search"):
        yield made("Namespace", "", namespace, {}, labels={"team": namespace})
        yield made("ConfigMap", namespace, "kube-root-ca.crt", {"data": {"ca.crt": "100 %b"}})
        yield made("ServiceAccount", namespace, "default", {})
    for namespace, app, template, suffixes, slice_suffix in _APPLICATIONS:
        labels = {"app.kubernetes.io/name": app, "app.kubernetes.io/version": "1.0.0", "track": "stable"}
        owner, owner_uid = f"{app}-{template}", _uid(next(numbers))
        owned: Json = {
            "generateName": f"{owner}-",
            "labels": {**labels, "pod-template-hash": template},
            "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": owner_uid}],
        }
        yield made("Deployment", namespace, app, {}, group="apps", labels=labels)
        yield made("ReplicaSet", namespace, owner, {}, group="apps", uid=owner_uid, labels=labels)
        for place, suffix in enumerate(suffixes):
            yield made("Pod", namespace, f"{owner}-{suffix}", _pod(app, place), **owned)
        yield made("Service", namespace, app, {}, labels=labels)
        endpoints = {"endpoints": [{"addresses": [f"10.0.0.{place}"]} for place in (0, 1)]}
        yield made(
            "EndpointSlice",
            namespace,
            f"{app}-{slice_suffix}",
            endpoints,
            group="discovery.k8s.io",
            generateName=f"{app}-",
        )
        yield made("ConfigMap", namespace, app, {"data": {"app": "100 %b\nx.enabled = True\ny.enabled = False"}})


def _pod(app: str, place: int) -> Json:
    return {
        "spec": {"nodeName": f"node-{place}", "containers": [{"image": f"registry.example.com/{app}:1.0.0"}]},
        "status": {
            "podIP": f"10.0.0.{place}",
            "startTime": "2026-01-01T00:00:05Z",
            "containerStatuses": [{"imageID": ""}],
        },
    }


def _uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"

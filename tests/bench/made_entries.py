"""Ledger entries without bodies, made by the million within seconds, for what looks at keys and indexes alone.

All clusters run the same applications. Of a cluster's objects so many are of each type as `corpus.WEIGHTS` says. A pod
names its node and the UID of its ReplicaSet, a ReplicaSet its Deployment's, an EndpointSlice its Service's. Names and
UIDs are as long as real ones, and labels have about as many values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import msgspec
import xxhash

from federator.aggregator.ledger.indexed_state import IndexedState
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from tests.bench.corpus import WEIGHTS

NAMESPACES = 200
"""In which objects of a cluster live."""

APP, VERSION, TEMPLATE = "app.kubernetes.io/name", "app.kubernetes.io/version", "pod-template-hash"
ZONE, TIER = "topology.kubernetes.io/zone", "tier"

TYPES: Mapping[str, GroupResource] = {
    resource: GroupResource(group, resource)
    for resource in WEIGHTS
    for group in (
        {"replicasets": "apps", "deployments": "apps", "endpointslices": "discovery.k8s.io"}.get(resource, ""),
    )
}

_VERSIONS = 200
_WORDS = (
    "billing",
    "cart",
    "catalog",
    "checkout",
    "coupon",
    "delivery",
    "fraud",
    "gateway",
    "invoice",
    "ledger",
    "order",
)
_TIERS = ("frontend", "backend", "batch", "data", "edge")
_ZONES = ("eu-central-1a", "eu-central-1b", "eu-central-1c", "us-east-1a", "us-east-1b", "us-east-1c")
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIXES = len(_SAFE) ** 5
_STRIDE = 6_700_417
"""Has no divisor in common with the number of suffixes."""

_NOW, _OLDEST = 1_790_000_000, 400 * 24 * 3600
_SECOND = 1 << 20
"""Revisions of a second."""

_Facts = tuple[str, str, IndexedState]
"""Namespace, name, and what is indexed."""


def cluster_id(number: int) -> ClusterID:
    """ClusterID of the cluster with this number."""
    return ClusterID(f"made-{number}")


class MadeCluster:
    """The objects of one cluster.

    Attributes:
        counts: how many it has of each type.
    """

    def __init__(self, number: int, objects: int) -> None:
        self._number = number
        self.counts = {resource: max(1, objects * weight // 100) for resource, weight in WEIGHTS.items()}
        self._apps = self.counts["deployments"]
        self._made: dict[str, Callable[[int], _Facts]] = {
            "pods": self._pod,
            "replicasets": self._replica_set,
            "endpointslices": self._endpoint_slice,
            "configmaps": self._config_map,
            "services": self._of_app,
            "deployments": self._of_app,
            "serviceaccounts": self._of_app,
            "nodes": self._node,
            "namespaces": self._namespace,
        }

    def entries(self, revisions: Iterator[int]) -> Iterator[ObjectEntry]:
        """Makes all of them, by type."""
        for resource, number in self.counts.items():
            for index in range(number):
                yield self.entry(resource, index, next(revisions))

    def entry(self, resource: str, index: int, revision: int, previous: int = 0) -> ObjectEntry:
        """Makes one of them; a MODIFIED one where it had a revision before.

        With each change a pod's label `version` is another one.
        """
        group, _ = TYPES[resource]
        namespace, name, indexed = self._made[resource](index)
        if previous and VERSION in indexed.labels:
            labels = {**indexed.labels, VERSION: _version(index + revision)}
            indexed = msgspec.structs.replace(indexed, labels=labels)
        return ObjectEntry(
            revision,
            previous,
            EntryType.MODIFIED if previous else EntryType.ADDED,
            revision // _SECOND * 1000,
            ObjectKey(cluster_id(self._number), group, resource, namespace, name),
            "v1",
            self._uid(resource, index),
            str(revision),
            revision,
            b"",
            indexed,
        )

    def owner_of_pod(self, index: int) -> str:
        """UID of the ReplicaSet that a pod names."""
        return self._uid("replicasets", index % self._apps)

    def node_of_pod(self, index: int) -> str:
        """Name of the node that a pod runs on."""
        return f"ip-10-{self._number}-{index * 7 % self.counts['nodes']}.compute.internal"

    def _pod(self, index: int) -> _Facts:
        namespace, app, labels = self._application(index)
        template = _hash(f"{app}/0", 9)
        labels |= {VERSION: _version(index % self._apps), TEMPLATE: template, ZONE: _ZONES[index % len(_ZONES)]}
        name = f"{app}-{template}-{_suffix(self._number, index)}"
        return (
            namespace,
            name,
            self._indexed(labels, "pods", index, self.node_of_pod(index), ("ReplicaSet", self.owner_of_pod(index))),
        )

    def _replica_set(self, index: int) -> _Facts:
        namespace, app, labels = self._application(index)
        release = index // self._apps
        template = _hash(f"{app}/{release}", 9)
        labels |= {VERSION: _version(index % self._apps + release), TEMPLATE: template}
        owner = "Deployment", self._uid("deployments", index % self._apps)
        return namespace, f"{app}-{template}", self._indexed(labels, "replicasets", index, owner=owner)

    def _endpoint_slice(self, index: int) -> _Facts:
        namespace, app, labels = self._application(index)
        labels["kubernetes.io/service-name"] = app
        owner = "Service", self._uid("services", index % self.counts["services"])
        name = f"{app}-{_suffix(self._number, index)}"
        return namespace, name, self._indexed(labels, "endpointslices", index, owner=owner)

    def _config_map(self, index: int) -> _Facts:
        namespace, app, labels = self._application(index)
        return namespace, f"{app}-settings-{index // self._apps}", self._indexed(labels, "configmaps", index)

    def _of_app(self, index: int) -> _Facts:
        namespace, app, labels = self._application(index)
        return namespace, app, self._indexed(labels, "services", index)

    def _node(self, index: int) -> _Facts:
        name = f"ip-10-{self._number}-{index}.compute.internal"
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": f"m{index % 7}.large",
            ZONE: _ZONES[index % len(_ZONES)],
        }
        return "", name, self._indexed(labels, "nodes", index)

    def _namespace(self, index: int) -> _Facts:
        name = f"team-{index}"
        return "", name, self._indexed({"kubernetes.io/metadata.name": name}, "namespaces", index)

    def _application(self, index: int) -> tuple[str, str, dict[str, str]]:
        number = index % self._apps
        app = f"{_WORDS[number % len(_WORDS)]}-{number}"
        return f"team-{number % NAMESPACES}", app, {APP: app, TIER: _TIERS[number % len(_TIERS)]}

    def _indexed(
        self, labels: dict[str, str], resource: str, index: int, node: str = "", owner: tuple[str, str] = ("", "")
    ) -> IndexedState:
        kind, uid = owner
        created = _NOW - xxhash.xxh3_64_intdigest(resource.encode(), self._number << 32 | index) % _OLDEST
        return IndexedState(labels, node, (uid,) if uid else (), created=created, owner_kind=kind)

    def _uid(self, resource: str, index: int) -> str:
        digits = xxhash.xxh3_128_hexdigest(resource.encode(), self._number << 32 | index)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


class MadeClusters:
    """All clusters, as a ledger tells them to whoever loads it.

    Attributes:
        clusters: by number.
        revision: of the newest entry, once `present` has come to its end.
    """

    def __init__(self, clusters: int, objects: int) -> None:
        """Describes clusters that have so many objects together."""
        self.clusters = [MadeCluster(number, objects // clusters) for number in range(clusters)]
        self.revision = _NOW * _SECOND

    def __len__(self) -> int:
        return sum(sum(cluster.counts.values()) for cluster in self.clusters)

    def present(self) -> Iterator[ObjectEntry]:
        """Makes every entry anew."""
        revisions = count(self.revision - len(self) + 1)
        for cluster in self.clusters:
            yield from cluster.entries(revisions)


def _version(number: int) -> str:
    number %= _VERSIONS
    return f"{number % 4}.{number // 4}.0"


def _hash(text: str, length: int) -> str:
    return _letters(xxhash.xxh3_64_intdigest(text.encode()), length)


def _suffix(cluster: int, index: int) -> str:
    """Five letters that look drawn, and are others for each number."""
    return _letters((index * _STRIDE + cluster) % _SUFFIXES, 5)


def _letters(digits: int, length: int) -> str:
    letters = []
    for _ in range(length):
        digits, place = divmod(digits, len(_SAFE))
        letters.append(_SAFE[place])
    return "".join(letters)

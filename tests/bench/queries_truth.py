"""What the corpus must answer: every question of `queries` and `peers-indexer`, by brute force over one cluster.

All clusters of the corpus run the same applications: namespaces, labels, nodes and phases of an object are the same in
each, only UIDs, suffixes of names, addresses and times are not. So one cluster is looked at, and the others follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tests.bench.corpus import FIRST_VERSION, Corpus, State
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import WrongResult

APP, VERSION, TRACK = "app.kubernetes.io/name", "app.kubernetes.io/version", "track"
PODS, DEPLOYMENTS = "pods", "deployments"


class Place(NamedTuple):
    """An object of the corpus, in whichever cluster."""

    resource: str
    number: int


class Facts(NamedTuple):
    """What questions ask about an object.

    Attributes:
        place: which it is.
        namespace: empty for cluster-scoped types.
        name: in the cluster that was looked at.
        labels: its labels.
        node: where a pod runs, else "".
        phase: status.phase, or "".
        images: of a pod's containers.
    """

    place: Place
    namespace: str
    name: str
    labels: Mapping[str, str]
    node: str
    phase: str
    images: tuple[str, ...]


class Truth:
    """The objects of so many clusters.

    Attributes:
        corpus: what they are made from.
        counts: of each type, in each cluster.
        clusters: number of clusters.
        facts: of all objects of the first.
    """

    def __init__(self, corpus: Corpus, clusters: int, objects: int) -> None:
        """Looks at the first cluster.

        Args:
            corpus: what the clusters are made from.
            clusters: how many there are.
            objects: in each.
        """
        self.corpus = corpus
        self.counts = corpus.counts(objects)
        self.clusters = clusters
        self.facts = list(self._facts())
        firsts, first = {}, FIRST_VERSION
        for resource, count in self.counts.items():
            firsts[resource] = first
            first += count
        self._first_versions = firsts

    @property
    def total(self) -> int:
        """Objects of all clusters."""
        return sum(self.counts.values()) * self.clusters

    def state(self, place: Place, cluster: int) -> State:
        """The state that was pushed of an object in a cluster."""
        resource, index = place
        return self.corpus.state(resource, cluster, index, self._first_versions[resource] + index + 1)

    def where(self, matches: Callable[[Facts], bool], *resources: str) -> list[Place]:
        """The objects that match, of some types or of all."""
        return [
            each.place for each in self.facts if matches(each) and (not resources or each.place.resource in resources)
        ]

    def keys(self, places: Sequence[Place], clusters: Sequence[int]) -> set[str]:
        """Keys of objects in some clusters, as `key_text` writes them."""
        keys = set()
        for cluster in clusters:
            for place in places:
                state = self.state(place, cluster)
                keys.add(key_text(cluster_id(cluster), place.resource, state.namespace, state.name))
        return keys

    def by_label(self, label: str) -> Counter[str | None]:
        """How many objects of all clusters have each value of a label; None is of those without it."""
        found = Counter(each.labels.get(label) for each in self.facts)
        return Counter({value: count * self.clusters for value, count in found.items()})

    def by_phase(self) -> Counter[str | None]:
        """How many objects of all clusters have each `status.phase`; None is of those without it."""
        found = Counter(each.phase or None for each in self.facts)
        return Counter({value: count * self.clusters for value, count in found.items()})

    def values_with(self, label: str, resource: str, number: int) -> tuple[str, ...]:
        """Values of a label that about so many objects of a type have together in each cluster.

        Raises:
            WrongResult: nothing has the label.
        """
        counts = Counter(
            each.labels[label] for each in self.facts if each.place.resource == resource and label in each.labels
        )
        chosen: list[str] = []
        for value, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if count <= number:
                chosen.append(value)
                number -= count
        if not chosen:
            raise WrongResult(f"no {resource} with {label}")
        return tuple(chosen)

    def first_names(self, number: int) -> list[str]:
        """The first names of all objects of all clusters, in order, one for each object."""
        # Only suffixes differ between clusters, so what is far behind in one is not in front in another.
        front = sorted(self.facts, key=lambda each: each.name)[: 4 * number]
        names = [self.state(each.place, cluster).name for each in front for cluster in range(self.clusters)]
        return sorted(names)[:number]

    def _facts(self) -> Iterator[Facts]:
        for resource, count in self.counts.items():
            for index in range(count):
                state = self.corpus.state(resource, 0, index, FIRST_VERSION)
                yield facts_of(Place(resource, index), state)


def key_text(cluster: str, resource: str, namespace: str, name: str) -> str:
    """One text for a key, as the Go program of `peers-indexer` writes it."""
    return f"{cluster}/{resource}/{namespace}/{name}"


def facts_of(place: Place, state: State) -> Facts:
    """What questions ask about one state of an object."""
    obj: dict[str, Any] = msgspec.json.decode(state.raw)
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = spec.get("containers") or ()
    return Facts(
        place,
        state.namespace,
        state.name,
        obj["metadata"].get("labels") or {},
        spec.get("nodeName") or "",
        status.get("phase") or "",
        tuple(container["image"] for container in containers),
    )

"""Selections, each as the request says it and once more as plain Python that says which states it means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from federator.client import InventoryObject


class State(NamedTuple):
    """One state of one object, decoded.

    Attributes:
        cluster: its cluster.
        resource: its type, with the group where there is one: `pods`, `deployments.apps`.
        namespace: its namespace.
        name: its name.
        labels: its labels.
        body: all of it.
    """

    cluster: str
    resource: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    body: Mapping[str, Any]

    @classmethod
    def of(cls, obj: InventoryObject) -> State:
        """Decodes an object as it came. Cluster and type are those of the message, all else is the body's."""
        body = _decoded(obj.body)
        meta = body.get("metadata") or {}
        resource = f"{obj.resource}.{obj.group}" if obj.group else obj.resource
        namespace, name = meta.get("namespace") or "", meta.get("name") or ""
        return cls(obj.cluster_id, resource, namespace, name, meta.get("labels") or {}, body)

    def field(self, path: str) -> str:
        """The text at a dotted path; empty where there is nothing."""
        found: Any = self.body
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return "" if found is None else str(found)


@lru_cache(maxsize=8192)
def _decoded(body: bytes) -> Mapping[str, Any]:
    """Once for all clients that were sent the same."""
    decoded: Mapping[str, Any] = msgspec.json.decode(body)
    return decoded


Means = Callable[[State], bool]


class Asked(msgspec.Struct, frozen=True, eq=False):
    """One selection. Both ways of saying it are written down apart, so that a test sees where the product differs.

    Attributes:
        name: what it is called.
        request: fields of the message Selection.
        resources: the types it means, as `State.resource`.
        clusters: which clusters it means.
        states: which states, as far as their key and content decide.
        is_by_key: a state's content does not matter, so that an object leaves the selection only by being deleted.
    """

    name: str
    request: Mapping[str, Any]
    resources: frozenset[str] | None
    clusters: Callable[[str], bool]
    states: Means
    is_by_key: bool

    def means(self, state: State) -> bool:
        """Whether a state is selected."""
        is_type = self.resources is None or state.resource in self.resources
        return is_type and self.clusters(state.cluster) and self.states(state)


def asked(
    name: str,
    resources: str,
    *,
    types: Iterable[str],
    clusters: tuple[str, Callable[[str], bool]] = ("", lambda _: True),
    labels: str = "",
    fields: str = "",
    namespace: str = "",
    object_name: str = "",
    states: Means = lambda _: True,
) -> Asked:
    """Describes a selection; the texts are the request's, `types`, `states` and the second of `clusters` what it means.

    Args:
        name: what it is called.
        resources: types as the request names them.
        types: the same, as `State.resource` names them.
        clusters: globs, and what they mean.
        labels: label selector.
        fields: field selector.
        namespace: empty for all.
        object_name: empty for all.
        states: which states are meant.
    """
    request = {
        "resources": resources.split(","),
        "clusters": clusters[0].split(",") if clusters[0] else [],
        "namespace": namespace,
        "name": object_name,
        "label_selector": labels,
        "field_selector": fields,
    }
    by_key = not (labels or fields)
    return Asked(name, request, frozenset(types), clusters[1], states, by_key)


def everything(resources: Iterable[str]) -> Asked:
    """All states of all objects of these types, which have to be all there are."""
    return Asked("everything", {"resources": list(resources)}, None, lambda _: True, lambda _: True, True)

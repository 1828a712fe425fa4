from __future__ import annotations

from collections.abc import Mapping

import msgspec

from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector

PODS = GroupResource("", "pods")


class State(msgspec.Struct):
    key: ObjectKey
    labels: Mapping[str, str] = {}
    node: str = ""

    def field(self, path: FieldPath) -> str | None:
        return self.node if path == ("spec", "nodeName") else ""


def _key(cluster: str = "eu-1", namespace: str = "shop", name: str = "web", resource: str = "pods") -> ObjectKey:
    return ObjectKey(ClusterID(cluster), "", resource, namespace, name)


def test_every_condition_on_the_key_has_to_hold() -> None:
    selection = Selection(frozenset({PODS}), ClusterSelector.parse(["eu-*"]), "shop", "web")
    assert selection.is_by_key
    assert selection.matches_key(_key())
    assert not selection.matches_key(_key(cluster="us-1"))
    assert not selection.matches_key(_key(namespace="other"))
    assert not selection.matches_key(_key(name="db"))
    assert not selection.matches_key(_key(resource="nodes"))
    assert Selection(frozenset({PODS})).matches_key(_key("any", "any", "any"))


def test_a_namespace_does_not_narrow_what_lives_in_none() -> None:
    """As with kubectl, which takes `get nodes -n shop` for `get nodes`."""
    selection = Selection(frozenset({PODS, GroupResource("", "nodes")}), namespace="shop")
    assert selection.matches_key(_key(namespace="", resource="nodes"))
    assert selection.matches_key(_key())
    assert not selection.matches_key(_key(namespace="other"))


def test_every_condition_on_the_state_has_to_hold() -> None:
    selection = Selection(
        frozenset({PODS}), labels=LabelSelector.parse("app=web"), fields=FieldSelector.parse("spec.nodeName=n1")
    )
    assert not selection.is_by_key
    assert selection.matches(State(_key(), {"app": "web"}, "n1"))
    assert not selection.matches(State(_key(), {"app": "web"}, "n2"))
    assert not selection.matches(State(_key(), {}, "n1"))
    assert not selection.matches(State(_key(resource="nodes"), {"app": "web"}, "n1"))


def test_fields_are_split_into_indexed_and_other() -> None:
    fields = FieldSelector.parse("metadata.name=a,metadata.namespace!=b,spec.nodeName=n,status.phase=Running")
    selection = Selection(frozenset({PODS}), fields=fields)
    assert [str(requirement) for requirement in selection.indexed_fields] == [
        "metadata.name=a",
        "metadata.namespace!=b",
        "spec.nodeName=n",
    ]
    assert str(selection.other_fields) == "status.phase=Running"

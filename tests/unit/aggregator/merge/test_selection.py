from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from federator.aggregator.ledger.records import ClusterEntry
from federator.aggregator.merge.cluster_labels import LabelledClusters
from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterID, ClusterState
from federator.api.field_path import FieldPath
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import UnknownCluster

PODS = GroupResource("", "pods")


class State(msgspec.Struct):
    key: ObjectKey
    labels: Mapping[str, str] = {}
    node: str = ""
    uid: str = "u1"
    owner_uids: tuple[str, ...] = ()

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


def test_uids_decide_about_the_object_and_its_owners() -> None:
    by_uid, by_owner = Selection(frozenset({PODS}), uid="u1"), Selection(frozenset({PODS}), owner_uid="o1")
    assert not by_uid.is_by_key
    assert not by_owner.is_by_key
    assert by_uid.matches(State(_key(), uid="u1"))
    assert not by_uid.matches(State(_key(), uid="u2"))
    assert by_owner.matches(State(_key(), owner_uids=("o0", "o1")))
    assert not by_owner.matches(State(_key(), owner_uids=("o0",)))
    assert not by_owner.matches(State(_key()))


EU_1, EU_2, US_1 = ClusterID("eu-1"), ClusterID("eu-2"), ClusterID("us-1")
LABELLED = LabelledClusters({EU_1: {"env": "prod"}, EU_2: {"env": "test"}, US_1: {"env": "prod"}})


def _prod(*globs: str) -> Selection:
    return Selection(
        frozenset({PODS}),
        ClusterSelector.parse(globs),
        cluster_labels=LabelSelector.parse("env=prod"),
        labelled=LABELLED,
    )


def test_clusters_are_selected_by_name_and_by_their_labels() -> None:
    assert _prod("eu-*").has_cluster(EU_1)
    assert not _prod("eu-*").has_cluster(EU_2)
    assert not _prod("eu-*").has_cluster(US_1)
    assert _prod("eu-*").matches_key(_key("eu-1"))
    assert not _prod("eu-*").matches_key(_key("us-1"))
    assert not _prod().has_cluster(ClusterID("never-seen"))
    assert _prod().resolve_clusters([US_1, EU_2, EU_1]) == (EU_1, US_1)
    assert _prod("eu-2").resolve_clusters([EU_1, EU_2, US_1]) == ()
    with pytest.raises(UnknownCluster):
        _prod("eu-9").resolve_clusters([EU_1, EU_2])


def test_selections_that_ask_the_same_by_the_same_labels_are_equal() -> None:
    assert _prod("eu-*") == _prod("eu-*")
    assert hash(_prod("eu-*")) == hash(_prod("eu-*"))
    assert _prod() != msgspec.structs.replace(_prod(), labelled=LabelledClusters({}))


@pytest.mark.parametrize(
    ("globs", "before", "now", "expected"),
    [
        ((), {"env": "prod"}, {"env": "test"}, True),
        ((), {}, {"env": "prod"}, True),
        ((), {"env": "prod"}, {"env": "prod", "region": "eu"}, False),
        ((), {"env": "test"}, {}, False),
        ((), None, {"env": "prod"}, False),
        (("us-*",), {"env": "prod"}, {"env": "test"}, False),
    ],
)
def test_only_labels_that_decide_change_a_selection(
    globs: tuple[str, ...], before: Mapping[str, str] | None, now: Mapping[str, str], expected: bool
) -> None:
    entry = ClusterEntry(9, 1, EU_1, ClusterState.LIVE, ClusterState.LIVE, labels=now, previous_labels=before)
    assert _prod(*globs).is_changed_by(entry) is expected


def test_fields_are_split_into_indexed_and_other() -> None:
    fields = FieldSelector.parse("metadata.name=a,metadata.namespace!=b,spec.nodeName=n,status.phase=Running")
    selection = Selection(frozenset({PODS}), fields=fields)
    assert [str(requirement) for requirement in selection.indexed_fields] == [
        "metadata.name=a",
        "metadata.namespace!=b",
        "spec.nodeName=n",
    ]
    assert str(selection.other_fields) == "status.phase=Running"

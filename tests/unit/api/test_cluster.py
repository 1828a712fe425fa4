from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.cluster import MAX_LENGTH, assign_cluster_ids, normalise_cluster_id, parse_cluster_id
from federator.errors import ClusterIDCollision, InvalidInput


@pytest.mark.parametrize("text", ["a", "eu-1", "prod.eu-1", "a" * 63, "0", "a..b", "a--b"])
def test_a_cluster_id_is_taken_as_it_is(text: str) -> None:
    assert parse_cluster_id(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", ".a", "a.", "A", "a_b", "a/b", "a" * 64, "ä", "a\n", " a"])
def test_what_is_no_cluster_id_is_refused_by_field(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"hello\.cluster_id") as raised:
        parse_cluster_id(text, field="hello.cluster_id")
    assert raised.value.given == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("admin@talos", "admin-talos"),
        ("gke_proj_europe-west1_prod", "gke-proj-europe-west1-prod"),
        ("arn:aws:eks:eu-1:123:cluster/Prod", "arn-aws-eks-eu-1-123-cluster-prod"),
        ("--Kind--", "kind"),
        ("ü.x", "x"),
    ],
)
def test_context_names_are_normalised_by_the_rule(name: str, expected: str) -> None:
    assert normalise_cluster_id(name) == expected


@given(st.text(min_size=1, max_size=200))
def test_a_normalised_name_is_a_cluster_id_and_stays_one(name: str) -> None:
    try:
        cluster_id = normalise_cluster_id(name)
    except InvalidInput:
        return
    assert parse_cluster_id(cluster_id) == cluster_id
    assert normalise_cluster_id(cluster_id) == cluster_id


def test_long_names_stay_apart() -> None:
    left, right = normalise_cluster_id("x" * 80 + "1"), normalise_cluster_id("x" * 80 + "2")
    assert left != right
    assert len(left) == len(right) == MAX_LENGTH


def test_a_name_without_a_usable_character_is_refused() -> None:
    with pytest.raises(InvalidInput):
        normalise_cluster_id("___")


def test_colliding_names_are_refused_and_both_named() -> None:
    assert assign_cluster_ids(["a_b", "c", "a_b"]) == {"a_b": "a-b", "c": "c"}
    with pytest.raises(ClusterIDCollision) as raised:
        assign_cluster_ids(["a_b", "a@b"])
    assert raised.value.names == ("a_b", "a@b")
    assert raised.value.cluster_id == "a-b"

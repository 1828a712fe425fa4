from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.bench.corpus import Corpus
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import WrongResult
from tests.bench.queries_truth import APP, PODS, TRACK, VERSION, Truth, facts_of, key_text
from tests.unit.bench.made_sample import made_sample

CLUSTERS, OBJECTS = 3, 200


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth(Corpus(made_sample()), CLUSTERS, OBJECTS)


def everything(truth: Truth) -> list[tuple[int, dict[str, object]]]:
    return [
        (cluster, msgspec.json.decode(truth.state(each.place, cluster).raw))
        for cluster in range(CLUSTERS)
        for each in truth.facts
    ]


def test_what_is_asked_about_is_the_same_in_all_clusters(truth: Truth) -> None:
    for cluster in range(1, CLUSTERS):
        for here in truth.facts:
            there = facts_of(here.place, truth.state(here.place, cluster))
            assert there._replace(name=here.name) == here


def test_names_are_not(truth: Truth) -> None:
    pod = next(each for each in truth.facts if each.place.resource == PODS)
    assert truth.state(pod.place, 1).name != truth.state(pod.place, 2).name


def test_keys_are_those_of_the_states(truth: Truth) -> None:
    places = truth.where(lambda each: each.labels.get(TRACK) == "stable", PODS)
    assert places
    keys = truth.keys(places, [0, 2])
    expected = {
        key_text(cluster_id(cluster), PODS, metadata["namespace"], metadata["name"])
        for cluster, obj in everything(truth)
        if cluster in {0, 2} and obj["kind"] == "Pod"
        for metadata in [obj["metadata"]]
        if isinstance(metadata, dict) and metadata["labels"][TRACK] == "stable"
    }
    assert keys == expected


def test_numbers_by_a_label_count_what_has_none(truth: Truth) -> None:
    labels = [obj["metadata"].get("labels", {}) for _, obj in everything(truth) if isinstance(obj["metadata"], dict)]
    assert truth.by_label(APP) == Counter(each.get(APP) for each in labels)
    assert truth.by_label(APP).total() == truth.total


def test_values_that_so_many_objects_have_together(truth: Truth) -> None:
    values = truth.values_with(VERSION, PODS, 20)
    found = truth.where(lambda each: each.labels.get(VERSION) in values, PODS)
    assert 0 < len(found) <= 20
    with pytest.raises(WrongResult):
        truth.values_with("nobody/has-it", PODS, 20)


@pytest.mark.parametrize("number", [1, 40])
def test_first_names_are_those_of_all_clusters(truth: Truth, number: int) -> None:
    names = sorted(str(obj["metadata"]["name"]) for _, obj in everything(truth) if isinstance(obj["metadata"], dict))
    assert truth.first_names(number) == names[:number]

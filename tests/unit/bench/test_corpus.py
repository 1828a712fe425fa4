from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from federator.aggregator.ingest.frames import Changes, decode
from federator.v1 import ingest_pb2
from federator.wire.body import BodyCodec
from federator.wire.resource_type import resource_type_to_proto
from tests.bench.corpus import WEIGHTS, Corpus, State, by_weight, write_sample
from tests.bench.push_load import pushed_object
from tests.unit.bench.made_sample import made_sample

COPIES = 50


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(made_sample())


def many(corpus: Corpus, resource: str, cluster: int = 0) -> list[State]:
    of_sample = sum(each.type.resource == resource for each in made_sample())
    return [corpus.state(resource, cluster, index, 100 + index) for index in range(COPIES * of_sample)]


def decoded(state: State) -> Any:
    return msgspec.json.decode(state.raw)


def address(state: State) -> str:
    read: str = decoded(state)["status"]["podIP"]
    return read


def test_a_corpus_has_all_types_of_its_weights(corpus: Corpus) -> None:
    assert list(corpus.types) == list(WEIGHTS)
    assert sum(WEIGHTS.values()) == 100
    assert corpus.counts(1000) == {resource: 10 * weight for resource, weight in WEIGHTS.items()}
    assert corpus.counts(1) == dict.fromkeys(WEIGHTS, 1)


@pytest.mark.parametrize("resource", WEIGHTS)
def test_an_object_is_what_it_says(corpus: Corpus, resource: str) -> None:
    for state in many(corpus, resource):
        metadata = decoded(state)["metadata"]
        assert metadata["name"] == state.name
        assert metadata.get("namespace", "") == state.namespace
        assert metadata["uid"] == state.uid
        assert metadata["resourceVersion"] == str(state.version)


@pytest.mark.parametrize("resource", WEIGHTS)
def test_no_two_objects_are_one(corpus: Corpus, resource: str) -> None:
    states = many(corpus, resource)
    assert len({(state.namespace, state.name) for state in states}) == len(states)
    assert len({state.uid for state in [*states, *many(corpus, resource, 1)]}) == 2 * len(states)


@pytest.mark.parametrize("resource", WEIGHTS)
def test_a_change_differs_and_keeps_the_identity(corpus: Corpus, resource: str) -> None:
    before, after = (corpus.state(resource, 0, 5, 7 + turn, turn) for turn in (0, 1))
    assert before.raw != after.raw
    assert (before.namespace, before.name, before.uid) == (after.namespace, after.name, after.uid)


def test_clusters_run_the_same_applications(corpus: Corpus) -> None:
    assert {state.name for state in many(corpus, "deployments")} == {
        state.name for state in many(corpus, "deployments", 1)
    }


def test_what_belongs_together_stays_together(corpus: Corpus) -> None:
    replica_sets = {state.uid: state for state in many(corpus, "replicasets")}
    addresses = {
        address
        for state in many(corpus, "endpointslices")
        for endpoint in decoded(state)["endpoints"]
        for address in endpoint["addresses"]
    }
    namespaces = {state.name for state in many(corpus, "namespaces")}
    nodes = {state.name for state in many(corpus, "nodes")}
    for state in many(corpus, "pods"):
        pod = decoded(state)
        (owner,) = pod["metadata"]["ownerReferences"]
        assert replica_sets[owner["uid"]].name == owner["name"]
        assert replica_sets[owner["uid"]].namespace == state.namespace
        assert state.name.startswith(pod["metadata"]["generateName"])
        assert pod["status"]["podIP"] in addresses
        assert state.namespace in namespaces
        assert pod["spec"]["nodeName"] in nodes
        labels = pod["metadata"]["labels"]
        app, release = labels["app.kubernetes.io/name"], labels["app.kubernetes.io/version"]
        assert pod["spec"]["containers"][0]["image"] == f"registry.example.com/{app}:{release}"
        assert pod["metadata"]["creationTimestamp"] < pod["status"]["startTime"]


def test_what_is_no_slot_is_left_alone(corpus: Corpus) -> None:
    for state in many(corpus, "configmaps"):
        if state.name == "kube-root-ca.crt":
            assert decoded(state)["data"] == {"ca.crt": "100 %b"}
        else:
            assert decoded(state)["data"]["app"].startswith("100 %b\nx.enabled = ")


def test_copies_and_clusters_differ_in_what_is_drawn(corpus: Corpus) -> None:
    pods = many(corpus, "pods")
    assert len({state.name.split("-")[2] for state in pods}) > COPIES
    assert len({state.name.split("-")[3] for state in pods}) > 2 * COPIES
    addresses, others = ({address(state) for state in many(corpus, "pods", cluster)} for cluster in (0, 1))
    assert len(addresses) > COPIES
    assert len(addresses & others) < len(addresses) / 10


def test_a_change_moves_the_times_but_not_that_of_the_creation(corpus: Corpus) -> None:
    before, after = (decoded(corpus.state("pods", 0, 3, 7, turn)) for turn in (0, 1))
    assert before["status"]["startTime"] < after["status"]["startTime"]
    assert before["metadata"] == after["metadata"]


def test_a_written_sample_makes_the_same_objects(corpus: Corpus, tmp_path: Path) -> None:
    write_sample(tmp_path / "sample", made_sample()[::-1])
    again = Corpus.read(tmp_path / "sample")
    for resource in WEIGHTS:
        assert many(again, resource) == many(corpus, resource)


async def test_an_aggregator_takes_the_objects(corpus: Corpus) -> None:
    for resource, resource_type in corpus.types.items():
        states = many(corpus, resource)
        objects = [pushed_object(each.namespace, each.name, each.uid, each.version, each.raw) for each in states]
        items = ingest_pb2.SnapshotItems(type=resource_type_to_proto(resource_type), objects=objects)
        frame, refused = await decode(
            ingest_pb2.PushRequest(snapshot_items=items), BodyCodec(), partial(asyncio.sleep, 0)
        )
        assert isinstance(frame, Changes)
        assert not refused
        assert len(frame.changes) == len(states)


def test_types_take_turns_by_their_weight() -> None:
    assert Counter(islice(by_weight(WEIGHTS), 200)) == {resource: 2 * weight for resource, weight in WEIGHTS.items()}
    assert Counter(islice(by_weight(WEIGHTS), 5))["pods"] == 2

"""Labels of clusters, from an agent's settings into the ledger."""

from __future__ import annotations

from functools import partial

import grpc
import pytest

from federator.aggregator.ledger.records import ClusterEntry
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import InvalidInput
from federator.wire.status import from_rpc_error
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.integration.push.raw_agent import raw_agent
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster

C0 = ClusterID("c0")


def relabels(aggregator: Aggregator) -> list[tuple[object, object]]:
    """Each change of labels that the ledger has told."""
    entries = (entry for commit in aggregator.recorder.commits for entry in commit.entries)
    return [
        (entry.previous_labels, entry.labels)
        for entry in entries
        if isinstance(entry, ClusterEntry) and entry.previous_labels is not None
    ]


def is_live(aggregator: Aggregator, term: int) -> bool:
    record = aggregator.ledger.clusters().get(C0)
    return record is not None and (record.term, record.state) == (term, ClusterState.LIVE)


async def test_labels_are_those_of_the_agent_that_was_let_in_last(aggregator: Aggregator) -> None:
    cluster = ScriptedCluster(PODS)
    cluster.put(PODS, "a")
    prod, test = {"env": "prod", "example.com/region": "eu"}, {"env": "test"}
    for session, labels in enumerate((prod, prod, test, {}), 1):
        async with running_agent(cluster, agent_settings("c0", aggregator.address, cluster_labels=labels)):
            await eventually(partial(is_live, aggregator, session))
            assert aggregator.ledger.clusters()[C0].labels == labels
    assert relabels(aggregator) == [(prod, test), (test, {})]


@pytest.mark.parametrize(
    "labels", [{"no key": "a"}, {"env": "no value"}, {"": ""}, {f"k{number}": "" for number in range(65)}]
)
async def test_what_can_be_no_labels_of_a_cluster_is_refused(aggregator: Aggregator, labels: dict[str, str]) -> None:
    """Whoever speaks for the agent: its own settings refuse them, too."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with raw_agent(aggregator.address, labels=labels):
            pass
    refused = from_rpc_error(caught.value, "test")
    assert isinstance(refused, InvalidInput)
    assert refused.field == "labels"
    assert aggregator.ledger.clusters() == {}


async def test_an_agent_that_knows_of_no_labels_has_none(aggregator: Aggregator) -> None:
    async with raw_agent(aggregator.address):
        assert aggregator.ledger.clusters()[C0].labels == {}

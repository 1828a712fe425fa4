"""Dictionaries on their way: handed out with a session, used by the agent, stored as they come."""

from __future__ import annotations

from pathlib import Path

from federator.aggregator.ledger.records import ObjectEntry
from federator.api.cluster import ClusterState
from federator.wire.body import BodyCodec, Dictionary, decode_body, dictionary_of
from federator.wire.dictionary import dictionary_from_proto
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.integration.push.raw_agent import pushed, raw_agent
from tests.unit.agent.scripted_cluster import NODES, PODS, ScriptedCluster
from tests.unit.wire.test_body import trained

OF_PODS = Dictionary.of(PODS.group_resource, trained(70_000))
OF_NODES = Dictionary.of(NODES.group_resource, trained(70_001))


def newest(aggregator: Aggregator, name: str) -> ObjectEntry:
    return [entry for entry in aggregator.recorder.objects("c0", PODS) if entry.key.name == name][-1]


async def test_an_agent_is_given_those_which_it_lacks_once_it_sends_objects(aggregator: Aggregator) -> None:
    for dictionary in (OF_PODS, OF_NODES):
        await aggregator.ledger.add_dictionary(dictionary)
    async with raw_agent(aggregator.address) as agent:
        assert list(agent.welcome.dictionary_ids) == []
        assert (await agent.read()).HasField("heartbeat"), "nothing before it has anything to send"
        following = await agent.snapshot(1, "a")
        await agent.put(following, pushed("b"))
        await agent.acknowledged(following)
        (given,) = agent.dictionaries
        assert dictionary_from_proto(given) == OF_PODS
        await agent.goodbye()
    async with raw_agent(aggregator.address, dictionary_ids=[70_000, 5]) as agent:
        assert list(agent.welcome.dictionary_ids) == [70_000]
        await agent.snapshot(following + 1, "a")
        assert not agent.dictionaries


async def test_a_body_that_cannot_be_read_is_refused_and_the_rest_is_taken(aggregator: Aggregator) -> None:
    await aggregator.ledger.add_dictionary(OF_NODES)
    async with raw_agent(aggregator.address) as agent:
        following = await agent.snapshot(1, "a")
        unknown = pushed("b")
        unknown.body = _encoded(OF_PODS, unknown.body)
        await agent.put(following, unknown, pushed("c"))
        await agent.acknowledged(following)
        assert [nack.name for nack in agent.nacks] == ["b"]
        assert "dictionary 70000" in agent.nacks[0].message
    assert aggregator.names("c0", PODS) == {"default/a", "default/c"}


async def test_agents_compress_with_it_from_then_on_also_in_the_next_session(aggregator: Aggregator) -> None:
    cluster = ScriptedCluster(PODS)
    cluster.put(PODS, "before")
    async with running_agent(cluster, agent_settings("c0", aggregator.address)):
        await eventually(lambda: aggregator.state("c0") is ClusterState.LIVE)
        await aggregator.ledger.add_dictionary(OF_PODS)
        aggregator.servicer.offer(OF_PODS)

        def is_used() -> bool:
            cluster.put(PODS, "after", changed=len(aggregator.recorder.commits))
            changes = [entry for entry in aggregator.recorder.objects("c0", PODS) if entry.key.name == "after"]
            return bool(changes) and dictionary_of(changes[-1].body) == 70_000

        await eventually(is_used)
        assert dictionary_of(newest(aggregator, "before").body) == 0
        await eventually(lambda: aggregator.holds("c0", cluster))


async def test_a_new_ledger_does_not_get_what_it_cannot_read(tmp_path: Path) -> None:
    aggregator = Aggregator(f"unix:{tmp_path}/i.sock")
    cluster = ScriptedCluster(PODS)
    async with running_agent(cluster, agent_settings("c0", aggregator.address)):
        async with aggregator.running():
            await eventually(lambda: aggregator.state("c0") is ClusterState.LIVE)
            await aggregator.ledger.add_dictionary(OF_PODS)
            aggregator.servicer.offer(OF_PODS)
            cluster.put(PODS, "a")
            await eventually(lambda: aggregator.holds("c0", cluster))
        for number in range(20):
            cluster.put(PODS, f"while-it-is-away-{number}")
        aggregator.new_ledger()
        async with aggregator.running():
            await eventually(lambda: aggregator.holds("c0", cluster))
            assert all(dictionary_of(entry.body) == 0 for entry in aggregator.recorder.objects("c0", PODS))
            assert aggregator.servicer.statistics()["rejected"] == {}


def _encoded(dictionary: Dictionary, raw: bytes) -> bytes:
    codec = BodyCodec()
    codec.add(dictionary)
    return codec.encode(decode_body(raw), dictionary.resource)

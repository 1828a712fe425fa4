"""Agents that number their frames badly: repeated, out of order, from before, with holes, and all of it at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from federator.api.cluster import ClusterID
from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto
from tests.integration.push.harness import Aggregator, eventually
from tests.integration.push.raw_agent import RawAgent, pushed, raw_agent
from tests.unit.agent.scripted_cluster import PODS

FRAMES = 40
"""In a stream; each puts or deletes a few of as few objects, so that their order shows."""


class Change(NamedTuple):
    """What a frame does to an object: its new version, or 0 for its deletion."""

    name: str
    version: int


def stream(seed: int, first: int) -> dict[int, list[Change]]:
    """What each frame of a session means, by sequence."""
    source = random.Random(f"{seed} stream")
    return {
        sequence: [
            Change(name, sequence * 10 if source.random() < 0.7 else 0)
            for name in source.sample(["a", "b", "c", "d"], 2)
        ]
        for sequence in range(first, first + FRAMES)
    }


async def send(agent: RawAgent, sequence: int, changes: Sequence[Change]) -> None:
    deltas = [
        ingest_pb2.Delta(
            operation=ingest_pb2.Delta.OPERATION_PUT if version else ingest_pb2.Delta.OPERATION_DELETE,
            object=pushed(name, version=version)
            if version
            else ingest_pb2.PushedObject(namespace="default", name=name),
        )
        for name, version in changes
    ]
    await agent.send(sequence, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=deltas))


def after(state: dict[str, int], *frames: Sequence[Change]) -> dict[str, int]:
    """What the objects are after some frames, each taken once."""
    state = dict(state)
    for changes in frames:
        for name, version in changes:
            if version:
                state[name] = version
            else:
                state.pop(name, None)
    return state


async def refused(agent: RawAgent) -> None:
    """Waits for a Nack."""
    async with asyncio.timeout(10):
        while not agent.nacks:
            await agent.read()


def durable(aggregator: Aggregator) -> int:
    return aggregator.ledger.clusters()[ClusterID("c0")].durable_sequence


def stored(aggregator: Aggregator) -> dict[str, int]:
    """The version of each pod in the ledger."""
    entries = [
        aggregator.ledger.entry(key.revision) for key in aggregator.ledger.keys(ClusterID("c0"), PODS.group_resource)
    ]
    return {entry.key.name: int(entry.resource_version) for entry in entries if entry is not None}


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_order_frames_come_in_each_counts_once_and_in_its_place(
    aggregator: Aggregator, seed: int
) -> None:
    """Sessions of one instance that repeat, leave out, exchange and replay frames, each going on where it is told."""
    source = random.Random(f"{seed} sessions")
    async with raw_agent(aggregator.address) as agent:
        first = await agent.snapshot(1, "a", "b")
    frames = stream(seed, first)
    expected, state = first, {"a": 10, "b": 10}
    is_gapped = is_replayed = False
    while expected < first + FRAMES:
        async with raw_agent(aggregator.address) as agent:
            assert not agent.welcome.snapshot_all
            assert agent.welcome.durable_sequence == expected - 1
            gap = 0
            for _ in range(12):
                sequence = expected + source.choice([-3, -2, -1, 0, 0, 0, 0, 0, 0, 1, 2])
                if sequence not in frames:
                    continue
                await send(agent, sequence, frames[sequence])
                is_replayed = is_replayed or sequence < expected
                if sequence == expected:
                    state = after(state, frames[sequence])
                    expected += 1
                elif sequence > expected and not gap:
                    gap = sequence
                    is_gapped = True
                    # Said once, and with the number that was to come then.
                    await refused(agent)
                    (nack,) = agent.nacks
                    assert (nack.reason, nack.sequence, nack.expected_sequence) == ("SEQUENCE_GAP", sequence, expected)
            await eventually(lambda: durable(aggregator) >= expected - 1)  # noqa: B023 - awaited here
            assert len(agent.nacks) == bool(gap)
        assert stored(aggregator) == state
    assert is_gapped
    assert is_replayed
    assert stored(aggregator) == after({"a": 10, "b": 10}, *frames.values())


async def test_a_session_that_is_replayed_whole_commits_nothing(aggregator: Aggregator) -> None:
    """An agent that forgot what was acknowledged sends everything again, in every session."""
    async with raw_agent(aggregator.address) as agent:
        first = await agent.snapshot(1, "a", "b")
    frames = stream(7, first)
    committed = []
    for _ in range(3):
        async with raw_agent(aggregator.address) as agent:
            await agent.begin(1)
            await agent.items(2, "a", "b")
            await agent.end(3)
            for sequence, changes in frames.items():
                await send(agent, sequence, changes)
            await agent.goodbye()
            assert not agent.nacks
        committed.append(len(aggregator.recorder.objects("c0", PODS)))
    assert committed[0] == committed[1] == committed[2]
    assert stored(aggregator) == after({"a": 10, "b": 10}, *frames.values())
    repeated = aggregator.servicer.statistics()["rejected"]
    assert repeated == {("c0", "SEQUENCE_REPEATED"): 3 + 2 * (3 + FRAMES)}


async def test_a_gap_in_a_new_session_is_measured_from_what_is_durable(aggregator: Aggregator) -> None:
    """Numbering begins anew with each connection: the number that was to come is named, and nothing is taken."""
    async with raw_agent(aggregator.address) as agent:
        await agent.snapshot(1, "a")
    async with raw_agent(aggregator.address) as agent:
        await send(agent, 9, [Change("b", 90)])
        await refused(agent)
        assert (agent.nacks[0].reason, agent.nacks[0].expected_sequence) == ("SEQUENCE_GAP", 4)
        await send(agent, 1, [Change("c", 10)])
        await send(agent, 4, [Change("d", 40)])
        await agent.acknowledged(4)
    assert stored(aggregator) == {"a": 10, "d": 40}

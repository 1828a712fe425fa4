"""Bookmarks that say what a type adds up to: something else is found, told, mended and counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from federator.aggregator.ingest.mismatches import PAUSE
from federator.aggregator.ledger.records import Batch, Delete, Put, TypeRecord
from federator.api.cluster import STATES_DIFFER, ClusterID, TypeState
from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto, type_state_to_proto
from tests.integration.push.comparing_agent import ComparingAgent, Plan, bookmark, end, items
from tests.integration.push.harness import Aggregator, eventually
from tests.integration.push.raw_agent import pushed, raw_agent
from tests.unit.agent.scripted_cluster import PODS

C0 = ClusterID("c0")
OBJECTS = [pushed(f"p{number}") for number in range(20)]


@pytest.fixture
async def agent(aggregator: Aggregator) -> AsyncIterator[ComparingAgent]:
    async with raw_agent(aggregator.address) as raw:
        agent = ComparingAgent(raw)
        await agent.list(OBJECTS)
        yield agent


def record(aggregator: Aggregator) -> TypeRecord:
    (known,) = aggregator.ledger.types(C0)
    return known


def told(aggregator: Aggregator) -> tuple[TypeState, str]:
    return record(aggregator).state, record(aggregator).reason


def statistic(aggregator: Aggregator, name: str) -> Any:
    return aggregator.servicer.statistics()[name]


async def damage(aggregator: Aggregator, *changes: Put | Delete) -> None:
    """Changes what is stored behind the agent's back."""
    term = aggregator.ledger.clusters()[C0].term
    await aggregator.ledger.append(Batch(C0, term, 0, PODS, changes))


async def damage_three(aggregator: Aggregator) -> None:
    """One object is missing, one in another state, and one is here that does not exist."""
    other = pushed("p1", version=99)
    ghost = pushed("ghost", version=9)
    await damage(
        aggregator,
        Delete("default", "p0"),
        Put("default", "p1", other.uid, "9", other.content_hash, other.body),
        Put("default", "ghost", ghost.uid, "9", ghost.content_hash, ghost.body),
    )


async def asked(agent: ComparingAgent) -> str:
    """Sends a bookmark of all objects; returns what the aggregator asks for in turn, or ""."""
    await agent.send(bookmark=bookmark(OBJECTS))
    await agent.send(bookmark=ingest_pb2.Bookmark(type=resource_type_to_proto(PODS), resource_version="200"))
    while True:
        response = await agent.raw.read()
        match response.WhichOneof("frame"):
            case "digest_mismatch":
                assert (response.digest_mismatch.group, response.digest_mismatch.resource) == ("", "pods")
                return "recheck"
            case "snapshot_request":
                assert [each.resource for each in response.snapshot_request.types] == ["pods"]
                return "listing"
            case "ack" if response.ack.sequence >= agent.sequence:
                # What is asked for is sent before the next heartbeat.
                following = await agent.raw.read()
                while following.WhichOneof("frame") == "ack":
                    following = await agent.raw.read()
                assert following.HasField("heartbeat"), following
                return ""


async def test_an_equal_digest_moves_the_low_water_and_changes_nothing(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    await agent.send(bookmark=bookmark(OBJECTS))
    await agent.settled()
    assert (told(aggregator), record(aggregator).low_water) == ((TypeState.LIVE, ""), "200")
    assert statistic(aggregator, "comparisons") == {("c0", "equal"): 1}


async def test_a_digest_speaks_of_what_was_sent_before_it(aggregator: Aggregator, agent: ComparingAgent) -> None:
    late, later = pushed("late"), pushed("later")
    for each in (late, later):
        put = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=each)
        await agent.send(deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[put]))
        if each is late:
            await agent.send(bookmark=bookmark([*OBJECTS, late]))
    await agent.settled()
    assert statistic(aggregator, "comparisons") == {("c0", "equal"): 1}


async def test_objects_that_are_left_out_make_no_difference(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await agent.send(bookmark=bookmark(OBJECTS[1:], left_out=[OBJECTS[0], pushed("never-stored")]))
    await agent.settled()
    assert statistic(aggregator, "comparisons") == {("c0", "equal"): 1}


async def test_a_bookmark_that_does_not_know_of_a_refusal_yet_proves_nothing(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    bad, good = pushed("p%25"), pushed("later")

    async def put(obj: ingest_pb2.PushedObject) -> None:
        delta = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=obj)
        await agent.send(deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[delta]))

    await put(bad)
    await agent.send(bookmark=bookmark([*OBJECTS, bad]))
    await put(good)
    await agent.settled()
    assert (statistic(aggregator, "comparisons"), told(aggregator)) == ({}, (TypeState.LIVE, ""))
    await agent.send(bookmark=bookmark([*OBJECTS, good], left_out=[bad]))
    await agent.settled()
    assert statistic(aggregator, "comparisons") == {("c0", "equal"): 1}


@pytest.mark.parametrize("kind", ["missing", "changed", "another", "extra"])
async def test_one_object_that_is_not_as_it_was_sent_is_found_and_mended(
    aggregator: Aggregator, agent: ComparingAgent, kind: str
) -> None:
    other = pushed("p1", version=99)
    damaged: Mapping[str, Put | Delete] = {
        "missing": Delete("default", "p1"),
        "changed": Put("default", "p1", other.uid, "9", other.content_hash, other.body),
        "another": Put("default", "p1", "another-uid", "9", other.content_hash, other.body),
        "extra": Put("default", "ghost", "uid", "9", other.content_hash, other.body),
    }
    await damage(aggregator, damaged[kind])
    with capture_logs() as logged:
        assert await asked(agent) == "recheck"
        assert told(aggregator) == (TypeState.STALE, STATES_DIFFER)
        agent.sent.clear()
        assert await agent.list(OBJECTS, version=200) == Plan.PLAN_DIFFERING
    assert agent.sent == ([] if kind == "extra" else ["p1"])
    assert told(aggregator) == (TypeState.LIVE, "")
    assert await asked(agent) == ""
    assert statistic(aggregator, "comparisons") == {("c0", "different"): 1, ("c0", "equal"): 1}
    counted = "changed" if kind == "another" else kind
    assert statistic(aggregator, "repaired") == {("c0", "pods", counted): 1}
    assert statistic(aggregator, "mismatches") == 0
    (line,) = [each for each in logged if each["event"] == "objects repaired"]
    name = "ghost" if kind == "extra" else "p1"
    assert line["keys"] == {counted: [f"c0//pods/default/{name}"]}


async def test_the_low_water_stays_until_what_is_here_is_right(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage(aggregator, Delete("default", "p0"))
    await agent.send(bookmark=bookmark(OBJECTS, version=900))
    await agent.settled()
    assert record(aggregator).low_water == "100"


async def test_a_full_listing_that_mends_is_counted_too(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage_three(aggregator)
    assert await asked(agent) == "recheck"
    await agent.raw.begin(agent.sequence + 1)
    agent.sequence += 1
    await agent.send(snapshot_items=items(OBJECTS))
    await agent.send(snapshot_end=end())
    await agent.settled()
    assert statistic(aggregator, "repaired") == {
        ("c0", "pods", "missing"): 1,
        ("c0", "pods", "changed"): 1,
        ("c0", "pods", "extra"): 1,
    }
    assert told(aggregator) == (TypeState.LIVE, "")


async def test_an_ordinary_listing_repairs_nothing(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage_three(aggregator)
    await agent.list(OBJECTS)
    assert statistic(aggregator, "repaired") == {}


async def test_what_no_recheck_and_no_listing_mends_is_listed_every_ten_minutes(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    async def listed_in_vain() -> None:
        await agent.list(OBJECTS)
        await damage(aggregator, Delete("default", "p0"))

    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    await listed_in_vain()
    assert told(aggregator) == (TypeState.LIVE, "")
    assert await asked(agent) == "listing"
    await listed_in_vain()
    for _ in range(2):
        assert await asked(agent) == ""
        assert told(aggregator) == (TypeState.STALE, STATES_DIFFER)
    aggregator.ahead += PAUSE
    assert await asked(agent) == "listing"
    await listed_in_vain()
    assert await asked(agent) == ""
    assert statistic(aggregator, "mismatches") == 1


async def test_while_it_is_mended_nothing_more_is_asked_for(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    assert await asked(agent) == ""
    await agent.plan(objects=OBJECTS)
    compared = dict(statistic(aggregator, "comparisons"))
    assert await asked(agent) == ""
    assert statistic(aggregator, "comparisons") == compared, "an open listing is not expected to add up"


async def test_what_was_asked_of_a_session_that_broke_is_asked_of_the_next(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    async with raw_agent(aggregator.address) as raw:
        assert told(aggregator) == (TypeState.STALE, STATES_DIFFER)
        assert await asked(ComparingAgent(raw)) == "recheck"


async def test_a_digest_that_fits_again_ends_it(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    await damage(aggregator, Put("default", "p0", OBJECTS[0].uid, "10", OBJECTS[0].content_hash, OBJECTS[0].body))
    assert await asked(agent) == ""
    assert told(aggregator) == (TypeState.LIVE, "")
    assert statistic(aggregator, "mismatches") == 0


async def test_a_recheck_that_finds_nothing_ends_it(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await agent.send(bookmark=bookmark(OBJECTS[1:]))  # what an agent says that has lost count
    await agent.answer("digest_mismatch")
    assert await agent.list(OBJECTS) == Plan.PLAN_NOTHING
    assert told(aggregator) == (TypeState.LIVE, "")
    assert statistic(aggregator, "mismatches") == 0


async def test_the_word_of_an_agent_does_not_make_it_live(aggregator: Aggregator, agent: ComparingAgent) -> None:
    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    for state, wanted in (
        (TypeState.LIVE, (TypeState.STALE, STATES_DIFFER)),
        (TypeState.STALE, (TypeState.STALE, "connection refused")),
    ):
        status = ingest_pb2.TypeStatus(
            type=resource_type_to_proto(PODS), state=type_state_to_proto(state), reason=wanted[1]
        )
        await agent.send(type_status=status)
        await agent.settled()
        if state is TypeState.LIVE:
            assert told(aggregator) == wanted


async def test_a_type_that_is_not_collected_any_more_is_not_compared(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    await damage(aggregator, Delete("default", "p0"))
    assert await asked(agent) == "recheck"
    status = ingest_pb2.TypeStatus(
        type=resource_type_to_proto(PODS), state=type_state_to_proto(TypeState.NOT_COLLECTED)
    )
    await agent.send(type_status=status)
    assert await asked(agent) == ""
    assert told(aggregator) == (TypeState.NOT_COLLECTED, "")
    assert statistic(aggregator, "mismatches") == 0


async def test_an_agent_touches_only_its_own_cluster(aggregator: Aggregator, agent: ComparingAgent) -> None:
    async with raw_agent(aggregator.address, cluster_id="c1", cluster_uid="uid-c1") as raw:
        hostile = ComparingAgent(raw)
        await hostile.list([pushed("mine"), *OBJECTS[:3]])
        await hostile.list([pushed("mine")], left_out=OBJECTS[:3], restored=True)
        await hostile.list([])
        await hostile.send(bookmark=bookmark(OBJECTS))
        await hostile.answer("digest_mismatch")
    assert len(aggregator.names("c0", PODS)) == len(OBJECTS)
    assert aggregator.names("c1", PODS) == set()
    assert record(aggregator).state is TypeState.LIVE
    assert await asked(agent) == ""


async def test_a_sum_that_has_gone_wrong_in_memory_is_set_right_by_the_ledger(
    aggregator: Aggregator, agent: ComparingAgent
) -> None:
    digests = aggregator.recorder.digests
    resource = PODS.group_resource
    digests.correct(C0, resource, digests.of(C0, resource).plus(1, 2))
    assert await asked(agent) == "recheck"
    agent.sent.clear()
    assert await agent.list(OBJECTS) == Plan.PLAN_DIFFERING
    assert agent.sent == []
    assert await asked(agent) == ""
    await eventually(lambda: told(aggregator) == (TypeState.LIVE, ""))

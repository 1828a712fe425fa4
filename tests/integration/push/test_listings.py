"""Listings that are compared before they are sent, frame by frame, over a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from federator.aggregator.ingest.frames import MAX_STATES
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import TypeRecord
from federator.api.cluster import ClusterID, TypeState
from federator.errors import InvalidInput
from federator.v1 import ingest_pb2
from federator.wire.digest import MAX_LEFT_OUT, PROTOCOL, bucket
from federator.wire.resource_type import resource_type_to_proto, type_state_to_proto
from federator.wire.status import from_rpc_error
from tests.integration.push.comparing_agent import (
    ComparingAgent,
    Plan,
    begin,
    bookmark,
    buckets,
    end,
    hashed,
    items,
    states,
)
from tests.integration.push.harness import FAST, Aggregator, eventually
from tests.integration.push.raw_agent import pushed, raw_agent
from tests.unit.agent.scripted_cluster import NODES, PODS

C0 = ClusterID("c0")
NAMES = [f"p{number:02}" for number in range(40)]


@pytest.fixture
async def agent(aggregator: Aggregator) -> AsyncIterator[ComparingAgent]:
    async with raw_agent(aggregator.address, types=(PODS, NODES)) as raw:
        yield ComparingAgent(raw)


def record(aggregator: Aggregator) -> TypeRecord:
    return next(known for known in aggregator.ledger.types(C0) if known.type == PODS)


def listed(*names: str, **more: Any) -> list[ingest_pb2.PushedObject]:
    return [pushed(name, **more) for name in names]


class TestPlans:
    async def test_of_a_type_of_which_nothing_is_here_all_is_wanted(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        assert await agent.list(listed("a", "b")) == Plan.PLAN_ALL
        assert aggregator.names("c0", PODS) == {"default/a", "default/b"}
        assert (record(aggregator).state, record(aggregator).low_water) == (TypeState.LIVE, "100")

    async def test_where_the_digests_are_equal_nothing_is(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        objects = listed(*NAMES)
        await agent.list(objects)
        before = aggregator.recorder.counts()
        assert await agent.list(objects, version=300) == Plan.PLAN_NOTHING
        assert aggregator.recorder.counts() == before
        assert record(aggregator).low_water == "300"

    async def test_what_was_sent_before_the_begin_counts(self, agent: ComparingAgent) -> None:
        objects = listed(*NAMES)
        await agent.list(objects)
        deltas = [ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=each) for each in listed("late")]
        await agent.send(deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=deltas))
        assert await agent.list(objects + listed("late")) == Plan.PLAN_NOTHING

    async def test_only_what_differs_is_wanted(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list(listed(*NAMES))
        agent.sent.clear()
        after = [*listed(*NAMES[2:]), *listed(NAMES[0], version=50), *listed("new")]
        assert await agent.list(after) == Plan.PLAN_DIFFERING
        assert sorted(agent.sent) == ["new", NAMES[0]]
        assert aggregator.names("c0", PODS) == {f"default/{obj.name}" for obj in after}
        assert sorted(aggregator.recorder.changes("c0", PODS)[len(NAMES) :]) == [
            ("ADDED", "new"),
            ("DELETED", NAMES[1]),
            ("MODIFIED", NAMES[0]),
        ]

    async def test_of_a_type_of_which_nearly_nothing_is_here_all_is_wanted(self, agent: ComparingAgent) -> None:
        await agent.list(listed("a"))
        assert await agent.list(listed(*NAMES[:10])) == Plan.PLAN_DIFFERING
        assert await agent.list(listed(*(f"more{number}" for number in range(101)))) == Plan.PLAN_ALL

    async def test_nothing_is_deleted_before_the_end(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list(listed(*NAMES))
        await agent.plan(objects=listed("a", *NAMES[2:]))
        await agent.compare(listed("a", *NAMES[2:]))
        assert len(aggregator.names("c0", PODS)) == len(NAMES)

    async def test_an_empty_listing_deletes_all(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list(listed("a", "b"))
        assert await agent.list([]) == Plan.PLAN_DIFFERING
        assert aggregator.names("c0", PODS) == set()

    @pytest.mark.parametrize("stored", ["a", "b"], ids=["gone from the listing", "stays in the listing"])
    async def test_what_changes_while_it_is_compared_stays_as_it_changed(
        self, aggregator: Aggregator, agent: ComparingAgent, stored: str
    ) -> None:
        await agent.list(listed("a", "b"))
        await agent.plan(objects=listed("b", "c"))
        wanted = await agent.compare(listed("b", "c"))
        delta = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed(stored, version=150))
        await agent.send(deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[delta]))
        await agent.send(snapshot_items=items([*wanted, *listed("b")]))
        await agent.send(snapshot_end=end())
        await agent.settled()
        entries = [aggregator.ledger.entry(key.revision) for key in aggregator.ledger.keys(C0, PODS.group_resource)]
        assert {entry.key.name: entry.resource_version for entry in entries if entry} == {
            "b": "10",
            "c": "10",
            stored: "150",
        }

    async def test_what_is_newer_than_the_listing_stays(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list([*listed("a", "b"), *listed("new", version=90)])
        assert await agent.list(listed("a"), version=80) == Plan.PLAN_DIFFERING
        assert aggregator.names("c0", PODS) == {"default/a", "default/new"}

    async def test_without_a_digest_nobody_is_told_a_plan(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        agent.sequence = await agent.raw.snapshot(1, "a") - 1
        assert aggregator.names("c0", PODS) == {"default/a"}
        assert await agent.list(listed("a")) == Plan.PLAN_NOTHING
        assert aggregator.servicer.statistics()["plans"] == {("c0", "nothing"): 1}

    async def test_large_types_are_compared_in_slices_of_a_ledger_on_disk(
        self, aggregator: Aggregator, tmp_path: Path
    ) -> None:
        ledger = LmdbLedger.open(tmp_path)
        aggregator.use(ledger)
        many = [f"p{number:04}" for number in range(1500)]
        async with aggregator.running(), raw_agent(aggregator.address) as raw:
            agent = ComparingAgent(raw)
            await agent.plan(objects=listed(*many))
            for start in (0, 1000):
                await agent.send(snapshot_items=items(listed(*many[start : start + 1000])))
            await agent.send(snapshot_end=end())
            assert await agent.list(listed(*many[:-1], "other")) == Plan.PLAN_DIFFERING
            assert agent.sent[1500:] == ["other"]
            assert await agent.list(listed(*many[:-1], "other")) == Plan.PLAN_NOTHING
        await ledger.close()


class TestLeftOut:
    async def test_objects_that_are_left_out_are_in_no_sum_and_stay(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.list(listed("a", "b", "odd"))
        assert await agent.list(listed("a", "b"), left_out=listed("odd", "never/stored")) == Plan.PLAN_NOTHING
        assert await agent.list(listed("a", "c"), left_out=listed("odd")) == Plan.PLAN_DIFFERING
        assert aggregator.names("c0", PODS) == {"default/a", "default/c", "default/odd"}
        assert await agent.list(listed(*(f"x{n}" for n in range(30))), left_out=listed("odd")) == Plan.PLAN_ALL
        assert "default/odd" in aggregator.names("c0", PODS)

    async def test_they_make_no_bucket_differ(self, agent: ComparingAgent) -> None:
        await agent.list(listed(*NAMES))
        objects = listed(*NAMES[1:], "new")
        await agent.plan(objects=objects, left_out=listed(NAMES[0]))
        numbers = await agent.differing(state_buckets=buckets(objects, 8))
        assert numbers == [bucket(hashed(pushed("new")).key, 8)]

    @pytest.mark.parametrize("known", [["a"], ["a", "b"]], ids=["all of it sent", "compared"])
    async def test_the_end_may_name_more_of_them(
        self, aggregator: Aggregator, agent: ComparingAgent, known: list[str]
    ) -> None:
        await agent.list(listed(*known, "odd", "gone"))
        objects = listed(*(known if len(known) > 1 else NAMES))
        plan = await agent.plan(objects=objects)
        if plan == Plan.PLAN_DIFFERING:
            await agent.compare(objects)
        await agent.send(snapshot_end=end(left_out=listed("odd")))
        await agent.settled()
        assert "default/odd" in aggregator.names("c0", PODS)
        assert "default/gone" not in aggregator.names("c0", PODS)


class TestRestores:
    async def test_after_a_restore_older_items_are_taken_and_newer_ones_go(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.list([*listed("a", version=500), *listed("gone", version=600)], version=1000)
        assert await agent.list(listed("a", version=40), version=50, restored=True) == Plan.PLAN_DIFFERING
        assert aggregator.names("c0", PODS) == {"default/a"}
        assert (record(aggregator).generation, record(aggregator).low_water) == (1, "50")
        await agent.list(listed("a", version=30), version=50, restored=True)
        assert record(aggregator).generation == 2
        assert [entry.resource_version for entry in aggregator.ledger.present()] == ["30"]

    async def test_a_lagging_server_is_no_restored_one(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list(listed("a", version=500), version=1000)
        await agent.list(listed("a", version=40), version=50)
        assert [entry.resource_version for entry in aggregator.ledger.present()] == ["500"]
        assert record(aggregator).generation == 0

    async def test_an_item_that_has_gone_back_proves_a_restore_that_nobody_has_noticed(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.list([*listed("a", version=500), *listed("b", "gone", version=2000)], version=2000)
        await agent.list([*listed("a", version=40), *listed("b", version=60)], version=1000)
        versions = {entry.key.name: entry.resource_version for entry in aggregator.ledger.present()}
        assert versions["a"] == "40"
        assert "gone" not in versions, "what is newer is not kept in a new generation"
        assert record(aggregator).generation == 1

    async def test_a_welcome_says_how_far_each_type_came(self, aggregator: Aggregator, agent: ComparingAgent) -> None:
        await agent.list(listed("a"), version=70, restored=True)
        await agent.raw.goodbye()
        async with raw_agent(aggregator.address, instance="another") as raw:
            assert raw.welcome.protocol == PROTOCOL
            (floor,) = [one for one in raw.welcome.floors if one.resource == "pods"]
            assert (floor.group, floor.resource_version, floor.generation) == ("", "70", 1)

    async def test_changes_that_waited_on_disk_do_not_undo_newer_ones(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.list(listed("a", version=50))
        puts = [
            ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=each)
            for each in (pushed("a", version=40), pushed("b", version=140), pushed("deleted-since", version=60))
        ]
        deltas = ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=puts, replayed=True)
        await agent.send(deltas=deltas)
        await agent.settled()
        assert {entry.key.name: entry.resource_version for entry in aggregator.ledger.present()} == {
            "a": "50",
            "b": "140",
        }


def broken_states(**changes: Any) -> ingest_pb2.StateItems:
    """The states of bucket 0 of one bit, with something wrong."""
    frame, _ = states(listed(*NAMES, "new"), 1, [0])
    for field, value in changes.items():
        if isinstance(value, list):
            del getattr(frame, field)[:]
            getattr(frame, field).extend(value)
        else:
            setattr(frame, field, value)
    return frame


class TestRefusals:
    """A frame that does not fit ends the session, and names what would."""

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            ({"state_buckets": buckets([], 0)}, "state_buckets"),
            ({"state_items": states([], 0, [0])[0]}, "state_items"),
            ({"snapshot_items": items(listed("a"))}, "snapshot_items"),
            ({"snapshot_end": end()}, "snapshot_end"),
        ],
    )
    async def test_without_a_listing(self, agent: ComparingAgent, frame: dict[str, Any], field: str) -> None:
        await agent.send(**frame)
        await self.refused(agent, field)

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            ({"snapshot_items": items(listed("a"))}, "snapshot_items"),
            ({"state_buckets": buckets([], 0)}, "state_buckets"),
            ({"state_items": states([], 0, [0])[0]}, "state_items"),
        ],
    )
    async def test_where_nothing_is_wanted(self, agent: ComparingAgent, frame: dict[str, Any], field: str) -> None:
        await agent.list(listed(*NAMES))
        assert await agent.plan(objects=listed(*NAMES)) == Plan.PLAN_NOTHING
        await agent.send(**frame)
        await self.refused(agent, field)

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            ({"snapshot_end": end()}, "snapshot_end"),
            ({"state_items": states([], 0, [0])[0]}, "state_items"),
            ({"state_buckets": buckets([], 17)}, "bits"),
            ({"state_buckets": ingest_pb2.StateBuckets(type=resource_type_to_proto(PODS), bits=2)}, "sums"),
        ],
    )
    async def test_where_buckets_are_wanted(self, agent: ComparingAgent, frame: dict[str, Any], field: str) -> None:
        await agent.list(listed(*NAMES))
        assert await agent.plan(objects=listed("new", *NAMES)) == Plan.PLAN_DIFFERING
        await agent.send(**frame)
        await self.refused(agent, field)

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            ({"state_items": broken_states(states=[1])}, "states"),
            ({"state_items": broken_states(bits=2, keys=[], states=[])}, "bits"),
            ({"state_items": broken_states(bits=17)}, "bits"),
            ({"state_items": broken_states(keys=[1 << 63], states=[1])}, "keys"),
            ({"state_items": broken_states(buckets=[0, 1, 2])}, "buckets"),
            ({"state_items": broken_states(buckets=[2], keys=[], states=[])}, "buckets"),
            ({"state_items": broken_states(keys=[0] * (MAX_STATES + 1), states=[0] * (MAX_STATES + 1))}, "keys"),
            ({"state_buckets": buckets([], 1)}, "state_buckets"),
            ({"snapshot_end": end()}, "snapshot_end"),
        ],
    )
    async def test_where_states_are_wanted(self, agent: ComparingAgent, frame: dict[str, Any], field: str) -> None:
        await agent.list(listed(*NAMES))
        changed = listed(*NAMES, version=11)
        assert await agent.plan(objects=changed) == Plan.PLAN_DIFFERING
        assert await agent.differing(state_buckets=buckets(changed, 1)) == [0, 1]
        await agent.send(**frame)
        await self.refused(agent, field)

    async def test_the_same_bucket_twice(self, agent: ComparingAgent) -> None:
        await agent.list(listed(*NAMES))
        changed = listed(*NAMES, version=11)
        await agent.plan(objects=changed)
        await agent.differing(state_buckets=buckets(changed, 1))
        frame, chosen = states(changed, 1, [0])
        assert len(await agent.differing(state_items=frame)) == len(chosen)
        await agent.send(state_items=frame)
        await self.refused(agent, "buckets")

    async def test_more_left_out_than_a_digest_may_have(self, agent: ComparingAgent) -> None:
        many = listed(*(f"x{number}" for number in range(MAX_LEFT_OUT + 1)))
        await agent.send(snapshot_begin=begin([], left_out=many))
        await self.refused(agent, "left_out")

    async def test_more_left_out_in_a_bookmark(self, agent: ComparingAgent) -> None:
        many = listed(*(f"x{number}" for number in range(MAX_LEFT_OUT + 1)))
        await agent.send(bookmark=bookmark([], left_out=many))
        await self.refused(agent, "left_out")

    async def test_the_end_of_a_listing_that_was_not_compared_deletes_nothing(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.list(listed(*NAMES))
        await agent.plan(objects=listed("new"))
        await agent.send(snapshot_end=end())
        await self.refused(agent, "snapshot_end")
        assert len(aggregator.names("c0", PODS)) == len(NAMES)

    @staticmethod
    async def refused(agent: ComparingAgent, field: str) -> None:
        error = from_rpc_error(await agent.raw.failure(), "test")
        assert isinstance(error, InvalidInput)
        assert error.field == field
        assert error.allowed


class TestAdmission:
    async def test_changes_go_on_while_a_listing_waits_for_its_turn(self, tmp_path: Path) -> None:
        settings = IngestSettings(heartbeat_interval=FAST.heartbeat_interval, snapshots_at_once=1)
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock", settings)
        async with (
            aggregator.running(),
            raw_agent(aggregator.address) as raw,
            raw_agent(aggregator.address, cluster_id="c1", cluster_uid="uid-c1") as other_raw,
        ):
            agent, other = ComparingAgent(raw), ComparingAgent(other_raw)
            assert await agent.plan(objects=listed("a")) == Plan.PLAN_ALL
            waiting = await other.send(snapshot_begin=begin(listed("b")))
            await other.raw.put(waiting + 1, pushed("late"))
            await other.raw.acknowledged(waiting + 1)
            assert aggregator.names("c1", PODS) == {"default/late"}
            statistics = aggregator.servicer.statistics()
            assert (statistics["snapshots_waiting"], statistics["snapshots_holding"]) == (1, 1)
            await agent.send(snapshot_items=items(listed("a")))
            await agent.send(snapshot_end=end())
            answer = await other.answer("snapshot_plan")
            assert (answer.sequence, answer.plan) == (waiting, Plan.PLAN_ALL)
            await other.raw.goodbye()
            await eventually(lambda: aggregator.servicer.statistics()["snapshots_holding"] == 0)

    async def test_a_listing_that_waits_cannot_end(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock", IngestSettings(snapshots_at_once=1))
        async with (
            aggregator.running(),
            raw_agent(aggregator.address) as raw,
            raw_agent(aggregator.address, cluster_id="c1", cluster_uid="uid-c1") as other_raw,
        ):
            agent, other = ComparingAgent(raw), ComparingAgent(other_raw)
            await other.list(listed("a", "b"))
            await agent.plan(objects=listed("a"))
            await other.send(snapshot_begin=begin(listed("a")))
            await other.send(snapshot_end=end())
            await TestRefusals.refused(other, "snapshot_end")
            assert aggregator.names("c1", PODS) == {"default/a", "default/b"}

    async def test_a_listing_that_begins_again_or_is_of_no_interest_any_more_gives_its_place_up(
        self, aggregator: Aggregator, agent: ComparingAgent
    ) -> None:
        await agent.plan(objects=listed("a"))
        await agent.plan(objects=listed("a", "b"))
        assert aggregator.servicer.statistics()["snapshots_holding"] == 1
        assert aggregator.servicer.statistics()["snapshots"] == {("c0", "restarted"): 1}
        status = ingest_pb2.TypeStatus(type=resource_type_to_proto(PODS), state=type_state_to_proto(TypeState.ABSENT))
        await agent.send(type_status=status)
        await agent.settled()
        assert aggregator.servicer.statistics()["snapshots_holding"] == 0

    async def test_what_changes_nothing_waits_for_nobody(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock", IngestSettings(snapshots_at_once=1))
        async with (
            aggregator.running(),
            raw_agent(aggregator.address) as raw,
            raw_agent(aggregator.address, cluster_id="c1", cluster_uid="uid-c1") as other_raw,
        ):
            agent, other = ComparingAgent(raw), ComparingAgent(other_raw)
            await agent.list(listed("a"))
            await other.plan(objects=listed("a"))
            assert await agent.list(listed("a")) == Plan.PLAN_NOTHING


async def test_groups_that_could_not_be_read_are_passed_on(aggregator: Aggregator) -> None:
    async with raw_agent(aggregator.address, unread_groups=["metrics.k8s.io"]) as raw:
        assert aggregator.recorder.unread[C0] == {"metrics.k8s.io"}
        await raw.send(heartbeat=ingest_pb2.Heartbeat(unread_groups=["a", "b"]))
        await eventually(lambda: aggregator.recorder.unread[C0] == {"a", "b"})
        await raw.heartbeat()
        await eventually(lambda: aggregator.recorder.unread[C0] == frozenset())

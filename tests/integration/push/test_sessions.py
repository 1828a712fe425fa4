"""Sessions frame by frame: snapshots, repeats, gaps, fences, standbys, silence and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import msgspec
import pytest

from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.memory import MemoryLedger
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.errors import (
    ClusterHeld,
    ClusterUIDChanged,
    ClusterUIDKnown,
    FederatorError,
    InvalidInput,
    LedgerFull,
    SessionFenced,
)
from federator.v1 import ingest_pb2, ingest_pb2_grpc, types_pb2
from federator.wire.resource_type import resource_type_to_proto, type_state_to_proto
from federator.wire.status import from_rpc_error
from tests.integration.push.harness import Aggregator, eventually
from tests.integration.push.raw_agent import RawAgent, pushed, raw_agent
from tests.unit.agent.scripted_cluster import DEPLOYMENTS, PODS


async def refusal(agent: RawAgent) -> FederatorError:
    return from_rpc_error(await agent.failure(), "test")


async def refused_hello(address: str, **hello: object) -> FederatorError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with raw_agent(address, **hello):  # type: ignore[arg-type]
            pass
    return from_rpc_error(caught.value, "test")


def status(state: TypeState, reason: str = "") -> ingest_pb2.TypeStatus:
    return ingest_pb2.TypeStatus(type=resource_type_to_proto(PODS), state=type_state_to_proto(state), reason=reason)


class TestSnapshots:
    async def test_deletes_are_found_at_the_end_and_not_before(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a", "b", "c")
            await agent.begin(following)
            await agent.items(following + 1, "a", version=11)
            await agent.acknowledged(following + 1)
            assert aggregator.names("c0", PODS) == {"default/a", "default/b", "default/c"}
            await agent.end(following + 2)
            await agent.acknowledged(following + 2)
        assert aggregator.names("c0", PODS) == {"default/a"}
        assert aggregator.recorder.changes("c0", PODS)[3:] == [("MODIFIED", "a"), ("DELETED", "b"), ("DELETED", "c")]

    async def test_a_type_is_live_only_once_the_deletions_are_there(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
        async with raw_agent(aggregator.address, instance="instance-1") as agent:
            await agent.begin(4)
            await agent.end(5)
            await agent.acknowledged(5)
        kinds = [
            getattr(entry, "state", None) or entry.type.name  # type: ignore[union-attr]
            for commit in aggregator.recorder.commits
            for entry in commit.entries
        ]
        assert kinds[-1] == "DELETED"
        assert aggregator.recorder.type_states("c0", PODS) == [TypeState.SYNCING, TypeState.LIVE]

    async def test_a_broken_snapshot_deletes_nothing_and_the_next_one_completes(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a", "b", "c")
        async with raw_agent(aggregator.address, instance="instance-1") as agent:
            await agent.begin(4)
            await agent.items(5, "c", version=12)
            await agent.acknowledged(5)
        await eventually(lambda: aggregator.servicer.statistics()["snapshots"].get(("c0", "broken")))  # type: ignore[attr-defined]
        assert len(aggregator.names("c0", PODS)) == 3
        async with raw_agent(aggregator.address, instance="instance-1") as agent:
            assert agent.welcome.durable_sequence == 5
            await agent.end(6)
            assert isinstance(await refusal(agent), InvalidInput), "an end without a begin proves nothing"
        assert len(aggregator.names("c0", PODS)) == 3
        async with raw_agent(aggregator.address, instance="instance-1") as agent:
            await agent.snapshot(6, "b")
        assert aggregator.names("c0", PODS) == {"default/b"}

    async def test_what_is_newer_than_the_list_stays(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "old")
            await agent.put(following, pushed("new", version=500))
            await agent.begin(following + 1)
            await agent.end(following + 2, version=400)
            await agent.acknowledged(following + 2)
        assert aggregator.names("c0", PODS) == {"default/new"}

    async def test_a_change_after_the_begin_counts_as_named(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.begin(1)
            await agent.put(2, pushed("late", version=50))
            await agent.end(3)
            await agent.acknowledged(3)
        assert aggregator.names("c0", PODS) == {"default/late"}

    async def test_thousands_are_deleted_in_batches_and_the_sequence_comes_last(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.begin(1)
            for number in range(3):
                await agent.items(2 + number, *(f"p{number}-{each}" for each in range(1000)))
            await agent.end(5)
            await agent.acknowledged(5)
            before = len(aggregator.recorder.commits)
            await agent.begin(6)
            await agent.end(7)
            await agent.acknowledged(7)
        deletions = [commit for commit in aggregator.recorder.commits[before:] if commit.entries]
        assert [len(commit.entries) for commit in deletions] == [1024, 1024, 952]


class TestSequences:
    async def test_a_repeated_frame_commits_nothing(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a")
            commits = len(aggregator.recorder.commits)
            await agent.put(2, pushed("ghost"))
            await agent.put(following, pushed("b"))
            await agent.acknowledged(following)
        assert aggregator.names("c0", PODS) == {"default/a", "default/b"}
        assert len(aggregator.recorder.commits) == commits + 1
        assert aggregator.servicer.statistics()["rejected"] == {("c0", "SEQUENCE_REPEATED"): 1}

    async def test_a_gap_names_the_expected_number_and_nothing_after_it_is_taken(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a")
            await agent.put(following + 1, pushed("b"))
            await agent.put(following + 2, pushed("c"))
            while not agent.nacks:
                await agent.read()
            nack = agent.nacks[0]
            assert (nack.reason, nack.sequence, nack.expected_sequence) == ("SEQUENCE_GAP", following + 1, following)
            await agent.put(following, pushed("d"))
            await agent.acknowledged(following)
            assert len(agent.nacks) == 1, "one gap, one Nack"
        assert aggregator.names("c0", PODS) == {"default/a", "default/d"}

    async def test_the_same_instance_goes_on_where_it_was(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            assert (agent.welcome.snapshot_all, agent.welcome.durable_sequence) == (True, 0)
            await agent.snapshot(1, "a")
        async with raw_agent(aggregator.address) as agent:
            assert (agent.welcome.snapshot_all, agent.welcome.durable_sequence) == (False, 3)
            assert not agent.welcome.held_types, "it has named them itself"
        async with raw_agent(aggregator.address, types=()) as agent:
            assert [each.resource for each in agent.welcome.held_types] == ["pods"]


def named(obj: ingest_pb2.PushedObject, name: str) -> ingest_pb2.PushedObject:
    obj.name = name
    return obj


class TestTypes:
    """A type is described once in a session; after that its name is enough."""

    NAME = types_pb2.ResourceType(resource="pods")

    async def test_one_that_hello_has_described_need_only_be_named(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.send(1, snapshot_begin=ingest_pb2.SnapshotBegin(type=self.NAME))
            await agent.send(2, snapshot_items=ingest_pb2.SnapshotItems(type=self.NAME, objects=[pushed("a")]))
            await agent.send(3, snapshot_end=ingest_pb2.SnapshotEnd(type=self.NAME, resource_version="10"))
            await agent.acknowledged(3)
        assert aggregator.names("c0", PODS) == {"default/a"}
        assert [record.type for record in aggregator.ledger.types(ClusterID("c0"))] == [PODS]

    async def test_one_that_a_frame_has_described_need_only_be_named_afterwards(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address, types=()) as agent:
            following = await agent.snapshot(1, "a")
            put = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("b"))
            await agent.send(following, deltas=ingest_pb2.Deltas(type=self.NAME, deltas=[put]))
            await agent.acknowledged(following)
        assert aggregator.names("c0", PODS) == {"default/a", "default/b"}

    async def test_in_another_version_it_is_described_again(self, aggregator: Aggregator) -> None:
        newer = msgspec.structs.replace(PODS, version="v2")
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
            described = resource_type_to_proto(newer)
            await agent.send(4, snapshot_begin=ingest_pb2.SnapshotBegin(type=described))
            await agent.send(5, snapshot_items=ingest_pb2.SnapshotItems(type=self.NAME, objects=[pushed("a")]))
            await agent.send(6, snapshot_end=ingest_pb2.SnapshotEnd(type=self.NAME, resource_version="10"))
            await agent.acknowledged(6)
        assert [entry.api_version for entry in aggregator.recorder.objects("c0", PODS)] == ["v1", "v2"]
        assert [record.type for record in aggregator.ledger.types(ClusterID("c0"))] == [newer]

    async def test_one_that_was_never_described_is_refused(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address, types=()) as agent:
            await agent.send(1, snapshot_begin=ingest_pb2.SnapshotBegin(type=self.NAME))
            with pytest.raises(grpc.aio.AioRpcError, match="a type that was described before"):
                await agent.acknowledged(1)


class TestItems:
    @pytest.mark.parametrize(
        "damaged",
        [
            pytest.param(pushed("a/b"), id="a name with a slash"),
            pytest.param(pushed(".."), id="a name that is a path"),
            pytest.param(pushed("x", namespace=""), id="no namespace"),
            pytest.param(pushed("x", namespace="a/b"), id="a namespace with a slash"),
            pytest.param(pushed("x", content_hash=7), id="another hash"),
            pytest.param(pushed("x", body=b"\x28\xb5\x2f\xfdxx"), id="a damaged body"),
            pytest.param(pushed("x", body=b""), id="no body"),
            pytest.param(named(pushed("x"), "y"), id="the body of another object"),
            pytest.param(pushed("x", resource_version="\n"), id="a version with a newline"),
        ],
    )
    async def test_a_bad_item_is_named_and_the_rest_is_taken(
        self, aggregator: Aggregator, damaged: ingest_pb2.PushedObject
    ) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a")
            await agent.put(following, pushed("b"), damaged, pushed("c"))
            await agent.acknowledged(following)
            assert [(nack.reason, nack.name, nack.sequence) for nack in agent.nacks] == [
                ("OBJECT_MALFORMED", damaged.name, following)
            ]
        assert aggregator.names("c0", PODS) == {"default/a", "default/b", "default/c"}

    async def test_a_refused_item_of_a_listing_is_not_taken_for_a_deletion(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a")
            await agent.begin(following)
            items = ingest_pb2.SnapshotItems(type=resource_type_to_proto(PODS), objects=[pushed("a", content_hash=7)])
            await agent.send(following + 1, snapshot_items=items)
            await agent.end(following + 2)
            await agent.acknowledged(following + 2)
        assert aggregator.names("c0", PODS) == {"default/a"}

    async def test_deletes_and_unknown_operations(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a", "b")
            gone = ingest_pb2.PushedObject(namespace="default", name="a")
            deltas = [
                ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_DELETE, object=gone),
                ingest_pb2.Delta(object=gone),
            ]
            await agent.send(following, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=deltas))
            await agent.acknowledged(following)
            assert len(agent.nacks) == 1
        assert aggregator.names("c0", PODS) == {"default/b"}


MALFORMED: dict[str, ingest_pb2.PushRequest] = {
    "nothing": ingest_pb2.PushRequest(sequence=1),
    "a second Hello": ingest_pb2.PushRequest(sequence=1, hello=ingest_pb2.Hello()),
    "a type without a name": ingest_pb2.PushRequest(sequence=1, snapshot_begin=ingest_pb2.SnapshotBegin()),
    "a state of no meaning": ingest_pb2.PushRequest(
        sequence=1, type_status=ingest_pb2.TypeStatus(type=resource_type_to_proto(PODS))
    ),
    "too many items": ingest_pb2.PushRequest(
        sequence=1,
        deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[ingest_pb2.Delta()] * 1025),
    ),
    "items of no listing": ingest_pb2.PushRequest(
        sequence=1, snapshot_items=ingest_pb2.SnapshotItems(type=resource_type_to_proto(PODS))
    ),
    "a bookmark without a version": ingest_pb2.PushRequest(
        sequence=1, bookmark=ingest_pb2.Bookmark(type=resource_type_to_proto(PODS))
    ),
}


class TestRefusals:
    @pytest.mark.parametrize("name", MALFORMED)
    async def test_a_malformed_frame_ends_the_session(self, aggregator: Aggregator, name: str) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.call.write(MALFORMED[name])
            failure = await agent.failure()
        assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(from_rpc_error(failure, "test"), InvalidInput)
        await eventually(lambda: aggregator.servicer.statistics()["session_ends"] == {"INVALID_INPUT": 1})

    @pytest.mark.parametrize(
        "hello",
        [
            {"cluster_id": "UPPER"},
            {"cluster_id": "a/b"},
            {"cluster_uid": ""},
            {"instance": ""},
            {"instance": "x" * 300},
        ],
    )
    async def test_a_malformed_hello_is_refused(self, aggregator: Aggregator, hello: dict[str, str]) -> None:
        assert isinstance(await refused_hello(aggregator.address, **hello), InvalidInput)
        assert aggregator.ledger.clusters() == {}

    async def test_a_uid_that_is_known_under_another_name_is_refused(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address, cluster_id="c0", cluster_uid="same"):
            refused = await refused_hello(aggregator.address, cluster_id="c1", cluster_uid="same")
        assert isinstance(refused, ClusterUIDKnown)
        assert refused.holder == "c0"

    async def test_a_full_ledger_says_so_and_acknowledges_nothing(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/full.sock")
        aggregator.ledger = MemoryLedger(max_bytes=2000)
        async with aggregator.running(), raw_agent(aggregator.address) as agent:
            await agent.begin(1)
            await agent.items(2, *(f"p{number}" for number in range(100)))
            refused = await refusal(agent)
        assert isinstance(refused, LedgerFull)
        assert aggregator.ledger.clusters()["c0"].durable_sequence <= 1  # type: ignore[index]

    async def test_silence_instead_of_hello_is_not_waited_for(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/s.sock", IngestSettings(hello_timeout=0.05))
        async with aggregator.running(), grpc.aio.insecure_channel(aggregator.address) as channel:
            call = ingest_pb2_grpc.IngestServiceStub(channel).Push()  # type: ignore[call-arg]
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


class TestReplace:
    async def test_another_uid_is_refused_without_replace_and_changes_nothing(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
            await agent.goodbye()
        refused = await refused_hello(aggregator.address, instance="instance-2", cluster_uid="other")
        assert isinstance(refused, ClusterUIDChanged)
        assert aggregator.names("c0", PODS) == {"default/a"}

    async def test_with_replace_the_old_objects_leave_before_the_new_cluster_joins(
        self, aggregator: Aggregator
    ) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a", "b")
            await agent.goodbye()
        async with raw_agent(aggregator.address, instance="instance-2", cluster_uid="other", replace=True) as agent:
            assert agent.welcome.snapshot_all
            assert aggregator.names("c0", PODS) == set()
            await agent.snapshot(1, "c")
        assert aggregator.recorder.changes("c0", PODS)[2:] == [("DELETED", "a"), ("DELETED", "b"), ("ADDED", "c")]
        states = aggregator.recorder.states("c0")
        assert states[states.index(ClusterState.REMOVED) :] == [
            ClusterState.REMOVED,
            ClusterState.JOINING,
            ClusterState.SYNCING,
            ClusterState.LIVE,
        ]

    async def test_a_live_agent_is_not_replaced(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
            refused = await refused_hello(aggregator.address, instance="instance-2", cluster_uid="other", replace=True)
        assert isinstance(refused, ClusterHeld)
        assert aggregator.names("c0", PODS) == {"default/a"}


class TestTakingOver:
    async def test_a_second_stream_of_the_instance_fences_the_first(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as first, raw_agent(aggregator.address) as second:
            assert second.welcome.term == first.welcome.term + 1
            failure = await first.failure()
            assert failure.code() is grpc.StatusCode.ABORTED
            refused = from_rpc_error(failure, "test")
            assert isinstance(refused, SessionFenced)
            assert refused.newest_term == second.welcome.term
            await second.snapshot(1, "a")

    async def test_another_instance_waits_until_the_first_is_silent(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as first:
            await first.snapshot(1, "a")
            refused = await refused_hello(aggregator.address, instance="instance-2")
            assert isinstance(refused, ClusterHeld)
            assert refused.agent_instance == "instance-1"
            await asyncio.sleep(2.5 * aggregator.settings.heartbeat_interval)
            async with raw_agent(aggregator.address, instance="instance-2") as second:
                assert second.welcome.snapshot_all
                assert isinstance(await refusal(first), SessionFenced)
                refused = await refused_hello(aggregator.address, instance="instance-1")
                assert isinstance(refused, ClusterHeld), "one that was fenced comes back as standby"

    async def test_a_lost_connection_is_still_held_and_a_goodbye_is_not(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address):
            pass
        assert isinstance(await refused_hello(aggregator.address, instance="instance-2"), ClusterHeld)
        async with raw_agent(aggregator.address) as agent:
            await agent.goodbye()
        async with raw_agent(aggregator.address, instance="instance-2"):
            pass


class TestStates:
    async def test_silence_makes_stale_and_a_sign_of_life_brings_it_back(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
            assert aggregator.state("c0") is ClusterState.LIVE
            await eventually(lambda: aggregator.state("c0") is ClusterState.STALE)
            assert "silent" in aggregator.ledger.clusters()["c0"].reason  # type: ignore[index]
            assert aggregator.names("c0", PODS) == {"default/a"}, "silence deletes nothing"
            await agent.heartbeat()
            await eventually(lambda: aggregator.state("c0") is ClusterState.LIVE)
        assert aggregator.recorder.states("c0")[2:] == [
            ClusterState.LIVE,
            ClusterState.STALE,
            ClusterState.RECOVERING,
            ClusterState.LIVE,
        ]

    async def test_a_resumed_session_is_live_once_each_type_is_confirmed(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
        await eventually(lambda: aggregator.state("c0") is ClusterState.STALE)
        async with raw_agent(aggregator.address) as agent:
            assert aggregator.state("c0") is ClusterState.RECOVERING
            await agent.heartbeat()
            await agent.put(4, pushed("b"))
            await agent.acknowledged(4)
            assert aggregator.state("c0") is ClusterState.RECOVERING, "what the outage left open may still be unsent"
            await agent.send(5, type_status=status(TypeState.LIVE))
            await agent.acknowledged(5)
            assert aggregator.state("c0") is ClusterState.LIVE

    async def test_another_instance_is_live_only_after_a_new_listing(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
            await agent.goodbye()
        async with raw_agent(aggregator.address, instance="instance-2") as agent:
            assert aggregator.state("c0") is ClusterState.RECOVERING
            assert aggregator.type_state("c0", PODS) is TypeState.STALE
            await agent.snapshot(1, "a")
            assert aggregator.state("c0") is ClusterState.LIVE
        assert aggregator.recorder.changes("c0", PODS) == [("ADDED", "a")], "equal content commits nothing"

    async def test_a_denied_type_is_named_and_keeps_nothing_else_from_being_live(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address, types=(PODS, DEPLOYMENTS)) as agent:
            await agent.send(1, type_status=status(TypeState.DENIED, "pods is forbidden"))
            await agent.begin(2, DEPLOYMENTS)
            await agent.end(3, resource_type=DEPLOYMENTS)
            await agent.acknowledged(3)
            assert aggregator.state("c0") is ClusterState.LIVE
            assert aggregator.type_state("c0", PODS) is TypeState.DENIED

    async def test_all_types_stale_is_a_stale_cluster_one_is_not(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address, types=(PODS, DEPLOYMENTS)) as agent:
            following = await agent.snapshot(1, "a")
            await agent.begin(following, DEPLOYMENTS)
            await agent.end(following + 1, resource_type=DEPLOYMENTS)
            await agent.send(following + 2, type_status=status(TypeState.STALE, "connection refused"))
            await agent.acknowledged(following + 2)
            assert aggregator.state("c0") is ClusterState.LIVE
            stale = status(TypeState.STALE, "connection refused")
            stale.type.CopyFrom(resource_type_to_proto(DEPLOYMENTS))
            await agent.send(following + 3, type_status=stale)
            await agent.acknowledged(following + 3)
            assert aggregator.state("c0") is ClusterState.STALE
            assert aggregator.ledger.clusters()["c0"].reason == "connection refused"  # type: ignore[index]
            await agent.send(following + 4, type_status=status(TypeState.LIVE))
            await agent.acknowledged(following + 4)
            assert aggregator.state("c0") is ClusterState.RECOVERING
            stale.state = type_state_to_proto(TypeState.LIVE)
            await agent.send(following + 5, type_status=stale)
            await agent.acknowledged(following + 5)
            assert aggregator.state("c0") is ClusterState.LIVE

    @pytest.mark.parametrize("state", [TypeState.ABSENT, TypeState.NOT_COLLECTED])
    async def test_a_type_that_is_gone_takes_its_objects_with_it(
        self, aggregator: Aggregator, state: TypeState
    ) -> None:
        async with raw_agent(aggregator.address) as agent:
            following = await agent.snapshot(1, "a", "b")
            await agent.send(following, type_status=status(state, "gone"))
            await agent.acknowledged(following)
        assert aggregator.names("c0", PODS) == set()
        assert aggregator.type_state("c0", PODS) is state
        assert aggregator.recorder.changes("c0", PODS)[2:] == [("DELETED", "a"), ("DELETED", "b")]

    async def test_a_listing_of_a_type_that_is_gone_meanwhile_cannot_end(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.begin(1)
            await agent.items(2, "a")
            await agent.send(3, type_status=status(TypeState.ABSENT, "gone"))
            await agent.end(4)
            assert isinstance(await refusal(agent), InvalidInput)
        assert aggregator.type_state("c0", PODS) is TypeState.ABSENT

    async def test_an_aggregator_that_restarts_believes_nobody_until_heard(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            await agent.snapshot(1, "a")
        await aggregator.lifecycle.start()
        assert aggregator.state("c0") is ClusterState.STALE
        assert aggregator.ledger.clusters()["c0"].reason == "aggregator restarted"  # type: ignore[index]

    async def test_closing_ends_the_sessions(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            aggregator.servicer.close()
            with pytest.raises(AssertionError, match="OK"):
                await agent.acknowledged(1)
        assert aggregator.servicer.statistics()["session_ends"] == {"stopped": 1}

    async def test_proofs_of_collected_types_are_told_and_of_others_not(self, aggregator: Aggregator) -> None:
        async with raw_agent(aggregator.address) as agent:
            proofs = [ingest_pb2.TypeProof(resource=name, age_ms=7) for name in ("pods", "made-up")]
            await agent.send(heartbeat=ingest_pb2.Heartbeat(proofs=proofs))
            await eventually(lambda: aggregator.recorder.proved_types)
        assert aggregator.recorder.proved_types == {("c0", PODS.group_resource)}

"""Sessions, terms, sequences, and the states of clusters and types."""

from __future__ import annotations

import msgspec
import pytest

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, ClusterRecord, Commit, TypeEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.errors import ClusterUIDChanged, ClusterUIDKnown, InvalidInput, SessionFenced, UnknownCluster
from tests.contract.ledger.conftest import Clock
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, changes, delete, put

BERLIN = ClusterID("berlin")


async def test_a_new_member_joins(ledger: Ledger, told: list[Commit], clock: Clock) -> None:
    wanted = ClusterRecord(
        BERLIN,
        "uid-of-berlin",
        display_name="Berlin",
        server_version="v1.37.2",
        source="kubeconfig",
        namespace="shop",
        label_selector="app=web",
        state=ClusterState.LIVE,
        reason="made up",
        since_ms=5,
        term=9,
        agent_instance="agent-1",
        durable_sequence=9,
    )
    record = await ledger.open_session(wanted)
    assert record == msgspec.structs.replace(
        wanted, state=ClusterState.JOINING, reason="", since_ms=int(clock.now * 1000), term=1, durable_sequence=0
    )
    assert ledger.clusters() == {BERLIN: record}
    ((entry,),) = [commit.entries for commit in told]
    assert isinstance(entry, ClusterEntry)
    assert (entry.state, entry.previous_state, entry.time_ms) == (ClusterState.JOINING, None, record.since_ms)


async def test_each_session_has_a_higher_term_and_keeps_the_state(ledger: Ledger) -> None:
    await Member.join(ledger)
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE, "synced")
    live = ledger.clusters()[BERLIN]
    before = ledger.revision
    again = (await Member.join(ledger, instance="agent-2")).record
    assert again.term == 2
    assert (again.state, again.reason, again.since_ms) == (ClusterState.LIVE, "synced", live.since_ms)
    assert ledger.clusters()[BERLIN] == again
    assert ledger.revision == before, "a session by itself is no change of the federation"


async def test_labels_are_those_of_the_newest_session_and_a_change_of_them_is_told(
    ledger: Ledger, told: list[Commit]
) -> None:
    wanted = ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-1", labels={"env": "prod"}, labels_revision=5)
    assert (await ledger.open_session(wanted)).labels_revision == 0, "they are as they were when it joined"
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE, "synced")
    live = ledger.clusters()[BERLIN]
    del told[:]
    await ledger.open_session(wanted)
    assert not told, "the same labels are no change"
    relabelled = await ledger.open_session(msgspec.structs.replace(wanted, labels={"env": "test"}))
    ((entry,),) = [commit.entries for commit in told]
    assert isinstance(entry, ClusterEntry)
    assert (entry.labels, entry.previous_labels) == ({"env": "test"}, {"env": "prod"})
    assert (entry.state, entry.previous_state, entry.reason) == (ClusterState.LIVE, ClusterState.LIVE, "synced")
    assert not entry.is_transition
    assert ledger.clusters()[BERLIN] == relabelled
    assert (relabelled.labels, relabelled.labels_revision) == ({"env": "test"}, entry.revision)
    assert relabelled.since_ms == live.since_ms, "its state has not changed"
    del told[:]
    await ledger.set_cluster_state(BERLIN, ClusterState.STALE, "silent")
    ((entry,),) = [commit.entries for commit in told]
    assert isinstance(entry, ClusterEntry)
    assert (entry.labels, entry.previous_labels) == ({"env": "test"}, None)


async def test_a_member_that_comes_back_with_other_labels_is_told_so(ledger: Ledger, told: list[Commit]) -> None:
    wanted = ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-1", labels={"env": "prod"})
    await ledger.open_session(wanted)
    await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED)
    del told[:]
    back = await ledger.open_session(msgspec.structs.replace(wanted, labels={}))
    entry = told[0].entries[0]
    assert isinstance(entry, ClusterEntry)
    assert (entry.state, entry.labels, entry.previous_labels) == (ClusterState.JOINING, {}, {"env": "prod"})
    assert back.labels_revision == entry.revision


async def test_the_durable_sequence_is_kept_for_the_same_instance_only(ledger: Ledger) -> None:
    berlin = await Member.join(ledger, instance="agent-1")
    await berlin.push(put("web"), sequence=7)
    assert (await Member.join(ledger, instance="agent-1")).record.durable_sequence == 7
    assert (await Member.join(ledger, instance="agent-2")).record.durable_sequence == 0


async def test_a_batch_of_a_durable_sequence_commits_nothing(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), sequence=2)
    revision = ledger.revision
    for sequence in (1, 2):
        assert await berlin.push(put("web"), sequence=sequence, low_water="20") == Commit(revision)
    assert ledger.clusters()[BERLIN].durable_sequence == 2
    assert ledger.types(BERLIN)[0].low_water == ""
    assert (await berlin.push(put("web"), sequence=3)).entries


async def test_a_resent_batch_is_recognised_after_a_reconnect(ledger: Ledger) -> None:
    await (await Member.join(ledger)).push(put("web"), sequence=1)
    again = await Member.join(ledger)
    assert (await again.push(put("web"), sequence=1)).entries == ()


async def test_a_sequence_becomes_durable_though_nothing_differed(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", content_hash=7), sequence=1)
    await berlin.push(put("web", content_hash=7), sequence=2)
    assert ledger.clusters()[BERLIN].durable_sequence == 2


async def test_sequence_zero_is_not_numbered(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), sequence=3)
    assert (await berlin.push(put("web"), sequence=0)).entries
    assert (await berlin.push(put("web"), sequence=0)).entries
    assert ledger.clusters()[BERLIN].durable_sequence == 3


async def test_an_older_session_is_fenced(ledger: Ledger) -> None:
    old, new = await Member.join(ledger), await Member.join(ledger)
    with pytest.raises(SessionFenced) as caught:
        await old.push(put("web"), sequence=1)
    assert (caught.value.term, caught.value.newest_term) == (1, 2)
    assert list(ledger.present()) == []
    assert (await new.push(put("web"), sequence=1)).entries


async def test_a_known_id_with_another_uid_is_refused(ledger: Ledger) -> None:
    await Member.join(ledger, uid="uid-1")
    with pytest.raises(ClusterUIDChanged) as caught:
        await Member.join(ledger, uid="uid-2")
    assert (caught.value.known_uid, caught.value.given_uid) == ("uid-1", "uid-2")
    assert ledger.clusters()[BERLIN].term == 1


async def test_a_uid_that_only_stands_in_is_no_other_uid(ledger: Ledger) -> None:
    """An agent that may not read kube-system at first, or not any more, reaches the same cluster."""
    await Member.join(ledger, uid="server-0123")
    assert (await Member.join(ledger, uid="uid-1")).record.cluster_uid == "uid-1"
    await Member.join(ledger, uid="server-4567")
    assert ledger.clusters()[BERLIN].term == 3


async def test_a_known_uid_under_another_id_is_refused(ledger: Ledger) -> None:
    await Member.join(ledger, "berlin", uid="uid-1")
    with pytest.raises(ClusterUIDKnown) as caught:
        await Member.join(ledger, "berlin-2", uid="uid-1")
    assert caught.value.holder == "berlin"
    assert list(ledger.clusters()) == [BERLIN]
    await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED)
    assert (await Member.join(ledger, "berlin-2", uid="uid-1")).record.term == 1


async def test_a_malformed_id_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput):
        await Member.join(ledger, "Berlin")


async def test_a_cluster_changes_state(ledger: Ledger, clock: Clock) -> None:
    await Member.join(ledger)
    clock.now += 5
    (entry,) = (await ledger.set_cluster_state(BERLIN, ClusterState.STALE, "silent")).entries
    assert isinstance(entry, ClusterEntry)
    assert (entry.state, entry.previous_state, entry.reason) == (ClusterState.STALE, ClusterState.JOINING, "silent")
    record = ledger.clusters()[BERLIN]
    assert (record.state, record.reason, record.since_ms) == (ClusterState.STALE, "silent", entry.time_ms)
    assert (await ledger.set_cluster_state(BERLIN, ClusterState.STALE, "still silent")).entries == ()
    assert list(ledger.read(entry.revision - 1, 10)) == [entry]
    assert ledger.entry(entry.revision) is None


async def test_a_type_changes_state_reason_or_description(ledger: Ledger) -> None:
    await Member.join(ledger)
    (entry,) = (await ledger.set_type_state(BERLIN, PODS, TypeState.SYNCING)).entries
    assert isinstance(entry, TypeEntry)
    assert (entry.cluster_id, entry.resource_type, entry.state) == (BERLIN, PODS, TypeState.SYNCING)
    assert (await ledger.set_type_state(BERLIN, PODS, TypeState.SYNCING)).entries == ()
    assert (await ledger.set_type_state(BERLIN, PODS, TypeState.STALE, "refused")).entries
    assert (await ledger.set_type_state(BERLIN, PODS, TypeState.STALE, "timeout")).entries
    described = msgspec.structs.replace(PODS, short_names=("po",))
    assert (await ledger.set_type_state(BERLIN, described, TypeState.STALE, "timeout")).entries
    await ledger.set_type_state(BERLIN, DEPLOYMENTS, TypeState.LIVE)
    states = {record.type: (record.state, record.reason) for record in ledger.types(BERLIN)}
    assert states == {described: (TypeState.STALE, "timeout"), DEPLOYMENTS: (TypeState.LIVE, "")}


async def test_a_type_keeps_its_low_water_over_changes_of_state(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(low_water="120")
    await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    (record,) = ledger.types(BERLIN)
    assert (record.state, record.low_water) == (TypeState.LIVE, "120")


async def test_states_of_unknown_clusters_are_refused(ledger: Ledger) -> None:
    with pytest.raises(UnknownCluster):
        await ledger.set_cluster_state(BERLIN, ClusterState.STALE)
    with pytest.raises(UnknownCluster):
        await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    assert list(ledger.types(BERLIN)) == []


async def test_what_was_given_out_does_not_change_afterwards(ledger: Ledger) -> None:
    await Member.join(ledger)
    clusters, types = ledger.clusters(), ledger.types(BERLIN)
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE)
    await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    assert clusters[BERLIN].state is ClusterState.JOINING
    assert list(types) == []


async def test_a_removed_member_takes_deletions_only(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), put("db"))
    await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED, "by hand")
    with pytest.raises(UnknownCluster):
        await berlin.push(delete("db"), put("late"))
    assert len(changes(await berlin.push(delete("web"), delete("db")))) == 2
    assert list(ledger.present()) == []
    assert ledger.clusters()[BERLIN].state is ClusterState.REMOVED, "its record and history stay readable"


@pytest.mark.parametrize("uid", ["uid-1", "uid-2"])
async def test_a_member_that_comes_back_after_removal_starts_anew(ledger: Ledger, uid: str) -> None:
    """With another UID this is how a new cluster takes over the ID of an old one."""
    old = await Member.join(ledger, uid="uid-1")
    await ledger.set_type_state(BERLIN, DEPLOYMENTS, TypeState.NOT_COLLECTED)
    await old.push(put("web"), sequence=5, low_water="120")
    await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED, "replaced")
    await old.push(delete("web"))
    before = ledger.revision

    told: list[Commit] = []
    ledger.on_commit(told.append)
    new = await Member.join(ledger, uid=uid)

    assert (new.record.cluster_uid, new.record.term, new.record.durable_sequence) == (uid, 2, 0)
    assert new.record.state is ClusterState.JOINING
    joined, *forgotten = ledger.read(before, 10)
    assert isinstance(joined, ClusterEntry)
    assert joined.previous_state is ClusterState.REMOVED
    assert {(each.resource_type, each.state) for each in forgotten if isinstance(each, TypeEntry)} == {
        (PODS, TypeState.ABSENT),
        (DEPLOYMENTS, TypeState.ABSENT),
    }
    assert {(record.state, record.low_water) for record in ledger.types(BERLIN)} == {(TypeState.ABSENT, "")}
    assert told[0].low_water == ((BERLIN, PODS.group_resource, ""),)
    with pytest.raises(SessionFenced):
        await old.push(put("late"))
    assert changes(await new.push(put("web"), sequence=1))

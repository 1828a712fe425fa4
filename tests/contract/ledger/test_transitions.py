"""The states that clusters and types were in, as far back as history reaches."""

from __future__ import annotations

from pathlib import Path

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import RESTARTED, ClusterEntry, ClusterRecord, Entry, Transition, TypeEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from tests.contract.ledger.conftest import Clock
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, delete, put
from tests.contract.ledger.test_versions import lived as a_life
from tests.contract.ledger.test_versions import web

BERLIN, PARIS = ClusterID("berlin"), ClusterID("paris")
TYPE = PODS.group_resource


def noted(entry: Entry) -> Transition:
    assert isinstance(entry, ClusterEntry | TypeEntry)
    return Transition(entry.revision, entry.time_ms, entry.state, entry.reason)


async def lived(ledger: Ledger, clock: Clock) -> tuple[list[Transition], list[Transition]]:
    """Those of berlin and of its pods, among others."""
    start = ledger.revision
    berlin, paris = await Member.join(ledger), await Member.join(ledger, "paris")
    for state in (ClusterState.SYNCING, ClusterState.LIVE, ClusterState.STALE, ClusterState.LIVE):
        clock.now += 1
        await ledger.set_cluster_state(BERLIN, state, f"now {state}")
        await berlin.push(put("web"))
        await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE if state is ClusterState.LIVE else TypeState.STALE)
        await ledger.set_type_state(BERLIN, DEPLOYMENTS, TypeState.DENIED, "forbidden")
        await ledger.set_cluster_state(PARIS, state)
        await paris.push(put("web"))
    entries = ledger.read(start, 1000)
    own = [each for each in entries if isinstance(each, ClusterEntry) and each.cluster_id == BERLIN]
    pods = [each for each in entries if isinstance(each, TypeEntry) and each.resource_type == PODS]
    return list(map(noted, own)), [noted(each) for each in pods if each.cluster_id == BERLIN]


async def test_all_states_are_told_in_order(ledger: Ledger, clock: Clock) -> None:
    own, pods = await lived(ledger, clock)
    assert [each.state for each in own] == ["JOINING", "SYNCING", "LIVE", "STALE", "LIVE"]
    assert list(ledger.transitions(BERLIN)) == own
    assert list(ledger.transitions(BERLIN, TYPE)) == pods
    assert [each.state for each in pods] == ["SYNCING", "STALE", "LIVE", "STALE", "LIVE"]
    (denied,) = ledger.transitions(BERLIN, DEPLOYMENTS.group_resource)
    assert (denied.state, denied.reason) == ("DENIED", "forbidden")
    assert list(ledger.transitions(PARIS, DEPLOYMENTS.group_resource)) == []
    assert list(ledger.transitions(ClusterID("rome"))) == []
    assert list(ledger.transitions(ClusterID("berl"))) == [], "which begins like another"


async def test_other_labels_are_no_other_state(ledger: Ledger) -> None:
    await Member.join(ledger)
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE)
    before = list(ledger.transitions(BERLIN))
    await ledger.open_session(ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-2", labels={"env": "prod"}))
    assert ledger.clusters()[BERLIN].labels == {"env": "prod"}
    assert list(ledger.transitions(BERLIN)) == before
    await ledger.compact(ledger.revision)
    assert list(ledger.transitions(BERLIN)) == before[-1:], "the entry of the labels does not stand for the state"


async def test_compaction_keeps_the_state_of_then(ledger: Ledger, clock: Clock) -> None:
    own, pods = await lived(ledger, clock)
    for compacted in range(ledger.oldest_revision, ledger.revision + 1):
        await ledger.compact(compacted)
        for resource, all_ in ((None, own), (TYPE, pods)):
            before = [each for each in all_ if each.revision <= compacted][-1:]
            after = [each for each in all_ if each.revision > compacted]
            assert list(ledger.transitions(BERLIN, resource)) == before + after


async def test_when_history_begins(ledger: Ledger, clock: Clock) -> None:
    assert ledger.oldest_time_ms == 0
    await lived(ledger, clock)
    start = ledger.oldest_revision
    for entry in ledger.read(start, 1000):
        await ledger.compact(entry.revision)
        assert ledger.oldest_time_ms == entry.time_ms
    await ledger.compact(ledger.oldest_revision)
    assert ledger.oldest_time_ms == entry.time_ms


async def test_the_newest_entry_of_a_key(ledger: Ledger) -> None:
    berlin, entries = await a_life(ledger)
    assert ledger.newest(web(berlin)) == entries[-1].revision
    assert ledger.newest(web(berlin)._replace(name="never")) == 0
    await berlin.push(delete("web"))
    assert ledger.newest(web(berlin)) == ledger.revision
    await ledger.compact(ledger.revision)
    assert ledger.newest(web(berlin)) == 0


async def test_on_disk_they_outlive_the_process(tmp_path: Path, clock: Clock) -> None:
    ledger = LmdbLedger.open(tmp_path, clock=clock)
    own, pods = await lived(ledger, clock)
    await ledger.close()
    ledger = LmdbLedger.open(tmp_path, clock=clock)
    assert list(ledger.transitions(BERLIN)) == own
    assert list(ledger.transitions(BERLIN, TYPE)) == pods
    await ledger.close()


async def test_after_a_restart_nothing_better_is_known_than_before_the_aggregator_went(
    tmp_path: Path, clock: Clock
) -> None:
    """All members are told in turn; what is known of each ends with the last entry before that."""
    ledger = LmdbLedger.open(tmp_path, clock=clock)
    await lived(ledger, clock)
    last_ms = int(clock.now * 1000)
    await ledger.close()
    clock.now += 3600
    ledger = LmdbLedger.open(tmp_path, clock=clock)
    for cluster in (BERLIN, PARIS):
        clock.now += 1
        await ledger.set_cluster_state(cluster, ClusterState.STALE, RESTARTED)
        newest = ledger.transitions(cluster)[-1]
        assert (newest.state, newest.since_ms) == ("STALE", last_ms)
        assert ledger.clusters()[cluster].since_ms == int(clock.now * 1000)
    await ledger.set_cluster_state(PARIS, ClusterState.RECOVERING)
    assert ledger.transitions(PARIS)[-1].since_ms == int(clock.now * 1000)
    await ledger.close()

"""DigestTable: what commits and what loading make of it is what the ledger has."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import LOST, Delete, Put
from federator.aggregator.merge.digest_table import DigestTable
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import LedgerCorrupt
from federator.wire.digest import Digest, HashedState, digest_of, key_hash
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, delete, put

BERLIN, PARIS = ClusterID("berlin"), ClusterID("paris")
PODS_GR, DEPLOYMENTS_GR = PODS.group_resource, DEPLOYMENTS.group_resource


def loaded(ledger: Ledger) -> DigestTable:
    table = DigestTable()
    for entry in ledger.present():
        table.take_in(entry)
    table.loaded()
    return table


def counted(ledger: Ledger, cluster_id: ClusterID = BERLIN) -> Digest:
    """The digest of the pods of a cluster, added up from the ledger's table of present objects."""
    return digest_of(
        HashedState(key_hash(key.namespace, key.name), key.fingerprint)
        for key in ledger.keys(cluster_id, PODS_GR)
        if key.fingerprint != LOST
    )


async def test_loaded_and_followed_are_the_same_and_types_and_clusters_are_kept_apart() -> None:
    ledger = MemoryLedger()
    followed = DigestTable()
    ledger.on_commit(followed.apply)
    berlin, paris = await Member.join(ledger), await Member.join(ledger, "paris")
    await berlin.push(put("web"), put("db"), put("web"), delete("db"))
    await berlin.push(put("web"), of=DEPLOYMENTS)
    await paris.push(put("web"), put("db"), put("db", uid="uid-2"))
    await berlin.push(put("api"))
    for cluster_id, resource in ((BERLIN, PODS_GR), (PARIS, PODS_GR), (BERLIN, DEPLOYMENTS_GR)):
        assert loaded(ledger).of(cluster_id, resource) == followed.of(cluster_id, resource)
    assert followed.of(BERLIN, PODS_GR) == counted(ledger)
    assert followed.of(PARIS, PODS_GR) == counted(ledger, PARIS)
    assert followed.of(BERLIN, DEPLOYMENTS_GR).count == 1
    assert followed.statistics() == loaded(ledger).statistics() == {"digests": 3}


async def test_a_type_goes_with_its_last_object_and_so_does_a_cluster_that_is_removed() -> None:
    ledger = MemoryLedger()
    table = DigestTable()
    ledger.on_commit(table.apply)
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), put("db"))
    await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED)
    assert table.of(BERLIN, PODS_GR) == counted(ledger) != Digest(), "its objects are still there"
    await berlin.push(delete("web"), delete("db"))
    assert table.of(BERLIN, PODS_GR) == Digest()
    assert table.statistics() == {"digests": 0}


@pytest.mark.hypothesis
async def test_one_object_for_another_is_found_each_time() -> None:
    """The number of objects stays the same; only the sums tell. Tried as often as the profile says, times ten."""
    trials = 10 * settings().max_examples
    ledger = MemoryLedger()
    table = DigestTable()
    ledger.on_commit(table.apply)
    berlin = await Member.join(ledger)
    told = [Put("shop", f"web-{number}", f"uid-{number}", "10", number + 1, b"") for number in range(50)]
    await berlin.push(*told)
    whole = table.of(BERLIN, PODS_GR)
    draw = random.Random(1)
    found = 0
    for trial in range(trials):
        lost = draw.choice(told)
        if trial % 2:  # another object of the same content
            await berlin.push(delete(lost.name), put(f"ghost-{trial}", uid=lost.uid, content_hash=lost.content_hash))
            mended: list[Put | Delete] = [delete(f"ghost-{trial}"), lost]
        else:  # the same object in another state
            await berlin.push(put(lost.name, uid=lost.uid, content_hash=draw.getrandbits(64)))
            mended = [lost]
        differing = table.of(BERLIN, PODS_GR)
        assert differing.count == whole.count
        found += differing.sum != whole.sum
        await berlin.push(*mended)
        assert table.of(BERLIN, PODS_GR) == whole
        if trial % 100 == 99:
            await ledger.compact(ledger.revision)
    assert found == trials


@pytest.mark.parametrize("when", ["before loading", "while serving"])
async def test_an_object_whose_state_is_lost_is_in_no_digest_until_it_is_back(tmp_path: Path, when: str) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web", content_hash=7), put("db", content_hash=8), put("api", content_hash=9))

    def damage() -> None:
        with ledger._tables.begin(write=True) as transaction:
            key = codec.encode_revision(commit.revision)
            transaction.put(key, b"nonsense", db=ledger._tables.handle("log"))

    if when == "before loading":
        damage()
    table = loaded(ledger)
    ledger.on_commit(table.apply)
    if when == "while serving":
        damage()
        with pytest.raises(LedgerCorrupt):
            ledger.entry(commit.revision)
    await ledger.mend()
    assert table.of(BERLIN, PODS_GR) == counted(ledger)
    assert table.of(BERLIN, PODS_GR).count == 2
    await berlin.push(put("api", content_hash=9))
    assert table.of(BERLIN, PODS_GR) == counted(ledger)
    assert table.of(BERLIN, PODS_GR).count == 3
    await ledger.close()


async def test_one_more_lost_object_of_a_type_that_has_lost_some_is_told(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web"), put("db"), put("api"))
    table = loaded(ledger)
    ledger.on_commit(table.apply)
    for revision in (commit.revision, commit.revision - 1):
        with ledger._tables.begin(write=True) as transaction:
            transaction.put(codec.encode_revision(revision), b"nonsense", db=ledger._tables.handle("log"))
        with pytest.raises(LedgerCorrupt):
            ledger.entry(revision)
        await ledger.mend()
        assert table.of(BERLIN, PODS_GR) == counted(ledger)
    assert table.of(BERLIN, PODS_GR).count == 1
    await ledger.close()


async def test_a_lost_object_that_is_deleted_changes_no_digest(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web"), put("db"))
    with ledger._tables.begin(write=True) as transaction:
        key = codec.encode_revision(commit.revision)
        transaction.put(key, b"nonsense", db=ledger._tables.handle("log"))
    table = loaded(ledger)
    ledger.on_commit(table.apply)
    await ledger.mend()
    await berlin.push(delete("db"))
    assert table.of(BERLIN, PODS_GR) == counted(ledger)
    assert table.of(BERLIN, PODS_GR).count == 1
    await ledger.close()


def test_a_digest_that_was_wrong_is_replaced() -> None:
    table = DigestTable()
    table.correct(BERLIN, PODS_GR, Digest(2, 7))
    assert table.of(BERLIN, PODS_GR) == Digest(2, 7)
    table.correct(BERLIN, PODS_GR, Digest())
    assert table.statistics() == {"digests": 0}

"""What a batch commits, given what is stored."""

from __future__ import annotations

from functools import partial

import pytest

from federator.aggregator.ledger.ledger import KEYS_PER_SLICE, Ledger
from federator.aggregator.ledger.records import MAX_CHANGES, EntryType, TypeEntry
from federator.api.cluster import ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import ResourceType
from federator.errors import InvalidInput, UnknownCluster
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, changes, delete, objects, put

ADDED, MODIFIED, DELETED = EntryType.ADDED, EntryType.MODIFIED, EntryType.DELETED


async def test_an_object_is_added_modified_and_deleted(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    (added,) = objects((await berlin.push(put("web", resource_version="10", content_hash=7, body=b"one"))).entries)
    (modified,) = objects((await berlin.push(put("web", resource_version="11", content_hash=8, body=b"two"))).entries)
    (deleted,) = objects((await berlin.push(delete("web"))).entries)

    assert (added.type, added.previous_revision, added.body) == (ADDED, 0, b"one")
    assert (modified.type, modified.previous_revision, modified.body) == (MODIFIED, added.revision, b"two")
    assert (deleted.type, deleted.previous_revision, deleted.body) == (DELETED, modified.revision, b"")
    assert (deleted.uid, deleted.resource_version, deleted.content_hash) == ("uid-1", "11", 8)
    assert deleted.key == ObjectKey(berlin.record.cluster_id, "", "pods", "shop", "web")
    assert deleted.api_version == "v1"
    assert not list(ledger.present())


async def test_the_state_before_a_deletion_can_be_read(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", body=b"last"))
    (deleted,) = objects((await berlin.push(delete("web"))).entries)
    last = ledger.entry(deleted.previous_revision)
    assert last is not None
    assert last.body == b"last"


async def test_equal_content_commits_nothing(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", content_hash=7))
    before = ledger.revision
    commit = await berlin.push(put("web", content_hash=7, resource_version="99"))
    assert commit.entries == ()
    assert commit.revision == ledger.revision == before


async def test_equal_content_in_another_version_of_the_type_is_a_change(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", content_hash=7), of=DEPLOYMENTS)
    beta = ResourceType(group="apps", version="v1beta1", resource="deployments", kind="Deployment", namespaced=True)
    (changed,) = (await berlin.push(put("web", content_hash=7), of=beta)).entries
    assert objects([changed])[0].api_version == "apps/v1beta1"


async def test_another_uid_is_a_deletion_and_an_addition(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    (old,) = objects((await berlin.push(put("web", uid="uid-1", content_hash=7))).entries)
    commit = await berlin.push(put("web", uid="uid-2", content_hash=7))

    deleted, added = objects(commit.entries)
    assert (deleted.type, deleted.uid, deleted.previous_revision) == (DELETED, "uid-1", old.revision)
    assert (added.type, added.uid, added.previous_revision) == (ADDED, "uid-2", 0)
    assert added.revision == deleted.revision + 1
    assert [entry.uid for entry in ledger.present()] == ["uid-2"]


async def test_deleting_the_unknown_commits_nothing(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push()
    assert (await berlin.push(delete("nobody"))).entries == ()


async def test_changes_of_one_object_in_one_batch_follow_each_other(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web"), put("web"), delete("web"), delete("web"), put("web", uid="uid-2"))
    assert changes(commit) == [(ADDED, "web"), (MODIFIED, "web"), (DELETED, "web"), (ADDED, "web")]
    first, second, third, fourth = objects(commit.entries)
    assert second.previous_revision == first.revision
    assert third.previous_revision == second.revision
    assert fourth.previous_revision == 0
    assert [entry.revision for entry in ledger.present()] == [fourth.revision]


async def test_a_listed_item_older_than_what_is_stored_is_skipped(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version="100"))
    assert changes(await berlin.push(put("web", resource_version="99"), skips_older=True)) == []
    assert changes(await berlin.push(put("web", resource_version="101"), skips_older=True)) == [(MODIFIED, "web")]


@pytest.mark.parametrize(
    ("stored", "listed_version", "listed", "is_taken"),
    [
        ("100", "99", "98", False),  # a server that lags was listed: it has not seen 100 yet
        ("100", "100", "98", True),
        ("100", "120", "98", True),
        ("100", "odd", "98", True),
        ("100", "99", "99", False),
    ],
)
async def test_an_older_item_of_a_listing_that_should_have_what_is_stored_proves_a_restored_cluster(
    ledger: Ledger, stored: str, listed_version: str, listed: str, *, is_taken: bool
) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version=stored))
    item = put("web", resource_version=listed)
    commit = await berlin.push(item, skips_older=True, listed_version=listed_version)
    assert changes(commit) == ([(MODIFIED, "web")] if is_taken else [])
    assert commit.has_gone_back is is_taken


async def test_a_newer_item_or_another_object_of_a_listing_proves_nothing(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version="100"))
    for item in (put("web", resource_version="101"), put("web", resource_version="50", uid="uid-2")):
        commit = await berlin.push(item, skips_older=True, listed_version="120")
        assert changes(commit)
        assert not commit.has_gone_back


async def test_a_listed_item_that_cannot_be_compared_or_is_another_object_is_taken(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version="100"), put("db", resource_version="100"))
    assert changes(await berlin.push(put("web", resource_version="odd"), skips_older=True)) == [(MODIFIED, "web")]
    listed = put("db", resource_version="99", uid="uid-2")
    assert changes(await berlin.push(listed, skips_older=True)) == [(DELETED, "db"), (ADDED, "db")]


async def test_a_replayed_change_of_what_was_deleted_since_is_skipped(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version="100"), put("db", resource_version="100"))
    await berlin.push(delete("web"), low_water="120")
    for version, is_taken in (("110", False), ("120", False), ("121", True)):
        commit = await berlin.push(put("web", resource_version=version), skips_older=True, is_replayed=True)
        assert changes(commit) == ([(ADDED, "web")] if is_taken else [])
    assert changes(await berlin.push(put("db", resource_version="110"), is_replayed=True)) == [(MODIFIED, "db")]
    assert changes(await berlin.push(put("new", resource_version="110"))) == [(ADDED, "new")], "only what is replayed"


async def test_a_change_outside_a_listing_is_taken_whatever_its_resource_version(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", resource_version="100"))
    assert changes(await berlin.push(put("web", resource_version="99"))) == [(MODIFIED, "web")]


async def test_the_same_name_in_another_cluster_namespace_or_type_is_another_object(ledger: Ledger) -> None:
    berlin, paris = await Member.join(ledger, "berlin"), await Member.join(ledger, "paris")
    await berlin.push(put("web"))
    assert changes(await berlin.push(put("web", namespace="other"))) == [(ADDED, "web")]
    assert changes(await berlin.push(put("web", namespace=""))) == [(ADDED, "web")]
    assert changes(await berlin.push(put("web"), of=DEPLOYMENTS)) == [(ADDED, "web")]
    assert changes(await paris.push(put("web"))) == [(ADDED, "web")]
    assert len(list(ledger.present())) == 5


async def test_keys_are_those_of_one_type_in_one_cluster(ledger: Ledger) -> None:
    berlin, paris = await Member.join(ledger, "berlin"), await Member.join(ledger, "paris")
    await berlin.push(
        put("web", resource_version="12"), put("node-1", namespace="", resource_version="13"), put("gone")
    )
    await berlin.push(delete("gone"))
    await berlin.push(put("other-type"), of=DEPLOYMENTS)
    await paris.push(put("other-cluster"))

    keys = sorted(ledger.keys(berlin.record.cluster_id, PODS.group_resource), key=lambda key: key.name)
    entries = [ledger.entry(key.revision) for key in keys]
    assert [(entry.key.namespace, entry.key.name, entry.resource_version) for entry in entries if entry] == [
        ("", "node-1", "13"),
        ("shop", "web", "12"),
    ]
    assert list(ledger.keys(paris.record.cluster_id, DEPLOYMENTS.group_resource)) == []


@pytest.mark.parametrize("namespace", ["shop", "n" * 300, "", "nul\0inside"])
async def test_names_longer_than_kubernetes_allows_are_kept_apart(ledger: Ledger, namespace: str) -> None:
    berlin = await Member.join(ledger)
    names = ["x" * 700, "x" * 699 + "y", "short", "ü" * 250, "b"]
    await berlin.push(*(put(name, namespace=namespace, uid=name[-1]) for name in names))
    assert {entry.key.name for entry in ledger.present()} == set(names)
    keys = ledger.keys(berlin.record.cluster_id, PODS.group_resource)
    assert {(key.namespace, key.name) for key in keys} == {(namespace, name) for name in names}
    await berlin.push(*(delete(name, namespace=namespace) for name in names))
    assert list(ledger.present()) == []


@pytest.mark.parametrize("number", [0, 1, KEYS_PER_SLICE, KEYS_PER_SLICE + 1, 2 * KEYS_PER_SLICE])
async def test_keys_in_slices_are_the_same_keys(ledger: Ledger, number: int) -> None:
    berlin, paris = await Member.join(ledger, "berlin"), await Member.join(ledger, "paris")
    await paris.push(put("other-cluster"))
    await berlin.push(*(put(f"{each:0498}") for each in range(number)))  # as long as a key may be
    await berlin.push(put("other-type"), of=DEPLOYMENTS)
    slices = list(ledger.key_slices(berlin.record.cluster_id, PODS.group_resource))
    assert [key for each in slices for key in each] == list(ledger.keys(berlin.record.cluster_id, PODS.group_resource))
    assert sum(map(len, slices)) == number
    assert all(len(each) <= KEYS_PER_SLICE for each in slices)


async def test_what_stays_is_in_one_slice_whatever_changes_between_two(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    names = [f"web-{number:04}" for number in range(2 * KEYS_PER_SLICE)]
    for half in (names[:KEYS_PER_SLICE], names[KEYS_PER_SLICE:]):
        await berlin.push(*map(put, half))
    slices = ledger.key_slices(berlin.record.cluster_id, PODS.group_resource)
    found = list(next(slices))
    await berlin.push(delete(found[-1].name), delete(names[-1]), put("web-0000-more"))
    found += [key for each in slices for key in each]
    seen = [key.name for key in found if key.name in names[:-1]]
    assert sorted(seen) == names[:-1]


async def test_a_key_is_found_by_itself(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), put("gone"), put("x" * 700, namespace=""))
    await berlin.push(delete("gone"))
    keys = list(ledger.keys(berlin.record.cluster_id, PODS.group_resource))
    of_pods = partial(ObjectKey, berlin.record.cluster_id, "", "pods")
    assert {ledger.stored(of_pods(key.namespace, key.name)) for key in keys} == set(keys)
    assert ledger.stored(of_pods("shop", "gone")) is None
    assert ledger.stored(ObjectKey(berlin.record.cluster_id, "apps", "deployments", "shop", "web")) is None


async def test_an_unknown_type_is_made_known_in_the_same_commit(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    introduced, added = (await berlin.push(put("web"))).entries
    assert isinstance(introduced, TypeEntry)
    assert (introduced.resource_type, introduced.state) == (PODS, TypeState.SYNCING)
    assert objects([added])
    assert [record.type for record in ledger.types(berlin.record.cluster_id)] == [PODS]


async def test_a_cluster_that_never_opened_a_session_is_refused(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    stranger = Member(ledger, berlin.record.__class__("oslo", "uid-of-oslo"))  # type: ignore[arg-type]
    with pytest.raises(UnknownCluster) as caught:
        await stranger.push(put("web"))
    assert caught.value.known == ("berlin",)


async def test_malformed_batches_are_refused_whole(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    before = ledger.revision
    with pytest.raises(InvalidInput, match="changes"):
        await berlin.push(*(put(f"web-{number}") for number in range(MAX_CHANGES + 1)))
    with pytest.raises(InvalidInput, match="term"):
        await berlin.push(put("web"), term=berlin.record.term + 1)
    for group, resource in (("g" * 254, "pods"), ("", "p" * 64), ("", ""), ("a\0b", "pods")):
        odd = ResourceType(group=group, version="v1", resource=resource, kind="Pod", namespaced=True)
        with pytest.raises(InvalidInput, match="type"):
            await berlin.push(put("web"), of=odd)
    assert ledger.revision == before
    assert list(ledger.present()) == []


async def test_low_water_is_kept_and_told_once(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web"), low_water="120")
    assert commit.low_water == ((berlin.record.cluster_id, PODS.group_resource, "120"),)
    assert (await berlin.push(low_water="120")).low_water == ()
    assert (await berlin.push()).low_water == ()
    (record,) = ledger.types(berlin.record.cluster_id)
    assert record.low_water == "120"


async def test_a_generation_is_kept_with_the_type(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), generation=2)
    await berlin.push(generation=3, low_water="120")
    await berlin.push(put("web"))
    await ledger.set_type_state(berlin.record.cluster_id, PODS, TypeState.LIVE)
    (record,) = ledger.types(berlin.record.cluster_id)
    assert (record.generation, record.low_water, record.state) == (3, "120", TypeState.LIVE)


async def test_a_cluster_that_comes_back_after_its_removal_starts_with_the_first_generation(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(generation=2)
    await ledger.set_type_state(berlin.record.cluster_id, PODS, TypeState.NOT_COLLECTED)
    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.REMOVED)
    await Member.join(ledger)
    (record,) = ledger.types(berlin.record.cluster_id)
    assert record.generation == 0

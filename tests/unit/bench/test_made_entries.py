from __future__ import annotations

from collections import Counter

from federator.aggregator.ledger.records import EntryType
from tests.bench.corpus import WEIGHTS
from tests.bench.made_entries import APP, TYPES, VERSION, MadeClusters

CLUSTERS, OBJECTS = 3, 3000


def test_every_object_has_a_key_and_a_uid_of_its_own() -> None:
    made = MadeClusters(CLUSTERS, OBJECTS)
    entries = list(made.present())
    assert len(entries) == len(made) == len({entry.key for entry in entries}) == len({entry.uid for entry in entries})
    assert [entry.revision for entry in entries] == list(range(made.revision - len(made) + 1, made.revision + 1))
    assert Counter(entry.key.group_resource for entry in entries) == {
        TYPES[resource]: OBJECTS * weight // 100 for resource, weight in WEIGHTS.items()
    }


def test_owners_and_nodes_are_objects_of_the_same_cluster() -> None:
    entries = list(MadeClusters(CLUSTERS, OBJECTS).present())
    uids = {(entry.key.cluster_id, entry.uid) for entry in entries}
    nodes = {(entry.key.cluster_id, entry.key.name) for entry in entries if entry.key.resource == "nodes"}
    owned = [entry for entry in entries if entry.indexed.owner_uids]
    assert len(owned) > len(entries) // 2
    for entry in owned:
        assert {(entry.key.cluster_id, uid) for uid in entry.indexed.owner_uids} <= uids
    assert {(entry.key.cluster_id, entry.indexed.node_name) for entry in entries if entry.indexed.node_name} <= nodes


def test_an_entry_is_the_same_each_time_and_another_one_after_a_change() -> None:
    (cluster, *_) = MadeClusters(CLUSTERS, OBJECTS).clusters
    first, again = cluster.entry("pods", 7, 100), cluster.entry("pods", 7, 100)
    assert first == again
    assert first.type is EntryType.ADDED
    changed = cluster.entry("pods", 7, 201, previous=100)
    assert changed.type is EntryType.MODIFIED
    assert (changed.key, changed.uid, changed.previous_revision) == (first.key, first.uid, 100)
    assert changed.indexed.labels[APP] == first.indexed.labels[APP]
    assert changed.indexed.labels[VERSION] != first.indexed.labels[VERSION]

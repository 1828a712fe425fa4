"""The merged Indexer against a brute-force reading of the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Delete, ObjectEntry, Put
from federator.aggregator.merge import merged_indexer
from federator.aggregator.merge.axis import Axis, AxisKind
from federator.aggregator.merge.merged_indexer import LAST, MergedIndexer
from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath, read_field
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import LedgerCorrupt
from federator.wire.body import decode_body
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, delete, put, raw_put

TYPES = {"pods": PODS, "nodes": NODES, "deployments": DEPLOYMENTS}
CLUSTERS = ("a", "b", "c")


class _Plain:
    """An object as a selection sees it, decoded whole."""

    def __init__(self, entry: ObjectEntry) -> None:
        self.key = entry.key
        self._decoded: Any = msgspec.json.decode(decode_body(entry.body))
        self.labels: dict[str, str] = self._decoded["metadata"].get("labels") or {}
        self.uid = entry.uid
        self.owner_uids = [owner["uid"] for owner in self._decoded["metadata"].get("ownerReferences") or ()]

    def field(self, path: FieldPath) -> str | None:
        return read_field(self._decoded, path)


def selected(indexer: MergedIndexer, selection: Selection) -> list[ObjectKey]:
    """Keys of a selection, in the order in which the Indexer gives them."""
    return [
        ObjectKey(references.cluster_id, *references.group_resource, reference.namespace, reference.name)
        for references in indexer.references(indexer.select(selection))
        for reference in references.objects
    ]


def brute_force(ledger: MemoryLedger, selection: Selection) -> list[ObjectKey]:
    keys = [entry.key for entry in ledger.present() if selection.matches(_Plain(entry))]
    return sorted(keys, key=lambda key: (key.group_resource, key.cluster_id, key.namespace, key.name))


_labels = st.dictionaries(st.sampled_from(["app", "tier", "n"]), st.sampled_from(["web", "db", "", "1", "12"]))
_names = st.sampled_from(["x", "y", "z-1", "z.1"])
_namespaces = st.sampled_from(["shop", "shop-2", "shop.x"])
_puts = st.builds(
    put,
    _names,
    namespace=_namespaces,
    uid=st.sampled_from(["u1", "u2"]),
    labels=_labels,
    node=st.sampled_from(["", "n1", "n2"]),
    owner=st.sampled_from(["", "o1", "o2"]),
    owner_kind=st.sampled_from(["", "Job", "ReplicaSet"]),
    created=st.integers(0, 3),
    status=st.fixed_dictionaries({"phase": st.sampled_from(["Running", "Failed"])}),
)
_deletes = st.builds(lambda name, namespace: delete(name, namespace=namespace), _names, _namespaces)
commits = st.lists(
    st.tuples(st.sampled_from(CLUSTERS), st.sampled_from(sorted(TYPES)), st.lists(_puts | _deletes, max_size=6)),
    max_size=12,
)
selections = st.builds(
    lambda resources, clusters, namespace, name, labels, fields: Selection(
        frozenset(TYPES[resource].group_resource for resource in resources),
        ClusterSelector.parse(clusters),
        namespace,
        name,
        LabelSelector.parse(labels),
        FieldSelector.parse(fields),
    ),
    st.sets(st.sampled_from(sorted(TYPES)), min_size=1),
    st.sampled_from([[], [], ["a"], ["!a"], ["[ab]"], ["*,!c"]]),
    st.just("") | _namespaces,
    st.sampled_from(["", "", "x", "z-1", "nowhere"]),
    st.sampled_from(
        ["", "", "app=web", "app!=web", "app", "!app", "app in (web,db)", "tier notin (web,)", "n>1", "n<12", "n>0,app",
         "app=web,tier!=db", "missing", "!missing", "missing in (a)", "missing notin (a)", "missing>1", "app=nope"]
    ),
    st.sampled_from(
        ["", "", "metadata.name=x", "metadata.name!=x", "metadata.namespace=shop", "metadata.namespace!=shop",
         "spec.nodeName=n1", "spec.nodeName!=n1", "spec.nodeName=", "spec.nodeName!=",
         "spec.nodeName!=n1,metadata.name=x"]
    ),
)  # fmt: skip


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(commits, st.lists(selections, min_size=1, max_size=4))
async def test_a_selection_by_bitmaps_equals_brute_force(
    history: list[tuple[str, str, list[Put | Delete]]], asked: list[Selection]
) -> None:
    federation = Federation()
    for cluster in CLUSTERS:
        await federation.join(cluster)
    for cluster, resource, changes in history:
        await federation.commit(cluster, *changes, type=TYPES[resource])
    indexer = federation.view.indexer
    loaded = MergedIndexer()
    loaded.load(federation.ledger)
    for selection in asked:
        expected = brute_force(federation.ledger, selection)
        assert selected(indexer, selection) == expected
        assert selected(loaded, selection) == expected
        counted = indexer.count(indexer.select(selection))
        assert sum(counted.values()) == len(expected)
        assert set(counted) == {key.cluster_id for key in expected}
    assert _index_entries(indexer) == _index_entries(loaded)
    assert indexer.statistics()["searched"] == 0


def _index_entries(indexer: MergedIndexer) -> dict[str, int]:
    return {name: n for name, n in indexer.statistics().items() if name.startswith("index_entries")}


def axis_value(entry: ObjectEntry, axis: Axis) -> str | int | None:
    """What an object has on an axis, looked up in its entry; None for nothing."""
    match axis.kind:
        case AxisKind.CLUSTER:
            return entry.key.cluster_id
        case AxisKind.TYPE:
            return str(entry.key.group_resource)
        case AxisKind.NAMESPACE:
            return entry.key.namespace or None
        case AxisKind.NAME:
            return entry.key.name
        case AxisKind.NODE:
            return entry.indexed.node_name or None
        case AxisKind.OWNER_KIND:
            return entry.indexed.owner_kind or None
        case AxisKind.CREATED:
            return entry.indexed.created or None
        case _:
            return entry.indexed.labels.get(axis.name)


AXES = [*(Axis(kind) for kind in AxisKind if kind not in {AxisKind.LABEL, AxisKind.FIELD}), Axis(AxisKind.LABEL, "app")]


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(commits, st.booleans())
async def test_columns_ranks_and_lookups_equal_brute_force(
    history: list[tuple[str, str, list[Put | Delete]]], is_loaded: bool
) -> None:
    federation = Federation()
    for cluster in CLUSTERS:
        await federation.join(cluster)
    indexer = federation.view.indexer
    for cluster, resource, changes in history:
        await federation.commit(cluster, *changes, type=TYPES[resource])
        indexer.ranks(Axis(AxisKind.NAME))  # settled at times, so that names come and go in its order
    if is_loaded:
        indexer = MergedIndexer()
        indexer.load(federation.ledger)
    present = list(federation.ledger.present())
    rows: dict[int, ObjectEntry] = {}
    for entry in present:
        row = indexer.find(entry.key)
        assert row is not None
        rows[row] = entry
        assert indexer.key(row) == entry.key
        assert row in indexer.with_uid(entry.uid)
        assert row in indexer.rows_in(entry.key.cluster_id, entry.key.group_resource)
        for uid in entry.indexed.owner_uids:
            assert row in indexer.owned_by(uid)
    for uid in ("u1", "u2", "o1", "o2"):
        assert set(indexer.with_uid(uid)) == {row for row, entry in rows.items() if entry.uid == uid}
        assert set(indexer.owned_by(uid)) == {row for row, entry in rows.items() if uid in entry.indexed.owner_uids}
    numbers = np.array(sorted(rows), np.uint32)
    assert indexer.revisions(numbers).tolist() == [rows[row].revision for row in sorted(rows)]
    for axis in AXES:
        expected = {row: axis_value(entry, axis) for row, entry in rows.items()}
        if axis.kind not in {AxisKind.NAME, AxisKind.CREATED}:
            codes, values, _ = indexer.column(axis)
            assert {row: values[codes[row]] if codes[row] else None for row in rows} == expected
        for descending in (False, True):
            ranks = indexer.ranks(axis, descending=descending)
            assert {row for row in rows if ranks[row] == LAST} == {row for row in rows if expected[row] is None}
            for wanted, is_dense in itertools.product((1, 2, 5), (False, True)):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(merged_indexer, "_DENSE", 1000 if is_dense else 0)
                    patch.setattr(merged_indexer, "_FIRST_LOOK", 1)
                    asked = BitMap(numbers[numbers % 3 != 1])
                    kept = indexer.smallest(axis, asked, wanted, descending=descending).tolist()
                assert kept == sorted(set(kept) & set(asked))
                first = sorted(int(ranks[row]) for row in asked)[:wanted]
                assert set(kept) >= {row for row in asked if first and ranks[row] <= first[-1]}
            there = [row for row in rows if expected[row] is not None]
            for row, other in itertools.pairwise(sorted(there, key=lambda row: int(ranks[row]))):
                pair = (expected[other], expected[row]) if descending else (expected[row], expected[other])
                assert pair[0] <= pair[1]  # type: ignore[operator]  # both of one type
                assert bool(ranks[row] == ranks[other]) is (pair[0] == pair[1])


async def test_the_same_name_in_every_cluster_stays_as_many_objects() -> None:
    federation = Federation()
    for cluster in CLUSTERS:
        await federation.join(cluster)
        await federation.commit(cluster, put("web", uid="same-uid"))
    indexer = federation.view.indexer
    rows = indexer.select(Selection(frozenset({PODS.group_resource}), namespace="shop", name="web"))
    assert indexer.count(rows) == dict.fromkeys(CLUSTERS, 1)
    assert len(indexer) == 3
    await federation.commit("b", delete("web"))
    assert sorted(indexer.count(indexer.select(Selection(frozenset({PODS.group_resource}))))) == ["a", "c"]


async def test_a_fleet_that_left_leaves_no_row_and_no_index_entry() -> None:
    federation = Federation()
    await federation.join("a")
    names = [f"web-{number}" for number in range(40)]
    await federation.commit(
        "a", *(put(name, labels={"app": "web", "i": name}, node="n1", owner="o1") for name in names)
    )
    indexer = federation.view.indexer
    assert len(indexer) == 40
    assert indexer.statistics()["index_entries_label_values"] == 41
    await federation.commit("a", *map(delete, names))
    statistics = indexer.statistics()
    assert len(indexer) == statistics["objects"] == statistics["partitions"] == 0
    assert not any(number for name, number in statistics.items() if name.startswith("index_entries"))
    assert indexer.objects() == {}
    assert not indexer._label_values  # not even for a key whose values are all gone


async def test_row_numbers_are_given_away_again() -> None:
    federation = Federation()
    await federation.join("a")
    for round_ in range(5):
        await federation.commit("a", *(put(f"r{round_}-{number}", labels={"r": str(round_)}) for number in range(10)))
        await federation.commit("a", *(delete(f"r{round_ - 1}-{number}") for number in range(10)))
    indexer = federation.view.indexer
    assert max(indexer.select(Selection(frozenset({PODS.group_resource})))) < 20
    selection = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("r"))
    assert [key.name for key in selected(indexer, selection)] == sorted(f"r4-{number}" for number in range(10))


async def test_owners_are_indexed() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", owner="o1"), put("y", owner="o1"), put("z", owner="o2"))
    indexer = federation.view.indexer
    owned = [r.name for refs in indexer.references(indexer.owned_by("o1")) for r in refs.objects]
    assert owned == ["x", "y"]
    await federation.commit("a", put("x", owner="o2"))
    assert len(indexer.owned_by("o1")) == 1
    assert len(indexer.owned_by("nobody")) == 0


async def test_what_was_selected_does_not_change_afterwards() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", *(put(f"p{number}", labels={"app": "web"}, node="n") for number in range(30)))
    indexer = federation.view.indexer
    answers = [
        indexer.select(Selection(frozenset({PODS.group_resource}), **conditions))
        for conditions in (
            {},
            {"namespace": "shop"},
            {"labels": LabelSelector.parse("app=web")},
            {"fields": FieldSelector.parse("spec.nodeName=n")},
        )
    ]
    answers.append(indexer.owned_by("nobody"))
    for answer in answers:
        answer.clear()
    assert len(indexer.select(Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("app=web")))) == 30
    before = indexer.select(Selection(frozenset({PODS.group_resource})))
    await federation.commit("a", delete("p0"))
    assert len(before) == 30


async def test_bodies_of_any_shape_are_indexed_by_what_can_be_read() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit(
        "a",
        raw_put("string-spec", b'{"metadata":{"labels":{"app":"web"}},"spec":"text"}'),
        raw_put("number-label", b'{"metadata":{"labels":{"app":"web","n":1}}}'),
        raw_put("no-json", b"\x00\x01"),
    )
    indexer = federation.view.indexer
    selection = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("app=web"))
    assert [key.name for key in selected(indexer, selection)] == ["number-label", "string-spec"]
    assert indexer.statistics()["malformed"] == 2
    await federation.commit("a", *map(delete, ["string-spec", "number-label", "no-json", "no-body"]))
    assert len(indexer) == 0


async def test_an_index_is_right_also_where_the_previous_state_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit(
        "a", put("x", labels={"app": "web"}, node="n1", owner="o1"), put("y", labels={"app": "web"})
    )

    def damaged(revision: int) -> None:
        raise LedgerCorrupt("memory", f"entry {revision}")

    monkeypatch.setattr(federation.ledger._present, "state", damaged)
    await federation.commit("a", put("x", labels={"tier": "db"}))
    indexer = federation.view.indexer

    def names(labels: str) -> list[str]:
        asked = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse(labels))
        return [key.name for key in selected(indexer, asked)]

    assert names("app=web") == names("app") == ["y"]
    assert names("tier=db") == ["x"]
    assert not indexer.owned_by("o1")
    await federation.commit("a", delete("x"), delete("y"))
    assert indexer.statistics()["searched"] == 3
    assert not any(n for name, n in indexer.statistics().items() if name.startswith("index_entries"))


async def test_a_name_in_another_namespace_is_another_object() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", namespace="shop"), put("x", namespace="shop-2"))
    pods = frozenset({PODS.group_resource})
    found = selected(federation.view.indexer, Selection(pods, namespace="shop", name="x"))
    assert [str(key) for key in found] == ["a//pods/shop/x"]
    assert len(selected(federation.view.indexer, Selection(pods, name="x"))) == 2
    assert not selected(federation.view.indexer, Selection(pods, namespace="nowhere", name="x"))


async def test_a_namespace_does_not_narrow_what_lives_in_none() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", namespace="shop"), put("x", namespace="other"))
    await federation.commit("a", put("x", namespace=""), put("y", namespace=""), type=NODES)
    both = frozenset({PODS.group_resource, NODES.group_resource})
    for name, expected in (("", ["nodes//x", "nodes//y", "pods/shop/x"]), ("x", ["nodes//x", "pods/shop/x"])):
        found = selected(federation.view.indexer, Selection(both, namespace="shop", name=name))
        assert [str(key) for key in found] == [f"a//{key}" for key in expected]


async def test_a_commit_without_entries_moves_the_revision_and_nothing_else() -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("x"))
    again = await federation.commit("a", put("x"))
    assert not again.entries
    assert federation.view.revision == again.revision == commit.revision


async def test_an_unknown_deletion_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("x"))
    late = await federation.commit("a", delete("x"))
    federation.view.indexer.apply(late)
    assert len(federation.view.indexer) == 0
    federation.view.indexer.apply(commit)
    assert len(federation.view.indexer) == 1


def _objects(federation: Federation) -> Iterator[tuple[ClusterID, GroupResource, int]]:
    for (cluster_id, group_resource), number in federation.view.indexer.objects().items():
        yield cluster_id, group_resource, number


async def test_objects_are_counted_by_cluster_and_type() -> None:
    federation = Federation()
    for cluster, resource_type in (("a", PODS), ("a", NODES), ("b", PODS)):
        await federation.join(cluster, [resource_type])
        names: list[Any] = [put(f"{cluster}{number}") for number in range(3)]
        await federation.commit(cluster, *names, type=resource_type)
    typed: list[tuple[str, ResourceType, int]] = [("a", PODS, 3), ("a", NODES, 3), ("b", PODS, 3)]
    assert sorted(_objects(federation)) == sorted((ClusterID(c), t.group_resource, n) for c, t, n in typed)

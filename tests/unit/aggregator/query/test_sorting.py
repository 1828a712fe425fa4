from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge.merged_indexer import LAST
from federator.aggregator.merge.scope import EVERYTHING
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query import sorting
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.order import Order, parse_order, place_key
from federator.aggregator.query.snapshot import take_snapshot
from federator.aggregator.query.sorting import PlaceReader, sorted_revisions
from federator.api.field_path import parse_field_path
from federator.api.selector import FieldSelector
from federator.errors import LedgerCorrupt, QueryTooCostly
from tests.unit.aggregator.federation import PODS, Federation, put

WEIGHT = "spec.weight"
ALL = Selection(frozenset({PODS.group_resource}))


class IndexedFederation(Federation):
    """A federation with an index of one field."""

    def __init__(self) -> None:
        super().__init__()
        indexer = self.view.indexer
        indexer.fields.add(parse_field_path(WEIGHT))
        for _ in indexer.building_fields():
            pass


async def _filled(weights: Sequence[Any]) -> IndexedFederation:
    federation = IndexedFederation()
    await federation.join("a")
    for number, weight in enumerate(weights):
        spec = {} if weight is None else {"weight": weight}
        await federation.commit("a", put(f"p{number:03}", spec=spec))
    return federation


async def _sorted(
    federation: Federation,
    order: Order,
    revision: int | None = None,
    *,
    budget: Budget | None = None,
    fields: FieldSelector = FieldSelector(),  # noqa: B008 - immutable
    **options: Any,
) -> list[str]:
    view, ledger = federation.view, federation.ledger
    budget = budget or Budget()
    at = view.revision if revision is None else revision
    snapshot = await take_snapshot(view, ledger, ALL, EVERYTHING, at, budget)
    snapshot.unanswered = fields  # as if no index knew them
    revisions = await sorted_revisions(snapshot, order, view.indexer, ledger, view.types, budget, **options)
    names = []
    for each in revisions.tolist():
        entry = ledger.entry(each)
        assert entry is not None
        names.append(entry.key.name)
    return names


BY_WEIGHT = parse_order(f"{WEIGHT}", {WEIGHT})
BY_WEIGHT_DOWN = parse_order(f"{WEIGHT} desc", {WEIGHT})


@pytest.mark.parametrize("is_threaded", [False, True])
async def test_fields_sort_by_what_they_mean(monkeypatch: pytest.MonkeyPatch, is_threaded: bool) -> None:
    if is_threaded:
        monkeypatch.setattr(sorting, "AT_ONCE", 0)
    weights = ["1Gi", None, "900Mi", "1024Mi", 12, "text", "5m", None, "2026-11-29T10:00:00Z"]
    federation = await _filled(weights)
    upwards = ["p006", "p004", "p002", "p000", "p003", "p008", "p005", "p001", "p007"]
    downwards = ["p005", "p008", "p000", "p003", "p002", "p004", "p006", "p001", "p007"]
    assert await _sorted(federation, BY_WEIGHT) == upwards
    assert await _sorted(federation, BY_WEIGHT_DOWN) == downwards
    for most in range(1, 10):
        assert await _sorted(federation, BY_WEIGHT, most=most) == upwards[:most]
        assert await _sorted(federation, BY_WEIGHT_DOWN, most=most) == downwards[:most]


@pytest.mark.parametrize("order", ["", "name desc", "age,name", "namespace desc", "spec.nodeName desc,created"])
async def test_what_is_sorted_in_a_thread_is_sorted_alike(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    federation = IndexedFederation()
    for cluster in ("b", "a"):
        await federation.join(cluster)
        for number in range(30):
            node = f"n{number % 3}" if number % 4 else ""
            change = put(f"p{number * 7 % 30}", namespace=f"s{number % 5}", node=node, created=number % 6)
            await federation.commit(cluster, change)
    terms = parse_order(order)
    for revision in (federation.ledger.revision, federation.ledger.revision - 20):
        monkeypatch.setattr(sorting, "AT_ONCE", 1 << 15)
        expected = await _sorted(federation, terms, revision)
        assert len(expected) >= 40
        monkeypatch.setattr(sorting, "AT_ONCE", 0)
        for most in (0, 1, 7, 100):
            assert await _sorted(federation, terms, revision, most=most) == expected[: most or None]


_weights = st.none() | st.integers(0, 3) | st.sampled_from(["1", "1000m", "1Ki", "x", "y", "2026-11-29T10:00:00Z"])


@given(
    st.lists(_weights, max_size=12),
    st.lists(st.tuples(st.integers(0, 14), _weights), max_size=8),
    st.sampled_from([BY_WEIGHT, BY_WEIGHT_DOWN]),
    st.sampled_from([0, 0, 1, 4]),
)
def test_a_past_is_sorted_as_it_was_when_it_was_the_present(
    weights: list[Any], changes: list[tuple[int, Any]], order: Order, most: int
) -> None:
    async def run() -> None:
        federation = await _filled(weights)
        before = federation.ledger.revision
        expected = await _sorted(federation, order)
        for number, weight in changes:
            await federation.commit("a", put(f"p{number:03}", spec={} if weight is None else {"weight": weight}))
        assert await _sorted(federation, order, before, most=most) == expected[: most or None]

    asyncio.run(run())


_keys = st.lists(st.tuples(*[st.sampled_from([0, 1, 2, 1 << 20, (1 << 32) - 2, LAST])] * 4), min_size=1, max_size=40)


@given(_keys, st.sampled_from([0, 1, 5]))
def test_ranks_of_any_width_are_compared_one_after_the_other(keys: list[tuple[int, ...]], most: int) -> None:
    columns = [np.array(column, np.uint32) for column in zip(*keys, strict=True)]
    unique = [*columns, np.arange(len(keys), dtype=np.uint32)]
    found = sorting._arranged(np.arange(len(keys), dtype=np.uint64), unique, most)
    assert found.tolist() == sorted(range(len(keys)), key=lambda place: (keys[place], place))[: most or None]


async def test_fields_that_nothing_indexes_are_looked_at_one_by_one() -> None:
    federation = await _filled([3, 1, 3, None, 3])
    budget = Budget()
    fields = FieldSelector.parse(f"{WEIGHT}=3")
    order = parse_order("name desc")
    assert await _sorted(federation, order, fields=fields, budget=budget) == ["p004", "p002", "p000"]
    assert budget.scanned == 5
    assert await _sorted(federation, order, fields=fields, most=2) == ["p004", "p002"]
    with pytest.raises(QueryTooCostly):
        await _sorted(federation, order, fields=fields, budget=Budget(QueryLimits(scanned_objects=4)))


async def test_sorting_what_does_not_fit_is_refused() -> None:
    federation = await _filled(range(200))
    with pytest.raises(QueryTooCostly):
        await _sorted(federation, BY_WEIGHT, budget=Budget(QueryLimits(memory_bytes=1000)))


@pytest.mark.parametrize("damaged", [(), (0,), (4,), (2, 3), (0, 1, 2, 3, 4)])
async def test_a_place_is_found_over_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, damaged: Sequence[int]
) -> None:
    federation = await _filled([0, 2, 4, 6, 8])
    view, ledger = federation.view, federation.ledger
    snapshot = await take_snapshot(view, ledger, ALL, EVERYTHING, view.revision, Budget())
    revisions = await sorted_revisions(snapshot, BY_WEIGHT, view.indexer, ledger, view.types, Budget())
    bad = {int(revisions[place]) for place in damaged}
    entry = ledger.entry

    def read(revision: int) -> Any:
        if revision in bad:
            raise LedgerCorrupt("log", "damaged")
        return entry(revision)

    weighed = await _filled(range(-1, 10))
    states = [ObjectState(each, ledger.bodies, view.types) for each in islice(weighed.ledger.present(), 11)]
    monkeypatch.setattr(ledger, "entry", read)
    readable = [place for place in range(5) if place not in damaged]
    for state in states:
        weight = int(state.values(parse_field_path(WEIGHT))[0])
        reader = PlaceReader(ledger, view.types, parse_order(WEIGHT, {WEIGHT})[:1], view.revision)
        place = reader.place(revisions, place_key(state, BY_WEIGHT[:1]))
        for other in readable:
            assert (place > other) == (2 * other < weight)

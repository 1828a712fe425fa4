from __future__ import annotations

import asyncio
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.ledger.records import Entry, ObjectEntry
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.audience import Audiences
from federator.aggregator.serve.question import Question
from federator.api.cluster import ClusterID, ClusterState
from federator.api.resource import GroupResource
from federator.api.selector import ClusterSelector
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, put

_TYPES = [type_.group_resource for type_ in (PODS, NODES, DEPLOYMENTS)]

_selections = st.builds(
    lambda resources, clusters, namespace, name: Selection(
        frozenset(resources), ClusterSelector.parse(clusters), namespace, name
    ),
    st.sets(st.sampled_from(_TYPES), min_size=1),
    st.sampled_from([[], ["a"], ["a", "b"], ["a", "!a"], ["!a"], ["[bc]"], ["*", "!b"]]),
    st.sampled_from(["", "shop", "other"]),
    st.sampled_from(["", "x", "y"]),
)


async def _entries() -> list[Entry]:
    """Of every type, cluster, namespace and name, and of clusters."""
    federation = Federation()
    entries: list[Entry] = []
    for cluster in "abc":
        await federation.join(cluster)
        for type_ in (PODS, NODES, DEPLOYMENTS):
            for namespace in ("shop", "other") if type_.namespaced else ("",):
                changes = (put(name, namespace=namespace) for name in "xy")
                entries += (await federation.commit(cluster, *changes, type=type_)).entries
        entries += (await federation.ledger.set_cluster_state(ClusterID(cluster), ClusterState.STALE)).entries
    return entries


ENTRIES = asyncio.run(_entries())


@given(st.lists(_selections, max_size=8), st.lists(st.sampled_from(ENTRIES), max_size=3))
def test_exactly_those_are_found_whom_an_entry_may_concern(selections: list[Selection], entries: list[Entry]) -> None:
    audiences = Audiences()
    for selection in selections:
        audiences.join(Question(selection), 0)
    found = {audience.question.selection for audience in audiences.concerned_by(entries)}
    assert found == {selection for selection in selections if _is_concerned(selection, entries)}


def _is_concerned(selection: Selection, entries: Iterable[Entry]) -> bool:
    return any(
        selection.matches_key(entry.key) if isinstance(entry, ObjectEntry) else selection.has_cluster(entry.cluster_id)
        for entry in entries
    )


async def test_no_namespace_narrows_what_lives_in_none() -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("n1", namespace=""), type=NODES)
    audiences = Audiences()
    audience = audiences.join(Question(Selection(frozenset({NODES.group_resource}), namespace="shop")), 0)
    assert audiences.concerned_by(commit.entries) == {audience}


@given(st.lists(_selections, min_size=1, max_size=8))
def test_who_left_is_not_asked_and_leaves_nothing(selections: list[Selection]) -> None:
    audiences = Audiences()
    joined = [audiences.join(Question(selection), 0) for selection in selections]
    assert len(audiences) == len(set(selections))
    for audience in joined[1:]:
        audiences.leave(audience)
    assert {audience.question.selection for audience in audiences} == {selections[0]}
    assert {each.question.selection for each in audiences.concerned_by(ENTRIES)} <= {selections[0]}
    audiences.leave(joined[0])
    assert len(audiences) == 0
    assert not audiences.concerned_by(ENTRIES)
    assert not audiences._by_place
    assert not audiences._shapes


def test_equal_questions_are_one_audience() -> None:
    audiences = Audiences()

    def selection() -> Selection:
        return Selection(frozenset({GroupResource("", "pods")}), ClusterSelector.parse(["a"]))

    one, other = (audiences.join(Question(selection()), 5) for _ in range(2))
    assert one is other
    assert (one.members, one.concerned_at) == (2, 5)
    assert audiences.join(Question(selection(), with_previous=True), 5) is not one

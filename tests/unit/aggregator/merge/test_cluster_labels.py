from __future__ import annotations

from collections.abc import Mapping

import pytest

from federator.aggregator.merge.cluster_labels import MAX_KEPT, ClusterLabels
from federator.api.cluster import ClusterID, ClusterState
from federator.api.selector import ClusterSelector, LabelSelector
from tests.unit.aggregator.federation import Federation

A, B, C = ClusterID("a"), ClusterID("b"), ClusterID("c")
PROD, TEST = {"env": "prod"}, {"env": "test"}
EVERY = ClusterSelector()


async def _federation(**labels: Mapping[str, str]) -> Federation:
    federation = Federation()
    for cluster, of_cluster in labels.items():
        await federation.join(cluster, labels=of_cluster)
    return federation


async def test_clusters_have_the_labels_of_their_newest_session() -> None:
    federation = await _federation(a=PROD, b={})
    labels = federation.view.cluster_labels
    assert (labels.now.of(A), labels.now.of(B), labels.now.of(C)) == (PROD, {}, {})
    await federation.join("a", labels=TEST)
    await federation.ledger.set_cluster_state(A, ClusterState.STALE)
    assert labels.now.of(A) == TEST
    assert labels.now.matches(LabelSelector.parse("env!=prod"), A)
    assert labels.now.matches(LabelSelector(), C)


async def test_who_has_resolved_a_question_gets_the_same_answer_after_a_change() -> None:
    federation = await _federation(a=PROD, b=TEST)
    labels = federation.view.cluster_labels
    before = labels.now
    await federation.join("a", labels=TEST)
    assert before.of(A) == PROD
    assert labels.now is not before
    assert labels.now.of(A) == TEST
    assert labels.now.of(B) == TEST


async def test_a_cluster_that_joins_is_known_to_who_resolved_a_question_before() -> None:
    federation = await _federation(a=PROD)
    labels = federation.view.cluster_labels
    first = labels.now
    await federation.join("a", labels=TEST)
    second = labels.now
    await federation.join("b", labels=PROD)
    assert labels.now is second, "nothing that was decided has changed"
    await federation.join("b", labels=TEST)
    assert first.of(B) == second.of(B) == PROD, "the labels it joined with"
    assert labels.now.of(B) == TEST


async def test_a_cluster_that_comes_back_with_other_labels_is_a_change() -> None:
    federation = await _federation(a=PROD)
    labels = federation.view.cluster_labels
    before = labels.now
    await federation.ledger.set_cluster_state(A, ClusterState.REMOVED)
    assert labels.now is before
    await federation.join("a", labels=TEST)
    assert (before.of(A), labels.now.of(A)) == (PROD, TEST)


async def test_labels_are_told_as_of_a_revision() -> None:
    federation = await _federation(a=PROD, b={})
    labels, ledger = federation.view.cluster_labels, federation.ledger
    joined = ledger.revision
    await federation.join("a", labels=TEST)
    changed = ledger.clusters()[A].labels_revision
    assert joined < changed <= ledger.revision
    for revision, expected in [
        (0, PROD),
        (joined, PROD),
        (changed - 1, PROD),
        (changed, TEST),
        (ledger.revision, TEST),
    ]:
        known = labels.at(revision)
        assert known is not None
        assert known.of(A) == expected
    assert labels.changed_since(changed - 1, EVERY) == A
    assert labels.changed_since(changed, EVERY) is None
    assert labels.changed_since(joined, ClusterSelector.parse(["!a"])) is None


async def test_a_restart_forgets_what_labels_were_but_not_that_they_have_changed() -> None:
    federation = await _federation(a=PROD, b={})
    joined = federation.ledger.revision
    await federation.join("a", labels=TEST)
    again = ClusterLabels()
    again.load(federation.ledger)
    assert again.now.of(A) == TEST
    assert again.at(joined) is None
    assert again.changed_since(joined, EVERY) == A
    assert again.at(federation.ledger.revision) is again.now


@pytest.mark.parametrize("beyond", [0, 1])
async def test_so_many_changes_are_remembered(beyond: int) -> None:
    federation = await _federation(a={"n": "0"})
    revision = federation.ledger.revision
    for number in range(1, MAX_KEPT + beyond):
        await federation.join("a", (), labels={"n": str(number)})
    known = federation.view.cluster_labels.at(revision)
    assert (known is None) is bool(beyond)
    if known is not None:
        assert known.of(A) == {"n": "0"}

"""GetChanges over a real connection."""

from __future__ import annotations

import json
from typing import Any

import grpc
import jsonpatch
import pytest

from federator.aggregator.merge.scope import EVERYTHING, Located
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.changes import Changes, ChangesQuestion
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.query.patch import Patches
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.change_answers import ChangeAnswers
from federator.aggregator.serve.messages import selection_from_proto
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.errors import (
    FederatorError,
    InvalidInput,
    QueryTooCostly,
    RevisionExpired,
    UnknownCluster,
    UnknownResourceType,
)
from federator.v1 import inventory_pb2, types_pb2
from federator.v1.inventory_pb2 import GetChangesRequest, GetChangesResponse, Selection
from federator.wire.status import from_rpc_error
from tests.component.aggregator.serve.test_history_answers import Clock
from tests.turns import counted_turns
from tests.unit.aggregator.federation import PODS, Federation, delete, put
from tests.unit.aggregator.serve.recorder import ADDED, DELETED, MODIFIED

EU = ClusterID("eu-1")
PODS_OF_ALL = Selection(resources=["pods"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def federation(clock: Clock) -> Federation:
    """Two clusters with a pod each, a minute ago."""
    federation = Federation(clock=clock)
    for cluster in ("eu-1", "us-1"):
        await federation.join(cluster)
        await federation.commit(cluster, put("old", count=1), put("gone", labels={"app": "web"}))
    clock.now += 60
    return federation


async def asked(federation: Federation, selection: Selection = PODS_OF_ALL, **fields: Any) -> GetChangesResponse:
    """The parts of an answer as one."""
    whole = GetChangesResponse()
    async with federation.serving() as stub:
        async for part in stub.GetChanges(GetChangesRequest(selection=selection, **fields)):
            assert not whole.HasField("summary"), "only the last part has it"
            whole.MergeFrom(part)
    assert whole.HasField("summary")
    return whole


async def refused(federation: Federation, selection: Selection = PODS_OF_ALL, **fields: Any) -> FederatorError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked(federation, selection, **fields)
    return from_rpc_error(raised.value, "here")


def told(answer: GetChangesResponse) -> list[tuple[int, str, str]]:
    return [(change.type, change.object.cluster_id, change.object.name) for change in answer.changes]


async def test_what_became_of_each_object(federation: Federation) -> None:
    after = federation.ledger.revision
    for count in (2, 3, 4):
        await federation.commit("us-1", put("old", count=count))
    await federation.commit("eu-1", put("new"), put("brief"))
    await federation.commit("eu-1", delete("gone"), delete("brief"))
    answer = await asked(federation, after_revision=after, with_patches=True)
    assert told(answer) == [(MODIFIED, "us-1", "old"), (ADDED, "eu-1", "new"), (DELETED, "eu-1", "gone")]
    modified, added, deleted = answer.changes
    assert (modified.versions, added.versions, deleted.versions) == (3, 1, 1)
    assert json.loads(modified.patch) == [{"op": "replace", "path": "/count", "value": 4}]
    assert (added.patch, deleted.patch) == (b"", b"")
    assert after >= modified.previous_revision > 0
    assert added.previous_revision == 0
    assert deleted.previous_revision == deleted.object.revision <= after
    assert json.loads(deleted.object.body)["metadata"]["labels"] == {"app": "web"}
    assert modified.revision == modified.object.revision < added.revision < deleted.revision
    summary = answer.summary
    assert (summary.after_revision, summary.until_revision) == (after, federation.ledger.revision)
    assert (summary.total, summary.complete) == (3, True)
    assert [fresh.cluster_id for fresh in summary.clusters] == ["eu-1", "us-1"]
    assert not summary.gaps
    assert summary.scan.history
    assert summary.scan.objects > 7


async def test_what_came_and_went_is_told_if_asked(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", put("brief", count=1))
    await federation.commit("eu-1", put("brief", count=2))
    await federation.commit("eu-1", delete("brief"))
    assert told(await asked(federation, after_revision=after)) == []
    answer = await asked(federation, after_revision=after, with_transient=True)
    (brief,) = answer.changes
    assert (brief.type, brief.previous_revision, brief.versions) == (DELETED, 0, 3)
    assert json.loads(brief.object.body)["count"] == 2
    assert brief.revision == federation.ledger.revision > brief.object.revision


async def test_the_selection_is_held_against_both_ends(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", put("gone", labels={"app": "db"}), put("old", labels={"app": "web"}))
    await federation.commit("us-1", put("gone", labels={"app": "web", "more": "1"}))
    web = Selection(resources=["pods"], label_selector="app=web")
    answer = await asked(federation, web, after_revision=after, with_patches=True)
    assert told(answer) == [(DELETED, "eu-1", "gone"), (ADDED, "eu-1", "old"), (MODIFIED, "us-1", "gone")]
    assert json.loads(answer.changes[0].object.body)["metadata"]["labels"] == {"app": "web"}
    assert answer.changes[1].previous_revision == 0
    by_field = Selection(resources=["pods"], field_selector="metadata.labels.more=1")
    assert told(await asked(federation, by_field, after_revision=after)) == [(ADDED, "us-1", "gone")]
    elsewhere = Selection(resources=["pods"], clusters=["us-*"], namespace="shop", name="gone")
    assert told(await asked(federation, elsewhere, after_revision=after)) == [(MODIFIED, "us-1", "gone")]
    assert told(await asked(federation, Selection(resources=["nodes"]), after_revision=after)) == []


async def test_made_anew_it_is_the_same_name_with_other_content(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", put("old", uid="another", count=5))
    (change,) = (await asked(federation, after_revision=after, with_patches=True)).changes
    assert (change.type, change.versions, change.object.uid) == (MODIFIED, 2, "another")
    assert json.loads(change.patch) == [{"op": "replace", "path": "/count", "value": 5}]


async def test_what_changed_back_did_not_change(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", put("old", count=2))
    await federation.commit("eu-1", put("old", count=1))
    answer = await asked(federation, after_revision=after)
    assert (told(answer), answer.summary.total) == ([], 0)


async def test_between_two_revisions_and_between_two_times(federation: Federation, clock: Clock) -> None:
    revisions = [federation.ledger.revision]
    for count in range(2, 6):
        clock.now += 60
        await federation.commit("eu-1", put("old", count=count))
        revisions.append(federation.ledger.revision)
    one = await asked(federation, after_revision=revisions[1], until_revision=revisions[3], with_patches=True)
    (change,) = one.changes
    assert change.revision == revisions[3]
    before = {"metadata": {"name": "old", "namespace": "shop", "labels": {}}, "spec": {}, "count": 2}
    assert jsonpatch.apply_patch(before, json.loads(change.patch)) == json.loads(change.object.body)
    now_ms = int(clock.now * 1000)
    times: dict[str, Any] = {"after_time_ms": now_ms - 180_000, "until_time_ms": now_ms - 60_000}
    by_time = await asked(federation, **times, with_patches=True)
    assert (by_time.summary.after_revision, by_time.summary.until_revision) == (revisions[1], revisions[3])
    assert by_time.changes == one.changes
    assert told(await asked(federation, after_time_ms=now_ms)) == []
    assert (await asked(federation, after_time_ms=now_ms - 1)).changes[0].versions == 1


async def test_the_limit_cuts_off_and_the_total_counts(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", *(put(f"new-{number}") for number in range(7)))
    answer = await asked(federation, after_revision=after, limit=2)
    assert [change.object.name for change in answer.changes] == ["new-0", "new-1"]
    assert answer.summary.total == 7


async def test_gaps_of_the_asked_clusters_in_between(federation: Federation, clock: Clock) -> None:
    after = federation.ledger.revision
    for cluster in (EU, ClusterID("us-1")):
        await federation.ledger.set_cluster_state(cluster, ClusterState.STALE, "agent silent")
        clock.now += 5
        await federation.ledger.set_cluster_state(cluster, ClusterState.LIVE)
    await federation.ledger.set_type_state(EU, PODS, TypeState.STALE, "unreachable")
    first, last, lasting = (await asked(federation, after_revision=after)).summary.gaps
    assert [gap.cluster_id for gap in (first, last, lasting)] == ["eu-1", "eu-1", "us-1"]
    assert (first.gap.reason, first.gap.to_ms - first.gap.from_ms) == ("agent silent", 5000)
    assert (last.gap.to_revision, last.gap.state) == (0, types_pb2.CLUSTER_STATE_LIVE)
    only = Selection(resources=["pods"], clusters=["us-1"])
    assert [gap.cluster_id for gap in (await asked(federation, only, after_revision=after)).summary.gaps] == ["us-1"]
    before = await asked(federation, after_revision=after, until_revision=first.gap.to_revision)
    assert list(before.summary.gaps) == [first]
    since = await asked(federation, only, after_revision=federation.ledger.revision)
    assert not since.summary.gaps
    whole = await asked(federation, after_revision=after)
    assert not whole.summary.complete


async def test_what_is_refused(federation: Federation, clock: Clock) -> None:
    newest, oldest = federation.ledger.revision, federation.ledger.oldest_revision
    for fields, name in (
        ({}, "after"),
        ({"after_revision": newest + 1}, "after_revision"),
        ({"after_revision": newest, "until_revision": newest + 1}, "until_revision"),
        ({"after_revision": newest, "until_revision": newest - 1}, "after"),
        ({"after_revision": newest, "limits": inventory_pb2.Limits(memory_bytes=2**40)}, "limits.memory_bytes"),
    ):
        invalid = await refused(federation, **fields)
        assert isinstance(invalid, InvalidInput)
        assert str(invalid).startswith(f"{name}:") or name in str(invalid)
    assert isinstance(await refused(federation, after_revision=oldest - 1), RevisionExpired)
    unknown = Selection(resources=["pods"], clusters=["eu-9"])
    assert isinstance(await refused(federation, unknown, after_revision=newest), UnknownCluster)
    widgets = Selection(resources=["widgets"])
    assert isinstance(await refused(federation, widgets, after_revision=newest), UnknownResourceType)


async def test_what_is_compacted_is_refused_by_revision_and_by_time(federation: Federation, clock: Clock) -> None:
    then, then_ms = federation.ledger.revision, int(clock.now * 1000)
    await federation.commit("eu-1", put("old", count=2))
    clock.now += 60
    await federation.commit("eu-1", put("old", count=3))
    await federation.ledger.compact(federation.ledger.revision)
    oldest = federation.ledger.oldest_revision
    asks: list[dict[str, Any]] = [{"after_revision": then}, {"after_time_ms": then_ms}, {"after_revision": 0}]
    for fields in asks:
        expired = await refused(federation, **fields)
        assert isinstance(expired, RevisionExpired)
        assert expired.oldest == oldest
    assert told(await asked(federation, after_revision=oldest)) == []
    assert told(await asked(federation, after_time_ms=int(clock.now * 1000))) == []


async def test_an_answer_stays_within_its_limits(federation: Federation) -> None:
    after = federation.ledger.revision
    await federation.commit("eu-1", *(put(f"new-{number}") for number in range(100)))
    for limits in ({"scanned_objects": 50}, {"memory_bytes": 10_000}):
        costly = await refused(federation, after_revision=after, limits=inventory_pb2.Limits(**limits))
        assert isinstance(costly, QueryTooCostly)
        assert costly.limit in limits


async def test_parts_are_of_about_a_mebibyte(federation: Federation) -> None:
    after = federation.ledger.revision
    for number in range(9):
        await federation.commit("eu-1", put(f"big-{number}", text=str(number) * 300_000))
    async with federation.serving() as stub:
        request = GetChangesRequest(selection=PODS_OF_ALL, after_revision=after)
        parts = [part async for part in stub.GetChanges(request)]
    assert len(parts) >= 3
    assert all(part.ByteSize() < PAGE_BYTES + 2000 for part in parts)
    assert [part.HasField("summary") for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [change.object.name for part in parts for change in part.changes] == [f"big-{each}" for each in range(9)]


class _OnlyOthers:
    """A scope without eu-1."""

    def rows(self, located: Located) -> None:
        return None

    def allows(self, key: ObjectKey) -> bool:
        return key.cluster_id != EU


async def test_outside_the_scope_nothing_changes(federation: Federation) -> None:
    after = federation.ledger.revision
    for cluster in ("eu-1", "us-1"):
        await federation.commit(cluster, put("old", count=2), delete("gone"))
    answers = ChangeAnswers(federation.view, federation.ledger, Pins(), QueryLimits(), Patches())
    selection = selection_from_proto(PODS_OF_ALL, federation.view)
    request = GetChangesRequest(selection=PODS_OF_ALL, after_revision=after)
    (part,) = [part async for part in answers.parts(request, selection, _OnlyOthers())]
    answer = GetChangesResponse.FromString(part)
    assert told(answer) == [(MODIFIED, "us-1", "old"), (DELETED, "us-1", "gone")]
    assert answer.summary.total == 2


async def test_commits_go_on_and_compaction_waits_while_it_is_read(federation: Federation) -> None:
    """The answer is of the moment in which it was asked for, whatever comes meanwhile."""
    after = federation.ledger.revision
    for number in range(9):
        await federation.commit("eu-1", put(f"big-{number}", text=str(number) * 300_000))
    until, pins = federation.ledger.revision, Pins()
    answers = ChangeAnswers(federation.view, federation.ledger, pins, QueryLimits(), Patches())
    selection = selection_from_proto(PODS_OF_ALL, federation.view)
    parts = answers.parts(GetChangesRequest(selection=PODS_OF_ALL, after_revision=after), selection)
    encoded = [await anext(parts)]
    assert pins.oldest() == after
    await federation.commit("eu-1", delete("big-8"), put("late"))
    encoded += [part async for part in parts]
    whole = GetChangesResponse()
    for part in encoded:
        whole.MergeFrom(GetChangesResponse.FromString(part))
    assert told(whole) == [(ADDED, "eu-1", f"big-{number}") for number in range(9)]
    assert whole.summary.until_revision == until
    assert pins.oldest() is None


async def test_others_have_their_turn_while_the_log_is_read(federation: Federation) -> None:
    after = federation.ledger.revision
    for number in range(5):
        await federation.commit("eu-1", *(put(f"new-{number}-{each}") for each in range(200)))
    selection = selection_from_proto(PODS_OF_ALL, federation.view)
    question = ChangesQuestion(selection, after, federation.ledger.revision, scope=EVERYTHING)
    ticks = iter(range(10**9))
    budget = Budget(QueryLimits(time_ms=10**6), clock=lambda: next(ticks) * 0.003)  # each look is a turn later
    changes = Changes(question, federation.ledger, federation.view.types, Patches(), budget)
    found = changes.changes()
    with counted_turns() as turns:
        await anext(found)
    assert turns.taken > 1000 // 64, "one for each slice"
    await found.aclose()

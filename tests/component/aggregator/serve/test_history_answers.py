"""GetHistory over a real connection."""

from __future__ import annotations

import json
from typing import Any

import grpc
import jsonpatch
import pytest

from federator.aggregator.merge.scope import Located
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.query.patch import Patches
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.history_answers import HistoryAnswers
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.errors import (
    AmbiguousName,
    FederatorError,
    InvalidInput,
    ObjectNotFound,
    QueryTooCostly,
    RevisionExpired,
    UnknownCluster,
    UnknownResourceType,
)
from federator.v1 import inventory_pb2, types_pb2
from federator.v1.inventory_pb2 import GetHistoryRequest, GetHistoryResponse, HistoryGap, ObjectVersion
from federator.wire.status import from_rpc_error
from tests.unit.aggregator.federation import PODS, Federation, delete, put
from tests.unit.aggregator.serve.recorder import ADDED, DELETED, MODIFIED

EU = ClusterID("eu-1")


class Clock:
    """Seconds since 1970, as the test wants them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def federation(clock: Clock) -> Federation:
    """A pod's life in eu-1: two versions, a time that was not live, in which it changed, deleted, made anew."""
    federation = Federation(clock=clock)
    for cluster in ("eu-1", "us-1"):
        await federation.join(cluster)
    clock.now += 60
    for step in (put("web", count=1), put("web", count=2)):
        clock.now += 1
        await federation.commit("eu-1", step)
    clock.now += 60
    await federation.ledger.set_cluster_state(EU, ClusterState.STALE, "agent silent")
    clock.now += 60
    await federation.ledger.set_cluster_state(EU, ClusterState.RECOVERING)
    await federation.commit("eu-1", put("web", count=7))
    await federation.ledger.set_cluster_state(EU, ClusterState.LIVE)
    clock.now += 60
    await federation.commit("eu-1", delete("web"))
    clock.now += 1
    await federation.commit("eu-1", put("web", uid="another", count=1))
    return federation


async def asked(federation: Federation, **fields: Any) -> GetHistoryResponse:
    """The parts of an answer as one."""
    whole = GetHistoryResponse()
    request = GetHistoryRequest(**({"resource": "pods", "namespace": "shop", "name": "web"} | fields))
    async with federation.serving() as stub:
        async for part in stub.GetHistory(request):
            assert not whole.HasField("summary"), "only the last part has it"
            whole.MergeFrom(part)
    assert whole.HasField("summary")
    return whole


async def refused(federation: Federation, **fields: Any) -> FederatorError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asked(federation, **fields)
    return from_rpc_error(raised.value, "here")


def entries_of(answer: GetHistoryResponse) -> list[ObjectVersion | HistoryGap]:
    return [each.version if each.HasField("version") else each.gap for each in answer.entries]


def versions_of(answer: GetHistoryResponse) -> list[ObjectVersion]:
    return [each.version for each in answer.entries if each.HasField("version")]


async def test_every_version_is_told_with_what_differs(federation: Federation, clock: Clock) -> None:
    answer = await asked(federation, with_objects=True)
    versions = versions_of(answer)
    assert [version.type for version in versions] == [ADDED, DELETED, MODIFIED, MODIFIED, ADDED]
    assert [version.uid for version in versions] == ["another", *["uid-shop-web"] * 4]
    assert versions[0].time_ms == int(clock.now * 1000)
    assert [bool(version.patch) for version in versions] == [False, False, True, True, False]
    for index in (2, 3):
        assert versions[index].previous_revision == versions[index + 1].revision
        before, after = (json.loads(versions[each].object.body) for each in (index + 1, index))
        assert jsonpatch.apply_patch(before, json.loads(versions[index].patch)) == after
    assert json.loads(versions[2].patch) == [{"op": "replace", "path": "/count", "value": 7}]
    assert versions[1].object == versions[2].object, "a deletion tells the last state"
    assert (versions[1].previous_revision, versions[0].previous_revision) == (versions[2].revision, 0)
    assert answer.summary.revision == federation.ledger.revision
    assert answer.summary.oldest_revision == federation.ledger.oldest_revision
    assert answer.summary.freshness.cluster_id == "eu-1"
    assert not answer.summary.freshness.incomplete_types
    assert answer.summary.next_before_revision == 0


async def test_without_objects_there_are_patches_only(federation: Federation) -> None:
    versions = versions_of(await asked(federation))
    assert not any(version.HasField("object") for version in versions)
    assert len([version for version in versions if version.patch]) == 2


async def test_a_gap_stands_before_the_versions_that_came_in_with_it(federation: Federation) -> None:
    entries = entries_of(await asked(federation))
    (index,) = (at for at, entry in enumerate(entries) if isinstance(entry, HistoryGap))
    gap, inside, before = entries[index], entries[index + 1], entries[index + 2]
    assert isinstance(gap, HistoryGap)
    assert isinstance(inside, ObjectVersion)
    assert isinstance(before, ObjectVersion)
    assert before.revision < gap.from_revision < inside.revision < gap.to_revision
    assert gap.to_ms - gap.from_ms == 60_000
    assert (gap.state, gap.reason) == (types_pb2.CLUSTER_STATE_STALE, "agent silent")


async def test_a_gap_that_lasts_and_one_of_the_type_alone(federation: Federation) -> None:
    await federation.ledger.set_type_state(EU, PODS, TypeState.DENIED, "forbidden")
    first = entries_of(await asked(federation))[0]
    assert isinstance(first, HistoryGap)
    assert (first.to_revision, first.to_ms) == (0, 0)
    assert (first.state, first.reason) == (types_pb2.CLUSTER_STATE_LIVE, "pods DENIED: forbidden")
    assert not [entry for entry in entries_of(await asked(federation))[1:] if isinstance(entry, HistoryGap)][1:]


async def test_limit_and_what_comes_before(federation: Federation) -> None:
    whole = await asked(federation)
    told: list[ObjectVersion | HistoryGap] = []
    before = 0
    for _ in range(5):
        page = await asked(federation, limit=1, before_revision=before)
        assert len(versions_of(page)) == 1
        told += entries_of(page)
        before = page.summary.next_before_revision
        assert (before == 0) == (len(told) == len(whole.entries))
    assert told == entries_of(whole)
    inside = versions_of(whole)[1].revision + 1
    assert versions_of(await asked(federation, before_revision=inside)) == versions_of(whole)[1:]


async def test_only_since_a_time(federation: Federation, clock: Clock) -> None:
    whole = entries_of(await asked(federation))
    since = int((clock.now - 62) * 1000)
    answer = await asked(federation, since_ms=since)
    assert entries_of(answer) == whole[:4], "the gap ended since, and so did the version in it"
    assert answer.summary.next_before_revision == 0
    exact = versions_of(answer)[-1].time_ms
    assert entries_of(await asked(federation, since_ms=exact)) == whole[:4]
    assert entries_of(await asked(federation, since_ms=exact + 1)) == whole[:2]


async def test_an_object_that_is_gone(federation: Federation) -> None:
    await federation.commit("eu-1", delete("web"))
    assert versions_of(await asked(federation))[0].type == DELETED
    await federation.ledger.compact(federation.ledger.revision)
    assert isinstance(await refused(federation), ObjectNotFound)


async def test_where_history_ends_the_version_before_is_not_made_up(federation: Federation) -> None:
    await federation.commit("us-1", put("other", count=1))
    await federation.commit("us-1", put("other", count=2))
    await federation.ledger.compact(federation.ledger.revision)
    await federation.commit("us-1", put("other", count=3))
    answer = await asked(federation, name="other")
    newest, kept = versions_of(answer)
    assert (newest.type, bool(newest.patch)) == (MODIFIED, True)
    assert (kept.type, kept.patch) == (MODIFIED, b"")
    assert kept.previous_revision > 0
    assert answer.summary.oldest_revision > kept.revision - 1
    expired = await refused(federation, name="other", before_revision=answer.summary.oldest_revision)
    assert isinstance(expired, RevisionExpired)
    assert expired.oldest == answer.summary.oldest_revision


async def test_which_cluster_is_meant(federation: Federation) -> None:
    """The present object counts; where there is none, the one that was."""
    await federation.commit("us-1", put("web", uid="of-us"))
    ambiguous = await refused(federation)
    assert isinstance(ambiguous, AmbiguousName)
    assert ambiguous.clusters == ("eu-1", "us-1")
    await federation.commit("us-1", delete("web"))
    assert (await asked(federation)).summary.freshness.cluster_id == "eu-1"
    assert len(versions_of(await asked(federation, cluster_id="us-1"))) == 2
    await federation.commit("eu-1", delete("web"))
    assert isinstance(await refused(federation), AmbiguousName)


async def test_a_removed_cluster_still_has_a_past(federation: Federation) -> None:
    await federation.commit("eu-1", delete("web"))
    await federation.ledger.set_cluster_state(EU, ClusterState.REMOVED, "removed by an operator")
    for fields in ({}, {"cluster_id": "eu-1"}):
        first = entries_of(await asked(federation, **fields))[0]
        assert isinstance(first, HistoryGap)
        assert first.state == types_pb2.CLUSTER_STATE_REMOVED


async def test_what_is_refused(federation: Federation) -> None:
    assert isinstance(await refused(federation, name="never"), ObjectNotFound)
    assert isinstance(await refused(federation, cluster_id="us-1"), ObjectNotFound)
    assert isinstance(await refused(federation, cluster_id="eu-9"), UnknownCluster)
    assert isinstance(await refused(federation, resource="widgets"), UnknownResourceType)
    for field, value in {"limit": 1001, "name": "", "namespace": "", "resource": "all", "cluster_id": "EU"}.items():
        invalid = await refused(federation, **{field: value})
        assert isinstance(invalid, InvalidInput)
        assert field in str(invalid)
    costly = await refused(federation, limits=inventory_pb2.Limits(scanned_objects=2))
    assert isinstance(costly, QueryTooCostly)
    assert costly.limit == "scanned_objects"
    beyond = await refused(federation, limits=inventory_pb2.Limits(time_ms=2**31))
    assert isinstance(beyond, InvalidInput)
    assert "limits.time_ms" in str(beyond)


async def test_parts_are_of_about_a_mebibyte(federation: Federation) -> None:
    for number in range(9):
        await federation.commit("eu-1", put("big", text=str(number) * 300_000))
    async with federation.serving() as stub:
        request = GetHistoryRequest(resource="pods", namespace="shop", name="big", with_objects=True)
        parts = [part async for part in stub.GetHistory(request)]
    assert len(parts) > 3
    assert all(part.ByteSize() < PAGE_BYTES + 1000 for part in parts)
    assert [part.HasField("summary") for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(len(part.entries) for part in parts) == 9


class _OnlyOthers:
    """A scope without eu-1."""

    def rows(self, located: Located) -> None:
        return None

    def allows(self, key: ObjectKey) -> bool:
        return key.cluster_id != EU


async def test_outside_the_scope_there_is_nothing(federation: Federation) -> None:
    answers = HistoryAnswers(federation.view, federation.ledger, Pins(), QueryLimits(), Patches())
    request = GetHistoryRequest(resource="pods", namespace="shop", name="web")
    with pytest.raises(ObjectNotFound):
        await anext(answers.parts(request, _OnlyOthers()))
    await federation.commit("us-1", put("web"))
    (part,) = [part async for part in answers.parts(request, _OnlyOthers())]
    assert part.summary.freshness.cluster_id == "us-1"


async def test_compaction_is_kept_away_while_it_is_read(federation: Federation) -> None:
    pins = Pins()
    for number in range(9):
        await federation.commit("eu-1", put("big", text=str(number) * 300_000))
    answers = HistoryAnswers(federation.view, federation.ledger, pins, QueryLimits(), Patches())
    request = GetHistoryRequest(resource="pods", namespace="shop", name="big", with_objects=True)
    parts = answers.parts(request)
    await anext(parts)
    assert pins.oldest() == federation.ledger.oldest_revision
    await parts.aclose()
    assert pins.oldest() is None

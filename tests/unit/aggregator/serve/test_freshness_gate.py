"""Read your writes: answers that wait for what the asker knows to have happened."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from federator.aggregator.ledger.records import Batch
from federator.aggregator.serve.freshness_gate import MAX_CONDITIONS, FreshnessGate
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.errors import (
    FederatorError,
    InvalidInput,
    LimitReached,
    NotFreshYet,
    UnknownCluster,
    UnknownResourceType,
)
from federator.v1 import inventory_pb2
from tests.unit.aggregator.federation import NODES, PODS, Federation, put

pytestmark = pytest.mark.looptime


def _message(cluster: str = "a", resource: str = "pods", version: str = "100") -> inventory_pb2.FreshAsOf:
    return inventory_pb2.FreshAsOf(cluster_id=cluster, resource=resource, resource_version=version)


async def _bookmark(federation: Federation, version: str, *, cluster: str = "a", type: ResourceType = PODS) -> None:  # noqa: A002
    cluster_id = ClusterID(cluster)
    term = federation.ledger.clusters()[cluster_id].term
    await federation.ledger.append(Batch(cluster_id, term, 0, type, low_water=version))


async def _federation() -> tuple[Federation, FreshnessGate]:
    federation = Federation()
    for cluster in ("a", "b"):
        await federation.join(cluster)
    return federation, FreshnessGate(federation.view.freshness, federation.view.types, max_waiting=3)


async def _wait(gate: FreshnessGate, *messages: inventory_pb2.FreshAsOf, within: float = 0) -> None:
    await gate.wait(gate.conditions(messages), round(within * 1000))


def _nobody_waits(federation: Federation, gate: FreshnessGate) -> bool:
    return gate.statistics() == {"waiting_for_freshness": 0} and not federation.view.freshness._waiting


async def test_what_is_here_is_not_waited_for() -> None:
    federation, gate = await _federation()
    await _bookmark(federation, "100")
    await _wait(gate, _message())
    await _wait(gate, _message(version="99"))
    await _wait(gate)
    assert asyncio.get_running_loop().time() == 0


async def test_what_is_not_here_yet_is_waited_for_and_no_longer() -> None:
    federation, gate = await _federation()
    loop = asyncio.get_running_loop()
    await _bookmark(federation, "98")
    waiting = asyncio.create_task(_wait(gate, _message(version="1000")))

    async def told_after(seconds: float, version: str, **where: str) -> None:
        await asyncio.sleep(seconds)
        await _bookmark(federation, version, **where)  # type: ignore[arg-type]

    await told_after(1, "999")
    await told_after(1, "5000", cluster="b")
    await _bookmark(federation, "5000", type=NODES)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert gate.statistics() == {"waiting_for_freshness": 1}
    await told_after(1, "1000")
    await waiting
    assert loop.time() == pytest.approx(3.1)
    assert _nobody_waits(federation, gate)


async def test_the_commit_that_makes_it_fresh_is_in_the_view_when_the_wait_is_over() -> None:
    federation, gate = await _federation()
    waiting = asyncio.create_task(_wait(gate, _message()))
    await asyncio.sleep(1)
    term = federation.ledger.clusters()[ClusterID("a")].term
    await federation.ledger.append(
        Batch(ClusterID("a"), term, 0, PODS, (put("x", resource_version="100"),), low_water="100")
    )
    await waiting
    assert federation.view.indexer.objects()[ClusterID("a"), PODS.group_resource] == 1


async def test_all_conditions_have_to_hold() -> None:
    federation, gate = await _federation()
    waiting = asyncio.create_task(_wait(gate, _message(), _message("b"), _message("a", "nodes")))
    for cluster, type_ in (("a", PODS), ("a", NODES), ("b", PODS)):
        await asyncio.sleep(1)
        assert not waiting.done()
        await _bookmark(federation, "100", cluster=cluster, type=type_)
    await waiting
    assert _nobody_waits(federation, gate)


@pytest.mark.parametrize(("within", "seconds"), [(0, 5), (0.5, 0.5), (60, 60)])
async def test_what_does_not_come_in_time_is_told_with_how_far_it_is(within: float, seconds: float) -> None:
    federation, gate = await _federation()
    await _bookmark(federation, "98")
    await federation.ledger.set_cluster_state(ClusterID("a"), ClusterState.STALE, "agent silent")
    with pytest.raises(NotFreshYet) as raised:
        await _wait(gate, _message(), within=within)
    assert asyncio.get_running_loop().time() == pytest.approx(seconds)
    told = raised.value
    assert (told.cluster_id, told.resource, told.resource_version) == ("a", "pods", "100")
    assert (told.low_water, told.state, told.helps_to_wait) == ("98", TypeState.STALE, True)
    assert "agent silent" in told.cause
    assert told.proved_age is not None
    assert _nobody_waits(federation, gate)


@pytest.mark.parametrize("state", [TypeState.DENIED, TypeState.NOT_COLLECTED, TypeState.ABSENT])
async def test_what_will_never_come_is_told_at_once(state: TypeState) -> None:
    federation, gate = await _federation()
    waiting = asyncio.create_task(_wait(gate, _message(), within=60))
    await asyncio.sleep(1)
    await federation.ledger.set_type_state(ClusterID("a"), PODS, state, "told so")
    with pytest.raises(NotFreshYet) as while_waiting:
        await waiting
    with pytest.raises(NotFreshYet) as raised:
        await _wait(gate, _message(), within=60)
    assert asyncio.get_running_loop().time() == 1
    for told in (while_waiting.value, raised.value):
        assert (told.state, told.cause, told.helps_to_wait) == (state, "told so", False)
    assert _nobody_waits(federation, gate)


async def test_a_type_that_a_cluster_does_not_serve_is_told_at_once() -> None:
    federation, gate = await _federation()
    await federation.join("c", [PODS])
    with pytest.raises(NotFreshYet) as raised:
        await _wait(gate, _message("c", "nodes"))
    assert (raised.value.state, raised.value.cause) == (TypeState.ABSENT, "the type is ABSENT")


async def test_a_removed_cluster_is_told_at_once_also_who_waits_for_it() -> None:
    federation, gate = await _federation()
    waiting = asyncio.create_task(_wait(gate, _message(), within=60))
    await asyncio.sleep(1)
    await federation.ledger.set_cluster_state(ClusterID("a"), ClusterState.REMOVED)
    with pytest.raises(NotFreshYet) as raised:
        await waiting
    assert asyncio.get_running_loop().time() == 1
    assert "removed" in raised.value.cause
    assert not raised.value.helps_to_wait


async def test_versions_that_cannot_be_compared_are_told_at_once() -> None:
    federation, gate = await _federation()
    await _bookmark(federation, "of-another-store")
    with pytest.raises(NotFreshYet) as raised:
        await _wait(gate, _message())
    assert "cannot be compared" in raised.value.cause
    assert raised.value.low_water == "of-another-store"


async def test_low_water_that_became_void_is_waited_for_again() -> None:
    federation, gate = await _federation()
    await _bookmark(federation, "200")
    await federation.ledger.open_session(federation.ledger.clusters()[ClusterID("a")])
    federation.view.freshness._clusters[ClusterID("a")].types[PODS.group_resource].low_water = ""
    waiting = asyncio.create_task(_wait(gate, _message()))
    await asyncio.sleep(1)
    assert not waiting.done()
    await _bookmark(federation, "201")
    await waiting


async def test_a_cancelled_caller_leaves_nothing_and_others_go_on_waiting() -> None:
    federation, gate = await _federation()
    first, second = (asyncio.create_task(_wait(gate, _message())) for _ in range(2))
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.wait([first])
    assert gate.statistics() == {"waiting_for_freshness": 1}
    await _bookmark(federation, "100")
    await second
    assert _nobody_waits(federation, gate)


async def test_no_more_wait_than_may() -> None:
    federation, gate = await _federation()
    waiting = [asyncio.create_task(_wait(gate, _message())) for _ in range(3)]
    await asyncio.sleep(1)
    with pytest.raises(LimitReached) as raised:
        await _wait(gate, _message())
    assert raised.value.limit == 3
    await _bookmark(federation, "50")
    await _wait(gate, _message(version="50"))  # nobody has to wait for that
    await _bookmark(federation, "100")
    await asyncio.gather(*waiting)
    assert _nobody_waits(federation, gate)


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"cluster": "A"}, InvalidInput, "fresh_as_of.cluster_id"),
        ({"cluster": "z"}, UnknownCluster, None),
        ({"resource": ""}, InvalidInput, "fresh_as_of.resource"),
        ({"resource": "all"}, InvalidInput, "fresh_as_of.resource"),
        ({"resource": "widgets"}, UnknownResourceType, None),
        ({"version": ""}, InvalidInput, "fresh_as_of.resource_version"),
        ({"version": "0"}, InvalidInput, "fresh_as_of.resource_version"),
        ({"version": "1x"}, InvalidInput, "fresh_as_of.resource_version"),
    ],
)
async def test_what_is_not_allowed_is_refused(
    fields: Mapping[str, str], error: type[FederatorError], field: str | None
) -> None:
    _, gate = await _federation()
    with pytest.raises(error) as raised:
        gate.conditions([_message(**fields)])
    assert type(raised.value) is error
    assert getattr(raised.value, "field", None) == field


async def test_bounds_are_refused_beyond() -> None:
    _, gate = await _federation()
    with pytest.raises(InvalidInput):
        gate.conditions([_message()] * (MAX_CONDITIONS + 1))
    with pytest.raises(InvalidInput) as raised:
        await gate.wait((), 60_001)
    assert raised.value.field == "fresh_within_ms"

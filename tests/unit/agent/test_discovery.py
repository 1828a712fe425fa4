"""TypeFollower: types come at once and go only when that is certain. Time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from federator.agent.discovery import TypeFollower
from federator.agent.selection import Selection
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType
from federator.errors import MemberUnreachable, UnknownResourceType
from federator.kube.discovery import Discovery
from tests.unit.agent.scripted_cluster import CRDS, NODES, PODS, WIDGETS, ScriptedCluster

pytestmark = pytest.mark.looptime

SETTINGS = AgentSettings(cluster_id=ClusterID("c"), aggregator="unix:x")


class Following:
    """A follower that runs, and what it applied, with the times."""

    def __init__(self, cluster: ScriptedCluster, *names: str) -> None:
        self.follower = TypeFollower(cluster, Selection(names), SETTINGS)
        self.applied: list[tuple[float, set[str]]] = []
        self._started = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.follower.start()
        self._started = asyncio.get_running_loop().time()
        task = asyncio.create_task(self.follower.run(self._apply))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _apply(self, types: object) -> None:
        now = asyncio.get_running_loop().time() - self._started
        self.applied.append((round(now, 1), self.kinds()))

    def kinds(self) -> set[str]:
        return {each.kind for each in self.follower.types}


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(PODS, CRDS)


async def test_it_looks_again_soon_and_then_once_a_minute(cluster: ScriptedCluster) -> None:
    following = Following(cluster)
    async with following.running():
        await asyncio.sleep(130)
    assert [at for at, _ in following.applied] == [5.0, 65.0, 125.0]


async def test_a_burst_of_changes_is_one_look(cluster: ScriptedCluster) -> None:
    following = Following(cluster)
    async with following.running():
        await asyncio.sleep(10)
        cluster.types.append(WIDGETS)
        for _ in range(8):
            following.follower.types_may_have_changed()
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
    assert following.applied[1:] == [(11.0, {"Pod", "CustomResourceDefinition", "Widget"})]


async def test_a_type_goes_only_when_it_is_missing_twice(cluster: ScriptedCluster) -> None:
    cluster.types.append(WIDGETS)
    following = Following(cluster)
    async with following.running():
        await asyncio.sleep(10)
        cluster.types.remove(WIDGETS)
        following.follower.types_may_have_changed()
        await asyncio.sleep(1.5)
        assert "Widget" in following.kinds()
        assert not following.follower.is_absent(WIDGETS.group_resource)
        await asyncio.sleep(5)
        assert "Widget" not in following.kinds()
        assert following.follower.is_absent(WIDGETS.group_resource)


async def test_a_look_that_fails_changes_nothing(cluster: ScriptedCluster) -> None:
    following = Following(cluster)
    async with following.running():
        cluster.go_down()
        await asyncio.sleep(600)
        assert following.kinds() == {"Pod", "CustomResourceDefinition"}
        assert not following.follower.is_absent(WIDGETS.group_resource), "nothing is certain before the second look"
        assert following.follower.statistics()["failures"] == following.follower.statistics()["looks"]


async def test_a_group_that_is_unknown_at_the_moment_keeps_its_types(cluster: ScriptedCluster) -> None:
    cluster.types.append(WIDGETS)
    following = Following(cluster)
    async with following.running():
        cluster.types.remove(WIDGETS)
        cluster.failed_groups = ("example.com",)
        await asyncio.sleep(600)
        assert "Widget" in following.kinds()
        cluster.failed_groups = ()
        await asyncio.sleep(70)
        assert "Widget" not in following.kinds()


async def test_a_new_version_of_a_type_is_taken_over(cluster: ScriptedCluster) -> None:
    cluster.types.append(WIDGETS)
    following = Following(cluster)
    async with following.running():
        cluster.types[-1] = ResourceType(
            group="example.com", version="v2", resource="widgets", kind="Widget", namespaced=True
        )
        await asyncio.sleep(10)
        assert [each.version for each in following.follower.types if each.kind == "Widget"] == ["v2"]


async def test_names_that_match_nothing_end_the_start_unless_a_group_is_unknown(cluster: ScriptedCluster) -> None:
    with pytest.raises(UnknownResourceType):
        await Following(cluster, "widgets").follower.start()
    cluster.failed_groups = ("example.com",)
    await Following(cluster, "widgets").follower.start()
    await Following(cluster, "widgets", "pods").follower.start()


async def test_a_cluster_that_is_down_cannot_be_started_on(cluster: ScriptedCluster) -> None:
    cluster.go_down()
    with pytest.raises(MemberUnreachable):
        await Following(cluster).follower.start()


async def test_a_look_that_fails_by_a_defect_changes_nothing_and_ends_nothing(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> Discovery:
        raise RuntimeError("a defect")

    following = Following(cluster)
    async with following.running():
        await asyncio.sleep(10)
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "discover", fail)
            await asyncio.sleep(120)
        assert following.kinds() == {"Pod", "CustomResourceDefinition"}
        assert following.follower.statistics()["failures"] == 2
        cluster.types.append(WIDGETS)
        await asyncio.sleep(60)
        assert "Widget" in following.kinds()


async def test_what_is_left_out_is_not_absent(cluster: ScriptedCluster) -> None:
    cluster.types.append(NODES)
    following = Following(cluster, "pods")
    async with following.running():
        await asyncio.sleep(10)
        assert set(following.follower.left_out) == {CRDS, NODES}
        assert not following.follower.is_absent(NODES.group_resource)

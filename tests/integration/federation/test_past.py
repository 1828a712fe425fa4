"""The past of an object, over restarts of all who carry it: what is not known in between is marked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import jsonpatch
import pytest

from federator.api.cluster import ClusterID, ClusterState
from federator.client import EventType, Gap, HistoryResult, InventoryClient, ObjectVersion
from federator.errors import ObjectNotFound
from tests.robustness.linked_bed import LinkedBed, linked_bed

pytestmark = pytest.mark.timeout(120)

EU = ClusterID("eu-1")


async def until(fed: InventoryClient, told: Callable[[HistoryResult], bool]) -> HistoryResult:
    """The history of the ConfigMap `web` once it tells something."""
    deadline = time.monotonic() + 30
    while True:
        found = None
        with suppress(ObjectNotFound):  # it is yet to come
            found = await fed.history("configmaps", "web", namespace="default", with_objects=True, timeout=10)
        if found is not None and told(found):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


def change(bed: LinkedBed, number: int) -> None:
    """Changes the ConfigMap, or makes it."""
    bed["eu-1"].apiserver.put("configmaps", "web", data={"number": str(number)})


def number_in(version: ObjectVersion) -> int:
    assert version.object is not None
    return int(version.object.to_dict()["data"]["number"])


def numbers(found: HistoryResult) -> list[int | str]:
    """What the ConfigMap said, newest first, and where the gaps are."""
    return ["gap" if isinstance(entry, Gap) else number_in(entry) for entry in found.entries]


def check_patches(found: HistoryResult) -> None:
    for version, before in zip(found.versions, found.versions[1:], strict=False):
        if version.type is EventType.MODIFIED:
            assert version.object is not None
            assert before.object is not None
            made = jsonpatch.apply_patch(before.object.to_dict(), version.operations())
            assert made == version.object.to_dict()


async def test_while_the_aggregator_was_away_only_the_result_is_known(tmp_path: Path) -> None:
    async with linked_bed(tmp_path, "eu-1") as bed:
        for number in (1, 2, 3):
            change(bed, number)
            await until(bed.fed, lambda found, number=number: numbers(found)[:1] == [number])  # type: ignore[misc]
        before = await bed.fed.history("configmaps", "web", namespace="default")
        went = time.time()
        await bed.stop_aggregator()
        for number in (4, 5, 6):
            change(bed, number)
        bed["eu-1"].apiserver.put("configmaps", "brief")
        bed["eu-1"].apiserver.delete("configmaps", "brief")
        await bed.start_aggregator()
        await bed.wait_state(ClusterState.LIVE)
        found = await until(bed.fed, lambda found: numbers(found)[:2] == ["gap", 6])
        assert numbers(found) == ["gap", 6, 3, 2, 1]
        check_patches(found)
        gap, newest = found.entries[:2]
        assert isinstance(gap, Gap)
        assert isinstance(newest, ObjectVersion)
        assert gap.begin <= went < (gap.end or 0), "it begins before the aggregator went, not as it came back"
        assert gap.begin >= before.versions[0].time
        assert (gap.state, gap.reason) == (ClusterState.STALE, "aggregator restarted")
        assert gap.from_revision < newest.revision < gap.to_revision
        changes = await bed.fed.changes("configmaps", after=before.revision, with_patches=True, with_transient=True)
        (change_,) = changes.changes
        assert (change_.type, change_.versions) == (EventType.MODIFIED, 1)
        old = before.versions[0]
        assert change_.previous_revision == old.revision
        made = jsonpatch.apply_patch({"data": {"number": "3"}}, [
            each for each in change_.operations() if each["path"].startswith("/data")
        ])  # fmt: skip
        assert made == {"data": {"number": "6"}}
        assert changes.gaps == {EU: (gap,)}
        by_time = await bed.fed.changes("configmaps", after=datetime.fromtimestamp(old.time, UTC))
        assert [each.object.name for each in by_time.changes] == ["web"]


async def test_while_its_agent_was_away_too(tmp_path: Path) -> None:
    async with linked_bed(tmp_path, "eu-1", "us-1") as bed:
        change(bed, 1)
        await until(bed.fed, lambda found: numbers(found) == [1])
        await bed["eu-1"].stop_agent()
        change(bed, 2)
        bed["eu-1"].apiserver.delete("configmaps", "web")
        change(bed, 3)
        await bed.start_agents("eu-1")
        found = await until(bed.fed, lambda found: len(found.versions) == 3)
        assert [version.type for version in found.versions] == [EventType.ADDED, EventType.DELETED, EventType.ADDED]
        assert len({version.uid for version in found.versions}) == 2
        await bed.wait_state(ClusterState.LIVE)
        first = (await until(bed.fed, lambda found: isinstance(found.entries[0], Gap))).entries[0]
        assert isinstance(first, Gap)
        assert first.end is not None
        changes = await bed.fed.changes("configmaps", after=found.versions[-1].revision)
        assert list(changes.gaps) == [EU], "the other cluster was live all the while"
        (made_anew,) = changes.changes
        assert (made_anew.type, made_anew.versions) == (EventType.MODIFIED, 2)
        assert json.loads(made_anew.object.body)["data"] == {"number": "3"}

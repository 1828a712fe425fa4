"""The field index keeper: what it declares lasts, what it cannot write is not declared, and what it builds is whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from federator.aggregator.merge import field_indexes
from federator.aggregator.merge.field_indexes import MAX_INDEXES, IndexState
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.field_index_keeper import FILE, DeclaredIndex, FieldIndexKeeper, declared_indexes
from federator.api.field_path import parse_field_path
from federator.api.resource import GroupResource
from federator.api.selector import FieldSelector
from federator.errors import IndexFromSettings, IndexNotFound, InvalidInput, LedgerError, LimitReached
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, delete, eventually, put

REPLICAS = DeclaredIndex("spec.replicas", ("deployments.apps",))
PHASE = DeclaredIndex("status.phase")


class Started:
    """A keeper over an indexer of its own, as after a start of the aggregator."""

    def __init__(self, folder: Path | None, *from_settings: DeclaredIndex) -> None:
        self.federation = Federation()
        self.indexer = self.federation.view.indexer
        self.keeper = FieldIndexKeeper(self.indexer, from_settings, folder)

    @property
    def declared(self) -> dict[str, frozenset[GroupResource] | None]:
        return {index.name: index.resources for index in self.indexer.fields}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run(), name="field indexes")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def test_what_is_declared_at_run_time_outlasts_a_restart(tmp_path: Path) -> None:
    before = Started(tmp_path)
    assert before.keeper.add(PHASE)
    assert before.keeper.add(REPLICAS)
    after = Started(tmp_path)
    assert after.declared == {
        "spec.replicas": frozenset({DEPLOYMENTS.group_resource}),
        "status.phase": None,
    }
    assert after.keeper.statistics() == {"declared_field_indexes": 2}
    after.keeper.drop(parse_field_path("status.phase"))
    assert list(Started(tmp_path).declared) == ["spec.replicas"]
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_in_memory_nothing_is_kept() -> None:
    assert Started(None).keeper.add(PHASE)
    assert Started(None).declared == {}


def test_one_that_is_there_is_left_as_it_is_and_other_types_are_another(tmp_path: Path) -> None:
    started = Started(tmp_path)
    assert started.keeper.add(REPLICAS)
    (index,) = started.indexer.fields
    assert not started.keeper.add(REPLICAS)
    assert [*started.indexer.fields] == [index]
    assert started.keeper.add(DeclaredIndex("spec.replicas"))
    assert started.declared == {"spec.replicas": None}
    assert Started(tmp_path).declared == {"spec.replicas": None}


def test_those_of_the_settings_cannot_be_changed_at_run_time_and_are_in_no_file(tmp_path: Path) -> None:
    started = Started(tmp_path, REPLICAS)
    assert not started.keeper.add(REPLICAS)
    with pytest.raises(IndexFromSettings, match=r"spec\.replicas"):
        started.keeper.add(DeclaredIndex("spec.replicas"))
    with pytest.raises(IndexFromSettings, match=r"spec\.replicas"):
        started.keeper.drop(parse_field_path("spec.replicas"))
    started.keeper.add(PHASE)
    told = {index.name: started.keeper.is_from_settings(index) for index in started.indexer.fields}
    assert told == {"spec.replicas": True, "status.phase": False}
    assert list(Started(tmp_path).declared) == ["status.phase"]


def test_settings_go_before_what_was_declared_at_run_time(tmp_path: Path) -> None:
    Started(tmp_path).keeper.add(DeclaredIndex("spec.replicas"))
    assert Started(tmp_path, REPLICAS).declared == {"spec.replicas": frozenset({DEPLOYMENTS.group_resource})}
    assert Started(tmp_path).declared == {"spec.replicas": None}


def test_what_is_not_there_cannot_be_dropped(tmp_path: Path) -> None:
    started = Started(tmp_path, REPLICAS)
    with pytest.raises(IndexNotFound, match=r"'status\.phase'; there are: spec\.replicas"):
        started.keeper.drop(parse_field_path("status.phase"))


def test_there_are_so_many(tmp_path: Path) -> None:
    started = Started(tmp_path, DeclaredIndex("spec.f0"))
    for number in range(1, MAX_INDEXES):
        started.keeper.add(DeclaredIndex(f"spec.f{number}"))
    with pytest.raises(LimitReached, match=f"{MAX_INDEXES} field indexes"):
        started.keeper.add(PHASE)
    assert PHASE.path not in Started(tmp_path, DeclaredIndex("spec.f0")).declared
    assert not started.keeper.add(DeclaredIndex("spec.f0"))
    assert started.keeper.add(DeclaredIndex("spec.f1", ("pods",)))
    with pytest.raises(LimitReached):
        Started(tmp_path, DeclaredIndex("spec.f0"), PHASE)


def test_what_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(tmp_path)
    started.keeper.add(REPLICAS)
    declared = started.declared
    index = next(iter(started.indexer.fields))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(LedgerError, match=f"{FILE} cannot be written: No space left"):
            started.keeper.add(PHASE)
        with pytest.raises(LedgerError):
            started.keeper.add(DeclaredIndex("spec.replicas"))
        with pytest.raises(LedgerError):
            started.keeper.drop(parse_field_path("spec.replicas"))
    assert started.declared == declared == Started(tmp_path).declared
    assert [*started.indexer.fields] == [index]
    assert started.keeper.add(PHASE)


def _full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"{}",
        b'[{"path": 7}]',
        b'[{"path": "a..b"}]',
        b'[{"path": "spec.nodeName"}]',
        b'[{"path": "a.b"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with capture_logs() as logs:
        started = Started(tmp_path, REPLICAS)
    assert list(started.declared) == ["spec.replicas"]
    assert (tmp_path / "field-indexes.damaged").read_bytes() == content
    assert [(log["log_level"], log["file"]) for log in logs] == [("error", str(tmp_path / "field-indexes.damaged"))]
    started.keeper.add(PHASE)
    assert set(Started(tmp_path).declared) == {"status.phase"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(LedgerError, match=f"{FILE} cannot be read: Is a directory"):
        Started(tmp_path)


async def test_an_index_is_built_while_everything_changes_and_then_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_indexes, "BUILD_SLICE", 2)
    started = Started(None)
    federation, indexer = started.federation, started.indexer
    await federation.join("eu")
    await federation.join("us")
    for number in range(20):
        await federation.commit("eu", put(f"p{number}", status={"phase": "old"}))
        await federation.commit("us", put(f"p{number}", status={"phase": "old"}))
    async with started.running():
        await asyncio.sleep(0)  # nothing to do yet
        started.keeper.add(PHASE)
        (index,) = indexer.fields
        await eventually(lambda: index.looked_at >= 4)
        assert index.state is IndexState.BUILDING
        for number in range(20):  # some that were looked at, some that were not
            await federation.commit("us", put(f"p{number}", status={"phase": "new"}))
            if number % 2:
                await federation.commit("eu", delete(f"p{number}"), put(f"q{number}", status={"phase": "new"}))
        await eventually(lambda: index.state is IndexState.READY)
    for phase in ("old", "new"):
        selection = Selection(frozenset({PODS.group_resource}), fields=FieldSelector.parse(f"status.phase={phase}"))
        assert not indexer.unanswered(selection)
        found = {str(indexer.key(row)) for row in indexer.select(selection)}
        if phase == "old":
            assert found == {f"eu//pods/shop/p{number}" for number in range(0, 20, 2)}
        else:
            assert found == {f"us//pods/shop/p{number}" for number in range(20)} | {
                f"eu//pods/shop/q{number}" for number in range(1, 20, 2)
            }


async def test_those_declared_one_after_the_other_are_all_built() -> None:
    started = Started(None, REPLICAS)
    await started.federation.join("eu")
    await started.federation.commit("eu", put("web", spec={"replicas": 3}), type=DEPLOYMENTS)
    async with started.running():
        await eventually(lambda: started.indexer.fields.find("spec.replicas") is not None)
        for path in ("status.phase", "spec.replicas.none"):
            started.keeper.add(DeclaredIndex(path))
            await eventually(lambda path=path: started.indexer.fields.find(path) is not None)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "path", "resources"),
    [
        ("status.phase", "status.phase", ()),
        (".spec.containers.*.image", "spec.containers.*.image", ()),
        (
            "spec.replicas@statefulsets.apps+deployments.apps",
            "spec.replicas",
            ("deployments.apps", "statefulsets.apps"),
        ),
        (r"metadata.annotations.a\.b/c@pods", r"metadata.annotations.a\.b/c", ("pods",)),
    ],
)
def test_a_setting(text: str, path: str, resources: tuple[str, ...]) -> None:
    declared = DeclaredIndex.parse(text)
    assert declared == DeclaredIndex(path, resources)
    assert declared.group_resources == (
        frozenset(GroupResource(group, name) for name, _, group in (each.partition(".") for each in resources)) or None
    )


@pytest.mark.parametrize(
    "text", ["", "@pods", "a..b", "spec.a@", "spec.a@pods+", "spec.a@Pods", "spec.a@pods,nodes", "spec.nodeName"]
)
def test_a_setting_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DeclaredIndex.parse(text, field="--field-index")
    assert refused.value.field == "--field-index"


def test_settings_together() -> None:
    assert declared_indexes(["spec.a", "spec.b@pods"]) == (DeclaredIndex("spec.a"), DeclaredIndex("spec.b", ("pods",)))
    with pytest.raises(InvalidInput, match=r"'spec\.a'.*each path once"):
        declared_indexes(["spec.a", "spec.b", ".spec.a@pods"])
    with pytest.raises(LimitReached):
        declared_indexes(f"spec.f{number}" for number in range(MAX_INDEXES + 1))

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path

import pytest

from federator.errors import InvalidInput, TestbedError
from federator.testing.binaries import CONTROL_PLANE, PACKAGES, cache_key, cache_root, provide
from federator.testing.go_toolchain import ToolsModule
from federator.testing.process_group import ProcessGroup
from tests.integration.processes import building_process
from tests.integration.processes.conftest import FakeGo


async def test_the_missing_are_built_once_and_then_found(fake_go: FakeGo) -> None:
    lines: list[str] = []
    first = await provide(tools=fake_go.tools, progress=lines.append)
    assert fake_go.built() == list(PACKAGES.values())
    assert set(first.paths) == set(PACKAGES)
    assert all(os.access(path, os.X_OK) for path in first.paths.values())
    assert "ten to fifteen minutes" in lines[0]
    assert lines[1] == "[1/6] etcd ..."
    assert re.fullmatch(r"\[6/6\] kubectl built in \d+ s, \d+ s in all", lines[-1])

    lines.clear()
    assert await provide(tools=fake_go.tools, progress=lines.append) == first
    assert len(fake_go.built()) == 6
    assert lines == []


async def test_only_what_is_asked_for_and_missing_is_built(fake_go: FakeGo) -> None:
    binaries = await provide(["etcd"], tools=fake_go.tools)
    await provide(CONTROL_PLANE, tools=fake_go.tools)
    assert fake_go.built() == [PACKAGES["etcd"], PACKAGES["kube-apiserver"]]
    assert binaries.stages == ()


async def test_the_build_is_told_the_version_and_the_platform(fake_go: FakeGo) -> None:
    await provide(["kube-apiserver"], tools=fake_go.tools)
    (build,) = fake_go.calls()
    assert build.startswith("build -trimpath -ldflags -s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 ")
    assert "gitMajor=1 " in build
    assert "gitMinor=37 " in build


async def test_kwok_comes_with_its_stages(fake_go: FakeGo) -> None:
    binaries = await provide(["kwok"], tools=fake_go.tools)
    assert [stage.name for stage in binaries.stages] == ["node-fast.yaml", "node-heartbeat.yaml", "pod-general.yaml"]
    assert all(stage.is_relative_to(binaries.folder) for stage in binaries.stages)


async def test_ready_made_binaries_are_taken_and_the_missing_are_named(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").write_text("#!/bin/sh\n")
    (assets / "etcd").chmod(0o755)
    (assets / "kube-apiserver").write_text("not executable")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    lines: list[str] = []
    binaries = await provide(CONTROL_PLANE, tools=fake_go.tools, progress=lines.append)
    assert binaries.paths["etcd"] == assets / "etcd"
    assert binaries.paths["kube-apiserver"].parent == binaries.folder
    assert lines[0] == "KUBEBUILDER_ASSETS has no kube-apiserver"
    assert fake_go.built() == [PACKAGES["kube-apiserver"]]


async def test_complete_ready_made_binaries_need_neither_go_nor_source(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CONTROL_PLANE:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    binaries = await provide(CONTROL_PLANE, tools=tmp_path / "nowhere")
    assert binaries.paths == {name: tmp_path / name for name in CONTROL_PLANE}


async def test_a_folder_that_another_cache_has_filled_is_complete(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = await provide(tools=fake_go.tools)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(built.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "")
    assert await provide(tools=tmp_path / "nowhere") == built


async def test_ready_made_binaries_without_stages_get_those_of_the_module(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in PACKAGES:
        (assets / name).write_text("#!/bin/sh\n")
        (assets / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    lines: list[str] = []
    binaries = await provide(tools=fake_go.tools, progress=lines.append)
    assert binaries.paths == {name: assets / name for name in PACKAGES}
    assert len(binaries.stages) == 3
    assert lines == ["KUBEBUILDER_ASSETS has no stages"]
    assert fake_go.built() == []


async def test_a_wrong_assets_folder_is_an_error_and_not_a_build(
    fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere/to/be/found")
    with pytest.raises(TestbedError, match="KUBEBUILDER_ASSETS names '/nowhere/to/be/found'"):
        await provide(tools=fake_go.tools)
    assert fake_go.built() == []


async def test_an_installation_without_the_source_tree_says_what_to_do(fake_go: FakeGo, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="clone of the repository, or set KUBEBUILDER_ASSETS"):
        await provide(["etcd"], tools=tmp_path / "site-packages" / "tools")


async def test_an_unknown_program_is_refused(fake_go: FakeGo) -> None:
    with pytest.raises(InvalidInput, match="kube-proxy"):
        await provide(["kube-proxy"], tools=fake_go.tools)


async def test_no_go_says_which_go_is_needed(fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TestbedError, match=r"need Go 1\.26\.0 or newer .* no `go` on the PATH"):
        await provide(["etcd"], tools=fake_go.tools)


@pytest.mark.parametrize(("version", "good"), [("go1.9.7", False), ("go1.26rc1", False), ("go1.26.0", True)])
async def test_an_old_go_is_refused_by_number(
    fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch, version: str, good: bool
) -> None:
    monkeypatch.setenv("GO_VERSION", version)
    if good:
        await provide(["etcd"], tools=fake_go.tools)
    else:
        with pytest.raises(TestbedError, match=f"need Go 1.26.0 or newer .* `go` is {version}"):
            await provide(["etcd"], tools=fake_go.tools)
        assert fake_go.built() == []


async def test_a_failed_build_shows_the_compilers_words_and_leaves_no_half(
    fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_FAILS", "yes")
    with pytest.raises(TestbedError, match="undefined: everything"):
        await provide(["etcd"], tools=fake_go.tools)
    monkeypatch.delenv("GO_FAILS")
    binaries = await provide(["etcd"], tools=fake_go.tools)
    assert {path.name for path in binaries.folder.iterdir()} == {"etcd", "build.log"}


async def test_a_killed_builds_leftover_is_swept(fake_go: FakeGo) -> None:
    folder = (await provide(["etcd"], tools=fake_go.tools)).folder
    (folder / ".kubectl.4711").write_text("half a program")
    (folder / ".stages.4711").mkdir()
    await provide(["kubectl"], tools=fake_go.tools)
    assert {path.name for path in folder.iterdir()} == {"etcd", "kubectl", "build.log"}


async def test_a_cancelled_build_ends_its_compiler(fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_SECONDS", "1000")
    building = asyncio.create_task(provide(["etcd"], tools=fake_go.tools))
    while not fake_go.built():  # noqa: ASYNC110 - the compiler sets no event
        await asyncio.sleep(0.01)
    building.cancel()
    # Reaps the compiler: where it went on, this would take its thousand seconds.
    with pytest.raises(asyncio.CancelledError):
        await building
    monkeypatch.delenv("GO_SECONDS")
    await provide(["etcd"], tools=fake_go.tools)


async def test_several_processes_build_once_and_the_waiting_say_so(
    fake_go: FakeGo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = tmp_path / "go-on"
    monkeypatch.setenv("GO_WAITS_FOR", str(go_on))
    with contextlib.closing(ProcessGroup()) as group:
        others = [
            group.launch_module(
                name,
                building_process.__name__,
                [str(fake_go.tools)],
                log=tmp_path / f"{name}.log",
                folder=Path.cwd(),
            )
            for name in ("one", "another")
        ]
        async with asyncio.timeout(60):
            while not any("waiting for process" in other.log_tail() for other in others):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            go_on.touch()
            while any(other.running for other in others):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [other.exit_code for other in others] == [0, 0]
    assert fake_go.built() == [PACKAGES["etcd"]]
    builders = [other for other in others if "[1/1] etcd built" in other.log_tail()]
    assert len(builders) == 1
    waiting = [other for other in others if f"waiting for process {builders[0].pid}" in other.log_tail()]
    assert len(waiting) == 1


def test_the_key_follows_what_the_build_depends_on(fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache_key(ToolsModule(fake_go.tools))
    assert key.startswith("kubernetes-1.37.2-etcd-3.7.3-kwok-0.8.0-")
    assert cache_key(ToolsModule(fake_go.tools)) == key

    monkeypatch.setattr("platform.machine", lambda: "aarch64" if "amd64" in key else "x86_64")
    assert cache_key(ToolsModule(fake_go.tools)) != key
    monkeypatch.undo()

    (fake_go.tools / "go.sum").write_text("other sums\n")
    assert cache_key(ToolsModule(fake_go.tools)) != key


def test_an_unknown_platform_is_refused(fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    with pytest.raises(TestbedError, match="pdp11"):
        cache_key(ToolsModule(fake_go.tools))


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "federator" / "testbed"
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_root() == Path.home() / ".cache" / "federator" / "testbed"


def test_the_tools_module_names_every_program() -> None:
    module = ToolsModule(Path(__file__).parents[3] / "tools")
    for package in PACKAGES.values():
        assert f"\t{package}\n".encode() in module.go_mod
    assert cache_key(module)

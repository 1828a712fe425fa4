"""The programs of a control plane: found ready-made, in the cache, or built from the pinned Go modules."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import federator
from federator.errors import InvalidInput, TestbedError
from federator.testing.go_toolchain import GoToolchain, Progress, ToolsModule, go_platform

_KUBERNETES = "k8s.io/kubernetes"
_ETCD = "go.etcd.io/etcd/server/v3"
_KWOK = "sigs.k8s.io/kwok"

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "etcd": _ETCD,
        "kube-apiserver": f"{_KUBERNETES}/cmd/kube-apiserver",
        "kube-controller-manager": f"{_KUBERNETES}/cmd/kube-controller-manager",
        "kube-scheduler": f"{_KUBERNETES}/cmd/kube-scheduler",
        "kwok": f"{_KWOK}/cmd/kwok",
        "kubectl": f"{_KUBERNETES}/cmd/kubectl",
    }
)
"""Go package of each program; `tools/go.mod` names the same as its tools."""

CONTROL_PLANE = ("etcd", "kube-apiserver")
"""What every control plane runs."""

LIVING = (*CONTROL_PLANE, "kube-controller-manager", "kube-scheduler", "kwok")
"""What a control plane runs whose workloads live."""

_STAGES = ("node/fast", "node/heartbeat", "pod/general")
"""Folders of kwok's module, under kustomize/stage, that say how its fake nodes and pods live."""

_LOCK_POLL = 0.5
_WAIT_PROGRESS_INTERVAL = 30.0


class Binaries(NamedTuple):
    """Programs that are ready to run.

    Attributes:
        folder: the cache folder of these versions, where built programs are; that of KUBEBUILDER_ASSETS where all are
            there.
        paths: path of each program that was asked for.
        stages: kwok's stage files; empty unless kwok was asked for.
    """

    folder: Path
    paths: Mapping[str, Path]
    stages: tuple[Path, ...]


def write_progress(line: str) -> None:
    """Writes a line of progress to stderr."""
    sys.stderr.write(f"testbed: {line}\n")
    sys.stderr.flush()


async def provide(
    names: Collection[str] = tuple(PACKAGES),
    *,
    tools: Path | None = None,
    progress: Progress = write_progress,
) -> Binaries:
    """Finds these programs, and builds the missing ones. Only the first build takes time.

    A program is taken from the folder that KUBEBUILDER_ASSETS names, if it is there, then from the cache
    (`$XDG_CACHE_HOME/federator/testbed/<versions and hash>`). What is in neither is built there by `go build`,
    by one process at a time: others wait for it, and say so. A program appears in the cache whole or not at all;
    a build that was cut short loses only the program it was at. kwok's stage files are taken from the folder `stages`
    of either, or copied into the cache from kwok's module, which also needs Go.

    Args:
        names: keys of `PACKAGES`.
        tools: folder of the Go module that pins the versions; `tools/` of the source tree if None.
        progress: takes a line now and then while something is built or waited for.

    Raises:
        InvalidInput: an unknown name.
        TestbedError: no source tree, no (or too old a) Go, or a failed build.
    """
    for name in names:
        if name not in PACKAGES:
            raise InvalidInput("binary", name, ", ".join(PACKAGES))
    wanted = [name for name in PACKAGES if name in names]
    ready, stages = await asyncio.to_thread(_ready_made, wanted)
    missing = [name for name in wanted if name not in ready]
    copies_stages = "kwok" in wanted and not stages
    if not missing and not copies_stages:
        return Binaries(next(iter(ready.values())).parent, ready, stages)
    module = await asyncio.to_thread(ToolsModule, tools or Path(federator.__file__).parents[1] / "tools")
    cache = Cache(cache_root(), module, progress)
    if not await asyncio.to_thread(cache.complete, missing, copies_stages):
        if ready:
            progress(f"KUBEBUILDER_ASSETS has no {', '.join([*missing, *(['stages'] if copies_stages else [])])}")
        await cache.build(missing, copies_stages)
    paths = {name: ready.get(name) or cache.path(name) for name in wanted}
    return Binaries(cache.folder, paths, cache.stages() if copies_stages else stages)


def cache_root() -> Path:
    """Folder of the testbed in the user's cache: `$XDG_CACHE_HOME/federator/testbed`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "federator" / "testbed"


def cache_key(module: ToolsModule) -> str:
    """Name of the cache folder: the versions for people, and a hash of all that a build depends on."""
    operating_system, architecture = go_platform()
    content = hashlib.sha256(b"\0".join([module.go_mod, module.go_sum, _linker_flags(module).encode()])).hexdigest()
    versions = [
        f"{name}-{module.version(path).removeprefix('v')}"
        for name, path in (("kubernetes", _KUBERNETES), ("etcd", _ETCD), ("kwok", _KWOK))
    ]
    return "-".join([*versions, operating_system, architecture, content[:12]])


def _ready_made(names: Collection[str]) -> tuple[dict[str, Path], tuple[Path, ...]]:
    """Programs of the folder that KUBEBUILDER_ASSETS names, and with kwok its stage files there."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return {}, ()
    folder = Path(assets).absolute()
    if not folder.is_dir():
        raise TestbedError(f"KUBEBUILDER_ASSETS names {assets!r}, which is not a folder")
    programs = {name: path for name in names if _is_program(path := folder / name)}
    return programs, _stage_files(folder) if "kwok" in names else ()


def _stage_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted((folder / "stages").glob("*.yaml")))


def _linker_flags(module: ToolsModule) -> str:
    """Without the version, the apiserver calls itself v0.0.0-master and clients take it for a very old one."""
    version = module.version(_KUBERNETES)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    fields = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in fields.items())


class Cache:
    """The built programs of one set of versions, shared by all processes of the user.

    Attributes:
        folder: where they are.
    """

    def __init__(self, root: Path, module: ToolsModule, progress: Progress) -> None:
        self.folder = root / cache_key(module)
        self._module = module
        self._progress = progress

    def path(self, name: str) -> Path:
        """Where a program is, once it is built."""
        return self.folder / name

    def stages(self) -> tuple[Path, ...]:
        """Kwok's stage files, copied here so that the module's source is not needed to run it."""
        return _stage_files(self.folder)

    def complete(self, names: Collection[str], stages: bool) -> bool:
        """All of this is here."""
        return all(_is_program(self.path(name)) for name in names) and (not stages or bool(self.stages()))

    async def build(self, names: Collection[str], stages: bool) -> None:
        """Builds what is missing of this, unless another process has done so in the meantime.

        When cancelled, the running build is ended and what was built before stays.

        Raises:
            TestbedError: no (or too old a) Go, or a failed build.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        async with self._lock():
            self._sweep()
            go = GoToolchain(self._module, log=self.folder / "build.log", progress=self._progress)
            if missing := [name for name in names if not _is_program(self.path(name))]:
                await go.check()
                self._progress(
                    f"building {', '.join(missing)} in {self.folder}; "
                    "the first build of all takes about ten to fifteen minutes on two cores"
                )
            begin = time.monotonic()
            for number, name in enumerate(missing, 1):
                await self._build_one(go, name, f"[{number}/{len(missing)}] {name}", begin)
            if stages and not self.stages():
                await self._copy_stages(go)

    async def _build_one(self, go: GoToolchain, name: str, label: str, begin: float) -> None:
        self._progress(f"{label} ...")
        partial = self.folder / f".{name}.{os.getpid()}"
        started = time.monotonic()
        await go.build(PACKAGES[name], linker_flags=_linker_flags(self._module), output=partial, label=label)
        partial.replace(self.path(name))
        now = time.monotonic()
        self._progress(f"{label} built in {now - started:.0f} s, {now - begin:.0f} s in all")

    async def _copy_stages(self, go: GoToolchain) -> None:
        source = await go.module_folder(_KWOK)
        partial = self.folder / f".stages.{os.getpid()}"
        partial.mkdir()
        for stage in _STAGES:
            for file in sorted((source / "kustomize" / "stage" / stage).glob("*.yaml")):
                if file.name != "kustomization.yaml":
                    # Files of the module cache are read-only; the content alone is copied, not the mode.
                    shutil.copyfile(file, partial / file.name)
        partial.rename(self.folder / "stages")

    def _sweep(self) -> None:
        """Removes what a killed build has left. Only under the lock."""
        for leftover in self.folder.glob(".*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[None]:
        path = self.folder.with_name(f"{self.folder.name}.lock")
        # The kernel gives the lock back when its holder ends, in whatever way.
        with path.open("a+") as file:
            await self._acquire(file.fileno(), path)
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    async def _acquire(self, descriptor: int, path: Path) -> None:
        begin = time.monotonic()
        said = -_WAIT_PROGRESS_INTERVAL
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                waited = time.monotonic() - begin
            if waited - said >= _WAIT_PROGRESS_INTERVAL:
                said = waited
                holder = os.pread(descriptor, 32, 0).decode().strip()
                self._progress(f"waiting for process {holder}, which builds the same programs ({waited:.0f} s)")
            await asyncio.sleep(_LOCK_POLL)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)

"""The Go command, as far as the testbed needs it: building the tools that `tools/go.mod` pins."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from federator.errors import TestbedError
from federator.testing.process_group import Process, ProcessGroup

Progress = Callable[[str], None]
"""Takes one line for the person who waits."""

_POLL = 0.1
_PROGRESS_INTERVAL = 30.0

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class ToolsModule:
    """The Go module in `tools/` that names the testbed's programs and pins their versions.

    Raises:
        TestbedError: the folder has no go.mod, as in an installation without the source tree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.go_mod = (folder / "go.mod").read_bytes()
            self.go_sum = (folder / "go.sum").read_bytes()
        except FileNotFoundError as missing:
            raise TestbedError(
                f"the testbed's programs are built from federator's source tree, and there is no {missing.filename}. "
                "Use a clone of the repository, or set KUBEBUILDER_ASSETS to a folder with ready-made binaries"
            ) from None

    @property
    def go_version(self) -> tuple[int, ...]:
        """The oldest Go that can build it."""
        return _numbers(self._find(r"^go (\S+)$"))

    def version(self, module: str) -> str:
        """The pinned version of a module, e.g. "v1.37.2"."""
        return self._find(rf"^\s*(?:require )?{re.escape(module)} (v\S+)")

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, self.go_mod.decode(), re.MULTILINE)
        if found is None:
            raise TestbedError(f"{self.folder / 'go.mod'} has no line like {pattern!r}")
        return found[1]


def go_platform() -> tuple[str, str]:
    """GOOS and GOARCH of this machine.

    Raises:
        TestbedError: the control planes do not run here.
    """
    machine = platform.machine().lower()
    if sys.platform not in {"linux", "darwin"} or machine not in _ARCHITECTURES:
        raise TestbedError(f"the testbed runs on linux and darwin, amd64 and arm64; this is {sys.platform} {machine}")
    return sys.platform, _ARCHITECTURES[machine]


class GoToolchain:
    """Runs the Go command of the PATH in the tools module.

    A build ends with the process that asked for it, and when its call is cancelled.

    Attributes:
        log: file with the output of the Go commands.
    """

    def __init__(self, module: ToolsModule, *, log: Path, progress: Progress) -> None:
        self._module = module
        self._progress = progress
        self.log = log

    async def check(self) -> None:
        """Makes sure that a Go is there that is new enough.

        Raises:
            TestbedError: there is none, or it is too old; says what is needed.
        """
        needed = ".".join(map(str, self._module.go_version))
        try:
            output = await self._run("go version", ["env", "GOVERSION"])
        except TestbedError as error:
            raise TestbedError(f"the testbed's programs need Go {needed} or newer to be built. {error}") from error
        if _numbers(output.removeprefix("go")) < self._module.go_version:
            raise TestbedError(f"the testbed's programs need Go {needed} or newer to be built; `go` is {output}")

    async def build(self, package: str, *, linker_flags: str, output: Path, label: str) -> None:
        """Builds one program of the module, statically linked; says every half minute that it is still at it.

        Raises:
            TestbedError: with the end of the compiler's output.
        """
        arguments = ["build", "-trimpath", "-ldflags", linker_flags, "-o", str(output), package]
        await self._run(f"building {package}", arguments, label=label)

    async def module_folder(self, module: str) -> Path:
        """Folder with the source of a pinned module, downloaded if need be."""
        await self._run(f"downloading {module}", ["mod", "download", module])
        return Path(await self._run(f"finding {module}", ["list", "-m", "-f", "{{.Dir}}", module]))

    async def _run(self, what: str, arguments: list[str], *, label: str = "") -> str:
        """Returns the last line of the output."""
        go = shutil.which("go")
        if go is None:
            raise TestbedError("There is no `go` on the PATH; get it from https://go.dev/dl/")
        self.log.write_bytes(b"")
        operating_system, architecture = go_platform()
        environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GOOS": operating_system,
            "GOARCH": architecture,
            "GOWORK": "off",  # a go.work above the checkout is none of our business
        }
        group = ProcessGroup()
        try:
            process = group.launch(
                what, [go, *arguments], log=self.log, folder=self._module.folder, environment=environment
            )
            await self._wait(process, label)
        finally:
            group.close()
        if process.exit_code != 0:
            raise TestbedError(
                f"{what} failed: `go {arguments[0]}` exited with {process.exit_code}:\n{process.log_tail()}"
            )
        return process.log_tail(1).strip()

    async def _wait(self, process: Process, label: str) -> None:
        begin = said = time.monotonic()
        while process.running:
            await asyncio.sleep(_POLL)
            if label and time.monotonic() - said >= _PROGRESS_INTERVAL:
                said = time.monotonic()
                self._progress(f"{label} ... {said - begin:.0f} s")


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers of a version, e.g. (1, 26, 0); pre-release marks are dropped."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()

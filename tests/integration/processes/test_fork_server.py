"""What is forked from a process that has imported everything is a program like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federator.errors import TestbedError
from federator.testing.fork_server import IS_SUPPORTED, ForkedProcess, ForkServer

pytestmark = pytest.mark.skipif(not IS_SUPPORTED, reason="needs pidfd")

PROGRAM = """
import json, os, signal, sys, time
print(json.dumps({
    "argv": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "pid": os.getpid(),
    "group": os.getpgid(0), "name": __name__, "stdin": sys.stdin.read(), "path": sys.path[0],
}), flush=True)
print("to stderr", file=sys.stderr)
match sys.argv[1]:
    case "wait":
        time.sleep(60)
    case "raise":
        raise ValueError("on purpose")
    case "tidy":
        import atexit
        atexit.register(print, "tidied up")
    case code:
        sys.exit(int(code))
"""


class Launcher:
    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.out = folder / "out"
        self.err = folder / "err"
        (folder / "program_of_the_test.py").write_text(PROGRAM)

    def launch(self, *words: str, group: int = 0) -> ForkedProcess:
        with self.out.open("wb") as out, self.err.open("wb") as err, Path(os.devnull).open("rb") as nothing:
            return self.server.launch(
                "program_of_the_test",
                words,
                stdin=nothing.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
                folder=self.folder,
                environment={"PYTHONPATH": str(self.folder), "ONLY": "this"},
                group=group,
            )

    def wait_for_output(self) -> None:
        while not self.out.read_text().endswith("\n"):
            time.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(preloaded=())
    yield server
    server.close()


@pytest.fixture
def launcher(server: ForkServer, tmp_path: Path) -> Launcher:
    return Launcher(server, tmp_path)


def test_it_gets_what_it_is_given_and_nothing_else(launcher: Launcher) -> None:
    process = launcher.launch("7", "second")
    assert process.wait(30) == 7
    seen = json.loads(launcher.out.read_text())
    assert seen == {
        "argv": ["7", "second"],
        "environment": {"PYTHONPATH": str(launcher.folder), "ONLY": "this"},
        "folder": str(launcher.folder),
        "pid": process.pid,
        "group": process.pid,
        "name": "__main__",
        "stdin": "",
        "path": str(launcher.folder),
    }
    assert launcher.err.read_text() == "to stderr\n"


def test_an_uncaught_exception_is_told_as_ever(launcher: Launcher) -> None:
    assert launcher.launch("raise").wait(30) == 1
    assert launcher.err.read_text().endswith("ValueError: on purpose\n")


def test_what_is_registered_for_the_end_runs(launcher: Launcher) -> None:
    assert launcher.launch("tidy").wait(30) == 0
    assert launcher.out.read_text().endswith("tidied up\n")


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "KeyboardInterrupt")])
def test_signals_end_it_and_their_number_is_told(launcher: Launcher, number: signal.Signals, said: str) -> None:
    process = launcher.launch("wait")
    launcher.wait_for_output()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(30) == -number
    assert said in launcher.err.read_text()
    process.kill()  # it has ended: nobody else is meant
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_it_joins_a_group(launcher: Launcher) -> None:
    first = launcher.launch("wait")
    second = launcher.launch("wait", group=first.pid)
    assert os.getpgid(second.pid) == first.pid
    os.killpg(first.pid, signal.SIGKILL)
    assert (first.wait(30), second.wait(30)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert launcher.launch("wait", group=first.pid).wait(30) == 1, "of a group that is gone it must not run"


def test_what_does_not_fit_is_refused_and_the_server_goes_on(launcher: Launcher) -> None:
    with pytest.raises(TestbedError, match="131072 fit"):
        launcher.launch("x" * (128 << 10))
    assert launcher.launch("0").wait(30) == 0


def test_a_server_that_was_killed_is_told(tmp_path: Path) -> None:
    server = ForkServer(preloaded=())
    launcher = Launcher(server, tmp_path)
    process = launcher.launch("wait")
    launcher.wait_for_output()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL, "of its end nobody can tell any more"
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TestbedError, match="fork server"):
        launcher.launch("0")
    server.close()


_OWNER = """
import sys
from pathlib import Path
from federator.testing.fork_server import ForkServer
from tests.integration.processes.test_fork_server import Launcher
launcher = Launcher(ForkServer(preloaded=()), Path(sys.argv[1]))
process = launcher.launch("wait")
launcher.wait_for_output()
print(process.pid, launcher.server.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = list(map(int, owner.stdout.readline().split()))
        assert len(pids) == 2
        owner.kill()
    deadline = time.monotonic() + 30
    while any(map(_runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False

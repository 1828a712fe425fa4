"""ForkServer: starts Python programs by forking a process that has imported already what they import.

A command of federator spends its first second and more on imports. A test suite that starts hundreds of them spends
most of its time so. What is started here is a process like any other, with its own ID, group, environment, files,
signals and end; only its command line, as `ps` shows it, is that of the server.

For Linux, since a process must be held by something that does not pass to another one when its ID does (pidfd).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from federator.errors import TestbedError

IS_SUPPORTED = hasattr(os, "pidfd_open")
"""Whether this system has what it needs."""

PRELOADED = tuple(f"federator.cli.{each}" for each in ("aggregator", "agent", "run", "get", "clusters", "ledger"))
"""What commands of federator import."""

_MESSAGE_BYTES = 128 << 10  # arguments and environment
_ANSWERS_WITHIN = 60.0


class _Request(msgspec.Struct):
    """A program to start; its files come beside it: stdin, stdout, stderr, and where its end is told."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    group: int


class ForkServer:
    """Starts Python modules as processes, quickly. May be used by several threads.

    The server is started with the first program, and ends with the process that made it, however that ends.
    """

    def __init__(self, preloaded: Sequence[str] = PRELOADED) -> None:
        """Starts nothing yet.

        Args:
            preloaded: modules that are imported before anything is started.
        """
        self._preloaded = tuple(preloaded)
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process ID of the server; None while there is none."""
        return self._server.pid if self._server else None

    def launch(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        group: int = 0,
    ) -> ForkedProcess:
        """Runs a module as `python -m` does. Blocks for the fork only, and at first for the imports.

        Args:
            module: its name.
            arguments: what it finds in `sys.argv` behind its name.
            stdin: descriptor, as stdout and stderr; they are not closed.
            stdout: see there.
            stderr: see there.
            folder: its working directory.
            environment: all of it; that of this process if None. `PYTHONPATH` applies, what else Python reads of it at
                its start does not.
            group: the process group it joins before it runs; 0 for a new one.

        Raises:
            TestbedError: the server has ended, or arguments and environment take more than 128 KiB.
        """
        variables = dict(os.environ if environment is None else environment)
        message = msgspec.json.encode(_Request(module, list(arguments), variables, str(folder), group))
        if len(message) > _MESSAGE_BYTES:
            raise TestbedError(f"arguments and environment of {module} take {len(message)} bytes, {_MESSAGE_BYTES} fit")
        told, tells = os.pipe()
        try:
            with self._lock:
                channel = self._connected()
                socket.send_fds(channel, [message], [stdin, stdout, stderr, tells])
                answer, (pidfd, *_), _, _ = socket.recv_fds(channel, 64, 1)
        except (OSError, ValueError) as error:
            os.close(told)
            raise TestbedError(f"the fork server cannot start {module}: {error or 'it has ended'}") from error
        finally:
            os.close(tells)
        return ForkedProcess(int(answer), pidfd, told)

    def close(self) -> None:
        """Ends the server, and kills what still runs of what it has started; again does nothing."""
        with self._lock:
            if self._channel is not None and self._server is not None:
                self._channel.close()
                self._server.wait()
            self._channel = self._server = None

    def _connected(self) -> socket.socket:
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.settimeout(_ANSWERS_WITHIN)
            with theirs:
                self._server = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        f"from {__name__} import main; main()",
                        str(theirs.fileno()),
                        *self._preloaded,
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    process_group=0,  # out of reach of a Ctrl-C, and in the session of the groups it is to join
                )
            self._channel = ours
        return self._channel


class ForkedProcess:
    """A program that was started by a ForkServer; as `subprocess.Popen`, as far as it goes.

    Attributes:
        pid: its process ID. A signal cannot reach another process, even when the ID belongs to one by then.
        returncode: None until its end was seen; negative for a signal.
    """

    def __init__(self, pid: int, pidfd: int, told: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._told = told

    def poll(self) -> int | None:
        """Looks whether it has ended, and returns `returncode`."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it runs after so many seconds.
        """
        code = self._look(None if timeout is None else int(timeout * 1000))
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Sends it a signal; one that has ended is not reached."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signal.Signals(number))

    def terminate(self) -> None:
        """Asks it to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it at once (SIGKILL)."""
        self.send_signal(signal.SIGKILL)

    def _look(self, milliseconds: int | None) -> int | None:
        if self.returncode is None:
            # The server tells of the end after it has reaped the process, so that no zombie is left behind.
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if poll.poll(milliseconds):
                status = os.read(self._told, 16)
                self.returncode = os.waitstatus_to_exitcode(int(status)) if status else -signal.SIGKILL
                os.close(self._told)
                os.close(self._pidfd)
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._told)
            os.close(self._pidfd)


def _serve(channel: socket.socket) -> tuple[_Request, list[int]]:
    """Forks until the owner ends, which ends this process; returns in each child, with what it is to do."""
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    running: dict[int, tuple[int, int]] = {}  # by pidfd: process ID, and where its end is told
    while True:
        for key, _ in selector.select():
            if key.fd in running:
                selector.unregister(key.fd)
                pid, tells = running.pop(key.fd)
                _tell(tells, os.waitpid(pid, 0)[1])
                os.close(key.fd)
                continue
            message, files, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 4)
            if not message:
                for pidfd in running:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os._exit(0)
            request = msgspec.json.decode(message, type=_Request)
            pid = os.fork()
            if pid == 0:
                selector.close()
                channel.close()
                for pidfd, (_, tells) in running.items():
                    os.close(pidfd)
                    os.close(tells)
                return request, files
            with suppress(OSError):  # it does so itself, too: whoever is first
                os.setpgid(pid, request.group)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, files.pop()
            selector.register(pidfd, selectors.EVENT_READ)
            socket.send_fds(channel, [str(pid).encode()], [pidfd])
            for file in files:
                os.close(file)


def _tell(tells: int, status: int) -> None:
    try:
        os.write(tells, str(status).encode())
    except BrokenPipeError:  # nobody wants to know
        pass
    finally:
        os.close(tells)


def _become(request: _Request, files: Sequence[int]) -> None:
    """Makes this process what the request describes, all but its program."""
    os.setpgid(0, request.group)  # fails, and the process ends, where the group has been killed meanwhile
    for stream, file in enumerate(files[:3]):
        os.dup2(file, stream)
    for file in files:
        os.close(file)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    paths = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = [request.module, *request.arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """`DESCRIPTOR MODULE...`: imports and serves, and in each child runs a module as the interpreter's main program."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    request, files = _serve(channel)
    _become(request, files)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


_shared: list[ForkServer] = []


def switch_on() -> None:
    """From now on this process forks where it would start Python; for a suite of tests. Elsewhere it does nothing."""
    if IS_SUPPORTED and not _shared:
        _shared.append(ForkServer())
        atexit.register(_shared[0].close)


def shared() -> ForkServer | None:
    """The server of this process, if forking is switched on."""
    return _shared[0] if _shared else None


def start_module(
    module: str,
    arguments: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    group: int | None = None,
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Runs a module as a process: a fork where forking is switched on, else `python -m`.

    Args:
        module: its name.
        arguments: the program's.
        stdin: descriptor; empty input by default.
        stdout: descriptor; this process's by default.
        stderr: descriptor; this process's by default.
        folder: its working directory; that of this process if None.
        environment: all of it; that of this process if None.
        group: the process group it joins.

    Raises:
        TestbedError: it cannot be forked.
        OSError: Python cannot be executed.
    """
    server = shared()
    if server is None:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment,
            process_group=group,
        )
    with Path(os.devnull).open("rb") as nothing:
        return server.launch(
            module,
            arguments,
            stdin=nothing.fileno() if stdin == subprocess.DEVNULL else stdin,
            stdout=1 if stdout is None else stdout,
            stderr=2 if stderr is None else stderr,
            folder=folder or Path.cwd(),
            environment=environment,
            group=group or 0,
        )

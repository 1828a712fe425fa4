"""Child processes that cannot outlive the process that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from federator.testing.fork_server import ForkedProcess, start_module

# The warden: leader of the group, and the only reader of a pipe whose writing end only our process holds. However our
# process ends, SIGKILL included, the kernel closes that end, `read` returns and the whole group is killed.
_WARDEN = "trap '' HUP INT TERM; read -r _; kill -KILL 0"

_STOP_POLL = 0.02
"""Seconds between two looks at a process that was told to end."""


class ProcessGroup:
    """A process group that dies with the process that made it, even when that one is killed by SIGKILL.

    Promises:
        - After the owner's end, or after `close`, no process of the group is left.
        - A process is in the group before its program starts, so that no moment exists in which it could escape.
        - A Ctrl-C in the owner's terminal does not reach the group: the owner decides in which order things end.

    The alternative, prctl(PR_SET_PDEATHSIG), is for Linux alone, needs code between fork and exec, and fires at the end
    of the *thread* that forked, so that a process launched from a worker thread would die at random.
    """

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            self._warden = subprocess.Popen(
                ["/bin/sh", "-c", _WARDEN],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)
        self._closed = False
        self._processes: list[Process] = []
        _groups.add(self)

    @property
    def pid(self) -> int:
        """PID of the warden, which is the ID of the group."""
        return self._warden.pid

    def launch(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a program in the group. Blocks for the fork and exec only.

        Args:
            name: what errors call the process.
            arguments: the program's path and its arguments.
            log: file that gets what the program writes to stdout and stderr; appended to.
            folder: the program's working directory.
            environment: its whole environment; that of this process if None.

        Raises:
            OSError: the program cannot be executed.
        """
        with log.open("ab") as output:
            popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                process_group=self._warden.pid,
            )
        return self._started(Process(name, popen, log))

    def launch_module(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Runs a Python module as a program in the group: `python -m`, or a fork where that is switched on.

        Args:
            name: what errors call the process.
            module: its name.
            arguments: the program's arguments.
            log: as of `launch`.
            folder: as of `launch`.
            environment: as of `launch`.

        Raises:
            TestbedError: it cannot be forked.
            OSError: Python cannot be executed.
        """
        with log.open("ab") as output:
            started = start_module(
                module,
                arguments,
                stdout=output.fileno(),
                stderr=output.fileno(),
                folder=folder,
                environment=environment,
                group=self._warden.pid,
            )
        return self._started(Process(name, started, log))

    def _started(self, process: Process) -> Process:
        self._processes = [*(earlier for earlier in self._processes if earlier.running), process]
        return process

    def close(self) -> None:
        """Kills and reaps what is left of the group; idempotent. Blocks until the kernel has done it."""
        if self._closed:
            return
        self._closed = True
        os.close(self._pipe)
        self._warden.wait()
        for process in self._processes:
            process.kill()

    def _disown(self) -> None:
        # In a forked child: its copy of the pipe would keep the warden waiting after the owner's end.
        if not self._closed:
            self._closed = True
            os.close(self._pipe)


_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _disown_all() -> None:
    for group in list(_groups):
        group._disown()


os.register_at_fork(after_in_child=_disown_all)


class Process:
    """One running program of a ProcessGroup. Belongs to no event loop."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes] | ForkedProcess, log: Path) -> None:
        self.name = name
        self.log = log
        self._popen = popen

    @property
    def pid(self) -> int:
        """Its process ID; not reused while this object has not seen the end of the process."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """It has not ended (a paused process runs)."""
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status, negative for a signal, None while it runs."""
        return self._popen.poll()

    def pause(self) -> None:
        """Freezes it (SIGSTOP): connections stay open and nothing answers."""
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on (SIGCONT)."""
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once (SIGKILL) and reaps it."""
        self._popen.kill()
        self._popen.wait()

    async def stop(self, timeout: float) -> bool:
        """Asks it to end (SIGTERM), and kills it after `timeout` seconds, or at once when cancelled.

        Returns:
            True if it ended by itself.
        """
        self.resume()
        self._popen.terminate()
        try:
            async with asyncio.timeout(timeout):
                while self.running:  # noqa: ASYNC110 - the end of a process sets no event without a loop to own it
                    await asyncio.sleep(_STOP_POLL)
        except TimeoutError:
            return False
        finally:
            self.kill()
        return True

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log; empty if it wrote nothing."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def memory(self) -> int:
        """Resident memory in bytes; 0 where the system does not tell (no /proc) or the process has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(fields.get("VmRSS", "0 kB").split()[0]) * 1024

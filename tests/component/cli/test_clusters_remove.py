"""`federator clusters remove`: whom it asks, what it asks before, and what it says."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys
from pathlib import Path

import pytest

from federator.cli.main import main
from federator.errors import ClusterConnected, FederatorError, UnknownCluster
from federator.v1 import admin_pb2
from tests.component.cli.conftest import Federator
from tests.component.cli.scripted_admin import ScriptedAdmin


class Terminal(io.StringIO):
    """Somebody types this."""

    def isatty(self) -> bool:
        return True


DONE = "ap-1: removed, 41230 objects deleted; nothing of it is left at revision 77\n"
QUESTION = "Cluster ap-1 (UID u-1), STALE for 60m: 41230 objects will be deleted from the federation. Remove it? [y/N] "


async def test_told_to_it_asks_nobody(federator: Federator, admin: ScriptedAdmin) -> None:
    assert await federator("clusters", "remove", "ap-1", "--yes") == (0, DONE, "")
    assert admin.requests == [admin_pb2.RemoveClusterRequest(cluster_id="ap-1")]
    await federator("clusters", "remove", "-y", "--force", "--uid", "u-9", "ap-1")
    assert admin.requests[1:] == [admin_pb2.RemoveClusterRequest(cluster_id="ap-1", cluster_uid="u-9", force=True)]


@pytest.mark.parametrize("typed", ["y\n", "Yes\n"])
async def test_on_a_terminal_it_shows_what_would_go_and_removes_that(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert await federator("clusters", "remove", "ap-1") == (0, DONE, QUESTION)
    assert admin.requests == [
        admin_pb2.RemoveClusterRequest(cluster_id="ap-1", validate_only=True),
        admin_pb2.RemoveClusterRequest(cluster_id="ap-1", cluster_uid="u-1"),
    ]


@pytest.mark.parametrize("typed", ["\n", "n\n", "", "yep\n"])
async def test_anything_but_yes_removes_nothing(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    assert await federator("clusters", "remove", "ap-1") == (1, "", f"{QUESTION}Nothing was removed.\n")
    assert [request.validate_only for request in admin.requests] == [True]


async def test_the_question_says_that_an_agent_is_connected(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    admin.connected = True
    said = (await federator("clusters", "remove", "ap-1", "--force")).err
    assert "STALE for 60m, its agent is connected: " in said
    assert admin.requests[0].force


async def test_without_a_terminal_it_says_what_to_add(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    refused = await federator("clusters", "remove", "ap-1")
    assert (refused.code, refused.out) == (2, "")
    assert (
        refused.err == "Error: --yes: 'nothing' is not allowed; allowed: --yes, since there is no terminal to ask on\n"
    )
    assert admin.requests == []


@pytest.mark.parametrize("error", [UnknownCluster("ap-1", ("eu-1",)), ClusterConnected("ap-1", "5f0c")])
async def test_a_refusal_is_said_before_anything_is_asked(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, error: FederatorError
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    admin.error = error
    assert await federator("clusters", "remove", "ap-1") == (1, "", f"Error: {error}\n")
    assert await federator("clusters", "remove", "ap-1", "--yes") == (1, "", f"Error: {error}\n")


async def test_where_the_socket_is(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state, socket = tmp_path / "state", f"unix:{tmp_path}/state/admin.sock"
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path / "elsewhere"))
    nowhere = await federator("clusters", "remove", "ap-1", "--yes")
    assert nowhere.code == 1
    assert nowhere.err.startswith(
        f"Error: cannot reach the aggregator at unix:{tmp_path}/elsewhere/admin.sock: there is"
    )
    config = tmp_path / "config.yaml"
    for written in (f"state-directory: {state}\nhistory: 3d\n", f"admin-listen: {socket}\nagent-ca-file: x\n"):
        config.write_text(written)
        monkeypatch.delenv("FEDERATOR_STATE_DIRECTORY", raising=False)
        assert (await federator("clusters", "remove", "ap-1", "-y", "--config", str(config))).out == DONE
    for arguments in (("--admin", socket), ("--state-directory", str(state))):
        assert (await federator("clusters", "remove", "ap-1", "-y", *arguments)).out == DONE
    monkeypatch.setenv("FEDERATOR_ADMIN_LISTEN", socket)
    assert (await federator("clusters", "remove", "ap-1", "-y")).out == DONE
    monkeypatch.delenv("FEDERATOR_ADMIN_LISTEN")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state.rename(tmp_path / "federator")
    assert (await federator("clusters", "remove", "ap-1", "-y")).out == DONE


@pytest.mark.parametrize("address", ["127.0.0.1:9090", "", "/run/admin.sock"])
def test_it_talks_to_nothing_but_a_unix_socket(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert main(["clusters", "remove", "ap-1", "--yes", "--admin", address]) == 2
    assert capsys.readouterr().err.startswith(f"Error: --admin: '{address}' is not allowed; allowed: unix:/path")


def test_a_socket_that_nobody_listens_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "admin.sock").touch()
    assert main(["clusters", "remove", "ap-1", "--yes", "--state-directory", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("Error: cannot reach the aggregator at unix:")


async def test_interrupted_at_the_question_it_has_done_nothing(admin: ScriptedAdmin) -> None:
    """On a real terminal, with the real signal."""
    controller, terminal = pty.openpty()
    program = (
        "import fcntl, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a suite in the background has it ignored
        "from federator.cli.main import main; sys.exit(main())"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "clusters", "remove", "ap-1"),
        stdin=terminal,
        stdout=asyncio.subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    said = b""
    while not said.endswith(b"[y/N] "):
        said += await asyncio.to_thread(os.read, controller, 4096)
    os.write(controller, b"\x03")
    assert process.stdout is not None
    assert await process.stdout.read() == b""
    assert await process.wait() == 130
    os.close(controller)
    assert [request.validate_only for request in admin.requests] == [True]

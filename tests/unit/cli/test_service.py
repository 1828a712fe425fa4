"""Commands that run until they are stopped: signals, durations, the state directory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from federator.cli.service import default_state_directory, duration, run_service
from federator.errors import InvalidInput, LedgerLocked


def test_it_returns_when_it_ends_by_itself() -> None:
    done: list[str] = []

    async def main() -> None:
        done.append("done")

    run_service(main())
    assert done == ["done"]


@pytest.mark.parametrize("prefers_uvloop", [False, True])
def test_uvloop_is_for_those_who_ask_for_it(prefers_uvloop: bool) -> None:
    pytest.importorskip("uvloop")
    modules: list[str] = []

    async def main() -> None:
        modules.append(type(asyncio.get_running_loop()).__module__)

    run_service(main(), prefers_uvloop=prefers_uvloop)
    assert modules[0].startswith("uvloop") is prefers_uvloop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_and_is_no_error(number: signal.Signals) -> None:
    steps: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("stopped")

    run_service(main())
    assert steps == ["stopped"]
    assert signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}, "the next one is nobody's"


def test_errors_come_through() -> None:
    async def main() -> None:
        raise LedgerLocked("/somewhere")

    with pytest.raises(LedgerLocked):
        run_service(main())


def test_an_error_while_it_stops_comes_through() -> None:
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            raise LedgerLocked("/somewhere")

    with pytest.raises(LedgerLocked):
        run_service(main())


def test_a_cancellation_that_no_signal_made_is_not_hidden() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_service(main())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5400),
        ("7d", 7 * 86400),
        ("1d12h", 129600),
        ("0.5d", 43200),
        ("250ms", 0.25),
        ("0d1s", 1),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, field="--history") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "0d",
        "d",
        "-5s",
        "-1d",
        "7",
        "7 days",
        "5md",
        "x",
        "nand",
        "infd",
        "-infd",
        "1e400d",
        "nan",
        "-1d36h",
        "1d-1h",
        "1h-30m",
        "+1h",
        "1_0d",
        " 1d",
        "36501d",
    ],
)
def test_what_is_no_positive_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        duration(text, field="--history")
    assert (refused.value.field, refused.value.given) == ("--history", text)


def test_the_state_directory_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_directory() == tmp_path / "federator"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert default_state_directory() == tmp_path / "home" / ".local" / "state" / "federator"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_directory() == tmp_path / "home" / ".local" / "state" / "federator"

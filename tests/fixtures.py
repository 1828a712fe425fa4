"""Fixtures that several folders' conftests take in: what they import applies to each of their tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from federator.testing import fork_server


@pytest.fixture(scope="session", autouse=True)
def python_is_forked() -> None:
    """Spares the programs that tests start their imports; see `federator.testing.fork_server`."""
    fork_server.switch_on()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged so far."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
def no_task_is_left(request: pytest.FixtureRequest) -> None:
    """Fails a test that leaves a task running; others get no loop for it, which takes longer than many of them."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("tasks_end")


@pytest.fixture(autouse=True)
def no_system_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client would read them, most of a test's time and of no use to plain HTTP."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the user's reach a client."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

"""Kubeconfig files for commands that run agents, and a way to call those commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from federator.cli.main import main
from tests.component.cli.conftest import Outcome

SERVER = "https://127.0.0.1:1"
"""Where nobody answers."""


def write_kubeconfig(path: Path, servers: Mapping[str, str]) -> Path:
    """A kubeconfig with a context for each server; an empty one makes its context broken."""
    content = {
        "contexts": [{"name": name, "context": {"cluster": name}} for name in servers],
        "clusters": [{"name": name, "cluster": {"server": server}} for name, server in servers.items() if server],
        "current-context": next(iter(servers), ""),
    }
    path.write_text(json.dumps(content))
    return path


@contextmanager
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """Calls commands on this thread; the logging they set up ends with the block."""
    configure = structlog.configure

    def configure_for_now(**given: Any) -> None:
        # A logger that were cached would go on writing to this test's stderr.
        configure(**(given | {"cache_logger_on_first_use": False}))

    monkeypatch.setattr(structlog, "configure", configure_for_now)

    def run(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    try:
        yield run
    finally:
        structlog.reset_defaults()

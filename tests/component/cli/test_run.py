"""`federator run`: which contexts it takes, where its agents push, what it refuses, and that it stops when told."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from federator.aggregator import aggregator
from federator.cli.run import _socket_path, _sound_contexts
from federator.errors import CredentialsError, InvalidInput
from federator.kube.kubeconfig import Kubeconfig
from tests.component.cli.conftest import Outcome
from tests.component.cli.kubeconfigs import SERVER, commands, write_kubeconfig

Run = Callable[..., Outcome]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return write_kubeconfig(tmp_path / "config", {"berlin": SERVER, "broken": "", "paris": SERVER})


@pytest.fixture
def federator_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, kubeconfig: Path
) -> Iterator[Run]:
    """`federator run` on free ports, with its state in the test's folder."""
    monkeypatch.setenv("FEDERATOR_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("FEDERATOR_HTTP_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with commands(monkeypatch, capsys) as command:
        yield lambda *arguments: command("run", *arguments)


def test_without_names_every_sound_context_is_taken_and_a_broken_one_told(kubeconfig: Path) -> None:
    with capture_logs() as logs:
        assert _sound_contexts(Kubeconfig.load(kubeconfig), []) == ["berlin", "paris"]
    (told,) = logs
    assert (told["log_level"], told["entry"]) == ("warning", "broken")
    assert "does not exist" in told["cause"]


def test_names_choose_in_their_order_and_once(kubeconfig: Path) -> None:
    loaded = Kubeconfig.load(kubeconfig)
    assert _sound_contexts(loaded, ["paris", "berlin", "paris"]) == ["paris", "berlin"]
    assert _sound_contexts(loaded, ["paris"]) == ["paris"]


def test_an_unknown_name_is_refused_with_those_that_can_be_used(kubeconfig: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        _sound_contexts(Kubeconfig.load(kubeconfig), ["berlin", "rome"])
    assert (refused.value.field, refused.value.given) == ("context", "rome")
    assert refused.value.allowed == "berlin, paris"


def test_a_broken_context_that_was_named_is_an_error(kubeconfig: Path) -> None:
    with pytest.raises(CredentialsError, match=r"'broken'.*does not exist"):
        _sound_contexts(Kubeconfig.load(kubeconfig), ["broken"])


@pytest.mark.parametrize("servers", [{}, {"broken": ""}])
def test_a_kubeconfig_without_a_usable_context_is_refused(tmp_path: Path, servers: dict[str, str]) -> None:
    loaded = Kubeconfig.load(write_kubeconfig(tmp_path / "config", servers))
    with pytest.raises(InvalidInput, match="no usable context"):
        _sound_contexts(loaded, [])


async def test_agents_push_in_the_state_directory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        path = _socket_path(tmp_path / "a" / "b", stack)
        assert path == tmp_path / "a" / "b" / "ingest.sock"
        assert path.parent.is_dir()


async def test_a_relative_state_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with AsyncExitStack() as stack:
        assert _socket_path(Path("state"), stack) == tmp_path / "state" / "ingest.sock"


async def test_where_the_path_is_too_long_for_a_socket_they_push_in_a_folder_for_the_time(tmp_path: Path) -> None:
    directory = tmp_path / ("ü" * 60)
    async with AsyncExitStack() as stack:
        path = _socket_path(directory, stack)
        assert path.name == "ingest.sock"
        assert len(os.fsencode(path)) <= 100
        assert path.parent.stat().st_mode & 0o077 == 0, "only its owner may push"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    assert not path.parent.exists()
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rome",), "context: 'rome' is not allowed; allowed: berlin, paris"),
        (("--secrets=all",), "--secrets: 'all' is not allowed; allowed: off, metadata, fingerprint"),
        (("--history=0d",), "--history: '0d' is not allowed"),
        (("--history=soon",), "--history: 'soon' is not allowed"),
        (("--listen=0.0.0.0:9090",), "listen: '0.0.0.0:9090' is not allowed"),
        (("--http-listen=9091",), "http-listen: '9091' is not allowed"),
        (("--resource=pods,",), "resources: "),
        (("--resource=secrets",), "resources: "),
        (("--secrets=fingerprint", "--secrets-key-file=/nowhere/key"), "secrets key file: '/nowhere/key'"),
        (("--cluster-label=env",), "--cluster-label: 'env' is not allowed; allowed: KEY=VALUE"),
        (
            ("--cluster-label=rome:env=prod",),
            "--cluster-label: 'rome:env=prod' is not allowed; allowed: one of berlin, paris",
        ),
        (("--cluster-label=Berlin:env=prod",), "--cluster-label, character 0 ('B'): 'Berlin' is not allowed"),
        (("--log-level=loud",), "log level: 'loud' is not allowed"),
        (("--log-format=xml",), "log format: 'xml' is not allowed"),
        (("--kubeconfig=/nowhere/config",), "kubeconfig: 'no usable context' is not allowed"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_work_is_refused_as_usage(federator_run: Run, arguments: tuple[str, ...], said: str) -> None:
    outcome = federator_run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert f"Error: {said}" in outcome.err


def test_a_broken_context_that_is_named_is_a_failure(federator_run: Run) -> None:
    outcome = federator_run("broken")
    assert outcome.code == 1
    assert "Error: credentials of 'broken'" in outcome.err


def test_two_contexts_that_would_share_a_cluster_id_are_both_named(federator_run: Run, tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path / "twins", {"Prod/EU": SERVER, "prod-eu": SERVER})
    outcome = federator_run("--kubeconfig", file)
    assert outcome.code == 2
    assert "Prod/EU" in outcome.err
    assert "prod-eu" in outcome.err


def test_an_address_that_is_taken_ends_it(federator_run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = federator_run("--listen", address)
    assert outcome.code == 2
    assert f"Error: listen: '{address}' is not allowed; allowed: an address that is free" in outcome.err


def _notice_ready(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the aggregator says so in its log, which goes on as it is."""
    ready, log = threading.Event(), aggregator.log

    def info(event: str, **fields: object) -> None:
        log.info(event, **fields)
        if event == "aggregator ready":
            ready.set()

    monkeypatch.setattr(aggregator, "log", SimpleNamespace(info=info, warning=log.warning, error=log.error))
    return ready


def test_it_runs_until_a_signal_though_no_cluster_answers(
    federator_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread waits until a federation serves, then ends it as an operator would."""
    ready = _notice_ready(monkeypatch)
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.01):
            if ready.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        outcome = federator_run("berlin")
    finally:
        ended.set()
        stopper.join()
    assert (outcome.code, outcome.out) == (0, "")
    assert "aggregator ready" in outcome.err
    assert not (tmp_path / "state" / "ingest.sock").exists()

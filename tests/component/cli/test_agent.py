"""`federator agent`: what it refuses before it asks anything of anybody, and what it tells while it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from federator.agent.agent import Agent, AgentPhase
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID
from federator.cli.agent import _observed
from federator.errors import UnknownResourceType
from tests.component.aggregator.running import get, scrape
from tests.component.cli.conftest import Outcome
from tests.component.cli.kubeconfigs import SERVER, commands, write_kubeconfig
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

Run = Callable[..., Outcome]


@pytest.fixture
def federator_agent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Run]:
    """`federator agent` with a kubeconfig of its own, on an aggregator that is not there."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", {"berlin": SERVER, "broken": ""})))
    monkeypatch.setenv("FEDERATOR_AGGREGATOR", f"unix:{tmp_path / 'nobody.sock'}")
    with commands(monkeypatch, capsys) as command:
        yield lambda *arguments: command("agent", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--in-cluster",), "--cluster-id: '' is not allowed"),
        (("--in-cluster", "--cluster-id="), "--cluster-id: '' is not allowed"),
        (("--in-cluster", "--cluster-id=b", "--context=berlin"), "--in-cluster: 'together with --context or"),
        (("--in-cluster", "--cluster-id=b", "--kubeconfig=/x"), "--in-cluster: 'together with --context or"),
        (("--cluster-id=Not_An_ID",), "--cluster-id: 'Not_An_ID' is not allowed"),
        (("--cluster-id=",), "--cluster-id: '' is not allowed"),
        (("--aggregator=10.0.0.1:9443",), "aggregator: '10.0.0.1:9443' is not allowed"),
        (("--aggregator=nonsense",), "aggregator: 'nonsense' is not allowed"),
        (("--secrets=all",), "--secrets: 'all' is not allowed; allowed: off, metadata, fingerprint"),
        (("--secrets=fingerprint", "--secrets-key-file=/nowhere/key"), "secrets key file: '/nowhere/key'"),
        (("--resource=secrets",), "resources: "),
        (("--audit-interval=10s",), "--audit-interval: '10s' is not allowed; allowed: 0 for never"),
        (("--http-listen=9091",), "http-listen: '9091' is not allowed"),
        (("--aggregator-ca-file=/ca",), "tls-cert-file: '' is not allowed; allowed: a file, since aggregator-ca-file"),
        (("--tls-cert-file=/c", "--tls-private-key-file=/k"), "aggregator-ca-file: '' is not allowed"),
        (
            ("--aggregator-ca-file=/ca", "--tls-cert-file=/c", "--tls-private-key-file=/k"),
            "aggregator: 'unix:",
        ),
        (
            (
                "--aggregator=a.example:9443",
                "--aggregator-ca-file=/nowhere/ca",
                "--tls-cert-file=/c",
                "--tls-private-key-file=/k",
            ),
            "aggregator-ca-file: '/nowhere/ca' is not allowed; allowed: a file that can be read",
        ),
        (("--cluster-label=env",), "--cluster-label: 'env' is not allowed; allowed: KEY=VALUE"),
        (("--cluster-label=berlin:env=prod",), "--cluster-label: 'berlin:env=prod' is not allowed"),
        (tuple(f"--cluster-label=k{number}=" for number in range(65)), "cluster-label: '65 labels' is not allowed"),
        (("--log-level=loud",), "log level: 'loud' is not allowed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_work_is_refused_as_usage(federator_agent: Run, arguments: tuple[str, ...], said: str) -> None:
    outcome = federator_agent(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert f"Error: {said}" in outcome.err


@pytest.mark.parametrize(
    ("context", "said"), [("rome", "no such context; known: berlin"), ("broken", "does not exist")]
)
def test_a_context_that_cannot_be_used_is_a_failure(federator_agent: Run, context: str, said: str) -> None:
    outcome = federator_agent("--context", context)
    assert outcome.code == 1
    assert f"Error: credentials of '{context}'" in outcome.err
    assert said in outcome.err


def test_an_address_for_metrics_that_is_taken_is_named(federator_agent: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = federator_agent("--http-listen", address)
    assert outcome.code == 2
    assert f"Error: http-listen: '{address}' is not allowed" in outcome.err


def agent(tmp_path: Path, *resources: str) -> Agent:
    settings = AgentSettings(
        cluster_id=ClusterID("berlin"),
        aggregator=f"unix:{tmp_path / 'nobody.sock'}",
        resources=resources,
        flush_timeout=0.1,
    )
    return Agent(settings, ScriptedCluster(PODS))


async def test_an_agent_without_a_session_is_not_ready_and_says_why(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    observed = agent(tmp_path)
    task = asyncio.create_task(_observed(observed, f"127.0.0.1:{port}"))
    await eventually(lambda: observed.status().error is not None)
    status, text = await get(port, "/readyz")
    assert status == 503
    assert f"[-]session {AgentPhase.WAITING_FOR_AGGREGATOR} cannot reach the aggregator" in text
    assert (await get(port, "/livez"))[0] == 200
    families = await scrape(port)
    (build,) = families["federator_build_info"].samples
    assert build.labels["component"] == "agent"
    assert families["reflector_lists"].samples[0].labels == {"member_cluster": "berlin"}
    task.cancel()
    await asyncio.wait([task])
    assert asyncio.all_tasks() == before
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(port, "/livez")


async def test_what_ends_the_agent_ends_the_command(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(UnknownResourceType, match="unicorns"):
        await _observed(agent(tmp_path, "unicorns"), "")
    assert asyncio.all_tasks() == before

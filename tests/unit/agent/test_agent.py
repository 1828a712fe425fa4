"""Agent: settings that cannot work are refused before anything is asked of anybody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from federator.agent.agent import Agent, AgentPhase
from federator.agent.settings import AgentSettings, SecretMode
from federator.api.cluster import ClusterID
from federator.errors import ClusterUIDChanged, InvalidInput
from federator.wire.tls import TLSFiles
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

NOWHERE = TLSFiles(ca_file=Path("/nowhere"), certificate_file=Path("/nowhere"), private_key_file=Path("/nowhere"))


def agent(**changes: Any) -> Agent:
    values = {"cluster_id": ClusterID("c"), "aggregator": "unix:/run/x.sock"} | changes
    return Agent(AgentSettings(**values), ScriptedCluster(PODS))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"aggregator": "10.0.0.1:7443"}, "aggregator"),
        ({"aggregator": "example.com:7443"}, "aggregator"),
        ({"tls": NOWHERE}, "aggregator"),
        ({"aggregator": "example.com:7443", "tls": NOWHERE}, "aggregator-ca-file"),
        ({"secrets": SecretMode.FINGERPRINT, "secrets_key_file": Path("/nowhere")}, "secrets key file"),
        ({"resources": ("secrets",)}, "resources"),
        ({"resources": ("",)}, "resources"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        agent(**changes)


def test_before_it_runs_it_waits_for_its_cluster() -> None:
    status = agent().status()
    assert (status.phase, status.error, status.types) == (AgentPhase.WAITING_FOR_MEMBER, None, ())


def test_every_instance_is_another() -> None:
    assert agent().hello().agent_instance != agent().hello().agent_instance


async def test_a_stand_in_is_told_of_and_gives_way_to_the_uid_once_that_may_be_read() -> None:
    cluster = ScriptedCluster(PODS, uid="server-0123")
    settings = AgentSettings(
        cluster_id=ClusterID("c"), aggregator="unix:/nowhere/x.sock", discovery_interval=0.01, flush_timeout=0
    )
    running = Agent(settings, cluster)
    with capture_logs() as logs:
        task = asyncio.create_task(running.run())
        await eventually(lambda: running.hello().cluster_uid == "server-0123")
        running.welcomed((), {})
        cluster.uid = "the-uid"
        await eventually(lambda: running.hello().cluster_uid == "the-uid")
        assert not task.done()
        cluster.uid = "another-uid"
        with pytest.raises(ClusterUIDChanged):
            await task
    (told,) = (entry for entry in logs if "stand-in" in entry["event"])
    assert (told["log_level"], told["need"]) == ("warning", "get of namespaces, for kube-system")

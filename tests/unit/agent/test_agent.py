"""Agent: settings that cannot work are refused before anything is asked of anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from federator.agent.agent import Agent, AgentPhase
from federator.agent.settings import AgentSettings, SecretMode
from federator.api.cluster import ClusterID
from federator.errors import InvalidInput
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster


def agent(**changes: Any) -> Agent:
    values = {"cluster_id": ClusterID("c"), "aggregator": "unix:/run/x.sock"} | changes
    return Agent(AgentSettings(**values), ScriptedCluster(PODS))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"aggregator": "10.0.0.1:7443"}, "aggregator"),
        ({"aggregator": "example.com:7443"}, "aggregator"),
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

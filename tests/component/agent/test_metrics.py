"""Families of agents, from the statistics of real ones, read back as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from federator.agent.agent import Agent
from federator.agent.audit import AuditOutcome
from federator.agent.metrics import agent_metrics
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.api.cluster import ClusterID
from federator.observability.metrics import StatisticsCollector
from tests.component.aggregator.running import running, settings
from tests.exposition import parsed
from tests.unit.agent.scripted_cluster import NODES, PODS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

ALL = {
    "federator_agent_outbox_entries",
    "federator_agent_outbox_bytes",
    "federator_agent_unacked_bytes",
    "federator_agent_left_out_objects",
    "federator_agent_rechecks",
    "federator_agent_outbox_coalesced",
    "federator_agent_outbox_overflows",
    "federator_agent_snapshots",
    "federator_agent_pushed_bytes",
    "federator_agent_push_reconnects",
    "federator_agent_type_proof_age_seconds",
    "federator_agent_audits",
    "federator_agent_audit_differences",
    "federator_agent_audit_age_seconds",
    "federator_agent_spool_on",
    "federator_agent_spool_bytes",
    "federator_agent_spool_overflows",
    "federator_agent_spool_failures",
    "federator_agent_spool_set_aside",
    "reflector_lists",
    "reflector_watches",
    "reflector_failures",
}


def scraped(statistics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Metric]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatisticsCollector(lambda: agent_metrics(statistics)))
    return parsed(generate_latest(registry).decode())


def values(family: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def agent_of(name: str, cluster: ScriptedCluster, address: str, spool: Path | None = None) -> Agent:
    return Agent(
        AgentSettings(
            cluster_id=ClusterID(name),
            aggregator=address,
            spool_directory=spool,
            backoff_min=0.01,
            backoff_max=0.05,
            flush_timeout=0.2,
        ),
        cluster,
    )


async def test_a_pushing_agent(tmp_path: Path) -> None:
    cluster = ScriptedCluster(PODS, NODES)
    cluster.put(PODS, "web")
    async with running(Aggregator(settings(tmp_path, http_listen=""))) as aggregator:
        agent = agent_of("berlin", cluster, aggregator.ingest_address)
        task = asyncio.create_task(agent.run())
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 1)
        statistics: Mapping[str, Any] = agent.statistics()
        families = scraped({"berlin": statistics})
        informers = statistics["informers"]["types"].values()
        task.cancel()
        await asyncio.wait([task])
    assert set(families) == ALL
    assert len(informers) == 2
    for family, key in (("lists", "lists"), ("watches", "watches"), ("failures", "failures")):
        told = sum(informer["reflector"][key] for informer in informers)
        assert values(families[f"reflector_{family}"]) == {("berlin",): told}
    assert values(families["federator_agent_snapshots"]) == {("berlin",): statistics["outbox"]["snapshots"]}
    assert values(families["federator_agent_pushed_bytes"])["berlin",] > 0
    assert values(families["federator_agent_outbox_overflows"]) == {("berlin",): 0}
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert labels <= {"member_cluster", "resource", "outcome", "kind"}


async def test_what_an_audit_found_and_a_spool_holds(tmp_path: Path) -> None:
    cluster = ScriptedCluster(PODS, NODES)
    cluster.put(PODS, "web")
    async with running(Aggregator(settings(tmp_path, http_listen=""))) as aggregator:
        agent = agent_of("berlin", cluster, aggregator.ingest_address, tmp_path / "spool")
        task = asyncio.create_task(agent.run())
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 1)
        plain = agent_of("paris", ScriptedCluster(PODS), "unix:/nowhere")
        pods, nodes = sorted(agent._informers.audited(), key=lambda audited: audited.type.resource, reverse=True)
        pods.informer.indexer.remove("default/web")
        await agent._audit.check(pods)
        await agent._audit.check(nodes)
        statistics: Mapping[str, Any] = agent.statistics()
        families = scraped({"berlin": statistics, "paris": plain.statistics()})
        task.cancel()
        await asyncio.wait([task])
    outcomes = values(families["federator_agent_audits"])
    assert {labels: number for labels, number in outcomes.items() if number} == {
        ("berlin", "DIFFERENT"): 1,
        ("berlin", "EQUAL"): 1,
    }
    assert len(outcomes) == 2 * len(AuditOutcome)
    assert values(families["federator_agent_audit_differences"])["missing", "berlin"] == 1
    ages = values(families["federator_agent_audit_age_seconds"])
    assert set(ages) == {("berlin", "pods"), ("berlin", "nodes")}
    assert all(0 <= age < 60 for age in ages.values())
    assert values(families["federator_agent_spool_on"]) == {("berlin",): 1}
    assert values(families["federator_agent_spool_bytes"]) == {("berlin",): statistics["spool"]["bytes"]}
    assert statistics["spool"]["bytes"] > 0
    for family in ("overflows", "failures", "set_aside"):
        assert values(families[f"federator_agent_spool_{family}"]) == {("berlin",): 0}
    proofs = values(families["federator_agent_type_proof_age_seconds"])
    assert set(proofs) == {("berlin", "pods"), ("berlin", "nodes")}
    assert all(0 <= age < 60 for age in proofs.values())


async def test_ends_of_sessions_by_reason(tmp_path: Path) -> None:
    agent = agent_of("berlin", ScriptedCluster(PODS), f"unix:{tmp_path / 'nobody.sock'}")
    task = asyncio.create_task(agent.run())
    await eventually(lambda: bool(agent.statistics()["pusher"]["session_ends"]))
    families = scraped({"berlin": agent.statistics()})
    task.cancel()
    await asyncio.wait([task])
    ((labels, number),) = values(families["federator_agent_push_reconnects"]).items()
    assert labels == ("berlin", "AGGREGATOR_UNREACHABLE")
    assert number >= 1


async def test_agents_that_have_not_started_are_there_and_none_is_no_error() -> None:
    agents = {name: agent_of(name, ScriptedCluster(PODS), "unix:/nowhere") for name in ("berlin", "paris")}
    families = scraped({name: agent.statistics() for name, agent in agents.items()})
    assert values(families["reflector_lists"]) == {("berlin",): 0, ("paris",): 0}
    assert values(families["federator_agent_outbox_entries"]) == {("berlin",): 0, ("paris",): 0}
    assert set(scraped({})) == ALL

"""`federator agent`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated

import typer

from federator._aio.task_group import task_group
from federator.agent.agent import Agent, AgentPhase
from federator.agent.member import KubeMember
from federator.agent.metrics import agent_metrics
from federator.api.cluster import normalise_cluster_id, parse_cluster_id
from federator.cli.collecting import (
    DEFAULT_AUDIT_INTERVAL,
    AuditInterval,
    ClusterLabelOptions,
    Collecting,
    KubeconfigFile,
    Namespace,
    Resources,
    Secrets,
    SecretsKeyFile,
    Selector,
    SpoolDirectory,
    cluster_labels,
)
from federator.cli.service import HttpListen, LogFormat, LogLevel, run_service
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.errors import InvalidInput
from federator.kube.kubeconfig import Kubeconfig
from federator.kube.member_client import MemberClient
from federator.observability.http import ObservabilityServer
from federator.observability.logs import configure_logging
from federator.observability.metrics import LoopLag, StatisticsCollector, new_registry
from federator.wire.tls import all_or_none


def agent(
    aggregator: Annotated[
        str,
        typer.Option(
            "--aggregator",
            envvar="FEDERATOR_AGGREGATOR",
            metavar="ADDRESS",
            help="Where the aggregator takes pushes: unix:/path or host:port; without TLS only loopback.",
        ),
    ] = "127.0.0.1:9443",
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Kubeconfig context [default: the current one].")
    ] = None,
    kubeconfig: KubeconfigFile = None,
    in_cluster: Annotated[
        bool, typer.Option("--in-cluster", help="Use the service account of the pod this runs in.")
    ] = False,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id",
            envvar="FEDERATOR_CLUSTER_ID",
            metavar="ID",
            help="ClusterID to join as [default: the context, normalised].",
        ),
    ] = None,
    cluster_label: ClusterLabelOptions = None,
    resource: Resources = None,
    namespace: Namespace = "",
    selector: Selector = "",
    secrets: Secrets = "off",
    secrets_key_file: SecretsKeyFile = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the ClusterID from another cluster, whose objects then leave.")
    ] = False,
    audit_interval: AuditInterval = DEFAULT_AUDIT_INTERVAL,
    spool: SpoolDirectory = None,
    http_listen: HttpListen = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = "console",
) -> None:
    """Run the agent of one cluster: follow its resources and push their changes to the aggregator."""
    configure_logging(log_level, log_format)
    if in_cluster and cluster_id is None:
        raise InvalidInput("--cluster-id", "", "a ClusterID, which --in-cluster cannot know by itself")
    if in_cluster and (context is not None or kubeconfig is not None):
        raise InvalidInput("--in-cluster", "together with --context or --kubeconfig", "one or the other")

    labels = cluster_labels(cluster_label)
    tls = all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file)

    async def run() -> None:
        # The current context has a name too, and that is the cluster's.
        name = "" if in_cluster else Kubeconfig.load(kubeconfig).context(context).name
        client = MemberClient.in_cluster() if in_cluster else MemberClient.from_kubeconfig(name, path=kubeconfig)
        given = None if cluster_id is None else parse_cluster_id(cluster_id, field="--cluster-id")
        named = given or normalise_cluster_id(name)
        collecting = Collecting(
            resource, namespace, selector, secrets, secrets_key_file, replace, audit_interval, spool
        )
        source = "in-cluster" if in_cluster else "kubeconfig"
        settings = collecting.settings(
            named, aggregator, display_name=name or named, source=source, cluster_labels=labels, tls=tls
        )
        await _observed(Agent(settings, KubeMember(client)), http_listen)

    run_service(run())


async def _observed(running: Agent, http_listen: str) -> None:
    """Runs an agent, with metrics and health beside it where an address is given."""

    def unready() -> str | None:
        status = running.status()
        return None if status.phase is AgentPhase.PUSHING else f"{status.phase} {status.error or ''}".rstrip()

    registry = new_registry("agent")
    cluster_id = running.status().cluster_id
    registry.register(StatisticsCollector(lambda: agent_metrics({cluster_id: running.statistics()})))
    lag = LoopLag(registry)
    async with AsyncExitStack() as stack:
        if http_listen:
            await stack.enter_async_context(ObservabilityServer(http_listen, registry, {"session": unready}))
        async with task_group() as tasks:
            measuring = tasks.create_task(lag.run(), name="event loop lag")
            try:
                await running.run()
            finally:
                measuring.cancel()

"""`federator run`."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import structlog
import typer

from federator._aio.task_group import task_group
from federator.agent.agent import Agent
from federator.agent.fleet import AgentFleet, NamedAgent
from federator.agent.member import KubeMember
from federator.agent.metrics import agent_metrics
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
from federator.api.cluster import assign_cluster_ids
from federator.cli.collecting import (
    DEFAULT_AUDIT_INTERVAL,
    AuditInterval,
    Collecting,
    FleetLabelOptions,
    KubeconfigFile,
    Namespace,
    Resources,
    Secrets,
    SecretsKeyFile,
    Selector,
    SpoolDirectory,
    fleet_labels,
)
from federator.cli.field_index import FieldIndexOptions, field_indexes
from federator.cli.service import (
    AdminListen,
    HttpListen,
    LogFormat,
    LogLevel,
    default_state_directory,
    duration,
    run_service,
)
from federator.cli.size import DEFAULT_LEDGER_SIZE, LedgerSize, ledger_bytes
from federator.errors import CredentialsError, InvalidInput, LedgerError
from federator.kube.kubeconfig import Kubeconfig
from federator.kube.member_client import MemberClient
from federator.observability.logs import configure_logging

log = structlog.get_logger(__name__)

_LONGEST_SOCKET_PATH = 100


def run(
    contexts: Annotated[
        list[str] | None, typer.Argument(metavar="[CONTEXT]...", help="Contexts to federate [default: all].")
    ] = None,
    kubeconfig: KubeconfigFile = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", envvar="FEDERATOR_LISTEN", metavar="ADDRESS", help="Where clients ask: loopback only."
        ),
    ] = "127.0.0.1:9090",
    http_listen: HttpListen = "127.0.0.1:9091",
    admin_listen: AdminListen = None,
    state_directory: Annotated[
        Path | None,
        typer.Option(
            "--state-directory",
            envvar="FEDERATOR_STATE_DIRECTORY",
            help="Folder of the ledger, from which a restart continues "
            "[default: $XDG_STATE_HOME/federator or ~/.local/state/federator].",
        ),
    ] = None,
    history: Annotated[
        str, typer.Option("--history", metavar="DURATION", help="How far back a cursor may reach, e.g. 36h or 7d.")
    ] = "7d",
    ledger_size: LedgerSize = DEFAULT_LEDGER_SIZE,
    field_index: FieldIndexOptions = None,
    cluster_label: FleetLabelOptions = None,
    resource: Resources = None,
    namespace: Namespace = "",
    selector: Selector = "",
    secrets: Secrets = "off",
    secrets_key_file: SecretsKeyFile = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a cluster take its ClusterID from another one that had it before.")
    ] = False,
    audit_interval: AuditInterval = DEFAULT_AUDIT_INTERVAL,
    spool: SpoolDirectory = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "console",
) -> None:
    """Run the aggregator and an agent for each kubeconfig context, all in one process."""
    configure_logging(log_level, log_format)
    sections = Kubeconfig.load(kubeconfig)
    names = _sound_contexts(sections, contexts or [])
    cluster_ids = assign_cluster_ids(names)
    labels = fleet_labels(cluster_label, cluster_ids.values())
    indexed = field_indexes(field_index)
    directory = state_directory or default_state_directory()
    collecting = Collecting(resource, namespace, selector, secrets, secrets_key_file, replace, audit_interval, spool)

    async def federate() -> None:
        async with AsyncExitStack() as stack:
            ingest = f"unix:{_socket_path(directory, stack)}"
            fleet = AgentFleet(
                NamedAgent(
                    name,
                    sections.context(name).cluster["server"],
                    Agent(
                        collecting.settings(
                            cluster_ids[name],
                            ingest,
                            display_name=name,
                            source="kubeconfig",
                            cluster_labels=labels[cluster_ids[name]],
                            waits_for_types=len(names) > 1,  # clusters need not serve the same
                        ),
                        KubeMember(MemberClient.from_kubeconfig(name, path=kubeconfig)),
                    ),
                )
                for name in names
            )
            settings = AggregatorSettings(
                listen=listen,
                ingest_listen=ingest,
                http_listen=http_listen,
                admin_listen=admin_listen,
                state_directory=directory,
                history=duration(history, field="--history"),
                ledger_max_bytes=ledger_bytes(ledger_size),
                field_indexes=indexed,
            )
            aggregator = Aggregator(settings, more_metrics=lambda: agent_metrics(fleet.statistics()))
            async with task_group() as tasks:
                tasks.create_task(aggregator.run(), name="aggregator")
                await aggregator.started.wait()
                # Agents end first: what they still have to send is taken.
                await fleet.run()
                raise fleet.left_out()[names[0]]  # with no context left there is nothing to serve

    run_service(federate())


def _sound_contexts(kubeconfig: Kubeconfig, named: list[str]) -> list[str]:
    """The contexts to federate; what is broken in the file is told, and left out unless it was named."""
    entries = {entry.name: entry.error for entry in kubeconfig.contexts()}
    sound = [name for name, error in entries.items() if error is None]
    for name in named:
        if name not in entries:
            raise InvalidInput("context", name, ", ".join(sound) or "a context; the kubeconfig has none")
        if (error := entries[name]) is not None:
            raise CredentialsError(name, error)
    for name, error in entries.items():
        if error is not None:
            log.warning("kubeconfig entry left out", entry=name, cause=error)
    chosen = list(dict.fromkeys(named)) or sound
    if not chosen:
        raise InvalidInput("kubeconfig", "no usable context", "a kubeconfig with at least one")
    return chosen


def _socket_path(directory: Path, stack: AsyncExitStack) -> Path:
    """Where the agents push: in the state directory, or, where that makes a path too long, in a temporary folder."""
    path = directory.absolute() / "ingest.sock"
    if len(str(path).encode()) <= _LONGEST_SOCKET_PATH:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"cannot open the ledger in {directory}: {error}") from error
        return path
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="federator-"))) / "ingest.sock"

"""`federator aggregator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
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
from federator.cli.tls import CertificateFile, PrivateKeyFile
from federator.observability.logs import configure_logging


def aggregator(
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            envvar="FEDERATOR_LISTEN",
            metavar="ADDRESS",
            help="Where clients ask: unix:/path or host:port; without --client-ca-file only loopback.",
        ),
    ] = "127.0.0.1:9090",
    ingest_listen: Annotated[
        str,
        typer.Option(
            "--ingest-listen",
            envvar="FEDERATOR_INGEST_LISTEN",
            metavar="ADDRESS",
            help="Where agents push: unix:/path or host:port; without --agent-ca-file only loopback.",
        ),
    ] = "127.0.0.1:9443",
    http_listen: HttpListen = "127.0.0.1:9091",
    admin_listen: AdminListen = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
    agent_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--agent-ca-file",
            envvar="FEDERATOR_AGENT_CA_FILE",
            metavar="FILE",
            help="Authority of agents' certificates, PEM; asks for TLS where agents push. The ClusterID is then the "
            "one in the agent's certificate: spiffe://<trust domain>/cluster/<ClusterID>.",
        ),
    ] = None,
    client_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--client-ca-file",
            envvar="FEDERATOR_CLIENT_CA_FILE",
            metavar="FILE",
            help="Authority of readers' certificates, PEM; asks for TLS where clients ask.",
        ),
    ] = None,
    state_directory: Annotated[
        Path | None,
        typer.Option(
            "--state-directory",
            envvar="FEDERATOR_STATE_DIRECTORY",
            help="Folder of the ledger [default: $XDG_STATE_HOME/federator or ~/.local/state/federator].",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep the ledger in memory: nothing survives a restart, cursors neither.")
    ] = False,
    history: Annotated[
        str, typer.Option("--history", metavar="DURATION", help="How far back a cursor may reach, e.g. 36h or 7d.")
    ] = "7d",
    ledger_size: LedgerSize = DEFAULT_LEDGER_SIZE,
    field_index: FieldIndexOptions = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "console",
) -> None:
    """Run the aggregator: take what agents push, keep it in one order, answer questions over all clusters."""
    configure_logging(log_level, log_format)
    run_service(
        Aggregator(
            AggregatorSettings(
                listen=listen,
                ingest_listen=ingest_listen,
                http_listen=http_listen,
                admin_listen=admin_listen,
                tls_cert_file=tls_cert_file,
                tls_private_key_file=tls_private_key_file,
                agent_ca_file=agent_ca_file,
                client_ca_file=client_ca_file,
                state_directory=None if memory else state_directory or default_state_directory(),
                history=duration(history, field="--history"),
                ledger_max_bytes=ledger_bytes(ledger_size),
                field_indexes=field_indexes(field_index),
            )
        ).run(),
        prefers_uvloop=True,
    )

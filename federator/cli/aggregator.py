"""`federator aggregator`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
from federator.cli.service import HttpListen, LogFormat, LogLevel, default_state_directory, duration, run_service
from federator.observability.logs import configure_logging


def aggregator(
    listen: Annotated[
        str,
        typer.Option(
            "--listen", envvar="FEDERATOR_LISTEN", metavar="ADDRESS", help="Where clients ask: loopback only."
        ),
    ] = "127.0.0.1:9090",
    ingest_listen: Annotated[
        str,
        typer.Option(
            "--ingest-listen",
            envvar="FEDERATOR_INGEST_LISTEN",
            metavar="ADDRESS",
            help="Where agents push: unix:/path, or host:port on loopback.",
        ),
    ] = "127.0.0.1:9443",
    http_listen: HttpListen = "127.0.0.1:9091",
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
                state_directory=None if memory else state_directory or default_state_directory(),
                history=duration(history, field="--history"),
            )
        ).run()
    )

"""Options of the commands that connect to an aggregator: TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AggregatorCA = Annotated[
    Path | None,
    typer.Option(
        "--aggregator-ca-file",
        envvar="FEDERATOR_AGGREGATOR_CA_FILE",
        metavar="FILE",
        help="Authority of the aggregator's certificate, PEM; asks for TLS, which any address but loopback needs.",
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert-file",
        envvar="FEDERATOR_TLS_CERT_FILE",
        metavar="FILE",
        help="Certificate shown to the other side, PEM, followed by intermediate ones. Read again when it changes.",
    ),
]
PrivateKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--tls-private-key-file", envvar="FEDERATOR_TLS_PRIVATE_KEY_FILE", metavar="FILE", help="Its private key, PEM."
    ),
]

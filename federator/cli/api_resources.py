"""`federator api-resources`: the resource types of all clusters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from federator.cli.command import run_command
from federator.cli.options import DEFAULT_SERVER, NoHeaders, Server, require_format, short_value
from federator.cli.output.table import Table
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import InventoryClient, aconnect
from federator.wire.tls import all_or_none

_COLUMNS = ("NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND", "CLUSTERS")
_WIDE_COLUMNS = (*_COLUMNS, "CATEGORIES", "SERVED-BY")


def api_resources(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="wide or name.")
    ] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show the resource types of all clusters, and how many of them serve each."""
    require_format(output, "wide", "name")
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    run_command(_api_resources(client, output, show_header=not no_headers))


async def _api_resources(client: InventoryClient, output: str, *, show_header: bool) -> None:
    async with client:
        types = await client.resource_types()
    if output == "name":
        sys.stdout.write("".join(f"{served.type.group_resource}\n" for served in types))
        return
    members = len({cluster for served in types for cluster in served.clusters})
    wide = output == "wide"
    rows = []
    for served in types:
        described = served.type
        row = (
            described.resource,
            ",".join(described.short_names),
            described.api_version,
            str(described.namespaced).lower(),
            described.kind,
            f"{len(served.clusters)}/{members}",
        )
        rows.append((*row, ",".join(described.categories), ",".join(served.clusters)) if wide else row)
    sys.stdout.write(Table(_WIDE_COLUMNS if wide else _COLUMNS, show_header=show_header).text(rows))

"""`federator api-resources`: the resource types of all clusters."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from federator.cli.command import run_command
from federator.cli.options import DEFAULT_SERVER, NoHeaders, Server, require_format, short_value
from federator.cli.output.table import Table
from federator.client import aconnect

_COLUMNS = ("NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND", "CLUSTERS")
_WIDE_COLUMNS = (*_COLUMNS, "CATEGORIES", "SERVED-BY")


def api_resources(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="wide or name.")
    ] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show the resource types of all clusters, and how many of them serve each."""
    require_format(output, "wide", "name")
    run_command(_api_resources(server, output, show_header=not no_headers))


async def _api_resources(server: str, output: str, *, show_header: bool) -> None:
    async with aconnect(server) as client:
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

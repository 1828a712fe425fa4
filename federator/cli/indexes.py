"""`federator indexes`: which fields are indexed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from federator.cli.command import run_command
from federator.cli.messages import counted, say, warn
from federator.cli.options import DEFAULT_SERVER, NoHeaders, Server, require_format, short_value
from federator.cli.output.documents import to_json
from federator.cli.output.table import Table
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import FieldIndex, InventoryClient, aconnect
from federator.wire.tls import all_or_none

_COLUMNS = ("PATH", "TYPES", "STATE", "OBJECTS", "VALUES", "ENTRIES", "BYTES", "QUARANTINED", "SOURCE")


def indexes(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="json.")] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show which fields are indexed; 'federator indexes add PATH' and 'federator indexes drop PATH' change that.

    metadata.name, metadata.namespace and spec.nodeName always are, as are labels, owners and types. OBJECTS are those
    looked at, ENTRIES the pairs of a value and an object, and QUARANTINED the objects that could not be read.
    """
    require_format(output, "json")
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    run_command(_indexes(client, output, show_header=not no_headers))


async def _indexes(client: InventoryClient, output: str, *, show_header: bool) -> None:
    async with client:
        found = await client.field_indexes()
    if output == "json":
        sys.stdout.write(to_json({"indexes": list(map(_document, found))}))
        return
    sys.stdout.write(Table(_COLUMNS, show_header=show_header).text(map(_row, found)))
    for index in found:
        if index.quarantined:
            named = ", ".join(map(str, index.quarantined_keys))
            hidden = index.quarantined - len(index.quarantined_keys)
            more = f" and {hidden} more" if hidden else ""
            warn(f"{index.path} leaves out {counted(index.quarantined, 'object')} that cannot be read: {named}{more}")
    if not found:
        say("No field indexes.")


def _row(index: FieldIndex) -> Sequence[str]:
    numbers = (index.objects, index.values, index.entries, index.bytes, index.quarantined)
    source = "settings" if index.is_from_settings else "run time"
    return (index.path, ",".join(index.resources) or "<all>", index.state, *map(str, numbers), source)


def _document(index: FieldIndex) -> dict[str, object]:
    return {
        "path": index.path,
        "resources": index.resources,
        "state": index.state,
        "objects": index.objects,
        "values": index.values,
        "entries": index.entries,
        "bytes": index.bytes,
        "quarantined": index.quarantined,
        "quarantinedKeys": [str(key) for key in index.quarantined_keys],
        "isFromSettings": index.is_from_settings,
    }

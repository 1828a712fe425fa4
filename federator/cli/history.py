"""`federator history`: every version of one object."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from federator.cli.arguments import Query, parse_queries
from federator.cli.command import run_command
from federator.cli.freshness import freshness_warnings
from federator.cli.messages import note, say, warn
from federator.cli.moment import parse_moment
from federator.cli.options import DEFAULT_SERVER, NoHeaders, Server, require_format, short_value
from federator.cli.output.documents import manifest, to_json
from federator.cli.output.patch import lines, summary
from federator.cli.past import gap_document, gap_text, span, timestamp, write_with_details
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import Gap, HistoryResult, InventoryClient, ObjectVersion, aconnect
from federator.errors import InvalidInput
from federator.wire.tls import all_or_none

_COLUMNS = ("REVISION", "TIME", "EVENT", "FIELDS")
_GRAMMAR = "TYPE/NAME, TYPE NAME, or <ClusterID>/<group>/<resource>/<namespace>/<name>"
_MAX_PAGE = 1000
"""Versions in one answer of the aggregator."""


class _Asked(NamedTuple):
    cluster: str
    query: Query
    since: datetime | None
    before_revision: int
    limit: int


def history(
    arguments: Annotated[list[str], typer.Argument(metavar="WHAT", help=_GRAMMAR)],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAMESPACE", callback=short_value, help="Its namespace.")
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            "-C",
            metavar="CLUSTER",
            callback=short_value,
            help="Its cluster; needed where several have the name.",
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only versions since then: 2h, or 2026-11-29T10:00:00Z.")
    ] = "",
    before: Annotated[
        int, typer.Option(min=0, max=2**63, metavar="REVISION", help="Only versions before this revision.")
    ] = 0,
    limit: Annotated[int, typer.Option(min=1, max=2**31, help="At most this many versions.")] = 100,
    patches: Annotated[bool, typer.Option("--patch", "-p", help="Show each change whole, as JSON Patch.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="json or jsonl.")
    ] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show every version of one object, newest first, with what changed from one to the next.

    The object need not be there any more. A line with 'gap' is a time in which its cluster was not live: what happened
    in it is known only by its result. FIELDS leaves out what changes every time; -p shows all.
    """
    require_format(output, "json", "jsonl")
    queries = parse_queries(arguments, Query(clusters=(cluster,) if cluster else (), namespace=namespace))
    query = queries[0]
    if len(queries) > 1 or len(query.resources) > 1 or not query.name:
        raise InvalidInput("argument", " ".join(arguments), _GRAMMAR)
    began = parse_moment(since, field="--since") if since else None
    if isinstance(began, int):
        raise InvalidInput("--since", since, "a time such as 2026-11-29T10:00:00Z, or how long ago, such as 2h")
    asked = _Asked(query.clusters[0] if query.clusters else "", query, began, before, limit)
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    run_command(_history(client, asked, output, patches=patches, show_header=not no_headers))


async def _history(client: InventoryClient, asked: _Asked, output: str, *, patches: bool, show_header: bool) -> None:
    is_for_people = not output
    async with client:
        found = await _read(client, asked, with_objects=is_for_people)
    if output == "json":
        sys.stdout.write(to_json(_document(found)))
    elif output == "jsonl":
        sys.stdout.write("".join(f"{msgspec.json.encode(_entry(each)).decode()}\n" for each in found.entries))
    else:
        _write_table(found, patches=patches, show_header=show_header)
    if not found.versions and is_for_people:
        say("No versions found.")
    if found.next_before_revision:
        note(f"there are more; go on with --before {found.next_before_revision}.")
    for warning in freshness_warnings([found.freshness], complete=not found.freshness.incomplete_types):
        warn(warning)


async def _read(client: InventoryClient, asked: _Asked, *, with_objects: bool) -> HistoryResult:
    """Asks until there is enough, or nothing more."""
    before, left = asked.before_revision, asked.limit
    entries: list[ObjectVersion | Gap] = []
    while True:
        part = await client.history(
            asked.query.resources[0],
            asked.query.name,
            namespace=asked.query.namespace,
            cluster=asked.cluster,
            before_revision=before,
            since=asked.since,
            limit=min(left, _MAX_PAGE),
            with_objects=with_objects,
        )
        entries += part.entries
        left -= len(part.versions)
        before = part.next_before_revision
        if not before or left <= 0:
            return msgspec.structs.replace(part, entries=tuple(entries))


def _write_table(found: HistoryResult, *, patches: bool, show_header: bool) -> None:
    cluster_id = found.freshness.cluster_id
    former = iter(found.versions[1:])
    rows: list[tuple[str, ...]] = []
    details: list[list[str]] = []
    for entry in found.entries:
        if isinstance(entry, Gap):
            rows.append(("- gap", span(entry), entry.state, gap_text(entry, cluster_id)))
            details.append([])
            continue
        before = next(former, None)
        rows.append((str(entry.revision), timestamp(entry.time), entry.type, _fields(entry, before)))
        details.append(lines(entry.operations()) if patches else [])
    write_with_details(_COLUMNS, rows, details, show_header=show_header)


def _fields(version: ObjectVersion, before: ObjectVersion | None) -> str:
    if version.type != "MODIFIED":
        return "-"
    if not version.patch:
        return "(what was before is not known any more)"
    return summary(version.operations(), _state(before)) or "-"


def _state(version: ObjectVersion | None) -> Any:
    return None if version is None or version.object is None else version.object.to_dict()


def _document(found: HistoryResult) -> dict[str, object]:
    return {
        "cluster": found.freshness.cluster_id,
        "revision": found.revision,
        "oldestRevision": found.oldest_revision,
        "nextBeforeRevision": found.next_before_revision or None,
        "entries": [_entry(entry) for entry in found.entries],
    }


def _entry(entry: ObjectVersion | Gap) -> dict[str, object]:
    if isinstance(entry, Gap):
        return gap_document(entry)
    document: dict[str, object] = {
        "type": entry.type,
        "revision": entry.revision,
        "previousRevision": entry.previous_revision or None,
        "time": timestamp(entry.time),
        "uid": entry.uid,
        "resourceVersion": entry.resource_version,
        "patch": entry.operations() if entry.patch else None,
    }
    if entry.object is not None:
        document["object"] = manifest(entry.object)
    return document

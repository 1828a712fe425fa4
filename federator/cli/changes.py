"""`federator changes`: what became of objects between two moments."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from federator.cli.arguments import Query, parse_queries, query_of_options
from federator.cli.command import run_command
from federator.cli.freshness import freshness_warnings
from federator.cli.messages import counted, note, say, warn
from federator.cli.moment import MOMENTS, parse_moment
from federator.cli.options import (
    DEFAULT_SERVER,
    AllNamespaces,
    ClusterGlobs,
    ClusterLabels,
    Fields,
    Labels,
    Namespace,
    NoHeaders,
    Server,
    require_format,
    short_value,
)
from federator.cli.output.documents import manifest, to_json
from federator.cli.output.patch import lines
from federator.cli.past import gap_document, gap_text, span, timestamp, write_with_details
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import ChangesResult, InventoryClient, Moment, ObjectChange, aconnect
from federator.wire.tls import all_or_none

_COLUMNS = ("EVENT", "CLUSTER", "TYPE", "NAMESPACE", "NAME", "TIME", "VERSIONS", "REVISION")
_MAX_GAPS = 5
"""Gaps that are told one by one; `-o json` has them all."""


class _Asked(NamedTuple):
    query: Query
    after: Moment
    until: Moment | None
    with_transient: bool
    with_patches: bool
    limit: int


def changes(
    argument: Annotated[str, typer.Argument(metavar="TYPE[,TYPE...]", help="Types, or TYPE/NAME.")],
    after: Annotated[str, typer.Option(metavar="MOMENT", help=f"From when: {MOMENTS}.")],
    until: Annotated[str, typer.Option(metavar="MOMENT", help="Until when. [default: now]")] = "",
    all_namespaces: AllNamespaces = False,
    namespace: Namespace = "",
    selector: Labels = "",
    field_selector: Fields = "",
    clusters: ClusterGlobs = "",
    cluster_selector: ClusterLabels = "",
    transient: Annotated[
        bool, typer.Option("--transient", help="Show also what came and went in between, as DELETED.")
    ] = False,
    patches: Annotated[bool, typer.Option("--patch", "-p", help="Show what differs, as JSON Patch.")] = False,
    limit: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="At most this many changes; 0 for no limit.")] = 0,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="json or jsonl.")
    ] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show what became of objects between two moments, in the order of their newest changes.

    One line for each object: ADDED where it is there and was not, MODIFIED where it differs, DELETED where it is not
    there any more, by its state at both ends. VERSIONS is how often it changed in between.
    """
    require_format(output, "json", "jsonl")
    scope = query_of_options(
        clusters=clusters,
        cluster_selector=cluster_selector,
        all_namespaces=all_namespaces,
        namespace=namespace,
        selector=selector,
        field_selector=field_selector,
    )
    (query,) = parse_queries([argument], scope)
    asked = _Asked(
        query,
        parse_moment(after, field="--after"),
        parse_moment(until, field="--until") if until else None,
        transient,
        patches,
        limit,
    )
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    run_command(_changes(client, asked, output, show_header=not no_headers))


async def _changes(client: InventoryClient, asked: _Asked, output: str, *, show_header: bool) -> None:
    async with client:
        found = await client.changes(
            **asked.query._asdict(),
            after=asked.after,
            until=asked.until,
            with_transient=asked.with_transient,
            with_patches=asked.with_patches,
            limit=asked.limit,
        )
    if output == "json":
        sys.stdout.write(to_json(_document(found)))
    elif output == "jsonl":
        sys.stdout.write("".join(f"{msgspec.json.encode(_change(each)).decode()}\n" for each in found.changes))
    else:
        _write_table(found, show_header=show_header)
    _say_what_is_missing(found, say_empty=not output)


def _write_table(found: ChangesResult, *, show_header: bool) -> None:
    details = [lines(change.operations()) for change in found.changes]
    write_with_details(_COLUMNS, [_row(change) for change in found.changes], details, show_header=show_header)


def _row(change: ObjectChange) -> tuple[str, ...]:
    item = change.object
    return (
        change.type,
        item.cluster_id,
        str(item.group_resource),
        item.namespace or "-",
        item.name,
        timestamp(change.time),
        str(change.versions),
        str(change.revision),
    )


def _say_what_is_missing(found: ChangesResult, *, say_empty: bool) -> None:
    if len(found.changes) < found.total:
        note(f"{len(found.changes)} of {found.total} changes shown, because of --limit.")
    if not found.total and say_empty:
        say(f"No changes found in {counted(len(found.clusters), 'cluster')}.")
    gaps = [(cluster_id, gap) for cluster_id, of_cluster in found.gaps.items() for gap in of_cluster]
    for cluster_id, gap in gaps[:_MAX_GAPS]:
        warn(f"{span(gap)} {gap_text(gap, cluster_id)}.")
    if len(gaps) > _MAX_GAPS:
        warn(f"{len(gaps) - _MAX_GAPS} more gaps of clusters; -o json has them all.")
    for warning in freshness_warnings(list(found.clusters.values()), complete=found.complete):
        warn(warning)


def _document(found: ChangesResult) -> dict[str, object]:
    return {
        "afterRevision": found.after_revision,
        "untilRevision": found.until_revision,
        "total": found.total,
        "complete": found.complete,
        "changes": list(map(_change, found.changes)),
        "gaps": [
            {"cluster": cluster_id} | gap_document(gap)
            for cluster_id, of_cluster in found.gaps.items()
            for gap in of_cluster
        ],
    }


def _change(change: ObjectChange) -> dict[str, Any]:
    return {
        "type": change.type,
        "revision": change.revision,
        "previousRevision": change.previous_revision or None,
        "time": timestamp(change.time),
        "versions": change.versions,
        "patch": change.operations() if change.patch else None,
        "object": manifest(change.object),
    }

"""`federator get`: objects of all clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from federator.cli.arguments import GRAMMAR, Query, parse_queries, query_of_options
from federator.cli.command import run_command
from federator.cli.following import write_changes
from federator.cli.listing import Listed, require_names, say_what_is_missing, say_when, write_list
from federator.cli.messages import note
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
from federator.cli.output.documents import json_lines_writer, json_writer, name_writer, yaml_writer
from federator.cli.output.object_table import ObjectTableWriter, TableOptions
from federator.cli.output.writer import ObjectWriter
from federator.cli.sorting import SORTS, parse_sort
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import InventoryClient, aconnect
from federator.errors import InvalidInput
from federator.wire.tls import all_or_none

_FORMATS: dict[str, Callable[..., ObjectWriter]] = {
    "json": json_writer,
    "yaml": yaml_writer,
    "name": name_writer,
    "jsonl": json_lines_writer,
}
_DOCUMENTS = {"json", "yaml"}
"""Formats in which nothing is said to be nothing: an empty List."""

_STREAMED = {"name", "jsonl"}
"""Formats that are written page by page."""


def get(
    arguments: Annotated[list[str], typer.Argument(metavar="WHAT", help=GRAMMAR)],
    all_namespaces: AllNamespaces = False,
    namespace: Namespace = "",
    selector: Labels = "",
    field_selector: Fields = "",
    clusters: ClusterGlobs = "",
    cluster_selector: ClusterLabels = "",
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="wide, json, yaml, name or jsonl."),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="List, then follow changes until interrupted.")] = False,
    watch_only: Annotated[bool, typer.Option("--watch-only", help="Follow changes without listing first.")] = False,
    output_watch_events: Annotated[
        bool, typer.Option("--output-watch-events", help="With --watch, say what happened to each object.")
    ] = False,
    no_headers: NoHeaders = False,
    show_labels: Annotated[bool, typer.Option("--show-labels", help="Show a column of labels.")] = False,
    limit: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="At most this many objects; 0 for no limit.")] = 0,
    sort_by: Annotated[str, typer.Option(metavar="ORDER", help=f"Sort by {SORTS}.")] = "",
    at: Annotated[str, typer.Option(metavar="MOMENT", help=f"Show what was then: {MOMENTS}.")] = "",
    chunk_size: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, help="Ask for pages of this many objects, all of one revision; 0 for one stream."
        ),
    ] = 500,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show objects of all clusters, and follow their changes.

    Everything is answered from the aggregator's index: no member cluster is asked. What is not live is named on
    stderr. A KEY is what `-o name` prints.
    """
    require_format(output, "wide", *_FORMATS)
    scope = query_of_options(
        clusters=clusters,
        cluster_selector=cluster_selector,
        all_namespaces=all_namespaces,
        namespace=namespace,
        selector=selector,
        field_selector=field_selector,
    )
    queries = parse_queries(arguments, scope)
    follow = watch or watch_only
    if follow and (len(queries) > 1 or limit or at):
        raise InvalidInput(
            "--watch", " ".join(arguments), "TYPE[,TYPE...], at most one NAME, and neither --limit nor --at"
        )
    listed = Listed(
        limit=limit,
        order_by=parse_sort(sort_by),
        at=parse_moment(at, field="--at") if at else None,
        page_size=chunk_size,
    )
    tables = TableOptions(
        wide=output == "wide",
        show_header=not no_headers,
        show_namespace=not scope.namespace,
        show_labels=show_labels,
        show_events=follow and output_watch_events,
        several_types=len({resource for query in queries for resource in query.resources}) > 1,
    )
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    if follow:
        if sort_by:
            note("--sort-by sorts the list, not the changes after it.")
        run_command(_follow(client, queries[0], output, tables, listed, show_list=not watch_only))
    else:
        run_command(_list(client, queries, output, tables, listed))


async def _list(
    client: InventoryClient, queries: list[Query], output: str, tables: TableOptions, listed: Listed
) -> None:
    async with client:
        writer = _writer(client, output, tables, follow=False)
        answers = await write_list(client, queries, writer, listed, streamed=output in _STREAMED)
    if listed.at is not None:
        say_when(answers)
    say_what_is_missing(answers, say_empty=output not in _DOCUMENTS and not queries[0].name)
    require_names(answers)


async def _follow(
    client: InventoryClient, query: Query, output: str, tables: TableOptions, listed: Listed, *, show_list: bool
) -> None:
    async with client:
        writer = _writer(client, output, tables, follow=True)
        if show_list:
            answers = await write_list(client, [query], writer, listed, streamed=output in _STREAMED)
            say_what_is_missing(answers, say_empty=not query.name)
            require_names(answers)
            cursor = answers[0].summary.cursor
        else:
            cursor = (await client.list(**query._asdict(), limit=1, count_only=True)).cursor
        await write_changes(client, query, writer, cursor)


def _writer(client: InventoryClient, output: str, tables: TableOptions, *, follow: bool) -> ObjectWriter:
    if output in _FORMATS:
        return _FORMATS[output](sys.stdout.write, following=follow, show_events=tables.show_events)
    return ObjectTableWriter(client, sys.stdout.write, tables)

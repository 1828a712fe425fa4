"""`federator count`: how many objects there are, and what they come to, by groups."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from typing import Annotated

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
from federator.cli.output.documents import to_json
from federator.cli.output.table import Table
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import (
    AggregateFunction,
    AggregateResult,
    Group,
    InventoryClient,
    Measure,
    MeasureValue,
    Moment,
    aconnect,
)
from federator.wire.tls import all_or_none

_COMMA = re.compile(r"(?<!\\),")
_PREFIX = re.compile(r"^(?:(?:cluster_)?label:|\.)")


def count(
    argument: Annotated[str, typer.Argument(metavar="TYPE[,TYPE...]", help="Types, or TYPE/NAME.")],
    by: Annotated[
        str,
        typer.Option(
            metavar="PROPERTIES",
            help="Groups by cluster, namespace, type, node, owner_kind, label:KEY, cluster_label:KEY or .PATH of a "
            "field, comma-separated.",
        ),
    ] = "",
    sums: Annotated[
        list[str] | None,
        typer.Option("--sum", metavar="FIELD", help="Sum of a field's numbers, quantities or durations; repeatable."),
    ] = None,
    minima: Annotated[
        list[str] | None, typer.Option("--min", metavar="FIELD", help="Smallest value of a field; repeatable.")
    ] = None,
    maxima: Annotated[
        list[str] | None, typer.Option("--max", metavar="FIELD", help="Largest value of a field; repeatable.")
    ] = None,
    distinct: Annotated[
        list[str] | None,
        typer.Option("--distinct", metavar="FIELD", help="How many different values a field has; repeatable."),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="Only so many groups, the largest first: by the first of --sum, --min, --max and --distinct, else by "
            "COUNT. 0 for all, sorted by what they are grouped by.",
        ),
    ] = 0,
    at: Annotated[str, typer.Option(metavar="MOMENT", help=f"Count what was then: {MOMENTS}.")] = "",
    all_namespaces: AllNamespaces = False,
    namespace: Namespace = "",
    selector: Labels = "",
    field_selector: Fields = "",
    clusters: ClusterGlobs = "",
    cluster_selector: ClusterLabels = "",
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="table, json or csv.")
    ] = "",
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Count objects of all clusters, and sum up what they have, by groups.

    A FIELD is a dotted path, such as spec.containers.*.resources.requests.cpu, in which '*' stands for all elements of
    an array. An object that has several values of what is grouped by is in several groups. What is not live is named
    on stderr.
    """
    require_format(output, "table", "json", "csv")
    scope = query_of_options(
        clusters=clusters,
        cluster_selector=cluster_selector,
        all_namespaces=all_namespaces,
        namespace=namespace,
        selector=selector,
        field_selector=field_selector,
    )
    (query,) = parse_queries([argument], scope)
    group_by = [term.strip() for term in _COMMA.split(by) if term.strip()]
    measures = [
        *(Measure(AggregateFunction.SUM, field) for field in sums or ()),
        *(Measure(AggregateFunction.MIN, field) for field in minima or ()),
        *(Measure(AggregateFunction.MAX, field) for field in maxima or ()),
        *(Measure(AggregateFunction.DISTINCT, field) for field in distinct or ()),
        Measure(AggregateFunction.COUNT),
    ]
    moment = parse_moment(at, field="--at") if at else None
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    run_command(_count(client, query, group_by, measures, top, moment, output, show_header=not no_headers))


async def _count(
    client: InventoryClient,
    query: Query,
    group_by: Sequence[str],
    measures: Sequence[Measure],
    top: int,
    at: Moment | None,
    output: str,
    *,
    show_header: bool,
) -> None:
    async with client:
        result = await client.aggregate(**query._asdict(), group_by=group_by, measures=measures, top=top, at=at)
    match output:
        case "json":
            sys.stdout.write(to_json(_document(result, group_by, measures)))
        case "csv":
            sys.stdout.write(_csv(result, group_by, measures, show_header=show_header))
        case _:
            header = [*map(_heading, group_by), *(_measure_name(each).upper() for each in measures)]
            sys.stdout.write(Table(header, show_header=show_header).text(map(_row, result.groups)))
    if at is not None:
        note(f"as of revision {result.revision}; how fresh the clusters are is of now.")
    _say_what_is_missing(result, measures, say_empty=output != "json")


def _say_what_is_missing(result: AggregateResult, measures: Sequence[Measure], *, say_empty: bool) -> None:
    if len(result.groups) < result.total_groups:
        note(f"{len(result.groups)} of {result.total_groups} groups shown, because of --top.")
    for place, each in enumerate(measures):
        ignored = sum(group.measures[place].ignored for group in result.groups)
        if ignored:
            note(f"{_measure_name(each)} leaves out {counted(ignored, 'value')} that cannot be added up.")
    clusters = list(result.clusters.values())
    if not result.total and say_empty:
        say(f"No resources found in {counted(len(clusters), 'cluster')}.")
    for warning in freshness_warnings(clusters, complete=result.complete):
        warn(warning)


def _heading(term: str) -> str:
    """A column's name, as kubectl names columns of labels: by the key alone."""
    return _PREFIX.sub("", term).upper()


def _measure_name(measure: Measure) -> str:
    field = measure.field.removeprefix(".")
    return f"{measure.function}({field})" if field else str(measure.function)


def _row(group: Group) -> list[str]:
    return [*(key or "" for key in group.keys), *(each.value for each in group.measures)]


def _csv(result: AggregateResult, group_by: Sequence[str], measures: Sequence[Measure], *, show_header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if show_header:
        writer.writerow([*group_by, *map(_measure_name, measures)])
    writer.writerows(map(_row, result.groups))
    return text.getvalue()


def _document(result: AggregateResult, group_by: Sequence[str], measures: Sequence[Measure]) -> dict[str, object]:
    return {
        "revision": result.revision,
        "complete": result.complete,
        "total": result.total,
        "totalGroups": result.total_groups,
        "groupBy": group_by,
        "groups": [
            {
                "keys": group.keys,
                "measures": [
                    _value_document(measure, value) for measure, value in zip(measures, group.measures, strict=True)
                ],
            }
            for group in result.groups
        ],
    }


def _value_document(measure: Measure, value: MeasureValue) -> dict[str, object]:
    return {
        "function": measure.function,
        "field": measure.field,
        "value": value.value,
        "number": value.number,
        "ignored": value.ignored,
    }

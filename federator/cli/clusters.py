"""`federator clusters`: the member clusters."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import typer

from federator.api.cluster import TypeState
from federator.cli.age import human_duration
from federator.cli.command import run_command
from federator.cli.messages import say
from federator.cli.options import DEFAULT_SERVER, ClusterGlobs, NoHeaders, Server, require_format, short_value
from federator.cli.output.documents import to_json
from federator.cli.output.table import Table
from federator.cli.tls import AggregatorCA, CertificateFile, PrivateKeyFile
from federator.client import Cluster, InventoryClient, aconnect
from federator.client.selection import comma_list
from federator.wire.tls import all_or_none

_COLUMNS = ("CLUSTER", "STATE", "OBJECTS", "SEEN", "PROVED", "VERSION", "SOURCE")
_WIDE_COLUMNS = (*_COLUMNS, "SINCE", "UID", "DISPLAY-NAME", "REASON")

_FAILING = frozenset({TypeState.DENIED, TypeState.STALE})

_NAMED = 3
"""Types whose reasons are written out; `-o json` has them all."""


def _short_values(values: list[str] | None) -> list[str]:
    return [short_value(value) for value in values or ()]


def clusters(
    globs: ClusterGlobs = "",
    selector: Annotated[
        str,
        typer.Option(
            "--selector",
            "-l",
            "--cluster-selector",
            metavar="SELECTOR",
            callback=short_value,
            help="Only clusters with these labels: 'env=prod,region notin (eu)'.",
        ),
    ] = "",
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="wide, json or yaml.")
    ] = "",
    show_labels: Annotated[bool, typer.Option("--show-labels", help="Show a column of labels.")] = False,
    label_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--label-columns",
            "-L",
            metavar="KEY",
            callback=_short_values,
            help="Show a column of this label; may be repeated, or a comma list.",
        ),
    ] = None,
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
    aggregator_ca_file: AggregatorCA = None,
    tls_cert_file: CertificateFile = None,
    tls_private_key_file: PrivateKeyFile = None,
) -> None:
    """Show the member clusters and how fresh each is; 'federator clusters remove NAME' takes one out.

    SEEN is the time since the agent was last heard, PROVED the time up to which everything is known to be here, and, in
    -o wide, SINCE the time since the cluster entered its STATE. One that was removed is shown where -C names it.
    """
    require_format(output, "wide", "json", "yaml")
    client = aconnect(server, tls=all_or_none(aggregator_ca_file, tls_cert_file, tls_private_key_file))
    columns = _Columns(output == "wide", tuple(comma_list(",".join(label_columns or ()))), show_labels)
    run_command(_clusters(client, globs, selector, output, columns, show_header=not no_headers))


class _Columns(NamedTuple):
    """What is shown of each cluster.

    Attributes:
        wide: more than usual.
        labels: the labels with a column of their own.
        all_labels: a column of all labels.
    """

    wide: bool
    labels: tuple[str, ...]
    all_labels: bool

    def header(self) -> tuple[str, ...]:
        fixed = _WIDE_COLUMNS if self.wide else _COLUMNS
        named = tuple(key.rpartition("/")[2].upper() for key in self.labels)
        return (*fixed, *named, *(("LABELS",) if self.all_labels else ()))

    def row(self, cluster: Cluster) -> Sequence[str]:
        named = (cluster.labels.get(key, "") for key in self.labels)
        return (*_row(cluster, wide=self.wide), *named, *((_labels(cluster),) if self.all_labels else ()))


async def _clusters(
    client: InventoryClient, globs: str, selector: str, output: str, columns: _Columns, *, show_header: bool
) -> None:
    async with client:
        found = await client.clusters(globs, labels=selector)
    if output in {"json", "yaml"}:
        document = {"revision": found.revision, "clusters": list(map(_document, found.clusters))}
        sys.stdout.write(to_json(document) if output == "json" else _to_yaml(document))
        return
    table = Table(columns.header(), show_header=show_header)
    sys.stdout.write(table.text(map(columns.row, found.clusters)))
    if not found.clusters:
        say("No clusters found.")


def _row(cluster: Cluster, *, wide: bool) -> Sequence[str]:
    row = (
        cluster.cluster_id,
        cluster.state,
        str(cluster.objects),
        _age(cluster.seen_age),
        _age(cluster.proved_age),
        cluster.server_version,
        cluster.source,
    )
    if not wide:
        return row
    since = human_duration(time.time() - cluster.state_since)
    return (*row, since, cluster.cluster_uid, cluster.display_name, cluster.reason or _type_reasons(cluster))


def _labels(cluster: Cluster) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(cluster.labels.items())) or "<none>"


def _type_reasons(cluster: Cluster) -> str:
    """Which types of a cluster cannot be followed, and why; the first few of them."""
    failing = [freshness for freshness in cluster.types if freshness.state in _FAILING]
    named = "; ".join(f"{each.group_resource} {each.state}: {each.reason}" for each in failing[:_NAMED])
    hidden = len(failing) - _NAMED
    return f"{named}; and {hidden} more" if hidden > 0 else named


def _to_yaml(document: dict[str, object]) -> str:
    from federator.cli.output.yaml import to_yaml  # here, so that a table need not wait for it

    return to_yaml(msgspec.to_builtins(document))


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else human_duration(seconds)


def _document(cluster: Cluster) -> dict[str, object]:
    return {
        "clusterId": cluster.cluster_id,
        "displayName": cluster.display_name,
        "clusterUid": cluster.cluster_uid,
        "state": cluster.state,
        "reason": cluster.reason,
        "stateSince": cluster.state_since,
        "objects": cluster.objects,
        "seenAgeSeconds": cluster.seen_age,
        "provedAgeSeconds": cluster.proved_age,
        "serverVersion": cluster.server_version,
        "source": cluster.source,
        "labels": dict(cluster.labels),
        "types": [
            {
                "group": freshness.group_resource.group,
                "resource": freshness.group_resource.resource,
                "state": freshness.state,
                "resourceVersion": freshness.resource_version,
                "provedAgeSeconds": freshness.proved_age,
                "reason": freshness.reason,
            }
            for freshness in cluster.types
        ],
    }

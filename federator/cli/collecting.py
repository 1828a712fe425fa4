"""Options of the commands that run agents, and the settings that they make: what is collected, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from federator.agent.settings import LEAST_AUDIT_INTERVAL, AgentSettings, SecretMode
from federator.api.cluster import ClusterID
from federator.api.label import parse_labels
from federator.api.selector import ClusterSelector
from federator.cli.options import short_value
from federator.cli.service import duration
from federator.errors import InvalidInput, UnknownCluster
from federator.wire.tls import TLSFiles

KubeconfigFile = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]."),
]
Resources = Annotated[
    list[str] | None,
    typer.Option(
        "--resource",
        metavar="TYPE",
        help="Collect only this type, as kubectl takes it; may be repeated, or a comma list. One that is not "
        "served yet is followed once it is. "
        "[default: all that can be watched, except events, leases and endpoints]",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", callback=short_value, help="Collect only this namespace.")]
Selector = Annotated[
    str, typer.Option("--selector", "-l", callback=short_value, help="Collect only objects with these labels.")
]
ClusterLabelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-label",
        metavar="KEY=VALUE",
        help="Label of the cluster itself, by which 'federator get --cluster-selector' and others choose clusters; "
        "may be repeated.",
    ),
]
FleetLabelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-label",
        metavar="[CLUSTERS:]KEY=VALUE",
        help="Label of the clusters themselves, by which 'federator get --cluster-selector' and others choose; of all, "
        "or of those whose ClusterID a glob matches, e.g. 'prod-*:env=prod'. May be repeated; of two with one key the "
        "later one holds.",
    ),
]
Secrets = Annotated[
    str,
    typer.Option(
        "--secrets",
        metavar="MODE",
        help="What of Secrets leaves the cluster: off, metadata, or fingerprint (length and keyed hash of each value).",
    ),
]
SecretsKeyFile = Annotated[
    Path | None,
    typer.Option("--secrets-key-file", help="File with the key of the fingerprints; without it only lengths."),
]
AuditInterval = Annotated[
    str,
    typer.Option(
        "--audit-interval",
        metavar="DURATION",
        help="How often each type is compared with what its apiserver lists, e.g. 30m; 0 for never.",
    ),
]
DEFAULT_AUDIT_INTERVAL = "1h"
SpoolDirectory = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        metavar="DIRECTORY",
        help="Folder of a file, one for each cluster, in which what is not yet acknowledged outlives the agent "
        "[default: it is in memory only].",
    ),
]


class Collecting(NamedTuple):
    """The options of this module, as they were given."""

    resource: list[str] | None
    namespace: str
    selector: str
    secrets: str
    secrets_key_file: Path | None
    replace: bool
    audit_interval: str
    spool: Path | None

    def settings(
        self,
        cluster_id: ClusterID,
        aggregator: str,
        *,
        display_name: str,
        source: str,
        cluster_labels: Mapping[str, str],
        tls: TLSFiles | None = None,
        waits_for_types: bool = False,
    ) -> AgentSettings:
        """Settings of the agent of one cluster; the arguments are what differs from cluster to cluster.

        Raises:
            InvalidInput: a value is not what its option takes.
        """
        return AgentSettings(
            cluster_id=cluster_id,
            aggregator=aggregator,
            tls=tls,
            display_name=display_name,
            source=source,
            cluster_labels=cluster_labels,
            replace=self.replace,
            resources=resource_names(self.resource),
            waits_for_types=waits_for_types,
            namespace=self.namespace,
            label_selector=self.selector,
            secrets=secret_mode(self.secrets),
            secrets_key_file=self.secrets_key_file,
            audit_interval=audit_seconds(self.audit_interval),
            spool_directory=self.spool,
        )


_LABEL_FIELD = "--cluster-label"


def cluster_labels(given: list[str] | None) -> dict[str, str]:
    """Reads `--cluster-label` of one cluster.

    Raises:
        InvalidInput: one is no label.
    """
    return parse_labels(given or (), field=_LABEL_FIELD)


def fleet_labels(given: list[str] | None, cluster_ids: Collection[ClusterID]) -> dict[ClusterID, dict[str, str]]:
    """Reads `--cluster-label` of several clusters, each optionally behind `CLUSTERS:`.

    Raises:
        InvalidInput: one is no label, or names a cluster that is not among them.
        MalformedSelector: what stands before the colon is no glob.
    """
    labels: dict[ClusterID, dict[str, str]] = {cluster_id: {} for cluster_id in cluster_ids}
    for text in given or ():
        globs, colon, label = text.rpartition(":")  # neither a key nor a value has one
        selector = ClusterSelector.parse((globs,) if colon else (), field=_LABEL_FIELD)
        parsed = parse_labels((label,), field=_LABEL_FIELD)
        try:
            selected = selector.resolve(cluster_ids)
        except UnknownCluster as error:
            raise InvalidInput(_LABEL_FIELD, text, f"one of {', '.join(error.known)}, before the colon") from None
        for cluster_id in selected:
            labels[cluster_id] |= parsed
    return labels


def audit_seconds(text: str) -> float:
    """Seconds of `--audit-interval`.

    Raises:
        InvalidInput: it is neither 0 nor a duration of a minute or more.
    """
    if text in {"0", "0s"}:
        return 0.0
    try:
        seconds = duration(text, field="--audit-interval")
    except InvalidInput:
        seconds = 0.0
    if seconds < LEAST_AUDIT_INTERVAL:
        raise InvalidInput("--audit-interval", text, "0 for never, or a duration of at least 1m, such as 30m or 6h")
    return seconds


def resource_names(given: list[str] | None) -> tuple[str, ...]:
    """The names of types in repeated options and comma lists."""
    return tuple(name for entry in given or () for name in entry.split(","))


def secret_mode(text: str) -> SecretMode:
    """Reads the mode.

    Raises:
        InvalidInput: there is no such mode.
    """
    try:
        return SecretMode(text)
    except ValueError:
        raise InvalidInput("--secrets", text, ", ".join(SecretMode)) from None

"""Selections: which objects a call asks for."""

from __future__ import annotations

from collections.abc import Iterable

from federator.errors import InvalidInput
from federator.v1 import inventory_pb2


def comma_list(given: str | Iterable[str]) -> list[str]:
    """The entries of a comma-separated text, or of an iterable; empty ones are dropped."""
    entries = given.split(",") if isinstance(given, str) else given
    return [stripped for entry in entries if (stripped := entry.strip())]


def cluster_globs(given: str | Iterable[str]) -> list[str]:
    """The globs of a selection of clusters; nothing means all of them.

    Raises:
        InvalidInput: a text has commas and no glob, as where what stands between them is unset: that is hardly all.
    """
    globs = comma_list(given)
    if isinstance(given, str) and given.strip() and not globs:
        raise InvalidInput("clusters", given, "globs of ClusterIDs between commas, or nothing for all clusters")
    return globs


def selection(
    resources: str | Iterable[str],
    *,
    clusters: str | Iterable[str] = (),
    cluster_labels: str = "",
    namespace: str = "",
    name: str = "",
    labels: str = "",
    fields: str = "",
    uid: str = "",
    owner_uid: str = "",
) -> inventory_pb2.Selection:
    """Writes a selection down as a message; the aggregator checks it."""
    return inventory_pb2.Selection(
        resources=comma_list(resources),
        clusters=cluster_globs(clusters),
        namespace=namespace,
        name=name,
        label_selector=labels,
        field_selector=fields,
        cluster_selector=cluster_labels,
        uid=uid,
        owner_uid=owner_uid,
    )

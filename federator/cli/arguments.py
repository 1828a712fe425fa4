"""What `get` is asked for, in kubectl's grammar and by federation key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from federator.api.key import ObjectKey
from federator.client.selection import cluster_globs
from federator.errors import InvalidInput

_KEY_SLASHES = 4
GRAMMAR = "TYPE[,TYPE...] [NAME...], TYPE/NAME..., or <ClusterID>/<group>/<resource>/<namespace>/<name>..."


class Query(NamedTuple):
    """One question to the aggregator, its fields named as the client's calls name them.

    Attributes:
        resources: types, as the user wrote them.
        clusters: globs; empty for all.
        cluster_labels: label selector on the clusters' own labels.
        namespace: empty for all.
        name: empty for all.
        labels: label selector.
        fields: field selector.
    """

    resources: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    cluster_labels: str = ""
    namespace: str = ""
    name: str = ""
    labels: str = ""
    fields: str = ""


def query_of_options(
    *, clusters: str, cluster_selector: str, all_namespaces: bool, namespace: str, selector: str, field_selector: str
) -> Query:
    """Returns what the options that choose objects ask for (`federator.cli.options`), of no type yet."""
    return Query(
        clusters=tuple(cluster_globs(clusters)),
        cluster_labels=cluster_selector,
        namespace="" if all_namespaces else namespace,
        labels=selector,
        fields=field_selector,
    )


def parse_queries(arguments: Sequence[str], scope: Query) -> list[Query]:
    """Reads the arguments of `get`: one query for each name, or one for everything in scope.

    Args:
        arguments: at least one.
        scope: what the options say; what it says of clusters and namespace may not be given together with a key.

    Raises:
        InvalidInput: the arguments do not follow `GRAMMAR`.
    """
    if any("/" in argument for argument in arguments):
        return [_parse_one(argument, scope) for argument in arguments]
    types, *names = arguments
    resources = tuple(entry for part in types.split(",") if (entry := part.strip()))
    if not resources:
        raise InvalidInput("TYPE", types, GRAMMAR)
    return [scope._replace(resources=resources, name=name) for name in names or [""]]


def _parse_one(argument: str, scope: Query) -> Query:
    if argument.count("/") >= _KEY_SLASHES:
        key = ObjectKey.parse(argument)
        if scope.clusters or scope.cluster_labels or scope.namespace:
            allowed = "a key without -C, --cluster-selector and -n: it names its cluster and namespace"
            raise InvalidInput("argument", argument, allowed)
        return scope._replace(
            resources=(str(key.group_resource),), clusters=(key.cluster_id,), namespace=key.namespace, name=key.name
        )
    resource, slash, name = argument.partition("/")
    if not (resource and slash and name) or "/" in name or "," in resource:
        raise InvalidInput("argument", argument, GRAMMAR)
    return scope._replace(resources=(resource,), name=name)

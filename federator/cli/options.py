"""Options that several commands have, spelled as kubectl spells them."""

from __future__ import annotations

from typing import Annotated

import typer

from federator.errors import InvalidInput

DEFAULT_SERVER = "127.0.0.1:9090"


def short_value(value: str) -> str:
    """The value of a short option, for which kubectl takes `-o=json` as well as `-o json` and `-ojson`."""
    return value.removeprefix("=")


Server = Annotated[
    str,
    typer.Option(
        "--server", envvar="FEDERATOR_SERVER", metavar="ADDRESS", help="The aggregator: host:port or unix:/path."
    ),
]

AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Every namespace, which is the default too.")
]

Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAMESPACE", callback=short_value, help="One namespace.")
]

Labels = Annotated[
    str,
    typer.Option(
        "--selector", "-l", metavar="SELECTOR", callback=short_value, help="Labels: 'app=web,tier in (a,b),!canary'."
    ),
]

Fields = Annotated[
    str,
    typer.Option(
        "--field-selector",
        metavar="SELECTOR",
        help="Fields: 'spec.nodeName=n1,status.phase!=Running'; any path.",
    ),
]

ClusterGlobs = Annotated[
    str,
    typer.Option(
        "--clusters",
        "-C",
        metavar="GLOBS",
        callback=short_value,
        help="Clusters asked, as comma-separated globs on the ClusterID; '!' excludes: 'prod-*,!prod-ap-*'.",
    ),
]

ClusterLabels = Annotated[
    str,
    typer.Option(
        "--cluster-selector",
        metavar="SELECTOR",
        help="Only clusters with these labels of their own: 'env=prod,region notin (eu)'.",
    ),
]

NoHeaders = Annotated[bool, typer.Option("--no-headers", help="Leave out the row of column names.")]


def require_format(output: str, *allowed: str) -> str:
    """Returns the output format if it is one of those allowed; empty stands for the plain table.

    Raises:
        InvalidInput: it is not.
    """
    if output not in {"", *allowed}:
        raise InvalidInput("--output", output, ", ".join(allowed))
    return output

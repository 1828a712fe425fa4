"""Options of the commands that run agents: what is collected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from federator.agent.settings import SecretMode
from federator.cli.options import short_value
from federator.errors import InvalidInput

KubeconfigFile = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]."),
]
Resources = Annotated[
    list[str] | None,
    typer.Option(
        "--resource",
        metavar="TYPE",
        help="Collect only this type, as kubectl takes it; may be repeated, or a comma list. "
        "[default: all that can be watched, except events, leases and endpoints]",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", callback=short_value, help="Collect only this namespace.")]
Selector = Annotated[
    str, typer.Option("--selector", "-l", callback=short_value, help="Collect only objects with these labels.")
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

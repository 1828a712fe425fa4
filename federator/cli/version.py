"""`federator version`: what is installed."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Annotated

import typer

from federator.cli.options import require_format, short_value

_COMPONENTS = ("grpcio", "kubernetes", "lmdb", "protobuf")
"""Distributions whose versions matter in a bug report."""


def version(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="json.")] = "",
) -> None:
    """Show the version."""
    require_format(output, "json")
    installed = metadata.version("federator")
    if output == "json":
        from federator.cli.output.documents import to_json

        components = {name: metadata.version(name) for name in _COMPONENTS}
        document = {"version": installed, "python": platform.python_version(), "components": components}
        sys.stdout.write(to_json(document))
    else:
        sys.stdout.write(f"federator {installed}\n")

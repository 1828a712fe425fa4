"""The option `--field-index` of the commands that run an aggregator."""

from __future__ import annotations

from typing import Annotated

import typer

from federator.aggregator.query.field_index_keeper import declared_indexes

FieldIndexOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--field-index",
        metavar="PATH[@TYPE+TYPE]",
        help="Index this field of all objects, or of those of some types, e.g. 'spec.replicas@deployments.apps', so "
        "that lists can be sorted by it and questions need not read the objects; may be repeated.",
    ),
]


def field_indexes(given: list[str] | None) -> tuple[str, ...]:
    """Checks `--field-index`.

    Raises:
        InvalidInput: one is no path of a field, or two are on one.
        LimitReached: there are too many.
    """
    declared_indexes(given or (), field="--field-index")
    return tuple(given or ())

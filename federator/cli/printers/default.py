"""Printers for types that have no columns of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from federator.cli.printers.printer import Cell, Manifest, Printer, age_of, columns, name_of, text_at


def _name_and_age(manifest: Manifest, now: datetime) -> Sequence[Cell]:
    return (name_of(manifest), age_of(manifest, now))


def _name_and_creation(manifest: Manifest, now: datetime) -> Sequence[Cell]:
    del now
    return (name_of(manifest), text_at(manifest, "metadata", "creationTimestamp"))


NAME_AND_AGE = Printer(columns("NAME,AGE"), _name_and_age)
NAME_AND_CREATION = Printer(columns("NAME,CREATED AT"), _name_and_creation)
"""What the apiserver shows of built-in types that nobody wrote a printer for."""

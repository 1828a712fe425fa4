"""What is said to people: on stderr, one line each, so that stdout carries data only."""

from __future__ import annotations

import typer


def say(text: str) -> None:
    """Says what there is to say of an answer without data."""
    typer.echo(text, err=True)


def note(text: str) -> None:
    """Says something worth knowing."""
    _say_line("Note", text)


def warn(text: str) -> None:
    """Says that the data is not all it could be."""
    _say_line("Warning", text)


def error(text: str) -> None:
    """Says why a command failed."""
    _say_line("Error", text)


def counted(count: int, noun: str) -> str:
    """`1 cluster`, `2 clusters`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _say_line(kind: str, text: str) -> None:
    typer.echo(f"{kind}: {' '.join(text.split())}", err=True)

"""Sizes, as Kubernetes writes quantities of bytes."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from federator.errors import InvalidInput

LEAST_LEDGER_BYTES = 128 << 20
"""What watches read from memory is not given up to make room, and that takes up to 32 MiB."""

MOST_LEDGER_BYTES = 512 << 30
"""Half of the addresses that are reserved for the file, which also has free pages."""

DEFAULT_LEDGER_SIZE = "8GiB"

LedgerSize = Annotated[
    str,
    typer.Option(
        "--ledger-size",
        metavar="SIZE",
        help="Room for the ledger, e.g. 500MiB or 8GiB; near it, history is shortened below --history.",
    ),
]

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<prefix>[kKMGT]?)(?P<binary>i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def size(text: str, *, field: str) -> int:
    """Bytes of a size such as `500MiB`, `8Gi` or `10GB`.

    Raises:
        InvalidInput: it is none.
    """
    written = _SIZE.fullmatch(text)
    if written is None or (written["binary"] and not written["prefix"]):
        raise InvalidInput(field, text, "a size such as 500MiB or 8GiB")
    return int(float(written["number"]) * (1024 if written["binary"] else 1000) ** _POWERS[written["prefix"]])


def ledger_bytes(text: str) -> int:
    """Bytes of `--ledger-size`.

    Raises:
        InvalidInput: it is no size, too small to work in or beyond what is reserved.
    """
    found = size(text, field="--ledger-size")
    if not LEAST_LEDGER_BYTES <= found <= MOST_LEDGER_BYTES:
        raise InvalidInput("--ledger-size", text, "a size from 128MiB to 512GiB")
    return found

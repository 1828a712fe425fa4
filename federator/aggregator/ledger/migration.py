"""Brings the records of a ledger from the schema they were written with to the present one.

In slices, each a transaction of its own that also says how far it came: a process that is killed on the way goes on
where it stopped, and a ledger of a million entries is never held in one transaction.
"""

from __future__ import annotations

import msgspec
import structlog

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import Identity
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import writing

log = structlog.get_logger(__name__)

SLICE = 4096
"""Log rows in one transaction."""


def migrate(tables: Tables, identity: Identity, *, slice_rows: int = SLICE) -> Identity:
    """Returns the identity of the ledger in its present schema, after the work that this takes.

    Args:
        tables: the ledger's; nobody else appends.
        identity: as `Writer.establish` found it.
        slice_rows: log rows in one transaction.

    Raises:
        LedgerError: it cannot be written; called again, it goes on.
    """
    if identity.schema_version == codec.SCHEMA_VERSION:
        return identity
    log.info("migrating the ledger", path=str(tables.path), schema=identity.schema_version, to=codec.SCHEMA_VERSION)
    rows = _convert(tables, slice_rows) if identity.schema_version == 1 else 0
    head: bytes | None = b""
    while head is not None:
        with writing(tables) as writer:
            head = writer.renew_heads(head, slice_rows)
    transitions = _find_transitions(tables, slice_rows)
    identity = msgspec.structs.replace(identity, schema_version=codec.SCHEMA_VERSION)
    with writing(tables) as writer:
        writer.set_identity(identity)
    log.info("ledger migrated", path=str(tables.path), rows=rows, transitions=transitions)
    return identity


def _convert(tables: Tables, slice_rows: int) -> int:
    """Rewrites heads and rows of schema 1; returns how many rows there were."""
    head: bytes | None = b""
    while head is not None:
        with writing(tables) as writer:
            head = writer.convert_heads(head, slice_rows)
    rows = 0
    while True:
        with writing(tables) as writer:
            converted = writer.convert_rows(slice_rows)
        if converted == 0:
            return rows
        rows += converted


def _find_transitions(tables: Tables, slice_rows: int) -> int:
    """Writes down, from the log, what schema 2 did not; returns how many there are. Done twice, it changes nothing."""
    with writing(tables) as writer:
        writer.begin_transitions()
        after: int | None = writer.oldest_revision()
    while after is not None:
        with writing(tables) as writer:
            after = writer.find_transitions(after, slice_rows)
    with reading(tables) as reader:
        return reader.count("transitions")

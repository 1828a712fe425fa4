"""Brings the records of a ledger from the schema they were written with to the present one.

In slices, each a transaction of its own that also says how far it came: a process that is killed on the way goes on
where it stopped, and a ledger of a million entries is never held in one transaction.
"""

from __future__ import annotations

import msgspec
import structlog

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import Identity
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
    head: bytes | None = b""
    while head is not None:
        with writing(tables) as writer:
            head = writer.convert_heads(head, slice_rows)
    rows = 0
    while True:
        with writing(tables) as writer:
            converted = writer.convert_rows(slice_rows)
            if converted == 0:
                identity = msgspec.structs.replace(identity, schema_version=codec.SCHEMA_VERSION)
                writer.set_identity(identity)
                break
        rows += converted
    log.info("ledger migrated", path=str(tables.path), rows=rows)
    return identity

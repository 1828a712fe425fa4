"""Cursors: where a reader stands in the federation's one order.

A cursor is opaque to its holder: version byte, ledger ID, revision and a truncated HMAC, as URL-safe base64. It has
44 characters whether the federation has one cluster or ten thousand.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct

import msgspec

from federator.errors import CursorForeign, CursorForged, CursorMalformed

_VERSION = 1
_BODY = struct.Struct(">B8sQ")
_TAG_LENGTH = 16
LENGTH = 44
"""Characters of an encoded cursor."""


class CursorCodec(msgspec.Struct, frozen=True):
    """Writes and reads the cursors of one ledger.

    Attributes:
        ledger_id: 8 bytes, new with each ledger.
        secret: key of the HMAC, kept in the ledger.
    """

    ledger_id: bytes
    secret: bytes

    def encode(self, revision: int) -> bytes:
        """Returns the cursor that stands right after `revision`."""
        body = _BODY.pack(_VERSION, self.ledger_id, revision)
        return base64.urlsafe_b64encode(body + self._tag(body))

    def decode(self, cursor: bytes) -> int:
        """Returns the revision a cursor stands at.

        Raises:
            CursorMalformed: not a cursor at all.
            CursorForeign: a cursor of another ledger.
            CursorForged: of this ledger, but not made by it.
        """
        try:
            decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
            body, tag = decoded[: _BODY.size], decoded[_BODY.size :]
            version, ledger_id, revision = _BODY.unpack(body)
        except (binascii.Error, struct.error) as error:
            raise CursorMalformed(cursor) from error
        if version != _VERSION or len(tag) != _TAG_LENGTH:
            raise CursorMalformed(cursor)
        if ledger_id != self.ledger_id:
            raise CursorForeign(cursor)
        if not hmac.compare_digest(tag, self._tag(body)):
            raise CursorForged(cursor)
        return int(revision)

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self.secret, body, "sha256")[:_TAG_LENGTH]

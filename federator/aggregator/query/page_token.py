"""Page tokens: where the next page of a list begins.

A token is opaque to its holder: version byte, ledger ID, what it is bound to, revision, place and a truncated HMAC, as
URL-safe base64. It has 88 characters however long names are, and tells nothing of the objects behind it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

import msgspec

from federator.api.cursor import CursorCodec
from federator.errors import PageTokenForeign, PageTokenMalformed
from federator.v1 import inventory_pb2

_VERSION = 1
_BODY = struct.Struct(">B8s16sQQQ")
_TAG_LENGTH = 16
_PURPOSE = b"page\0"
"""Told to the HMAC, so that no cursor of the same ledger can pass for a token."""

LENGTH = 88
"""Characters of an encoded token."""


class Place(NamedTuple):
    """Where the pages so far end.

    Attributes:
        revision: that the whole list is of.
        offset: objects in the pages so far.
        last: revision at which the last of them took its state, which no two objects share.
    """

    revision: int
    offset: int
    last: int


def binding(request: inventory_pb2.ListRequest) -> bytes:
    """Returns what tells a request from all others, without what may differ from page to page: 16 bytes."""
    bound = inventory_pb2.ListRequest()
    bound.CopyFrom(request)
    bound.ClearField("page_size")
    bound.ClearField("page_token")
    bound.ClearField("limits")
    return hashlib.sha256(bound.SerializeToString(deterministic=True)).digest()[:16]


class PageTokenCodec(msgspec.Struct, frozen=True):
    """Writes and reads the page tokens of one ledger.

    Attributes:
        ledger_id: 8 bytes, new with each ledger.
        secret: key of the HMAC, kept in the ledger.
    """

    ledger_id: bytes
    secret: bytes

    @classmethod
    def of(cls, cursors: CursorCodec) -> PageTokenCodec:
        """The tokens of the ledger that these cursors are of."""
        return cls(cursors.ledger_id, cursors.secret)

    def encode(self, place: Place, bound_to: bytes) -> bytes:
        """Returns the token of a place, for the request that `binding` told of."""
        body = _BODY.pack(_VERSION, self.ledger_id, bound_to, *place)
        return base64.urlsafe_b64encode(body + self._tag(body))

    def decode(self, token: bytes, bound_to: bytes, *, field: str = "page_token") -> Place:
        """Returns the place a token stands for.

        Args:
            token: as it was given.
            bound_to: of the request that it came with.
            field: name of the field it came in, for the message.

        Raises:
            PageTokenMalformed: not a token, or one that this ledger did not make.
            PageTokenForeign: the token of another request.
        """
        try:
            decoded = base64.b64decode(token, altchars=b"-_", validate=True)
            body, tag = decoded[: _BODY.size], decoded[_BODY.size :]
            version, ledger_id, bound, revision, offset, last = _BODY.unpack(body)
        except (binascii.Error, struct.error) as error:
            raise PageTokenMalformed(field, token) from error
        if (version, ledger_id) != (_VERSION, self.ledger_id) or not hmac.compare_digest(tag, self._tag(body)):
            raise PageTokenMalformed(field, token)
        if bound != bound_to:
            raise PageTokenForeign(field, token)
        return Place(revision, offset, last)

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self.secret, _PURPOSE + body, "sha256")[:_TAG_LENGTH]

"""What can go wrong with one reply: a small vocabulary, to be combined.

`FakeApiServer.fail` takes them. A fault that says `after_events=2` acts when two events (or other frames) have been
written; `after_bytes=10` when ten bytes of the body have, before chunks are framed; without either before the reply
begins. All are values without state and can be reused.

| | |
|---|---|
| instead of the reply | `HttpError`, `HtmlError`, `TooLargeResourceVersion`, `UnchunkedStatus`, `RawReply` |
| the connection | `Reset`, `Fin`, `End`, `Drain`, `BlackHole`, `Delay` |
| the body's shape | `Split`, `Merge`, `Gzip` |
| what is in it | `ErrorEvent`, `Frame`, `BadObject`, `LoseEvent`, `DuplicateEvent`, `BookmarkVersion`, `Rewrite` |
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from federator.testing.fake_api_server.status import TOO_LARGE, Json, status

MAX_FRAME = 16 * 1024 * 1024
"""Bytes of the longest event that clients have to take."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What all faults have in common: nothing."""


# ------------------------------------------------------------------------------------------------ instead of the reply


@dataclasses.dataclass(frozen=True)
class Answer(Fault):
    """An answer in place of the right one; the request is not carried out."""

    def status_code(self) -> int:
        """HTTP code."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The whole body."""
        raise NotImplementedError

    def headers(self) -> Mapping[str, str]:
        """Headers beside Content-Length."""
        return {"Content-Type": "application/json"}


@dataclasses.dataclass(frozen=True)
class HttpError(Answer):
    """A failure with a Status as its body.

    Attributes:
        code: HTTP code.
        reason: of the Status; by default the code's usual one, "" for none.
        message: of the Status; by default the code's usual one.
        retry_after: seconds of the Retry-After header and of the Status' details.
        details: of the Status.
    """

    code: int
    reason: str | None = None
    message: str | None = None
    retry_after: int | None = None
    details: Mapping[str, Any] | None = None

    def status_code(self) -> int:  # noqa: D102
        return self.code

    def body(self) -> bytes:  # noqa: D102
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        return msgspec.json.encode(status(self.code, reason=self.reason, message=self.message, details=details or None))

    def headers(self) -> Mapping[str, str]:  # noqa: D102
        after = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {"Content-Type": "application/json", **after}


@dataclasses.dataclass(frozen=True)
class HtmlError(Answer):
    """What a proxy or load balancer says in the apiserver's place.

    Attributes:
        code: HTTP code.
        html: the body.
    """

    code: int = 502
    html: str = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"

    def status_code(self) -> int:  # noqa: D102
        return self.code

    def body(self) -> bytes:  # noqa: D102
        return self.html.encode()

    def headers(self) -> Mapping[str, str]:  # noqa: D102
        return {"Content-Type": "text/html"}


@dataclasses.dataclass(frozen=True)
class TooLargeResourceVersion(Answer):
    """504 of a server that has not seen the resourceVersion yet, as servers of several ages say it.

    Attributes:
        dialect: `cause` (1.18.6 and later: the cause's reason says so), `cause-message` (1.17.0 to 1.18.5: only its
            message does), `message` (before 1.17: only the Status' own message does).
        asked: the resourceVersion in the message.
        current: the server's own in the message.
    """

    dialect: Literal["cause", "cause-message", "message"] = "cause"
    asked: str = "1000"
    current: str = "1"

    def status_code(self) -> int:  # noqa: D102
        return 504

    def body(self) -> bytes:  # noqa: D102
        details: Json = {"retryAfterSeconds": 1}
        if self.dialect == "cause":
            details["causes"] = [{"reason": "ResourceVersionTooLarge", "message": TOO_LARGE}]
        elif self.dialect == "cause-message":
            details["causes"] = [{"message": TOO_LARGE}]
        message = f"Timeout: {TOO_LARGE}: {self.asked}, current: {self.current}"
        return msgspec.json.encode(status(504, message=message, details=details))

    def headers(self) -> Mapping[str, str]:  # noqa: D102
        return {"Content-Type": "application/json", "Retry-After": "1"}


@dataclasses.dataclass(frozen=True)
class UnchunkedStatus(Answer):
    """A success whose body is a single Status with Content-Length, where a watch was asked for.

    Attributes:
        code: of the Status; HTTP says 200.
        message: of the Status.
    """

    code: int = 410
    message: str | None = None

    def status_code(self) -> int:  # noqa: D102
        return 200

    def body(self) -> bytes:  # noqa: D102
        return msgspec.json.encode(status(self.code, message=self.message))


@dataclasses.dataclass(frozen=True)
class RawReply(Fault):
    """Any bytes, from the status line on, then the end of the connection."""

    content: bytes


# ------------------------------------------------------------------------------------------------------ the connection


class How(enum.Enum):
    """The ways in which a reply ends early."""

    RESET = "reset"
    FIN = "fin"
    END = "end"
    DRAIN = "drain"
    BLACK_HOLE = "black hole"


@dataclasses.dataclass(frozen=True)
class Cut(Fault):
    """The reply ends early; the subclasses say how.

    Attributes:
        after_events: when this many frames of a watch are written.
        after_bytes: when this many bytes of the body are, in the middle of a chunk or of the Content-Length if it so
            happens. 0 is after the headers.
    """

    after_events: int | None = None
    after_bytes: int | None = None

    @property
    def how(self) -> How:
        """In which way."""
        raise NotImplementedError

    @property
    def at_once(self) -> bool:
        """Before a single byte of the reply."""
        return self.after_events is None and self.after_bytes is None


@dataclasses.dataclass(frozen=True)
class Reset(Cut):
    """RST: the connection is reset."""

    @property
    def how(self) -> How:  # noqa: D102
        return How.RESET


@dataclasses.dataclass(frozen=True)
class Fin(Cut):
    """FIN without the end of the body: a load balancer that gives up, a server that is restarted."""

    @property
    def how(self) -> How:  # noqa: D102
        return How.FIN


@dataclasses.dataclass(frozen=True)
class End(Cut):
    """A watch ends cleanly, with the last chunk; `End(after_events=0)` is a very short watch."""

    after_events: int | None = 0

    @property
    def how(self) -> How:  # noqa: D102
        return How.END


@dataclasses.dataclass(frozen=True)
class Drain(Cut):
    """A watch ends cleanly, says `Connection: close` in its headers and closes the connection.

    HTTP/1.1's form of what GOAWAY is in HTTP/2.
    """

    after_events: int | None = 0

    @property
    def how(self) -> How:  # noqa: D102
        return How.DRAIN


@dataclasses.dataclass(frozen=True)
class BlackHole(Cut):
    """Nothing more is sent, and the connection stays up: what a lost network looks like from here."""

    @property
    def how(self) -> How:  # noqa: D102
        return How.BLACK_HOLE


@dataclasses.dataclass(frozen=True)
class Delay(Fault):
    """The reply begins late.

    Attributes:
        seconds: how late, on the event loop's clock.
    """

    seconds: float


# ---------------------------------------------------------------------------------------------------- the body's shape


@dataclasses.dataclass(frozen=True)
class Split(Fault):
    """The body is cut into chunks, each sent on its own.

    Attributes:
        at: offsets in the body, after compression.
        every: and after each so many bytes; 1 sends single bytes.
    """

    at: tuple[int, ...] = ()
    every: int = 0


@dataclasses.dataclass(frozen=True)
class Merge(Fault):
    """So many frames of a watch come in one chunk; a rest is sent when the watch ends."""

    frames: int = 2


@dataclasses.dataclass(frozen=True)
class Gzip(Fault):
    """The body is gzipped, with a new member for each frame of a watch, as servers do from 1.37 on.

    Attributes:
        force: also for a client that did not ask for it by Accept-Encoding.
    """

    force: bool = False


# -------------------------------------------------------------------------------------------------------- what is in it


@dataclasses.dataclass(frozen=True)
class Frame(Fault):
    """Bytes that are written as one frame of a watch, after so many others.

    The class methods make the broken ones.
    """

    content: bytes
    after_events: int = 0

    @classmethod
    def garbage(cls, after_events: int = 0) -> Frame:
        """What is no JSON."""
        return cls(b'{"type":"ADDED","object":{"kind"::}}\n', after_events)

    @classmethod
    def unknown_type(cls, after_events: int = 0) -> Frame:
        """An event of a type that does not exist."""
        return cls(b'{"type":"REVISED","object":{"metadata":{"name":"a","resourceVersion":"1"}}}\n', after_events)

    @classmethod
    def oversized(cls, after_events: int = 0) -> Frame:
        """An event longer than `MAX_FRAME`."""
        head = b'{"type":"ADDED","object":{"metadata":{"name":"large","resourceVersion":"1"},"data":{"a":"'
        return cls(head + b"x" * MAX_FRAME + b'"}}}\n', after_events)

    @classmethod
    def table(cls, after_events: int = 0) -> Frame:
        """An event that carries a Table."""
        table = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":[],"rows":[]}'
        return cls(b'{"type":"ADDED","object":%b}\n' % table, after_events)


@dataclasses.dataclass(frozen=True)
class ErrorEvent(Fault):
    """An ERROR event in a watch, which then ends.

    Attributes:
        code: of the Status.
        reason: of the Status; by default the code's usual one.
        message: of the Status; by default the code's usual one.
        after_events: how many frames come before it.
        details: of the Status.
        metadata: the Status has the key `metadata`.
    """

    code: int = 410
    reason: str | None = None
    message: str | None = None
    after_events: int = 0
    details: Mapping[str, Any] | None = None
    metadata: bool = True

    def frame(self) -> bytes:
        """Its bytes."""
        details = None if self.details is None else dict(self.details)
        body = status(self.code, reason=self.reason, message=self.message, details=details)
        if not self.metadata:
            del body["metadata"]
        return b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(body)


@dataclasses.dataclass(frozen=True)
class BadObject(Fault):
    """An object nobody can use: a MODIFIED event of a watch, or the last item of a list.

    Attributes:
        what: `no-metadata`, `no-name`, `no-version` or `wrong-kind`.
        after_events: in a watch, how many frames come before it.
    """

    what: Literal["no-metadata", "no-name", "no-version", "wrong-kind"] = "no-metadata"
    after_events: int = 0

    def object(self) -> Json:
        """The object."""
        metadata = {"name": "bad", "namespace": "default", "resourceVersion": "1"}
        match self.what:
            case "no-metadata":
                return {"data": {}}
            case "no-name":
                return {"metadata": {**metadata, "name": ""}}
            case "no-version":
                del metadata["resourceVersion"]
                return {"metadata": metadata}
            case "wrong-kind":
                return {"kind": "Unexpected", "apiVersion": "example.com/v1", "metadata": metadata}

    def frame(self) -> bytes:
        """As an event."""
        return b'{"type":"MODIFIED","object":%b}\n' % msgspec.json.encode(self.object())


@dataclasses.dataclass(frozen=True)
class LoseEvent(Fault):
    """One event of a watch is never sent.

    Attributes:
        number: which, from 1; bookmarks count.
    """

    number: int = 1


@dataclasses.dataclass(frozen=True)
class DuplicateEvent(Fault):
    """One event of a watch is sent twice.

    Attributes:
        number: which, from 1; bookmarks count.
    """

    number: int = 1


@dataclasses.dataclass(frozen=True)
class BookmarkVersion(Fault):
    """The bookmarks of a watch have this resourceVersion: "", "0", or one that is long past."""

    resource_version: str


@dataclasses.dataclass(frozen=True)
class Rewrite(Fault):
    """The body of a reply that is no watch is what a function makes of it.

    `Rewrite(null_items)` and `Rewrite(table)` are ready.

    Attributes:
        function: takes and returns decoded JSON; it may change what it takes.
    """

    function: Callable[[Json], Json]


def null_items(body: Json) -> Json:
    """A list whose items are null: how Go writes a list that was never filled."""
    return {**body, "items": None}


def table(body: Json) -> Json:
    """A Table in place of a list, as a proxy or an aggregated server may send unasked."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body.get("metadata", {}),
        "columnDefinitions": [{"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}],
        "rows": [],
    }

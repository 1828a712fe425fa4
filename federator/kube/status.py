"""What went wrong with a request, in federator's errors: Status bodies, ERROR frames and broken connections."""

from __future__ import annotations

import os
import re
import ssl
from http import HTTPStatus

import aiohttp
import msgspec

from federator.errors import KubeStatusError, MemberUnreachable

TRANSPORT_ERRORS: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, TimeoutError)
"""What aiohttp raises where a connection fails; `ssl.SSLError` is an `OSError`."""

REQUEST_ERRORS: tuple[type[Exception], ...] = (*TRANSPORT_ERRORS, RuntimeError)
"""And where one cannot be made. RuntimeError: event loops refuse to connect with a descriptor they take for one in use;
uvloop does so after connections that failed. The next attempt gets another descriptor."""

_MAX_TEXT = 200
_TAG = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TOO_LARGE = "Too large resource version"
_TOO_LARGE_CAUSE = "ResourceVersionTooLarge"


class _Cause(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct):
    kind: str = ""
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def reply_error(code: int, body: bytes, retry_after: str | None) -> KubeStatusError:
    """The error of a reply with a failure code.

    Args:
        code: HTTP code, which wins over the code of the body.
        body: a Status, or whatever a proxy or load balancer wrote instead; then a short text of it is the message.
        retry_after: the Retry-After header; only its form in seconds is read, Kubernetes sends no other.
    """
    seconds = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None
    status = _status(body)
    if status is None:
        return KubeStatusError(code, "", _short_text(body) or _phrase(code), retry_after=seconds)
    return _error(status, code, seconds, in_stream=False)


def frame_error(raw: bytes | msgspec.Raw) -> KubeStatusError:
    """The error that an ERROR frame, or a bare Status in place of a watch, carries."""
    status = _status(raw)
    if status is None:
        return undecodable("an ERROR frame that carries no Status", in_stream=True)
    code = status.code or HTTPStatus.INTERNAL_SERVER_ERROR
    return _error(status, code, None, in_stream=True)


def undecodable(message: str, *, in_stream: bool) -> KubeStatusError:
    """The error for an answer that is not what the API promises: an internal error of the server."""
    return KubeStatusError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", message, in_stream=in_stream)


def is_status(raw: bytes | msgspec.Raw) -> bool:
    """Whether the JSON is a Status."""
    return _status(raw) is not None


def unreachable(server: str, error: Exception) -> MemberUnreachable:
    """The error for a connection that failed; the cause is built from types and codes, so it holds no secret."""
    return MemberUnreachable(server, _cause(error))


def _status(raw: bytes | msgspec.Raw) -> _Status | None:
    try:
        status = _decode_status(raw)
    except msgspec.MsgspecError:
        return None
    return status if status.kind == "Status" else None


def _error(status: _Status, code: int, retry_after: float | None, *, in_stream: bool) -> KubeStatusError:
    details = status.details or _Details()
    return KubeStatusError(
        code,
        status.reason or "",
        status.message or _phrase(code),
        causes=tuple(filter(None, map(_cause_reason, details.causes or ()))),
        retry_after=retry_after if retry_after is not None else details.retry_after_seconds or None,
        in_stream=in_stream,
    )


def _cause_reason(cause: _Cause) -> str:
    # Servers 1.17.0 to 1.18.5 gave this cause by its message alone.
    if not cause.reason and cause.message == _TOO_LARGE:
        return _TOO_LARGE_CAUSE
    return cause.reason or ""


def _short_text(body: bytes) -> str:
    text = _TAG.sub(" ", body.decode("utf-8", "replace"))
    return " ".join(text.split())[:_MAX_TEXT]


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "no reason given"


def _cause(error: Exception) -> str:
    """One short clause; never `str(error)`, which may quote a proxy URL with its password."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            return _tls_cause(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return _os_cause(error.os_error)
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before the answer"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case aiohttp.ClientResponseError():
            return "the answer is not HTTP"
        case TimeoutError():
            return "no answer in time"
        case OSError():
            return _os_cause(error)
        case _:
            return type(error).__name__


def _os_cause(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return _tls_cause(error)
    # asyncio fills strerror with addresses ("Connect call failed ..."); the number says what happened.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__


def _tls_cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    reason = getattr(error, "reason", None)  # only errors of the TLS library itself have one
    return f"TLS: {reason.lower().replace('_', ' ')}" if reason else f"TLS: {type(error).__name__}"

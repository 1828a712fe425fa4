"""Failures: what is said, and what is not."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from federator.kube.status import frame_error, reply_error, unreachable

KEY = ConnectionKey("10.0.0.1", 6443, True, True, None, None, None)


def status(**fields: Any) -> bytes:
    return json.dumps({"kind": "Status", "apiVersion": "v1", **fields}).encode()


def test_a_status_reply() -> None:
    error = reply_error(403, status(code=403, reason="Forbidden", message="pods is forbidden"), None)
    assert (error.code, error.status_reason, error.message) == (403, "Forbidden", "pods is forbidden")
    assert (error.causes, error.retry_after, error.in_stream) == ((), None, False)


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("5", None, 5.0),
        ("5", {"retryAfterSeconds": 9}, 5.0),
        (None, {"retryAfterSeconds": 9}, 9.0),
        (None, {"retryAfterSeconds": 0}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None, None),
        (None, None, None),
    ],
)
def test_retry_after(header: str | None, details: Any, expected: float | None) -> None:
    assert reply_error(429, status(code=429, details=details), header).retry_after == expected


@pytest.mark.parametrize("code", [502, 503])
def test_a_reply_that_is_no_status_gives_a_short_text(code: int) -> None:
    page = b"<html><style>a{}</style><body><h1>502 Bad\n Gateway</h1>" + b"nginx " * 1000
    error = reply_error(code, page, "3")
    assert (error.code, error.status_reason, error.retry_after) == (code, "", 3.0)
    assert error.message.startswith("502 Bad Gateway nginx nginx")
    assert len(error.message) <= 200


@pytest.mark.parametrize(("body", "message"), [(b"", "Bad Gateway"), (b"\xff\xfe", "\ufffd\ufffd")])
def test_an_unreadable_reply(body: bytes, message: str) -> None:
    assert reply_error(502, body, None).message == message
    assert reply_error(599, b"", None).message == "no reason given"


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}},
        {"reason": "Timeout", "details": {"causes": [{"message": "Too large resource version"}]}},
        {"reason": "Timeout", "message": "Timeout: Too large resource version: 9, current: 5"},
    ],
    ids=["1.19 and later", "1.17", "before 1.17"],
)
def test_too_large_in_three_dialects(fields: dict[str, Any]) -> None:
    assert frame_error(status(code=504, **fields)).is_too_large_resource_version
    assert reply_error(504, status(code=504, **fields), None).is_too_large_resource_version


@pytest.mark.parametrize("raw", [b"{}", b'{"kind":"Pod"}', b'{"kind":"Status","code":"x"}', b""])
def test_an_error_frame_without_a_status_is_an_internal_error(raw: bytes) -> None:
    error = frame_error(raw)
    assert (error.code, error.status_reason, error.in_stream) == (500, "InternalError", True)


def proxy_error() -> aiohttp.ClientHttpProxyError:
    url = URL("http://user:hunter2@proxy:3128")
    info = aiohttp.RequestInfo(url, "CONNECT", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientHttpProxyError(info, (), status=407, message="hunter2")


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] hunter2")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "Connect call failed")), "Connection refused"),
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "hunter2")), "the name does not resolve"),
        (aiohttp.ClientConnectorCertificateError(KEY, certificate_error()), "certificate not accepted: self-signed"),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "hunter2")), "TLS: SSLError"),
        (proxy_error(), "the proxy answered 407"),
        (aiohttp.ServerDisconnectedError(), "closed before the answer"),
        (aiohttp.ClientPayloadError("hunter2"), "in the middle of the answer"),
        (aiohttp.ClientOSError(104, "hunter2"), "Connection reset by peer"),
        (ConnectionResetError(), "ConnectionResetError"),
        (aiohttp.ServerTimeoutError("hunter2"), "no answer in time"),
        (TimeoutError(), "no answer in time"),
        (aiohttp.InvalidURL("http://hunter2"), "InvalidURL"),
    ],
)
def test_the_cause_is_short_and_quotes_nothing(error: Exception, cause: str) -> None:
    told = unreachable("https://member", error)
    assert told.server == "https://member"
    assert cause in told.cause
    assert "hunter2" not in str(told)
    assert len(told.cause) < 100

"""Every error of the page crosses a real gRPC call and comes out as it went in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from structlog.testing import capture_logs

from federator import errors
from federator.errors import ERRORS, FederatorError, outcome
from federator.wire import status
from federator.wire.status import RequestDecoding, aio_error_boundary, aio_writer_boundary, from_rpc_error, to_grpc

EXAMPLES: list[FederatorError] = [
    FederatorError("something broke"),
    errors.InvalidInput("selection.resources", ("a", 1), "at least one"),
    errors.MalformedSelector("label_selector", "a=é,b", "kubectl's grammar", 2),
    errors.MalformedSelector("label_selector", "a=" * 400, "kubectl's grammar", 600),
    errors.MalformedSelector("label_selector", "a,a,a", "at most two"),
    errors.ClusterIDCollision("a-b", ("a_b", "a@b")),
    errors.CursorMalformed(b"\xff\x00nonsense"),
    errors.CursorForged(b"AQ" * 22),
    errors.PageTokenMalformed("page_token", b"\xff\x00nonsense"),
    errors.PageTokenForeign("page_token", b"AQ" * 22),
    errors.NotFound("nothing here"),
    errors.UnknownCluster("eu-9", ("eu-1", "eu-2")),
    errors.UnknownCluster("eu-9"),
    errors.UnknownResourceType("widgets"),
    errors.ObjectNotFound("pods", "web", cluster_id="eu-1", namespace="shop"),
    errors.IndexNotFound("spec.replicas", ("spec.nodeName",)),
    errors.AmbiguousName("pods", "web", ("eu-1", "us-1")),
    errors.CursorForeign(b"AQ" * 22),
    errors.CursorAhead(12, 11),
    errors.CursorExpired(5, 2**52),
    errors.RevisionExpired(5, 2**52),
    errors.PageTokenExpired(5, 2**52),
    errors.QueryTooCostly("memory_bytes", 2**40),
    errors.IndexFromSettings("spec.nodeName"),
    errors.SelectionChanged(b"AQ" * 22, "eu-1", True),
    errors.SelectionChanged(b"", "eu-1", False),
    errors.WatchTooSlow(b"AQ" * 22, 30.0),
    errors.WatchTooSlow(b"", 0.5),
    errors.NotFreshYet(
        "eu-1", "pods", "9", low_water="7", state="LIVE", cause="not yet", proved_age=1.5, helps_to_wait=True
    ),
    errors.NotFreshYet(
        "eu-1", "pods", "9", low_water="", state="DENIED", cause="no", proved_age=None, helps_to_wait=False
    ),
    errors.LimitReached("watches", 20_000),
    errors.SessionRefused("not yet"),
    errors.ClusterHeld("eu-1", "agent-7"),
    errors.ClusterUIDChanged("eu-1", "u1", "u2"),
    errors.ClusterUIDKnown("eu-1", "u1", "eu-2"),
    errors.ClusterConnected("eu-1", "agent-7"),
    errors.ClusterRemoved("eu-1", "agent-7"),
    errors.ClusterLeaving("eu-1"),
    errors.SessionFenced("eu-1", 3, 4),
    errors.IdentityRefused("eu-1", "its certificate is for 'us-1'"),
    errors.LedgerError("the store is odd"),
    errors.LedgerLocked("/data/ledger"),
    errors.LedgerFull("/data/ledger"),
    errors.LedgerCorrupt("/data/ledger", "entry 7"),
    errors.LedgerNotEmpty("/data/ledger"),
    errors.BackupInvalid("/backups/monday", "it is too short"),
    errors.KubeStatusError(410, "Expired", "too old", causes=("A", "B"), retry_after=1.5, in_stream=True),
    errors.KubeStatusError(403, "Forbidden", "pods is forbidden"),
    errors.MemberUnreachable("https://eu-1", "refused"),
    errors.CredentialsError("eu-1", "no such file"),
    errors.AggregatorUnreachable("127.0.0.1:9", "refused"),
    errors.Incomplete(("ap-1", "ap-2")),
    errors.TestbedError("no etcd"),
]


class Servicer:
    """Raises what the request's number says, in each shape that a servicer method has."""

    def __init__(self) -> None:
        self.raised: BaseException = FederatorError()
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    @aio_error_boundary
    async def unary(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if request == b"wait":
            await self._wait()
        if request == b"abort":
            await context.abort(grpc.StatusCode.DATA_LOSS, "by itself")
        if request != b"fine":
            raise self.raised
        return request

    @aio_error_boundary
    async def stream(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        yield b"first"
        if request == b"wait":
            await self._wait()
        if request != b"fine":
            raise self.raised

    @aio_writer_boundary
    async def writer(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"first")
        if request == b"wait":
            await self._wait()
        if request != b"fine":
            raise self.raised

    async def _wait(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        method = getattr(self._servicer, name)
        if name == "unary":
            return grpc.unary_unary_rpc_method_handler(method, request_deserializer=_decode)
        return grpc.unary_stream_rpc_method_handler(method, request_deserializer=_decode)


def _decode(encoded: bytes) -> bytes:
    if encoded == b"nonsense":
        raise DecodeError("no message")
    return encoded


class Calls:
    """The client's side."""

    def __init__(self, channel: Any, servicer: Servicer) -> None:
        self._channel = channel
        self.servicer = servicer

    def call(self, method: str, request: bytes, service: str = "federator.test.Service") -> Any:
        make = self._channel.unary_unary if method == "unary" else self._channel.unary_stream
        return make(f"/{service}/{method}")(request)

    async def messages(self, method: str, request: bytes) -> list[bytes]:
        call = self.call(method, request)
        return [await call] if method == "unary" else [message async for message in call]

    async def failure(self, method: str, error: BaseException) -> grpc.aio.AioRpcError:
        self.servicer.raised = error
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.messages(method, b"raise")
        return raised.value


@asynccontextmanager
async def serving() -> AsyncIterator[Calls]:
    servicer = Servicer()
    server = grpc.aio.server(interceptors=[RequestDecoding()])
    server.add_generic_rpc_handlers((Handlers(servicer),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Calls(channel, servicer)
    finally:
        await server.stop(None)


METHODS = ["unary", "stream", "writer"]


def test_there_is_an_example_of_every_class() -> None:
    assert {type(example) for example in EXAMPLES} == set(ERRORS)


@pytest.mark.parametrize("method", METHODS)
async def test_every_error_survives_the_way_with_its_fields(method: str) -> None:
    async with serving() as calls:
        for sent in EXAMPLES:
            failure = await calls.failure(method, sent)
            assert failure.code() is grpc.StatusCode[outcome(sent).grpc], sent
            received = from_rpc_error(failure, "here")
            assert type(received) is type(sent)
            assert vars(received) == vars(sent)
            assert str(received) == str(sent)


@pytest.mark.parametrize("method", METHODS)
async def test_success_and_own_aborts_pass_unchanged(method: str) -> None:
    async with serving() as calls:
        assert await calls.messages(method, b"fine") == [b"fine" if method == "unary" else b"first"]
        if method == "unary":
            with pytest.raises(grpc.aio.AioRpcError) as raised, capture_logs() as logs:
                await calls.messages(method, b"abort")
            assert raised.value.code() is grpc.StatusCode.DATA_LOSS
            assert not logs


@pytest.mark.parametrize("method", METHODS)
async def test_a_bug_is_told_without_its_content(method: str) -> None:
    async with serving() as calls:
        with capture_logs() as logs:
            failure = await calls.failure(method, KeyError("/secret/path"))
        assert [(log["event"], log["method"]) for log in logs] == [("servicer method failed", f"Servicer.{method}")]
        assert failure.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(failure.details()) + str(failure.trailing_metadata())
        assert str(from_rpc_error(failure, "here")) == "internal error; the aggregator's log says more"


@pytest.mark.parametrize("method", METHODS)
async def test_a_request_that_is_no_message_is_refused_like_any_wrong_input(method: str) -> None:
    async with serving() as calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.messages(method, b"nonsense")
        error = from_rpc_error(raised.value, "here")
        assert isinstance(error, errors.InvalidInput)
        assert (error.field, error.given) == ("request", "8 bytes")
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_other_services_get_no_request_that_they_cannot_know() -> None:
    async with serving() as calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.call("unary", b"nonsense", service="grpc.health.v1.Health")
        assert raised.value.code() is grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize("method", METHODS)
async def test_cancellation_reaches_the_method(method: str) -> None:
    async with serving() as calls:
        call = calls.call(method, b"wait")
        await calls.servicer.began.wait()
        call.cancel()
        await asyncio.wait_for(calls.servicer.cancelled.wait(), 5)


def _details(error: FederatorError) -> list[any_pb2.Any]:
    (_, encoded), *others = to_grpc(error).trailing_metadata
    assert not others
    assert isinstance(encoded, bytes)
    return list(status_pb2.Status.FromString(encoded).details)


@pytest.mark.parametrize("error", EXAMPLES, ids=[type(example).__name__ for example in EXAMPLES])
def test_there_is_exactly_one_error_info_of_our_domain(error: FederatorError) -> None:
    details = _details(error)
    infos = [detail for detail in details if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    assert len(infos) == 1
    info = error_details_pb2.ErrorInfo()
    infos[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (error.reason, "federator.io", error.metadata())


def test_a_retry_hint_is_given_where_waiting_helps() -> None:
    def hint(error: FederatorError) -> float | None:
        retry = error_details_pb2.RetryInfo()
        hints = [detail for detail in _details(error) if detail.Unpack(retry)]
        return retry.retry_delay.ToTimedelta().total_seconds() if hints else None

    assert hint(errors.WatchTooSlow(b"c", 30)) == 1
    assert hint(errors.LedgerFull("x")) == 30
    assert hint(errors.LimitReached("watches", 1)) == 5
    assert hint(errors.ClusterLeaving("eu-1")) == 5
    for helps in (True, False):
        refused = errors.NotFreshYet(
            "a", "pods", "9", low_water="", state="LIVE", cause="", proved_age=None, helps_to_wait=helps
        )
        assert hint(refused) == (1 if helps else None)
    assert hint(errors.KubeStatusError(429, "TooManyRequests", "slow down", retry_after=2.5)) == 2.5
    assert hint(errors.KubeStatusError(500, "", "no")) is None
    assert hint(errors.CursorExpired(1, 2)) is None


async def test_long_values_are_cut_to_what_metadata_carries() -> None:
    known = tuple(f"cluster-{number}" for number in range(5000))
    async with serving() as calls:
        failure = await calls.failure("unary", errors.UnknownCluster("ä" * 3000, known))
        assert failure.code() is grpc.StatusCode.NOT_FOUND
        received = from_rpc_error(failure, "here")
        assert isinstance(received, errors.UnknownCluster)
        assert received.cluster_id.startswith("äää")
        assert received.cluster_id.endswith("…")
        assert len(received.cluster_id.encode()) <= status.MAX_VALUE_BYTES
        text = errors.InvalidInput("f", "lone \ud800 surrogate", "none")
        assert (await calls.failure("unary", text)).code() is grpc.StatusCode.INVALID_ARGUMENT


def _rpc_error(code: grpc.StatusCode, details: str, encoded: bytes = b"") -> grpc.aio.AioRpcError:
    metadata = [("grpc-status-details-bin", encoded)] if encoded else []
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details, None)


def _encoded(reason: str, domain: str = "federator.io", **metadata: str) -> bytes:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return status_pb2.Status(code=2, message="m", details=[detail]).SerializeToString()  # type: ignore[no-any-return]


def test_what_carries_no_error_of_ours_is_still_an_error_of_ours() -> None:
    def received(code: grpc.StatusCode, details: str, encoded: bytes = b"") -> FederatorError:
        return from_rpc_error(_rpc_error(code, details, encoded), "127.0.0.1:9")

    unavailable = received(grpc.StatusCode.UNAVAILABLE, "refused")
    assert isinstance(unavailable, errors.AggregatorUnreachable)
    assert (unavailable.address, unavailable.cause) == ("127.0.0.1:9", "refused")
    for encoded in (b"", b"\xffgarbage", _encoded("CURSOR_EXPIRED", domain="elsewhere.org")):
        other = received(grpc.StatusCode.UNIMPLEMENTED, "no such method", encoded)
        assert type(other) is FederatorError
        assert str(other) == "UNIMPLEMENTED: no such method"
    newer = received(grpc.StatusCode.UNKNOWN, "said so", _encoded("OF_A_NEWER_PROGRAM"))
    assert type(newer) is FederatorError
    assert str(newer) == "OF_A_NEWER_PROGRAM: said so"
    odd = received(grpc.StatusCode.OUT_OF_RANGE, "odd", _encoded("CURSOR_EXPIRED", revision="not a number"))
    assert type(odd) is FederatorError


async def test_a_refusal_does_not_wait_for_ever_behind_a_message_that_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "CLOSE_SECONDS", 0.1)

    class Stuck:
        async def abort(self, *_: object) -> None:
            await asyncio.Event().wait()

    class Refusing:
        @aio_writer_boundary
        async def method(self, request: bytes, context: Any) -> None:
            raise errors.WatchTooSlow(b"", 1)

    context: Any = Stuck()
    assert [message async for message in Refusing().method(b"", context)] == []

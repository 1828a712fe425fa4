"""Errors over gRPC and back: each class of `federator.errors` survives the way with its fields.

On the wire an error is a google.rpc.Status with the code of the error table, exactly one ErrorInfo (reason, domain
`federator.io`, every variable of the message in its metadata) and, where waiting helps, a RetryInfo. gRPC carries it in
the trailing metadata, which peers accept up to 8 KiB, so long values are cut there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn, TypeVar, cast

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from federator.errors import (
    ERRORS,
    AggregatorUnreachable,
    ClusterHeld,
    ClusterLeaving,
    CursorAhead,
    FederatorError,
    InvalidInput,
    KubeStatusError,
    LedgerFull,
    LimitReached,
    MemberUnreachable,
    NotFreshYet,
    WatchTooSlow,
    outcome,
)

log = structlog.get_logger(__name__)

DOMAIN = "federator.io"
"""Domain of every ErrorInfo."""

MAX_MESSAGE_BYTES = 1024
MAX_VALUE_BYTES = 512
"""A longer message or metadata value is cut: the message twice and five values, in Base64, still fit into 8 KiB."""

CLOSE_SECONDS = 5.0
"""How long a refusal may wait to be sent: behind a message that the client does not take, it would wait for ever."""

_RETRY_SECONDS: dict[type[FederatorError], float] = {
    CursorAhead: 1,
    WatchTooSlow: 1,
    NotFreshYet: 1,
    LimitReached: 5,
    AggregatorUnreachable: 1,
    MemberUnreachable: 5,
    ClusterHeld: 10,  # a standby looks again; the holder's silence is noticed within two heartbeats
    ClusterLeaving: 5,
    LedgerFull: 30,
}
_CLASSES = {error.reason: error for error in ERRORS}
_DETAILS_KEY = "grpc-status-details-bin"


def to_grpc(error: FederatorError) -> grpc.Status:
    """Returns the status that carries an error; `context.abort` takes its three fields."""
    code = grpc.StatusCode[outcome(error).grpc]
    details = [_packed(_error_info(error))]
    retry_seconds = _retry_seconds(error)
    if retry_seconds is not None:
        retry = error_details_pb2.RetryInfo(
            retry_delay=duration_pb2.Duration(seconds=int(retry_seconds), nanos=int(retry_seconds % 1 * 1e9))
        )
        details.append(_packed(retry))
    number, _ = cast("tuple[int, str]", code.value)
    return rpc_status.to_status(
        status_pb2.Status(code=number, message=_cut(str(error), MAX_MESSAGE_BYTES), details=details)
    )


def from_rpc_error(error: grpc.RpcError, address: str) -> FederatorError:
    """Returns the error that a failed call carries.

    Args:
        error: what grpc or grpc.aio raised.
        address: the aggregator that was called, for the message.

    Returns:
        An instance of the class whose reason the ErrorInfo names, with its fields and message. An unknown reason, and
        a failure that carries none, becomes a FederatorError; UNAVAILABLE without details an AggregatorUnreachable.
    """
    code, details, metadata = error.code(), error.details() or "", error.trailing_metadata() or ()
    info = _error_info_of(metadata)
    if info is not None:
        return _rebuilt(info, details)
    if code is grpc.StatusCode.UNAVAILABLE:
        return AggregatorUnreachable(address, details)
    return FederatorError(f"{code.name}: {details}")


class RequestDecoding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Hands a request that is none of its type on to the error boundary, which refuses it.

    By itself grpc would answer UNKNOWN, with the name of the exception. It is for the methods of our own services that
    take one request; what a stream of requests brings is decoded inside the boundary.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Replaces the way a handler reads its request."""
        handler = await continuation(handler_call_details)
        is_ours = handler_call_details.method.startswith(_OUR_SERVICES)
        if handler is None or handler.request_streaming or not is_ours:
            return handler
        if handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(behaviour, _decoding(handler.request_deserializer), handler.response_serializer)


_OUR_SERVICES = "/federator."


class _Undecodable:
    """Stands in the place of a request that could not be decoded."""

    def __init__(self, size: int, error: Exception) -> None:
        self._size = size
        self._error = error

    def refuse(self) -> NoReturn:
        raise InvalidInput("request", f"{self._size} bytes", "a message of the method's type") from self._error


def _decoding(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(encoded: bytes) -> Any:
        try:
            return deserialize(encoded)
        except DecodeError as error:
            return _Undecodable(len(encoded), error)

    return decode


Method = TypeVar("Method", bound=Callable[..., Any])
Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Context = grpc.aio.ServicerContext[Any, Any]


def aio_error_boundary(method: Method) -> Method:
    """Decorates a grpc.aio servicer method, unary or async generator, so that what it raises becomes its status.

    A FederatorError is refused with its own status. Any other exception is a bug: it is logged, and the client is told
    that there was one, but not which. Cancellation and `context.abort` pass unchanged.
    """
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(self: Any, request: Any, context: Context) -> AsyncIterator[Any]:
            async with _refusing(context, method, request), aclosing(method(self, request, context)) as responses:
                async for response in responses:
                    yield response

        return cast("Method", stream)

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: Context) -> Any:
        async with _refusing(context, method, request):
            return await method(self, request, context)

    return cast("Method", unary)


def aio_writer_boundary(
    method: Callable[[Servicer, Request, Context], Awaitable[None]],
) -> Callable[[Servicer, Request, Context], AsyncIterator[Any]]:
    """As `aio_error_boundary`, for a streaming method that sends its messages by `context.write`.

    Writing by itself, a method can give each message a deadline. The result is an async generator all the same, one
    that yields nothing, since interceptors iterate over what a streaming method returns.
    """

    @functools.wraps(method)
    async def stream(self: Servicer, request: Request, context: Context) -> AsyncIterator[Any]:
        async with _refusing(context, method, request):
            await method(self, request, context)
        for message in _NOTHING:
            yield message

    return stream


_NOTHING: tuple[Any, ...] = ()


@asynccontextmanager
async def _refusing(context: Context, method: Callable[..., Any], request: object) -> AsyncIterator[None]:
    try:
        if isinstance(request, _Undecodable):
            request.refuse()
        yield
    except grpc.aio.AbortError:
        raise
    except FederatorError as error:
        await _refuse(context, error)
    except Exception as error:
        log.error("servicer method failed", method=method.__qualname__, exc_info=error)
        await _refuse(context, FederatorError("internal error; the aggregator's log says more"))


async def _refuse(context: Context, error: FederatorError) -> None:
    status = to_grpc(error)
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await context.abort(status.code, status.details, tuple(status.trailing_metadata))
    except TimeoutError:
        # The status stands in line behind a message that is not taken. It leaves when that is, or with the connection.
        log.info("status not taken by the client", reason=error.reason)


def _retry_seconds(error: FederatorError) -> float | None:
    if isinstance(error, KubeStatusError):
        return error.retry_after
    if isinstance(error, NotFreshYet) and not error.helps_to_wait:
        return None
    return _RETRY_SECONDS.get(type(error))


def _error_info(error: FederatorError) -> error_details_pb2.ErrorInfo:
    metadata = {name: _cut(value, MAX_VALUE_BYTES) for name, value in error.metadata().items()}
    return error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _cut(text: str, limit: int) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode(errors="ignore") + "…"


def _error_info_of(metadata: Any) -> error_details_pb2.ErrorInfo | None:
    encoded = next((value for key, value in metadata if key == _DETAILS_KEY), b"")
    info = error_details_pb2.ErrorInfo()
    try:
        for detail in status_pb2.Status.FromString(encoded).details:
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info
    except DecodeError:  # not of this program
        pass
    return None


def _rebuilt(info: error_details_pb2.ErrorInfo, message: str) -> FederatorError:
    unknown = FederatorError(f"{info.reason}: {message}")
    error_class = _CLASSES.get(info.reason)
    if error_class is None:
        return unknown
    error = error_class.__new__(error_class)
    error.args = (message,)
    try:
        for name, kind in _fields(error_class).items():
            if name in info.metadata:
                setattr(error, name, _parsed(info.metadata[name], kind))
            elif type(None) in typing.get_args(kind):
                setattr(error, name, None)
    except ValueError:  # of a program that means something else by this reason
        return unknown
    return error


def _fields(error_class: type[FederatorError]) -> Mapping[str, Any]:
    """What the constructors of a class and its bases take, by name: each keeps it as an attribute or hands it on."""
    fields: dict[str, Any] = {}
    for base in reversed(error_class.__mro__):
        if issubclass(base, FederatorError) and "__init__" in vars(base):
            fields |= typing.get_type_hints(base.__init__)
    fields.pop("return", None)
    return fields


def _parsed(text: str, kind: Any) -> object:
    """Reads what `FederatorError.metadata` wrote."""
    if isinstance(kind, types.UnionType):
        (kind,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    if typing.get_origin(kind) is tuple:
        return tuple(text.split(",")) if text else ()
    if kind is bool:
        return text == "True"
    if kind is bytes:
        return text.encode()
    if kind in {int, float}:
        return kind(text)
    return text

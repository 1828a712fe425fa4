"""gRPC server metrics under the names that etcd's dashboards and alerts already use."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

_CALL = ("grpc_type", "grpc_service", "grpc_method")


def _go_spelling(code: grpc.StatusCode) -> str:
    return "OK" if code is grpc.StatusCode.OK else code.name.title().replace("_", "")


class GrpcMetrics(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts calls started, handled by code, and times unary calls and streams."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers the families."""
        self._started = Counter("grpc_server_started", "Calls started.", _CALL, registry=registry)
        self._handled = Counter("grpc_server_handled", "Calls completed.", (*_CALL, "grpc_code"), registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Duration of calls.", _CALL, registry=registry, buckets=_BUCKETS
        )

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler  # unknown method: grpc answers UNIMPLEMENTED by itself
        _, service, method = handler_call_details.method.split("/", 2)
        kind = _kind(handler)
        call = (kind, service, method)
        if handler.response_streaming:
            behaviour = self._streaming(handler, call)
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
        else:
            behaviour = self._unary(handler.stream_unary or handler.unary_unary, call)
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_unary_rpc_method_handler
            )
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    def _streaming(self, handler: Any, call: tuple[str, str, str]) -> Any:
        serve = handler.stream_stream or handler.unary_stream

        async def generate(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            with self._measured(call, context):
                async for response in serve(request, context):
                    yield response

        # grpc takes both: a method that yields its responses, and one that writes them to the context.
        return generate if inspect.isasyncgenfunction(serve) else self._unary(serve, call)

    def _unary(self, serve: Any, call: tuple[str, str, str]) -> Any:
        async def behaviour(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            with self._measured(call, context):
                return await serve(request, context)

        return behaviour

    @contextmanager
    def _measured(self, call: tuple[str, str, str], context: grpc.aio.ServicerContext[Any, Any]) -> Iterator[None]:
        self._started.labels(*call).inc()
        began = time.monotonic()
        code = grpc.StatusCode.CANCELLED
        try:
            yield
            code = _code_of(context)
        except grpc.aio.AbortError:
            code = _code_of(context)
            raise
        except Exception:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            self._handled.labels(*call, _go_spelling(code)).inc()
            self._seconds.labels(*call).observe(time.monotonic() - began)


_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 300)


def _kind(handler: Any) -> str:
    if handler.request_streaming:
        return "bidi_stream" if handler.response_streaming else "client_stream"
    return "server_stream" if handler.response_streaming else "unary"


def _code_of(context: grpc.aio.ServicerContext[Any, Any]) -> grpc.StatusCode:
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code), grpc.StatusCode.OK)

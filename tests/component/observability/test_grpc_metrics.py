from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from federator.observability.grpc_metrics import GrpcMetrics


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A unary method, a stream that yields and one that writes; each is refused where it is asked to."""

    def service(self, details: Any) -> Any:
        async def unary(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            if request == b"refuse":
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
            return request

        async def stream(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
            yield request
            if request == b"refuse":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no")

        async def writer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await context.write(request)
            if request == b"refuse":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no")

        if details.method == "/test.Service/Writer":
            return grpc.unary_stream_rpc_method_handler(writer)
        if details.method == "/test.Service/Unary":
            return grpc.unary_unary_rpc_method_handler(unary)
        if details.method == "/test.Service/Stream":
            return grpc.unary_stream_rpc_method_handler(stream)
        return None


async def test_calls_are_counted_by_method_and_code_in_go_spelling() -> None:
    registry = CollectorRegistry()
    server = grpc.aio.server(interceptors=[GrpcMetrics(registry)])
    server.add_generic_rpc_handlers((_Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as typed_channel:
            channel: Any = typed_channel  # bytes in, bytes out: no serializers
            assert await channel.unary_unary("/test.Service/Unary")(b"x") == b"x"
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/test.Service/Unary")(b"refuse")
            for method in ("/test.Service/Stream", "/test.Service/Writer"):
                assert [message async for message in channel.unary_stream(method)(b"x")] == [b"x"]
                with pytest.raises(grpc.aio.AioRpcError):
                    [message async for message in channel.unary_stream(method)(b"refuse")]
    finally:
        await server.stop(None)

    def handled(method: str, kind: str, code: str) -> float | None:
        labels = {"grpc_type": kind, "grpc_service": "test.Service", "grpc_method": method}
        return registry.get_sample_value("grpc_server_handled_total", {**labels, "grpc_code": code})

    assert handled("Unary", "unary", "OK") == 1
    assert handled("Unary", "unary", "FailedPrecondition") == 1
    for method in ("Stream", "Writer"):
        assert handled(method, "server_stream", "OK") == 1
        assert handled(method, "server_stream", "OutOfRange") == 1

"""Puts the inventory service on a server, with answers that are encoded already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import grpc

from federator.aggregator.serve.inventory_servicer import InventoryServicer
from federator.v1 import inventory_pb2_grpc

_ENCODED = {"List", "Watch", "GetHistory", "GetChanges", "Aggregate"}
"""Methods that answer in bytes, since parts of their messages are encoded once for many."""


def add_inventory_service(servicer: InventoryServicer, server: grpc.aio.Server) -> None:
    """Registers the service as the generated code does, but that some answer in bytes."""
    registrar = cast("grpc.aio.Server", _Registrar(server))
    inventory_pb2_grpc.add_InventoryServiceServicer_to_server(servicer, registrar)


class _Registrar:
    """Takes the handlers of the generated code, and hands them on."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, _: object) -> None:
        """The same handlers, in a form that cannot be looked into."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        methods = {name: _in_bytes(handler) if name in _ENCODED else handler for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))


def _in_bytes(handler: Any) -> Any:
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, handler.request_deserializer)
    return grpc.unary_stream_rpc_method_handler(handler.unary_stream, handler.request_deserializer)

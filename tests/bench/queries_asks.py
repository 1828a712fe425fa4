"""Questions to an aggregator over gRPC, timed until the last byte of the answer is here, and read afterwards."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc

from federator.v1 import inventory_pb2
from tests.bench.figure import WrongResult
from tests.bench.queries_truth import key_text

Request = inventory_pb2.ListRequest | inventory_pb2.AggregateRequest

_SERVICE = "/federator.v1.InventoryService"
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)


class Listed(NamedTuple):
    """Answer of a list.

    Attributes:
        seconds: from the call to its end.
        objects: of all parts.
        summary: of the last part.
    """

    seconds: float
    objects: list[inventory_pb2.InventoryObject]
    summary: inventory_pb2.ListSummary


class Aggregated(NamedTuple):
    """Answer of an aggregation.

    Attributes:
        seconds: from the call to its end.
        groups: the first measure by the keys; None stands for objects without the value.
        summary: freshness and totals.
    """

    seconds: float
    groups: dict[tuple[str | None, ...], int]
    summary: inventory_pb2.ListSummary


class Asker:
    """One connection. Messages are read after the clock has stopped: what is measured is the aggregator."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._list: Any = channel.unary_stream(f"{_SERVICE}/List", _serialised, bytes)
        self._aggregate: Any = channel.unary_unary(f"{_SERVICE}/Aggregate", _serialised, bytes)

    async def list(self, request: inventory_pb2.ListRequest) -> Listed:
        """Asks for a list.

        Raises:
            WrongResult: the answer has no end.
        """
        began = time.perf_counter()
        parts = [part async for part in self._list(request)]
        seconds = time.perf_counter() - began
        objects: list[inventory_pb2.InventoryObject] = []
        response = inventory_pb2.ListResponse()
        for part in parts:
            response = inventory_pb2.ListResponse.FromString(part)
            objects.extend(response.objects)
        if not response.HasField("summary"):
            raise WrongResult("a list without a summary")
        return Listed(seconds, objects, response.summary)

    async def aggregate(self, request: inventory_pb2.AggregateRequest) -> Aggregated:
        """Asks for numbers."""
        began = time.perf_counter()
        answer = await self._aggregate(request)
        seconds = time.perf_counter() - began
        response = inventory_pb2.AggregateResponse.FromString(answer)
        groups = {
            tuple(key.value if key.HasField("value") else None for key in group.keys): int(group.measures[0].value)
            for group in response.groups
        }
        return Aggregated(seconds, groups, response.summary)

    async def walk(self, request: inventory_pb2.ListRequest) -> AsyncIterator[Listed]:
        """Asks for page after page."""
        token = b""
        while True:
            page = inventory_pb2.ListRequest()
            page.CopyFrom(request)
            page.page_token = token
            listed = await self.list(page)
            yield listed
            token = listed.summary.next_page_token
            if not token:
                return


@asynccontextmanager
async def asker(address: str) -> AsyncIterator[Asker]:
    """A connection, while the context is open."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        yield Asker(channel)


def object_key(obj: inventory_pb2.InventoryObject) -> str:
    """One text for the key of an object."""
    return key_text(obj.cluster_id, obj.resource, obj.namespace, obj.name)


def _serialised(request: Request) -> bytes:
    return request.SerializeToString()

"""A proxy on loopback between any client and any server, which does to their connections what bad networks do.

    async with FaultProxy("127.0.0.1:9443") as link:
        agent = start_agent(aggregator=link.address)
        link.apply(Conditions(delay=0.075, jitter=0.05, loss=0.5))
        link.black_hole()
        link.heal()

It carries bytes of TCP or of a unix socket and knows nothing of what they mean, so it stands in front of gRPC, HTTP and
TLS alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from federator._aio.task_group import task_group

Direction = Literal["up", "down", "both"]
"""`up` is from the client to the server, `down` the way back."""

WINDOW = 1024 * 1024
"""Bytes of one connection and direction that the proxy has under way; then it reads no more, and the sender waits."""

CHUNK = 16 * 1024
"""Bytes that are read at once at most: what `loss` and `reset` are drawn for."""

MAX_LOSSES = 5
"""How often in a row a chunk is lost at most. Each time the wait doubles, as TCP's does."""

_UNIX = "unix:"
_NO_LINGER = struct.pack("ii", 1, 0)
_SMOOTH = 0.05
"""Seconds between two writes of a throttled connection."""


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What becomes of bytes in one direction. Bytes always arrive in order and unchanged, or not at all.

    Attributes:
        black_hole: nothing passes, and nothing is closed: the network is gone. Also that an end closed or reset its
            connection is not passed on before this is over; then what was under way arrives late, as after TCP's
            retransmission, also what its sender has given up meanwhile. New connections are taken and left without
            an answer.
        delay: seconds that everything is under way. Throughput does not suffer but for `WINDOW`.
        jitter: the delay of each chunk differs by up to so many seconds, either way.
        loss: probability that a chunk is lost. TCP sends it again, so it comes late, and with it all that follows:
            after `retransmit_after` seconds, twice as late if lost again, and so on.
        retransmit_after: seconds.
        reset: probability that a chunk does not arrive and its connection is reset at both ends.
        slice_bytes: what arrives is written in pieces of so many bytes, each of its own; 0 leaves it whole.
        bytes_per_second: at most; 0 for no limit.
    """

    black_hole: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    retransmit_after: float = 0.2
    reset: float = 0.0
    slice_bytes: int = 0
    bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "reset"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, not {getattr(self, name)}")
        for name in ("delay", "jitter", "retransmit_after", "slice_bytes", "bytes_per_second"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is 0 or more, not {getattr(self, name)}")


class FaultProxy:
    """Passes connections on to one server, and misbehaves as it is told; an async context manager.

    It listens from entering on. Leaving it closes every connection and leaves no task.

    Promises:
        - Methods that are not async take effect at once, on open connections too: what the proxy still holds is under
          the new conditions. What it has handed to the kernel arrives.
        - In one direction of one connection bytes arrive in the order they were sent, unchanged, none twice.
        - An end that closes its half only (FIN) leaves the other half open.

    It belongs to the event loop it was entered in; client and server may be anywhere. Times are on that loop's clock.

    Attributes:
        address: where clients connect: `127.0.0.1:port`, or `unix:/path`; the same until it is left.
    """

    def __init__(self, target: str, *, listen: str = "127.0.0.1:0", seed: int = 0) -> None:
        """Describes a proxy; entering it starts it.

        Args:
            target: the server, `host:port` or `unix:/path`. It is dialled for each connection, so it need not be there
                yet; while it is not, connections are reset.
            listen: where to listen, `127.0.0.1:port`, port 0 for a free one, or `unix:/path`.
            seed: of what is left to chance.
        """
        self.address = listen
        self._target = target
        self._random = random.Random(seed)
        self._conditions: dict[str, Conditions] = {"up": Conditions(), "down": Conditions()}
        self._changed = asyncio.Event()
        self._is_refusing = False
        self._cuts: dict[str, int | None] = {"up": None, "down": None}
        self._connections: set[_Connection] = set()
        self._counts: Counter[str] = Counter()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if self.address.startswith(_UNIX):
            self._listener = await asyncio.start_unix_server(self._accept, self.address.removeprefix(_UNIX))
        else:
            host, _, port = self.address.rpartition(":")
            self._listener = await asyncio.start_server(self._accept, host, int(port), backlog=1024)
            self.address = f"{host}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        tasks = [connection.task for connection in self._connections]
        for connection in self._connections:
            connection.reset()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.address.startswith(_UNIX):
            _remove(self.address.removeprefix(_UNIX))

    # ------------------------------------------------------------------------------------------------- conditions

    def conditions(self, direction: Literal["up", "down"]) -> Conditions:
        """What becomes of bytes in a direction now."""
        return self._conditions[direction]

    def apply(self, conditions: Conditions, direction: Direction = "both") -> None:
        """Has everything in a direction go so from now on, in place of what it was told before."""
        for each in _ways(direction):
            self._conditions[each] = conditions
        self._tell()

    def black_hole(self, direction: Direction = "both") -> None:
        """Lets nothing pass in a direction, and closes nothing; the other conditions stay."""
        for each in _ways(direction):
            self._conditions[each] = dataclasses.replace(self._conditions[each], black_hole=True)
        self._tell()

    def heal(self) -> None:
        """Lets everything pass again as it should, and takes new connections. What was reset stays so."""
        self._is_refusing = False
        self._cuts = {"up": None, "down": None}
        self.apply(Conditions())

    def refuse_connections(self) -> None:
        """Resets each new connection as soon as it is made, until `accept_connections`; open ones are not touched."""
        self._is_refusing = True

    def accept_connections(self) -> None:
        """Takes new connections again."""
        self._is_refusing = False

    def reset_connections(self) -> None:
        """Resets every open connection at both ends; what was under way is lost.

        Over a unix socket, which knows no RST, it is closed.
        """
        for connection in self._connections:
            self._counts["reset"] += 1
            connection.reset()

    def cut_after(self, size: int, direction: Literal["up", "down"] = "up") -> None:
        """Resets every connection, once, when so many bytes more, at least 1, have arrived in a direction."""
        self._cuts[direction] = size

    def statistics(self) -> Mapping[str, int]:
        """Totals, and what is there now.

        `accepted` connections, `refused` of those that were to be refused, `undialled` while the server was not there,
        `reset` by the proxy itself, `open` now; `bytes_up` and `bytes_down` that arrived, `held_up` and `held_down`
        that are under way, `losses` of chunks.
        """
        ways = [way for connection in self._connections for way in connection.ways]
        held = {f"held_{name}": sum(way.held for way in ways if way.name == name) for name in ("up", "down")}
        names = ("accepted", "refused", "undialled", "reset", "bytes_up", "bytes_down", "losses")
        return {"open": len(self._connections), **{name: self._counts[name] for name in names}, **held}

    # ------------------------------------------------------------------------------------------------ connections

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            self._counts["refused"] += 1
            _reset(writer)
            return
        self._counts["accepted"] += 1
        connection = _Connection(self, reader, writer)
        number = self._counts["accepted"]
        connection.task = asyncio.create_task(connection.run(), name=f"fault proxy {self.address} connection {number}")
        self._connections.add(connection)
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith(_UNIX):
            return await asyncio.open_unix_connection(self._target.removeprefix(_UNIX))
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _due(self, way: str, due: Callable[[Conditions], float]) -> Conditions:
        """Waits until a time has come that depends on the conditions, which may change meanwhile; returns them."""
        loop = asyncio.get_running_loop()
        while True:
            conditions, changed = self._conditions[way], self._changed
            at = math.inf if conditions.black_hole else due(conditions)
            if at <= loop.time():
                return conditions
            try:
                async with asyncio.timeout_at(None if at == math.inf else at):
                    await changed.wait()
            except TimeoutError:
                # By the loop's own judgement of time, which may be an instant before what its clock then says.
                if not changed.is_set():
                    return conditions

    def _arrived(self, way: str, size: int) -> None:
        self._counts[f"bytes_{way}"] += size
        left = self._cuts[way]
        if left is not None:
            self._cuts[way] = left - size or None
            if left == size:
                self.reset_connections()


class _Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    task: asyncio.Task[None]

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ways: tuple[_Way, ...] = ()
        self._proxy = proxy
        self._reader = reader
        self._writers = [writer]

    async def run(self) -> None:
        """Carries bytes until both halves are closed or it is reset; cancelled, it is reset."""
        is_closed = False
        try:
            await self._proxy._due("up", lambda _: 0.0)
            reader, writer = await self._proxy._dial()
            self._writers.append(writer)
            for each in self._writers:
                each.transport.set_write_buffer_limits(high=0)  # what is held is held where conditions reach it
            up = _Way(self._proxy, "up", self._reader, writer)
            down = _Way(self._proxy, "down", reader, self._writers[0])
            up.back, down.back = down, up
            self.ways = up, down
            async with task_group() as tasks:
                for way in self.ways:
                    tasks.create_task(way.read(), name=f"fault proxy {self._proxy.address} {way.name} read")
                    tasks.create_task(way.write(), name=f"fault proxy {self._proxy.address} {way.name} write")
        except OSError:
            self._proxy._counts["undialled"] += 1
        except _Closed:
            is_closed = True
        except _ResetByPeer:
            pass
        except _ResetByChance:
            self._proxy._counts["reset"] += 1
        finally:
            for each in self._writers:
                if is_closed:
                    each.close()
                else:
                    _reset(each)

    def reset(self) -> None:
        """Resets both ends, at once."""
        for each in self._writers:
            _reset(each)
        self.task.cancel()


class _Closed(Exception):
    """Both halves were closed, and that was passed on."""


class _ResetByPeer(Exception):
    """One end reset its connection, and that is to be passed on."""


class _ResetByChance(Exception):
    """The connection is to be reset."""


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """What was read at once, or an end: of the half, where there are no bytes, or of the whole.

    Attributes:
        data: bytes; None for a reset.
        read_at: seconds of the loop's clock.
        draws: chance, drawn when it was read, each from 0 to 1, so that it stands whatever the conditions become: of
            loss, of jitter, of a reset.
    """

    data: bytes | None
    read_at: float
    draws: tuple[float, float, float]

    def losses(self, conditions: Conditions) -> int:
        """How often it is lost in a row."""
        if conditions.loss in {0, 1}:
            return MAX_LOSSES if conditions.loss else 0
        return min(MAX_LOSSES, int(math.log(1 - self.draws[0]) / math.log(conditions.loss)))

    def due(self, conditions: Conditions) -> float:
        """When it arrives."""
        jitter = conditions.jitter * (2 * self.draws[1] - 1)
        late = conditions.retransmit_after * (2.0 ** self.losses(conditions) - 1)
        return self.read_at + max(0.0, conditions.delay + jitter) + late


class _Way:
    """One direction of one connection.

    Attributes:
        name: "up" or "down".
        held: bytes that were read and have not arrived.
        is_closed: the end of this half was passed on.
        back: the other direction.
    """

    back: _Way

    def __init__(self, proxy: FaultProxy, name: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self.name = name
        self.held = 0
        self.is_closed = False
        self._proxy = proxy
        self._source = source
        self._sink = sink
        self._is_dead = False
        self._written_until = 0.0
        self._chunks: deque[_Chunk] = deque()
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Takes what comes, as far as there is room, to the end of the half."""
        while True:
            while self.held >= WINDOW:
                await self._change()
            try:
                data = await self._source.read(CHUNK)
            except OSError:
                self.put(None)
                return
            self.put(data)
            if not data:
                return

    def put(self, data: bytes | None) -> None:
        """Queues bytes or an end."""
        chance = self._proxy._random.random
        self._chunks.append(_Chunk(data, asyncio.get_running_loop().time(), (chance(), chance(), chance())))
        self.held += len(data or b"")
        self._changed.set()

    async def write(self) -> None:
        """Lets arrive what is due, one chunk after the other, until the connection is over.

        Raises:
            _Closed, _ResetByPeer, _ResetByChance: it is.
        """
        while True:
            while not self._chunks:
                await self._change()
            chunk = self._chunks[0]
            conditions = await self._proxy._due(self.name, chunk.due)
            if chunk.data is None:
                raise _ResetByPeer
            if chunk.data and chunk.draws[2] < conditions.reset:
                raise _ResetByChance
            self._proxy._counts["losses"] += chunk.losses(conditions) if chunk.data else 0
            try:
                await self._deliver(chunk.data)
            except OSError:
                # The end it was for is gone. What says so to the other end goes its own way there.
                if not self._is_dead:
                    self._is_dead = True
                    self.back.put(None)
            self._chunks.popleft()
            self._changed.set()

    async def _deliver(self, data: bytes) -> None:
        if self._is_dead:
            self.held -= len(data)
            return
        if not data:
            self._sink.write_eof()
            self.is_closed = True
            if self.back.is_closed:
                raise _Closed
        while data:
            conditions = await self._proxy._due(self.name, self._unthrottled)
            size = min(conditions.slice_bytes or len(data), self._proxy._cuts[self.name] or len(data))
            if conditions.bytes_per_second:
                size = max(1, min(size, int(conditions.bytes_per_second * _SMOOTH)))
                self._written_until = asyncio.get_running_loop().time() + size / conditions.bytes_per_second
            piece, data = data[:size], data[size:]
            self.held -= len(piece)
            self._sink.write(piece)
            await self._sink.drain()
            if conditions.slice_bytes:
                await asyncio.sleep(0)  # or the loop would hand the pieces to the kernel as one
            self._proxy._arrived(self.name, len(piece))

    def _unthrottled(self, conditions: Conditions) -> float:
        return self._written_until if conditions.bytes_per_second else 0.0

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with RST where there is such a thing."""
    peer = writer.get_extra_info("socket")
    if peer is not None and peer.family == socket.AF_INET:
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)  # newer Pythons have removed it with the listener


def _ways(direction: Direction) -> tuple[str, ...]:
    return ("up", "down") if direction == "both" else (direction,)

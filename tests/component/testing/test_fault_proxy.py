from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from federator.testing.fault_proxy import CHUNK, MAX_LOSSES, WINDOW, Conditions, FaultProxy
from tests.fixtures import no_task_is_left

__all__ = ["no_task_is_left"]

pytestmark = pytest.mark.looptime  # waits that something happens take no time, and nor do those that nothing does


GUIDE = Path(__file__).parents[3] / "docs" / "testing.md"


class Server:
    """Takes connections; what came on them, and the streams to answer with."""

    def __init__(self) -> None:
        self.address = ""
        self.received: list[tuple[float, bytes]] = []
        self.size = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.ends: list[str] = []
        self.is_reading = asyncio.Event()
        self.is_reading.set()

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data in self.received)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                await self.is_reading.wait()
                data = await reader.read(CHUNK)
                if not data:
                    break
                self.received.append((asyncio.get_running_loop().time(), data))
                self.size += len(data)
            self.ends.append("closed")
        except ConnectionError:
            self.ends.append("reset")

    async def has(self, size: int) -> None:
        await until(lambda: self.size >= size)

    @asynccontextmanager
    async def listening(self, path: Path | None = None) -> AsyncIterator[Self]:
        if path is None:
            listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            self.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        else:
            listener = await asyncio.start_unix_server(self.serve, path)
            self.address = f"unix:{path}"
        try:
            yield self
        finally:
            listener.close()
            for writer in self.writers:
                writer.transport.abort()
            await until(lambda: len(self.ends) == len(self.writers))
            await asyncio.sleep(0)


@pytest.fixture
async def server(no_task_is_left: None) -> AsyncIterator[Server]:
    async with Server().listening() as server:
        yield server


@pytest.fixture
async def link(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.address) as link:
        yield link


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, address: str) -> Client:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ending(self) -> str:
        """How the connection ends."""
        try:
            while await asyncio.wait_for(self.reader.read(CHUNK), 5):
                pass
        except ConnectionResetError:
            return "reset"
        return "closed"


@pytest.fixture
async def client(link: FaultProxy) -> AsyncIterator[Client]:
    client = await Client.of(link.address)
    yield client
    client.writer.transport.abort()


async def until(condition: object, *, timeout: float = 60) -> None:
    assert callable(condition)
    # Less and less often: each look costs as much as any jump of the time, however short.
    pause = 0.01
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, 0.2)


async def taken(link: FaultProxy, size: int) -> None:
    """The proxy has read so many bytes of the client."""
    await until(lambda: link.statistics()["held_up"] + link.statistics()["bytes_up"] >= size)


async def quiet(seconds: float = 60) -> None:
    """Everything that is going to happen in this time has happened."""
    await asyncio.sleep(seconds)


DATA = bytes(range(256)) * 1000


async def test_bytes_pass_both_ways_and_are_counted(server: Server, link: FaultProxy, client: Client) -> None:
    await client.send(DATA)
    await server.has(len(DATA))
    assert server.data == DATA
    server.writers[0].write(b"answer")
    assert await client.reader.readexactly(6) == b"answer"
    assert link.statistics() == {
        "open": 1,
        "accepted": 1,
        "refused": 0,
        "undialled": 0,
        "reset": 0,
        "bytes_up": len(DATA),
        "bytes_down": 6,
        "losses": 0,
        "held_up": 0,
        "held_down": 0,
    }


async def test_a_half_that_is_closed_leaves_the_other_open(server: Server, link: FaultProxy, client: Client) -> None:
    await client.send(b"question")
    client.writer.write_eof()
    await until(lambda: server.ends == ["closed"])
    server.writers[0].write(b"answer")
    server.writers[0].close()
    assert await client.reader.read() == b"answer"
    await until(lambda: link.statistics()["open"] == 0)
    assert link.statistics()["reset"] == 0


async def test_an_end_that_resets_resets_the_other(server: Server, link: FaultProxy, client: Client) -> None:
    await client.send(b"x")
    await server.has(1)
    peer = client.writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.writer.transport.abort()
    await until(lambda: server.ends == ["reset"])
    await until(lambda: link.statistics()["open"] == 0)


async def test_an_end_that_is_gone_is_told_to_who_still_sends(server: Server, link: FaultProxy, client: Client) -> None:
    """A FIN, and an RST to what is sent after it: the server learns that nobody reads any more."""
    await client.send(b"x")
    await server.has(1)
    client.writer.close()
    await until(lambda: server.ends == ["closed"])
    writer = server.writers[0]
    with pytest.raises(ConnectionError):
        for _ in range(100):
            writer.write(b"anybody there")
            await writer.drain()
            await asyncio.sleep(0.01)
    await until(lambda: link.statistics()["open"] == 0)


class TestBlackHoles:
    async def test_nothing_passes_nothing_is_closed_and_afterwards_all_arrives(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        await client.send(b"before")
        await server.has(6)
        link.black_hole()
        await client.send(b"during")
        server.writers[0].write(b"answer")
        await quiet()
        assert server.data == b"before"
        assert server.ends == []
        assert link.statistics()["held_up"] == 6
        assert link.statistics()["held_down"] == 6
        link.heal()
        await server.has(12)
        assert await client.reader.readexactly(6) == b"answer"
        assert link.statistics()["held_up"] == 0

    @pytest.mark.parametrize("direction", ["up", "down"])
    async def test_one_way(self, server: Server, link: FaultProxy, client: Client, direction: str) -> None:
        await client.send(b"a")
        await server.has(1)
        link.black_hole(direction)  # type: ignore[arg-type]
        await client.send(b"b")
        server.writers[0].write(b"c")
        await quiet()
        assert server.data == (b"a" if direction == "up" else b"ab")
        assert link.statistics()["bytes_down"] == (1 if direction == "up" else 0)

    async def test_an_end_in_it_is_told_afterwards_with_what_was_under_way(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        await client.send(b"a")
        await server.has(1)
        link.black_hole()
        await client.send(b"late")
        client.writer.transport.abort()
        await quiet()
        assert server.ends == []
        link.heal()
        await until(lambda: server.ends)
        assert server.data == b"alate"

    async def test_who_sends_into_it_waits_in_the_end(self, server: Server, link: FaultProxy, client: Client) -> None:
        await client.send(b"a")
        await server.has(1)
        link.black_hole()
        # More than the window and all the kernel's buffers.
        client.writer.write(b"x" * (64 * WINDOW))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 60)
        assert WINDOW <= link.statistics()["held_up"] < WINDOW + CHUNK

    async def test_a_new_connection_is_taken_and_not_answered(self, server: Server, link: FaultProxy) -> None:
        link.black_hole()
        client = await Client.of(link.address)
        await client.send(b"hello")
        await quiet()
        assert server.writers == []
        link.heal()
        await server.has(5)
        client.writer.transport.abort()

    async def test_it_keeps_the_other_conditions(self, link: FaultProxy) -> None:
        link.apply(Conditions(delay=1))
        link.black_hole("up")
        assert link.conditions("up") == Conditions(delay=1, black_hole=True)
        assert link.conditions("down") == Conditions(delay=1)


class TestTime:
    async def test_a_delay_holds_everything_as_long_and_not_one_after_the_other(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        link.apply(Conditions(delay=10), "up")
        begin = asyncio.get_running_loop().time()
        for _ in range(20):
            await client.send(b"x" * CHUNK)
        await server.has(20 * CHUNK)
        times = [at - begin for at, _ in server.received]
        assert min(times) >= 10
        assert max(times) < 11

    async def test_jitter_varies_the_delay_and_keeps_the_order(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        link.apply(Conditions(delay=10, jitter=5), "up")
        begin = asyncio.get_running_loop().time()
        sent = b""
        for number in range(40):
            data = bytes([number]) * 10
            sent += data
            await client.send(data)
            await taken(link, len(sent))
        await server.has(len(sent))
        assert server.data == sent
        times = [at - begin for at, _ in server.received]
        assert all(5 <= at < 16 for at in times)
        assert max(times) - min(times) > 1

    async def test_a_change_reaches_what_is_under_way(self, server: Server, link: FaultProxy, client: Client) -> None:
        link.apply(Conditions(delay=3600))
        await client.send(b"x")
        await quiet()
        assert not server.received
        link.heal()
        async with asyncio.timeout(1):
            await server.has(1)

    async def test_bytes_per_second(self, server: Server, link: FaultProxy, client: Client) -> None:
        link.apply(Conditions(bytes_per_second=1000), "up")
        begin = asyncio.get_running_loop().time()
        await client.send(b"x" * 10_000)
        await until(lambda: server.size >= 5_000)
        assert asyncio.get_running_loop().time() - begin == pytest.approx(5, abs=0.2)
        link.heal()
        async with asyncio.timeout(1):
            await server.has(10_000)


class TestSlices:
    async def test_what_arrives_comes_in_small_pieces(self, server: Server, link: FaultProxy, client: Client) -> None:
        link.apply(Conditions(slice_bytes=7), "up")
        await client.send(DATA[:1000])
        await server.has(1000)
        assert server.data == DATA[:1000]
        assert max(len(data) for _, data in server.received) < 100


class TestLosses:
    async def test_a_lost_chunk_is_late_and_with_it_what_follows(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        link.apply(Conditions(loss=0.5, retransmit_after=1), "up")
        sent = b""
        for number in range(100):
            data = bytes([number])
            sent += data
            await client.send(data)
            await taken(link, len(sent))
        await server.has(len(sent))
        assert server.data == sent
        # Half of them once, a quarter twice, and so on.
        assert 60 <= link.statistics()["losses"] <= 140

    async def test_certain_loss_ends_after_the_last_doubling(
        self, server: Server, link: FaultProxy, client: Client
    ) -> None:
        link.apply(Conditions(loss=1, retransmit_after=1), "up")
        begin = asyncio.get_running_loop().time()
        await client.send(b"x")
        await server.has(1)
        assert asyncio.get_running_loop().time() - begin == pytest.approx(2**MAX_LOSSES - 1, abs=0.5)

    async def test_the_seed_decides(self, server: Server) -> None:
        totals = []
        for seed in (1, 1, 2):
            async with FaultProxy(server.address, seed=seed) as link:
                link.apply(Conditions(loss=0.5), "up")
                client = await Client.of(link.address)
                for number in range(50):
                    await client.send(b"x")
                    await taken(link, number + 1)
                await until(lambda: link.statistics()["bytes_up"] == 50)
                totals.append(link.statistics()["losses"])
                client.writer.transport.abort()
        assert totals[0] == totals[1] != totals[2]


class TestResets:
    async def test_all_are_reset_on_demand(self, server: Server, link: FaultProxy, client: Client) -> None:
        await client.send(b"x")
        await server.has(1)
        link.reset_connections()
        assert await client.ending() == "reset"
        await until(lambda: server.ends == ["reset"])
        assert link.statistics()["reset"] == 1
        await until(lambda: link.statistics()["open"] == 0)

    async def test_by_chance(self, server: Server, link: FaultProxy, client: Client) -> None:
        link.apply(Conditions(reset=1), "down")
        await client.send(b"x")
        await server.has(1)
        server.writers[0].write(b"never arrives")
        assert await client.ending() == "reset"
        await until(lambda: server.ends == ["reset"])
        assert link.statistics()["bytes_down"] == 0
        assert link.statistics()["reset"] == 1

    async def test_after_so_many_bytes_and_once(self, server: Server, link: FaultProxy, client: Client) -> None:
        link.cut_after(100_000)
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                await client.send(DATA)
        await until(lambda: server.ends == ["reset"])
        assert len(server.data) <= 100_000  # a reset takes with it what was not read yet
        assert link.statistics()["bytes_up"] == 100_000
        again = await Client.of(link.address)
        await again.send(DATA)
        await until(lambda: link.statistics()["bytes_up"] == 100_000 + len(DATA))
        again.writer.transport.abort()


class TestNewConnections:
    async def test_they_are_refused_and_open_ones_go_on(self, server: Server, link: FaultProxy, client: Client) -> None:
        await client.send(b"a")
        await server.has(1)
        link.refuse_connections()
        refused = await Client.of(link.address)
        assert await refused.ending() == "reset"
        refused.writer.close()
        await client.send(b"b")
        await server.has(2)
        assert link.statistics()["refused"] == 1
        link.accept_connections()
        taken = await Client.of(link.address)
        await taken.send(b"c")
        await server.has(3)
        taken.writer.transport.abort()

    async def test_without_a_server_they_are_reset(self) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            async with FaultProxy(f"127.0.0.1:{nobody.getsockname()[1]}") as link:
                client = await Client.of(link.address)
                assert await client.ending() == "reset"
                assert link.statistics()["undialled"] == 1
                client.writer.close()


async def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/link.sock"
    async with Server().listening(tmp_path / "s.sock") as server, FaultProxy(server.address, listen=listen) as link:
        assert link.address == listen
        client = Client(*await asyncio.open_unix_connection(tmp_path / "link.sock"))
        await client.send(DATA)
        await server.has(len(DATA))
        assert server.data == DATA
        link.reset_connections()
        assert await client.ending() in {"closed", "reset"}
        await until(lambda: server.ends)
        client.writer.close()
    assert not (tmp_path / "link.sock").exists()


async def test_leaving_closes_whatever_is_under_way_and_leaves_no_task(server: Server) -> None:
    async with FaultProxy(server.address) as link:
        link.apply(Conditions(delay=3600))
        held = await Client.of(link.address)
        await held.send(b"x")
        link.black_hole()
        unanswered = await Client.of(link.address)
        await quiet(1)
        newest = await Client.of(link.address)
    tasks = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("fault proxy")]
    assert tasks == []
    for client in (held, unanswered, newest):
        assert await client.ending() == "reset"
        client.writer.close()


async def test_the_documentation_works() -> None:
    (code,) = re.findall(r"```python\n(import asyncio\n.*?FaultProxy.*?)```", GUIDE.read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code.replace("asyncio.run(main())", ""), namespace)
    await namespace["main"]()
    await asyncio.sleep(0)


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"reset": -0.1}, {"delay": -1.0}, {"slice_bytes": -1}])
def test_conditions_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Conditions(**wrong)  # type: ignore[arg-type]

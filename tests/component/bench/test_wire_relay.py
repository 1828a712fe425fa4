from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench.wire_relay import Carried, WireRelay

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_ANSWER = b"pong!"


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[str]:
    """Answers each connection's first four bytes, and says goodbye to one that ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(4)
            writer.write(_ANSWER)
            await reader.read()
            writer.write(b"bye")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "target")
    yield f"unix:{tmp_path / 'target'}"
    server.close()


async def connect(relay: WireRelay) -> Connection:
    return await asyncio.open_unix_connection(relay.address.removeprefix("unix:"))


async def exchange(connection: Connection) -> bytes:
    reader, writer = connection
    writer.write(b"ping")
    return await reader.read(100)


async def test_it_carries_and_counts_both_ways(target: str, tmp_path: Path) -> None:
    async with WireRelay(tmp_path / "relay", target) as relay:
        first, second = await connect(relay), await connect(relay)
        before = relay.carried
        assert await exchange(first) == _ANSWER
        assert await exchange(second) == _ANSWER
        assert relay.carried.since(before) == Carried(up=8, down=10)
        assert relay.carried.both == 18
        assert relay.connections == 2
        for reader, writer in (first, second):
            writer.write_eof()
            assert await reader.read() == b"bye", "what comes after the end of the other direction is carried"
            writer.close()


async def test_a_cut_breaks_what_is_there_and_what_is_tried_until_it_is_mended(target: str, tmp_path: Path) -> None:
    async with WireRelay(tmp_path / "relay", target) as relay:
        reader, writer = await connect(relay)
        assert await exchange((reader, writer)) == _ANSWER
        relay.cut()
        assert await broken(reader)
        writer.close()
        refused = await connect(relay)
        assert await broken(refused[0])
        refused[1].close()
        assert relay.connections == 1
        relay.mend()
        again = await connect(relay)
        assert await exchange(again) == _ANSWER
        again[1].close()


async def test_nobody_to_carry_to_breaks_the_connection(tmp_path: Path) -> None:
    async with WireRelay(tmp_path / "relay", f"unix:{tmp_path / 'nowhere'}") as relay:
        reader, writer = await connect(relay)
        assert await broken(reader)
        writer.close()
        assert relay.connections == 0


async def broken(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True

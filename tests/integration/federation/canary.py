"""Finding a value wherever it may have got to, whichever way it is spelled there."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote_from_bytes

import zstandard

PIECE = 12
"""Bytes of a value that count as the value: what is cut is found too, and chance does not make so many."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP2_HEADER = 9
_HTTP2_DATA = 0


def found(surfaces: Mapping[str, bytes], values: Mapping[str, bytes]) -> set[tuple[str, str]]:
    """Returns (surface, value) for each value of which a piece, in any spelling, is in a surface.

    zstd frames are looked into, wherever they begin and even where they are cut off.
    """
    needles = {name: set(_needles(value)) for name, value in values.items()}
    hits: set[tuple[str, str]] = set()
    for surface, content in surfaces.items():
        searched = b"\n".join(_unpacked(content))
        hits |= {(surface, name) for name, spelled in needles.items() if any(each in searched for each in spelled)}
    return hits


def files(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, without the zeros at its end, of which some have many MiB."""
    return {str(file): file.read_bytes().rstrip(b"\0") for file in folder.rglob("*") if file.is_file()}


def http2_messages(stream: bytes) -> bytes:
    """What one side of an HTTP/2 connection sent as data, put together by streams; a last, unfinished frame is left."""
    position = len(_HTTP2_PREFACE) if stream.startswith(_HTTP2_PREFACE) else 0
    data: dict[bytes, bytearray] = {}
    while position + _HTTP2_HEADER <= len(stream):
        length = int.from_bytes(stream[position : position + 3], "big")
        number = stream[position + 5 : position + _HTTP2_HEADER]
        if stream[position + 3] == _HTTP2_DATA:
            payload = stream[position + _HTTP2_HEADER : position + _HTTP2_HEADER + length]
            data.setdefault(number, bytearray()).extend(payload)
        position += _HTTP2_HEADER + length
    return b"\n".join(data.values())


def _needles(value: bytes) -> Iterator[bytes]:
    for start in range(0, len(value) - PIECE + 1, PIECE):
        yield from _spellings(value[start : start + PIECE])


def _spellings(piece: bytes) -> Iterator[bytes]:
    yield piece
    yield piece.hex().encode()
    yield piece.hex().upper().encode()
    for safe in ("", "/"):
        quoted = quote_from_bytes(piece, safe)
        yield quoted.encode()
        yield _lower_escapes(quoted).encode()
    yield "".join(f"%{byte:02X}" for byte in piece).encode()
    yield "".join(f"%{byte:02x}" for byte in piece).encode()
    yield repr(piece)[2:-1].encode()  # a log of bytes
    yield "".join(f"\\{byte:03o}" if not 32 <= byte < 127 else chr(byte) for byte in piece).encode()  # protobuf's text
    with contextlib.suppress(UnicodeDecodeError):
        text = piece.decode()
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    for once in _base64(piece):
        yield once
        yield once.translate(bytes.maketrans(b"+/", b"-_"))
        yield from _base64(once)
    yield from _base64(piece.hex().encode())  # as a hash would be written, in what `data` of a Secret has


def _base64(content: bytes) -> Iterator[bytes]:
    """The characters that content has whatever stands before and behind it, for each of the three alignments."""
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(b"\0" * before + content).rstrip(b"=")
        yield encoded[dropped : None if (before + len(content)) % 3 == 0 else -1]


def _lower_escapes(quoted: str) -> str:
    return "%".join(part[:2].lower() + part[2:] if number else part for number, part in enumerate(quoted.split("%")))


def _unpacked(content: bytes) -> Iterable[bytes]:
    yield content
    start = content.find(_ZSTD_MAGIC)
    while start >= 0:
        yield _decompressed(memoryview(content)[start:])
        start = content.find(_ZSTD_MAGIC, start + 1)


def _decompressed(frame: memoryview) -> bytes:
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    taken = bytearray()
    with contextlib.suppress(zstandard.ZstdError, EOFError):
        for start in range(0, len(frame), 512):
            taken += decompressor.decompress(frame[start : start + 512])
            if decompressor.eof:
                break
    return bytes(taken)

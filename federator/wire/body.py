"""Bodies: an object's JSON as it travels and as it is stored, plain or as one zstd frame; the first bytes tell.

JSON never starts with zstd's magic number, so no flag is needed. A frame declares its content size, which is checked
before anything is allocated: what a stranger sends cannot grow beyond `MAX_RAW_BYTES`. It also names the dictionary it
was made with, if any; whoever reads it has to have that one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import msgspec
import xxhash
import zstandard

from federator.api.resource import GroupResource
from federator.errors import InvalidInput

MAX_RAW_BYTES = 16 * 1024 * 1024
"""Largest JSON of one object. etcd's default request limit is 1.5 MiB, so a member that holds more was tuned for it."""

COMPRESS_FROM_BYTES = 256
"""Shorter JSON stays plain: the frame's own header eats what compression gains."""

LEVEL = 3
"""zstd level: on pods of 4 KB, levels 6 and 9 save another 2 % and cost two and five times the time."""

COMPRESS_WITH_DICTIONARY_FROM_BYTES = 64
"""The same with a dictionary, which already has what short JSON repeats."""

_MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
_ALLOWED = "JSON, or one zstd frame with its content size, with a known dictionary or none"

MAX_DICTIONARY_BYTES = 128 * 1024
"""Largest dictionary that is taken from the other side."""

MAX_COMPRESSORS = 32
"""Compressors kept by one `BodyCodec`, the last used; each takes some 400 KB."""


def _whole(decompressor: zstandard.ZstdDecompressor) -> Callable[[bytes], bytes]:
    """Decompresses what is one frame and nothing else."""
    return partial(decompressor.decompress, allow_extra_data=False)


class _Codec(threading.local):
    """One compressor and one decompressor a thread: they release the GIL and must not be entered twice."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False).compress
        self.decompress = _whole(zstandard.ZstdDecompressor())


_codec = _Codec()


def encode_body(raw: bytes) -> bytes:
    """Returns `raw` as a body, compressed where that pays.

    Whatever the bytes are, `decode_body` gives them back, if there are no more than `MAX_RAW_BYTES`.
    """
    if len(raw) < COMPRESS_FROM_BYTES and not raw.startswith(_MAGIC):
        return raw
    # The compressor's own result keeps the worst-case buffer it was written into; the copy has the right size.
    return bytes(memoryview(_codec.compress(raw)))


def decode_body(body: bytes) -> bytes:
    """Returns the JSON of a body that was made without a dictionary.

    Raises:
        InvalidInput: as `BodyCodec.decode`.
    """
    return _decode(body, _no_dictionary)


class Dictionary(msgspec.Struct, frozen=True, gc=False):
    """A zstd dictionary for the bodies of one resource type.

    Attributes:
        dictionary_id: the number that frames name; zstd's own, inside the content.
        resource: the type it was trained for.
        content: the dictionary.
        ratio: JSON bytes by body bytes that it reached on objects it was not trained from; 0 where that is not known.
    """

    dictionary_id: int
    resource: GroupResource
    content: bytes
    ratio: float = 0.0

    @classmethod
    def of(cls, resource: GroupResource, content: bytes) -> Dictionary:
        """Takes a dictionary's bytes.

        Raises:
            InvalidInput: they are no zstd dictionary with an ID, or too many.
        """
        if len(content) <= MAX_DICTIONARY_BYTES and content.startswith(_DICTIONARY_MAGIC):
            dictionary_id = zstandard.ZstdCompressionDict(content).dict_id()
            if dictionary_id:
                return cls(dictionary_id, resource, content)
        allowed = f"a zstd dictionary with an ID, of at most {MAX_DICTIONARY_BYTES} bytes"
        raise InvalidInput("dictionary", f"{len(content)} bytes", allowed)


class DictionaryUsage(msgspec.Struct):
    """What has been decoded with a dictionary.

    Attributes:
        raw_bytes: JSON.
        body_bytes: what it was compressed to.
    """

    raw_bytes: int = 0
    body_bytes: int = 0

    @property
    def ratio(self) -> float:
        """JSON bytes by body bytes; 0 before anything was decoded."""
        return self.raw_bytes / self.body_bytes if self.body_bytes else 0.0


class BodyCodec:
    """Compresses and decompresses bodies with the dictionaries it has been given.

    For one thread: compressors and decompressors must not be entered twice.
    """

    def __init__(self) -> None:
        self._dictionaries: dict[int, Dictionary] = {}
        self._newest: dict[GroupResource, Dictionary] = {}
        self._compressors: OrderedDict[int, Callable[[bytes], bytes]] = OrderedDict()
        self._decompressors: dict[int, Callable[[bytes], bytes]] = {}
        self._usage: dict[int, DictionaryUsage] = {}

    def __iter__(self) -> Iterator[Dictionary]:
        return iter(self._dictionaries.values())

    def __contains__(self, dictionary_id: object) -> bool:
        return dictionary_id in self._dictionaries

    def add(self, dictionary: Dictionary) -> None:
        """Takes a dictionary; bodies of its type are compressed with it from now on."""
        self._dictionaries[dictionary.dictionary_id] = dictionary
        self._newest[dictionary.resource] = dictionary

    def newest(self) -> Mapping[GroupResource, Dictionary]:
        """The dictionary of each type that has one, in use for compression."""
        return self._newest

    def use_only(self, dictionary_ids: Collection[int]) -> None:
        """Compresses with no others than these from now on; what was made with the others can still be read."""
        self._newest = {
            dictionary.resource: dictionary
            for dictionary in self._dictionaries.values()
            if dictionary.dictionary_id in dictionary_ids
        }

    def forget_unused(self, dictionary_ids: Collection[int]) -> None:
        """Forgets all dictionaries but these."""
        for dictionary_id in [each for each in self._dictionaries if each not in dictionary_ids]:
            del self._dictionaries[dictionary_id]
            self._compressors.pop(dictionary_id, None)
            self._decompressors.pop(dictionary_id, None)

    def usage(self, dictionary_id: int) -> DictionaryUsage:
        """What has been decoded with a dictionary."""
        return self._usage.setdefault(dictionary_id, DictionaryUsage())

    def encode(self, raw: bytes, resource: GroupResource) -> bytes:
        """Returns `raw` as a body, compressed with the dictionary of its type, or as `encode_body` does without one."""
        dictionary = self._newest.get(resource)
        if dictionary is None or len(raw) < COMPRESS_WITH_DICTIONARY_FROM_BYTES:
            return encode_body(raw)
        return bytes(memoryview(self._compressor(dictionary)(raw)))

    def decode(self, body: bytes) -> bytes:
        """Returns the JSON of a body.

        Raises:
            InvalidInput: the body is or declares more than `MAX_RAW_BYTES`, declares nothing, needs a dictionary that
                is not here, is damaged, or something follows the frame. Nothing was allocated for the content.
        """
        return _decode(body, self._decompressor)

    def _compressor(self, dictionary: Dictionary) -> Callable[[bytes], bytes]:
        dictionary_id = dictionary.dictionary_id
        compress = self._compressors.get(dictionary_id)
        if compress is None:
            if len(self._compressors) >= MAX_COMPRESSORS:
                self._compressors.popitem(last=False)
            compress = self._compressors[dictionary_id] = zstandard.ZstdCompressor(
                level=LEVEL,
                dict_data=zstandard.ZstdCompressionDict(dictionary.content),
                write_content_size=True,
                write_checksum=False,
            ).compress
        else:
            self._compressors.move_to_end(dictionary_id)
        return compress

    def _decompressor(self, dictionary_id: int) -> Callable[[bytes], bytes] | None:
        decompress = self._decompressors.get(dictionary_id)
        if decompress is None and dictionary_id in self._dictionaries:
            content = self._dictionaries[dictionary_id].content
            whole = _whole(zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(content)))
            usage = self.usage(dictionary_id)

            def decompress(body: bytes) -> bytes:
                raw = whole(body)
                usage.raw_bytes += len(raw)
                usage.body_bytes += len(body)
                return raw

            self._decompressors[dictionary_id] = decompress
        return decompress


def dictionary_of(body: bytes) -> int:
    """ID of the dictionary that a body was compressed with; 0 for none, and for what is no frame."""
    if not body.startswith(_MAGIC):
        return 0
    try:
        return zstandard.get_frame_parameters(body).dict_id
    except zstandard.ZstdError:
        return 0


def _no_dictionary(_: int) -> None:
    return None


def _decode(body: bytes, decompressor: Callable[[int], Callable[[bytes], bytes] | None]) -> bytes:
    if not body.startswith(_MAGIC):
        _check_size(len(body))
        return body
    try:
        parameters = zstandard.get_frame_parameters(body)
        size = parameters.content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise InvalidInput("body", "a zstd frame without content size", _ALLOWED)
        decompress = decompressor(parameters.dict_id) if parameters.dict_id else _codec.decompress
        if decompress is None:
            raise InvalidInput("body", f"a zstd frame with dictionary {parameters.dict_id}", _ALLOWED)
        _check_size(size)
        raw = decompress(body)
    except zstandard.ZstdError as error:
        raise InvalidInput("body", f"a damaged zstd frame ({error})", _ALLOWED) from error
    if len(raw) != size:
        raise InvalidInput("body", f"a zstd frame of {len(raw)} bytes that declares another size", _ALLOWED)
    return raw


def content_hash(raw: bytes) -> int:
    """Returns the xxh3-64 of an object's JSON: what tells two states apart, and only that; it is no signature."""
    return xxhash.xxh3_64_intdigest(raw)


def _check_size(size: int) -> None:
    if size > MAX_RAW_BYTES:
        raise InvalidInput("body", f"{size} bytes", f"at most {MAX_RAW_BYTES} bytes of JSON")

"""Compressor: keeps the JSON of an Indexer's objects in a sixth of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern

import zstandard

from federator.api.object import KubeObject

LEVEL = 3
"""zstd level: higher ones save a few percent and cost twice the time."""

DICTIONARY_BYTES = 64 * 1024
"""Of objects that serve as the dictionary. Objects of one type repeat each other, so that little is left of each."""

DICTIONARY_SAMPLES = 16
"""Objects it is made of; with fewer listed, each is compressed by itself."""

_FIRST = 4 * DICTIONARY_SAMPLES
"""Objects of a list that are looked at before there is a dictionary; they are compressed by themselves."""

_PLAIN, _BY_ITSELF, _WITH_DICTIONARY = b"\0", b"\1", b"\2"
"""First byte of what is kept: JSON as it is, where compression gains nothing, or a frame. No JSON begins so."""


class Compressor:
    """Objects with compressed JSON in place of their own, and back.

    The first list of enough objects gives the dictionary, which stays for good. It is used as it is, without training:
    that takes no time and is worth half as much again as training would add.

    For one thread: its contexts must not be entered twice.
    """

    def __init__(self) -> None:
        self._by_itself = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
        self._plain_decompressor = zstandard.ZstdDecompressor()
        self._with_dictionary: zstandard.ZstdCompressor | None = None
        self._dictionary_decompressor: zstandard.ZstdDecompressor | None = None
        self._samples: list[KubeObject] = []

    def learn(self, objects: Sequence[KubeObject]) -> None:
        """Makes the dictionary of a list's objects, unless there is one, they are too few, or compressed already."""
        if self._with_dictionary is not None or len(objects) < DICTIONARY_SAMPLES:
            return
        if any(obj.raw[:1] <= _WITH_DICTIONARY for obj in objects):
            return
        step = len(objects) // DICTIONARY_SAMPLES
        samples = [obj.raw for obj in objects[: step * DICTIONARY_SAMPLES : step]]
        content = b"".join(sample[: DICTIONARY_BYTES // DICTIONARY_SAMPLES] for sample in samples)
        if len(content) < 8:  # zstd takes no less for a dictionary
            return
        dictionary = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        dictionary.precompute_compress(level=LEVEL)
        self._with_dictionary = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, dict_data=dictionary)
        self._dictionary_decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)

    def keep(self, obj: KubeObject) -> KubeObject:
        """As `compress`, of the objects of a list while it is read: the first ones give the dictionary."""
        if self._with_dictionary is None and obj.raw[:1] > _WITH_DICTIONARY:
            self._samples.append(obj)
            if len(self._samples) == _FIRST:
                self.learn(self._samples)
                self._samples.clear()
        return self.compress(obj)

    def compress(self, obj: KubeObject) -> KubeObject:
        """Returns the object as it is kept; one that is so already, as it is."""
        if obj.raw[:1] <= _WITH_DICTIONARY:  # also an object without JSON
            return obj
        if self._with_dictionary is not None:
            kept = _WITH_DICTIONARY + self._with_dictionary.compress(obj.raw)
        else:
            kept = _BY_ITSELF + self._by_itself.compress(obj.raw)
        if len(kept) > len(obj.raw):
            kept = _PLAIN + obj.raw
        return _with_raw(obj, kept)

    def restore(self, kept: KubeObject) -> KubeObject:
        """Returns what was given to `compress`; what is not compressed, as it is."""
        if not kept.raw or kept.raw[:1] > _WITH_DICTIONARY:
            return kept
        kind, content = kept.raw[:1], kept.raw[1:]
        if kind == _PLAIN:
            return _with_raw(kept, content)
        decompressor = self._plain_decompressor
        if kind == _WITH_DICTIONARY:
            assert self._dictionary_decompressor is not None, "what was compressed with it came after it"
            decompressor = self._dictionary_decompressor
        return _with_raw(kept, decompressor.decompress(content))


def _with_raw(obj: KubeObject, raw: bytes) -> KubeObject:
    return KubeObject(intern(obj.namespace), obj.name, obj.uid, obj.resource_version, raw, obj.content_hash)

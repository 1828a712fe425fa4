"""Digests: what the objects of one type in one cluster add up to, so that two ends can tell whether they agree.

The definition is that of `Digest` in ingest.proto. An object's state is its content, version and UID: resourceVersions
alone would miss a cluster that was restored, a type that is served in another version, and an agent that transforms
differently. Sums are modulo 2^64, so that a change costs two leaves and no look at anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

PROTOCOL = 1
"""Version of the push protocol in which digests came."""

MAX_LEFT_OUT = 100
"""Objects that a digest may leave out; with more there is none."""

MAX_BITS = 16
"""Of buckets: 65,536 sums take 512 KiB."""

_OBJECTS_PER_BUCKET = 16
"""One differing object has the states of so many sent, 16 bytes each; one bucket more costs 8 bytes."""

_MODULUS = 1 << 64


def key_hash(namespace: str, name: str) -> int:
    """The hash of an object's key inside its cluster and type."""
    return xxh3_64_intdigest(f"{namespace}\0{name}".encode())


def state_hash(content_hash: int, api_version: str, uid: str) -> int:
    """The hash of an object's state.

    The content has version and UID in it, where it is what an apiserver serves; an agent may send anything.
    """
    return xxh3_64_intdigest(f"{api_version} {uid}".encode(), content_hash)


def leaf(key: int, state: int) -> int:
    """What an object adds to a sum, from its two hashes."""
    return xxh3_64_intdigest(key.to_bytes(8, "little"), state)


class Digest(msgspec.Struct, frozen=True, gc=False):
    """Number and sum of some objects.

    Attributes:
        count: number of objects.
        sum: of their leaves, modulo 2^64.
    """

    count: int = 0
    sum: int = 0

    def plus(self, key: int, state: int) -> Digest:
        """With one object more."""
        return Digest(self.count + 1, (self.sum + leaf(key, state)) % _MODULUS)

    def minus(self, key: int, state: int) -> Digest:
        """With one object less."""
        return Digest(self.count - 1, (self.sum - leaf(key, state)) % _MODULUS)

    def changed(self, count: int, sum_: int) -> Digest:
        """With the difference of some changes, which may be negative."""
        return Digest(self.count + count, (self.sum + sum_) % _MODULUS)


class HashedState(NamedTuple):
    """An object by its hashes.

    Attributes:
        key: its key hash.
        state: its state hash.
    """

    key: int
    state: int


def digest_of(objects: Iterable[HashedState]) -> Digest:
    """What some objects add up to."""
    count = total = 0
    for key, state in objects:
        count += 1
        total += leaf(key, state)
    return Digest(count, total % _MODULUS)


def bits_for(count: int) -> int:
    """Bits of the buckets that fit a number of objects."""
    return min(MAX_BITS, max(0, count // _OBJECTS_PER_BUCKET).bit_length())


def bucket(key: int, bits: int) -> int:
    """The bucket of a key hash, from 0 to 2^bits - 1."""
    return key >> (64 - bits)


class Buckets:
    """Objects by bucket, with their sums."""

    def __init__(self, bits: int) -> None:
        """Starts empty.

        Args:
            bits: 0 to MAX_BITS.
        """
        self.bits = bits
        self._sums = [0] * (1 << bits)

    def add(self, key: int, state: int) -> None:
        """Adds an object."""
        self._sums[key >> (64 - self.bits)] += leaf(key, state)

    def sums(self) -> list[int]:
        """The sum of each bucket."""
        return [total % _MODULUS for total in self._sums]

    def differing(self, others: Iterable[int]) -> Iterator[int]:
        """Yields the numbers of the buckets whose sum differs from those of the other side."""
        for number, (own, other) in enumerate(zip(self._sums, others, strict=True)):
            if own % _MODULUS != other:
                yield number

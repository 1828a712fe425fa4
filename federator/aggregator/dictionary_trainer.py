"""Trains the dictionaries with which objects are compressed, from the objects that are here."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog
import zstandard

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.api.resource import GroupResource
from federator.errors import InvalidInput, LedgerError
from federator.wire.body import LEVEL, Dictionary

log = structlog.get_logger(__name__)

LOOK_INTERVAL = 2.0
"""Seconds between two looks. Short, so that little of a first listing is stored without a dictionary."""

DICTIONARY_BYTES = 16 * 1024
"""Of one dictionary. Twice as much saves another 2 % and has to be given to every agent that collects the type."""

MIN_OBJECTS = 128
"""Objects a type needs: fewer do not repay a dictionary, and do not tell what the next ones look like."""

MAX_SAMPLES = 1000
MAX_SAMPLE_BYTES = 100 * DICTIONARY_BYTES
"""What a dictionary is trained from; a hundred times its size, as zstd advises."""

DECAYED = 0.75
"""Part of the ratio it was trained to below which a dictionary is replaced: the objects do not look like its own any
more."""

ENOUGH_BYTES = 256 * 1024
"""JSON that must have come with a dictionary before it is judged."""

MAX_DICTIONARIES = 8
"""Dictionaries of one type. They are kept for good, as any body may need its own; what still decays then is stored as
it is."""

_HELD_OUT = 5  # every fifth sample measures, the others train
_IDS = range(1 << 16, 1 << 31)  # zstd leaves these to whoever wants them


class DictionaryTrainer:
    """Looks after the dictionary of each type: trains one once there are objects, and another one when it has decayed.

    IDs are drawn at random, so that those of two ledgers differ: an agent that comes from one to the other must not
    take one dictionary for the other.
    """

    def __init__(self, ledger: Ledger, indexer: MergedIndexer, offer: Callable[[Dictionary], None]) -> None:
        """Does nothing yet.

        Args:
            ledger: keeps the dictionaries, and the objects to train from.
            indexer: knows which objects there are.
            offer: told of each new dictionary, once it is durable.
        """
        self._ledger = ledger
        self._indexer = indexer
        self._offer = offer
        self._trained = 0
        self._unfit: dict[GroupResource, int] = {}

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                await self.look()
            except LedgerError as error:
                log.warning("no dictionary could be kept", cause=str(error))

    async def look(self) -> None:
        """Trains the dictionaries that are missing or have decayed, one after the other.

        Raises:
            LedgerError: one could not be kept.
        """
        for resource, number in self._indexer.objects_by_type().items():
            if number >= max(MIN_OBJECTS, 2 * self._unfit.get(resource, 0)) and self._is_wanted(resource):
                await self._train(resource, number)

    def statistics(self) -> Mapping[str, int]:
        """Dictionaries known, and trained by this process."""
        return {"dictionaries": sum(1 for _ in self._ledger.bodies), "dictionaries_trained": self._trained}

    def _is_wanted(self, resource: GroupResource) -> bool:
        bodies = self._ledger.bodies
        dictionary = bodies.newest().get(resource)
        if dictionary is None:
            return True
        usage = bodies.usage(dictionary.dictionary_id)
        has_decayed = usage.raw_bytes >= ENOUGH_BYTES and usage.ratio < dictionary.ratio * DECAYED
        return has_decayed and sum(each.resource == resource for each in bodies) < MAX_DICTIONARIES

    async def _train(self, resource: GroupResource, objects: int) -> None:
        samples = await self._samples(resource)
        ids = {dictionary.dictionary_id for dictionary in self._ledger.bodies}
        dictionary_id = next(drawn for drawn in iter(lambda: secrets.choice(_IDS), None) if drawn not in ids)
        dictionary = await asyncio.to_thread(train, resource, samples, dictionary_id)
        if dictionary is None:
            self._unfit[resource] = objects  # once there are twice as many, it is tried again
            return
        await self._ledger.add_dictionary(dictionary)
        self._trained += 1
        log.info("dictionary trained", resource=str(resource), samples=len(samples), ratio=round(dictionary.ratio, 1))
        self._offer(dictionary)

    async def _samples(self, resource: GroupResource) -> list[bytes]:
        samples: list[bytes] = []
        size = 0
        for turn, revision in enumerate(self._indexer.sample(resource, MAX_SAMPLES)):
            if turn % 64 == 63:
                await asyncio.sleep(0)
            try:
                entry = self._ledger.entry(revision)
                raw = self._ledger.bodies.decode(entry.body) if entry else b""
            except (LedgerError, InvalidInput):
                continue  # damage is found and told by whoever reads the object itself
            if raw and size + len(raw) <= MAX_SAMPLE_BYTES:
                samples.append(raw)
                size += len(raw)
        return samples


def train(resource: GroupResource, samples: Sequence[bytes], dictionary_id: int) -> Dictionary | None:
    """Trains a dictionary; None where these samples do not make one that helps.

    Args:
        resource: their type.
        samples: objects' JSON.
        dictionary_id: the dictionary's.
    """
    held_out = samples[::_HELD_OUT]
    training: list[bytes | bytearray | memoryview] = [
        sample for place, sample in enumerate(samples) if place % _HELD_OUT
    ]
    try:
        content = zstandard.train_dictionary(DICTIONARY_BYTES, training, dict_id=dictionary_id).as_bytes()
    except zstandard.ZstdError:  # too few, or too short
        return None
    dictionary = Dictionary.of(resource, content)
    compress = zstandard.ZstdCompressor(level=LEVEL, dict_data=zstandard.ZstdCompressionDict(content)).compress
    plain = zstandard.ZstdCompressor(level=LEVEL).compress
    with_it, without = (sum(len(made(sample)) for sample in held_out) for made in (compress, plain))
    if with_it >= without:
        return None
    ratio = sum(map(len, held_out)) / with_it
    return msgspec.structs.replace(dictionary, ratio=ratio)

"""Dictionaries: trained from the objects that are here, replaced when those change, given to whoever sends."""

from __future__ import annotations

import random

import pytest

from federator.aggregator import dictionary_trainer
from federator.aggregator.dictionary_trainer import MIN_OBJECTS, DictionaryTrainer, train
from federator.aggregator.ledger.records import Put
from federator.errors import LedgerError, LedgerFull
from federator.wire.body import Dictionary, content_hash
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, raw_put

POD = PODS.group_resource
ENOUGH_BYTES = 64 * 1024
"""In place of the real bound, which is four times as large."""


@pytest.fixture(autouse=True)
def judged_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary_trainer, "ENOUGH_BYTES", ENOUGH_BYTES)


def document(number: int, vocabulary: str = "web") -> bytes:
    """An object that looks like the others of its vocabulary: they share what cannot be guessed from one alone."""
    shared = random.Random(vocabulary).randbytes(300).hex()
    own = random.Random(number).randbytes(20).hex()
    return b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p%d"},"spec":{"shared":"%b","own":"%b"}}' % (
        number,
        shared.encode(),
        own.encode(),
    )


class Training:
    """A federation with a trainer, and the dictionaries it offered."""

    def __init__(self) -> None:
        self.federation = Federation()
        self.offered: list[Dictionary] = []
        self.trainer = DictionaryTrainer(self.federation.ledger, self.federation.view.indexer, self.offered.append)

    async def fill(self, number: int, *, vocabulary: str = "web", start: int = 0) -> None:
        await self.federation.commit(
            "a", *(raw_put(f"p{n}", document(n, vocabulary)) for n in range(start, start + number))
        )

    def encoded(self, number: int, vocabulary: str = "web") -> Put:
        raw = document(number, vocabulary)
        body = self.federation.ledger.bodies.encode(raw, POD)
        return Put("shop", f"p{number}", f"u{number}", "2", content_hash(raw), body)

    async def use(self, vocabulary: str) -> None:
        """Brings, and reads as ingest does, enough objects for the dictionary to be judged."""
        bodies = self.federation.ledger.bodies
        puts: list[Put] = []
        size = 0
        while size < ENOUGH_BYTES:
            puts.append(self.encoded(len(puts), vocabulary))
            size += len(bodies.decode(puts[-1].body))
        for start in range(0, len(puts), 1000):
            await self.federation.commit("a", *puts[start : start + 1000])


@pytest.fixture
async def training() -> Training:
    made = Training()
    await made.federation.join("a")
    await made.federation.join("b")
    return made


async def test_a_type_with_enough_objects_gets_one(training: Training) -> None:
    await training.fill(MIN_OBJECTS - 1)
    await training.trainer.look()
    assert training.offered == []
    await training.federation.commit("b", raw_put("p", document(99)))  # all clusters count
    await training.federation.commit("a", raw_put("n", b'{"metadata":{"name":"n"}}'), type=NODES)
    await training.trainer.look()
    (dictionary,) = training.offered
    assert dictionary.resource == POD
    assert dictionary.ratio > 2
    assert training.federation.ledger.bodies.newest() == {POD: dictionary}
    raw = document(5000)
    assert len(training.federation.ledger.bodies.encode(raw, POD)) < len(raw) / 2
    await training.trainer.look()
    assert training.offered == [dictionary]
    assert training.trainer.statistics() == {"dictionaries": 1, "dictionaries_trained": 1}


async def test_one_that_has_decayed_is_replaced_and_what_needs_it_can_still_be_read(training: Training) -> None:
    await training.fill(200)
    await training.trainer.look()
    await training.use("web")
    await training.trainer.look()
    assert len(training.offered) == 1, "as good as on the first day"
    old = training.encoded(1)
    await training.use("database")
    await training.trainer.look()
    first, second = training.offered
    bodies = training.federation.ledger.bodies
    assert bodies.newest() == {POD: second}
    assert first.dictionary_id != second.dictionary_id
    assert bodies.decode(old.body) == document(1)
    assert len(training.encoded(2, "database").body) < len(document(2, "database")) / 2


async def test_there_are_never_many(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionary_trainer, "MAX_DICTIONARIES", 3)
    await training.fill(MIN_OBJECTS)
    for number in range(3 + 2):
        await training.trainer.look()
        await training.use(f"vocabulary{number}")
    assert len(training.offered) == 3


async def test_objects_that_have_nothing_in_common_get_none(training: Training) -> None:
    noise = random.Random(1)
    await training.federation.commit(
        "a", *(raw_put(f"p{n}", noise.randbytes(300), namespace="") for n in range(MIN_OBJECTS)), type=DEPLOYMENTS
    )
    for _ in range(3):
        await training.trainer.look()
    assert training.offered == []


async def test_one_that_cannot_be_kept_is_not_offered(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(_: Dictionary) -> None:
        raise LedgerFull("here")

    await training.fill(MIN_OBJECTS)
    with monkeypatch.context() as patch:
        patch.setattr(training.federation.ledger, "add_dictionary", full)
        with pytest.raises(LedgerError):
            await training.trainer.look()
    assert training.offered == []
    await training.trainer.look()
    assert len(training.offered) == 1


def test_samples_that_are_too_few_make_none() -> None:
    assert train(POD, [document(1)], 70_000) is None
    assert train(POD, [], 70_000) is None

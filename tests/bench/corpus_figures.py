"""Scenario `corpus`: what the objects are like that the other scenarios push."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import zstandard

from federator.wire.body import LEVEL
from tests.bench.corpus import FIRST_VERSION, WEIGHTS, Corpus
from tests.bench.figure import Figure

_TRAINED, _MEASURED = 1_000, 1_000
"""Objects of each type that a dictionary is trained on, and other ones that are compressed with it."""

DICTIONARY_BYTES = 32 * 1024


def corpus_figures(sample: Path) -> list[Figure]:
    """Sizes of the objects, and what zstd makes of them one by one."""
    corpus = Corpus.read(sample)
    scenario = f"the corpus, zstd level {LEVEL}, dictionaries of {DICTIONARY_BYTES >> 10} KiB"
    figures: list[Figure] = []
    weight = sum(WEIGHTS[resource] for resource in corpus.types)
    mean = [0.0, 0.0, 0.0]
    for resource in corpus.types:
        # Of two clusters, so that no measured object was trained on.
        trained, measured = (
            [corpus.state(resource, cluster, index, FIRST_VERSION + index).raw for index in range(number)]
            for cluster, number in ((0, _TRAINED), (1, _MEASURED))
        )
        dictionary = zstandard.train_dictionary(DICTIONARY_BYTES, [*trained])
        sizes = (
            _mean(measured),
            _mean(map(zstandard.ZstdCompressor(level=LEVEL).compress, measured)),
            _mean(map(zstandard.ZstdCompressor(level=LEVEL, dict_data=dictionary).compress, measured)),
        )
        mean = [before + size * WEIGHTS[resource] / weight for before, size in zip(mean, sizes, strict=True)]
        figures += _rows(scenario, f"{resource}, {WEIGHTS[resource]} %", sizes)
    return [*_rows(scenario, "all", mean), *figures]


def _rows(scenario: str, contender: str, sizes: Sequence[float]) -> list[Figure]:
    plain, compressed, with_dictionary = sizes
    return [
        Figure(scenario, contender, "JSON per object", plain, "bytes"),
        Figure(scenario, contender, "compression without a dictionary", plain / compressed, "x"),
        Figure(scenario, contender, "compression with a dictionary", plain / with_dictionary, "x"),
    ]


def _mean(texts: Iterable[bytes]) -> float:
    sizes = [len(text) for text in texts]
    return sum(sizes) / len(sizes)

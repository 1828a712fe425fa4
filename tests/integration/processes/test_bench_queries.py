"""The scenarios with questions, small: they run to their end, and what they are answered is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.corpus import write_sample
from tests.bench.figure import WrongResult
from tests.bench.indexer_load import indexer_queries
from tests.bench.peers_indexer import peers_indexer
from tests.bench.queries import queries
from tests.bench.queries_bed import Size
from tests.unit.bench.made_sample import made_sample

OBJECTS = 1000


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("queries") / "sample"
    write_sample(path, made_sample())
    return path


@pytest.fixture(scope="module")
def size(sample: Path) -> Size:
    """An aggregator's state is loaded by whoever asks first, and taken up by the next."""
    return Size(
        OBJECTS, clusters=4, seconds=0.05, rate=200, frame=5, dictionary_seconds=0.1, state=sample.with_name("state")
    )


async def test_questions_at_rest_and_beside_changes(sample: Path, size: Size) -> None:
    figures = await queries(sample, size)
    metrics = [figure.metric for figure in figures]
    assert len(set(metrics)) == len(metrics)
    assert all(figure.value >= 0 for figure in figures if "memory" not in figure.metric), figures
    with pytest.raises(WrongResult, match="loaded with something else"):
        await queries(sample, size._replace(objects=OBJECTS // 2))


async def test_the_indexer_alone() -> None:
    figures = await indexer_queries(OBJECTS, clusters=2)
    values = {figure.metric: figure.value for figure in figures}
    assert len(values) == len(figures)
    assert values["objects"] == OBJECTS


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
async def test_client_go_finds_the_same(sample: Path, size: Size) -> None:
    figures = await peers_indexer(sample, size, rounds=1)
    contenders = {figure.contender.split()[0] for figure in figures}
    assert contenders == {"federator", "client-go"}

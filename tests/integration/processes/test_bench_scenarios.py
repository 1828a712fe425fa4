"""Scenarios of the benchmark that need no control plane, small: they run to their end and their results are right."""

from __future__ import annotations

from pathlib import Path

from tests.bench.corpus import write_sample
from tests.bench.digest_cost import digest_cost
from tests.bench.many_clusters import Size, many_clusters
from tests.unit.bench.made_sample import made_sample


async def test_many_clusters_join_change_leave_and_return(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    write_sample(sample, made_sample())
    size = Size(
        clusters=4,
        leaving=2,
        objects=100,
        rate=20,
        seconds=0.5,
        training_seconds=0,
        margin_seconds=0.2,
        away_seconds=0.1,
        poll_seconds=0.05,
    )
    figures = await many_clusters(sample, size)
    values = {(figure.scenario, figure.metric): figure.value for figure in figures}
    assert all(value >= 0 for value in values.values()), values
    assert values["4 clusters with 100 objects each", "objects"] >= 4 * 100


async def test_digests_and_what_they_cost(tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    write_sample(sample, made_sample())
    figures = await digest_cost(sample, 500, clusters=10, repeats=500)
    assert len({figure.metric for figure in figures}) == len(figures)
    assert all(figure.value > 0 for figure in figures), figures

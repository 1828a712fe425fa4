from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.bench.__main__ import ONLY_BY_NAME, SCENARIOS, WITH_CORPUS, report
from tests.bench.figure import Figure


def test_the_bar_stands_beside_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = [Figure("rest", "a", "memory", 12.345, "KiB", "<= 32"), Figure("rest", "longer", "CPU", 1234.5, "ms")]
    report(figures, {"kernel": "some"})
    head, first, second = capsys.readouterr().out.splitlines()[2:5]
    assert head.split() == ["scenario", "contender", "metric", "value", "unit", "bar"]
    assert first.split() == ["rest", "a", "memory", "12.3", "KiB", "<=", "32"]
    assert second.split() == ["rest", "longer", "CPU", "1234", "ms"]
    assert first.index("<=") == head.index("bar")
    written = msgspec.json.decode(Path("build/bench.json").read_bytes(), type=list[dict[str, object]])
    assert [row["bar"] for row in written] == ["<= 32", ""]


def test_scenarios_are_named_once() -> None:
    assert SCENARIOS.keys() > WITH_CORPUS
    assert SCENARIOS.keys() > ONLY_BY_NAME

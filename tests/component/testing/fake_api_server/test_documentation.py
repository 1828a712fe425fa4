"""Every code block of the guide runs."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federator.testing.fake_api_server import FakeApiServer, faults

GUIDE = Path(__file__).parents[4] / "docs" / "fake-api-server.md"

BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def functions_in(block: str) -> dict[str, Callable[..., Any]]:
    namespace: dict[str, Any] = {"__name__": "guide"}
    exec(compile(block, str(GUIDE), "exec"), namespace)
    return {name: value for name, value in namespace.items() if name.startswith("test_")}


TESTS = {name: test for block in BLOCKS for name, test in functions_in(block).items()}


def test_each_block_has_a_test() -> None:
    assert len(TESTS) == len(BLOCKS) == 5


@pytest.mark.looptime
@pytest.mark.parametrize("name", TESTS)
async def test_the_guide(name: str, fake_api_server: FakeApiServer, tmp_path: Path) -> None:
    offered = {"fake_api_server": fake_api_server, "tmp_path": tmp_path}
    wanted = inspect.signature(TESTS[name]).parameters
    async with asyncio.timeout(3600):
        await TESTS[name](**{parameter: offered[parameter] for parameter in wanted})


def test_the_guide_names_every_fault() -> None:
    text = GUIDE.read_text()
    kinds = {
        name
        for name, value in vars(faults).items()
        if isinstance(value, type) and issubclass(value, faults.Fault) and value.__module__ == faults.__name__
    }
    assert [kind for kind in sorted(kinds - {"Fault", "Answer", "Cut"}) if f"`{kind}" not in text] == []

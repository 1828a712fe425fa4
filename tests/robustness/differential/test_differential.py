"""Federator's informers and client-go's beside each other, through one short script of faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.robustness.differential.clientgo_program import provide
from tests.robustness.differential.run import differential_run
from tests.robustness.differential.script import Fault, Kind, Script

SCRIPT = Script(
    seed=5,
    seconds=4.0,
    faults=(
        Fault(after=0.5, kind=Kind.CUT, size=8_000),
        Fault(after=0.5, kind=Kind.KILL_ALL),
        Fault(after=0.5, kind=Kind.REFUSE, seconds=0.5),
        Fault(after=0.5, kind=Kind.BEHIND, seconds=1.0),
    ),
    pairs=(0.0, 3.0),
)
"""Two faults of the links and two of the servers, as short as can be: what is drawn waits for seconds before each."""

pytestmark = pytest.mark.testbed


@pytest.fixture
def clientgo_program() -> Path:
    """Builds it, if need be, out of reach of the test's time limit."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(provide())


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.usefixtures("clientgo_program")
async def test_both_tell_what_happened_in_order_and_end_with_what_exists(tmp_path: Path) -> None:
    report = await differential_run(SCRIPT, tmp_path)
    assert report.broken == [], str(report)
    assert report.states > 100, "there was much to follow"
    assert len(report.followers) == 2 * len(SCRIPT.pairs)
    for follower in report.followers:
        assert follower.events["update"], follower
        assert follower.requests["watch"] + follower.requests.get("watch-list", 0) > 3, "one for each type, and again"

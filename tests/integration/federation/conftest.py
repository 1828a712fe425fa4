"""Fixtures of the federation's tests: three living clusters with equal names in all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

NAMES = ("ap-1", "eu-1", "us-1")


@pytest.fixture(scope="package")
def living_bed() -> Iterator[Testbed]:
    """Three clusters with controllers, filled with the same applications; nobody kills or pauses them."""

    async def start() -> None:
        await bed.start()
        await asyncio.gather(*(Workload(plane).fill(applications=4) for plane in bed))

    bed = Testbed(NAMES, living=True, nodes=2)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            runner.run(start())
            yield bed
        finally:
            runner.run(bed.close())

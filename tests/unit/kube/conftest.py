"""Blocking calls from federator.kube fail the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx

from tests.fixtures import no_proxies, no_system_authorities

__all__ = ["no_proxies", "no_system_authorities"]


@pytest.fixture(autouse=True, scope="module")  # for one test it would take longer than most tests
def nothing_blocks_the_loop() -> Iterator[None]:
    with blockbuster_ctx("federator.kube"):
        yield

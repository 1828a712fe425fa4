"""A federation of processes that soon tells what is gone, and soon finds what is back."""

from __future__ import annotations

from pathlib import Path

from tests.robustness.federated_bed import SpecialFederation

ROOT = Path(__file__).parents[3]


class HastyFederation(SpecialFederation):
    """One with short waits, for tests that end agents."""

    aggregator_module = agent_module = "tests.robustness.hasty"

"""Fixtures of the tests on real control planes, and how they are dealt out to several pytest workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from federator.testing.pytest_plugin import (
    control_plane_factory,
    living_cluster,
    pytest_collection_finish,
    shared_namespace,
    three_clusters,
)

_HERE = Path(__file__).parent

# Tests of one group share a worker, and with it the control planes that live as long as the session.
_GROUPS = {"federation": "federation", "push": "push"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts each test of this folder into the group of its control planes."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            folder = item.path.relative_to(_HERE).parts[0]
            item.add_marker(pytest.mark.xdist_group(_GROUPS.get(folder, "control planes")))


__all__ = [
    "control_plane_factory",
    "living_cluster",
    "pytest_collection_finish",
    "shared_namespace",
    "three_clusters",
]

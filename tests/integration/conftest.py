"""Fixtures of the tests on real control planes."""

from federator.testing.pytest_plugin import (
    control_plane_factory,
    expendable_cluster,
    expendable_plane,
    living_cluster,
    pytest_collection_finish,
    shared_namespace,
    three_clusters,
)
from tests.fixtures import python_is_forked

__all__ = [
    "control_plane_factory",
    "expendable_cluster",
    "expendable_plane",
    "living_cluster",
    "pytest_collection_finish",
    "python_is_forked",
    "shared_namespace",
    "three_clusters",
]

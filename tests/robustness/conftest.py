"""Fixtures of all tests under faults."""

from tests.fixtures import python_is_forked

__all__ = ["python_is_forked"]

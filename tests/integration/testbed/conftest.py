"""What the tests of the testbed share."""

from federator.testing.pytest_plugin import expendable_cluster

__all__ = ["expendable_cluster"]

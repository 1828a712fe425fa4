"""Real control planes for tests, benches and demos: no containers, one folder, nothing left running.

    async with Testbed(("eu-1", "us-1"), living=True) as bed:
        print(bed.kubeconfig)

`pytest_plugin` has the fixtures, `python -m federator.testing build` builds the programs beforehand.
Needs the `testing` extra.
"""

from federator.testing.admin_client import AdminClient
from federator.testing.binaries import Binaries, provide
from federator.testing.control_plane import ControlPlane
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

__all__ = ["AdminClient", "Binaries", "ControlPlane", "Testbed", "Workload", "provide"]

"""Real control planes for tests, benches and demos: no containers, one folder, nothing left running.

    async with Testbed(("eu-1", "us-1"), living=True) as bed:
        print(bed.kubeconfig)

`FakeApiServer` does what a real apiserver cannot be made to do; it starts in milliseconds, `faults` is its vocabulary.

`pytest_plugin` has the fixtures, `python -m federator.testing build` builds the programs beforehand.
Needs the `testing` extra.
"""

from federator.testing.admin_client import AdminClient
from federator.testing.binaries import Binaries, provide
from federator.testing.control_plane import ControlPlane
from federator.testing.fake_api_server import FakeApiServer, faults
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

__all__ = ["AdminClient", "Binaries", "ControlPlane", "FakeApiServer", "Testbed", "Workload", "faults", "provide"]

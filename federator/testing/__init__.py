"""Real control planes for tests, benches and demos: no containers, one folder, nothing left running.

    async with Testbed(("eu-1", "us-1"), living=True) as bed:
        print(bed.kubeconfig)

`FakeApiServer` does what a real apiserver cannot be made to do; it starts in milliseconds, `faults` is its vocabulary.
`FaultProxy` stands between any client and any server and does what bad networks do.

`pytest_plugin` has the fixtures, `python -m federator.testing build` builds the programs beforehand.
Needs the `testing` extra.
"""

from federator.testing.admin_client import AdminClient
from federator.testing.binaries import Binaries, provide
from federator.testing.control_plane import ControlPlane
from federator.testing.fake_api_server import FakeApiServer, faults
from federator.testing.fault_proxy import Conditions, FaultProxy
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

__all__ = [
    "AdminClient",
    "Binaries",
    "Conditions",
    "ControlPlane",
    "FakeApiServer",
    "FaultProxy",
    "Testbed",
    "Workload",
    "faults",
    "provide",
]

"""A kube-apiserver for tests: list and watch with real history, and every way they can go wrong.

    async with FakeApiServer() as server:
        server.put("configmaps", "a", data={"k": "v"})
        server.fail("watch", "configmaps", faults.Reset(after_events=1))

Real HTTP on loopback, so any client will do; it starts in milliseconds. `faults` has the vocabulary.
"""

from federator.testing.fake_api_server import faults
from federator.testing.fake_api_server.history import Snapshot
from federator.testing.fake_api_server.injection import Injection
from federator.testing.fake_api_server.request_log import Request, RequestLog
from federator.testing.fake_api_server.server import FakeApiServer
from federator.testing.fake_api_server.status import ApiError
from federator.testing.fake_api_server.watching import OpenWatch

__all__ = ["ApiError", "FakeApiServer", "Injection", "OpenWatch", "Request", "RequestLog", "Snapshot", "faults"]

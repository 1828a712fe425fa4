"""The load of a watch run: objects that enter and leave selections, and many changes at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from federator.errors import KubeStatusError, MemberUnreachable
from federator.testing import manifests
from federator.testing.admin_client import AdminClient, Json
from federator.testing.control_plane import ControlPlane
from tests.robustness.watch_checks.clients import PLACE

_PODS = f"/api/v1/namespaces/{PLACE}/pods"
_CONFIG_MAPS = f"/api/v1/namespaces/{PLACE}/configmaps"

_APPLICATIONS = ("web", "api", "db")
_NAMES = 8
"""Pods of each application. Few, so that they change often and come again."""

_BURST = 16
"""Objects that are made at once, and deleted at once."""

_LARGE = 6
_LARGE_BYTES = 250_000
"""Objects that are changed at once; together they do not fit into one message."""

_PAUSE = 0.5
"""Seconds until the next try while the apiserver is away."""

_HARMLESS = {404, 409, 422, 429}
"""Gone or there already, changed by another, a field that may not change any more, too much at once."""

_TRACKS = ("stable", "canary", "beta", None)
_PHASES = ("Pending", "Running", "Running", "Succeeded", "Failed")
_OPERATIONS = {"create": 25, "relabel": 35, "phase": 25, "delete": 8, "burst": 4, "sweep": 3}
"""How often each operation is drawn, in percent."""


class WatchLoad:
    """One client of one apiserver. The seed decides which operations come in which order."""

    def __init__(self, plane: ControlPlane, source: random.Random) -> None:
        """Describes the load; `source` decides everything."""
        self._plane = plane
        self._random = source
        self._number = 0
        self._done: Counter[str] = Counter()

    @staticmethod
    async def prepare(plane: ControlPlane) -> None:
        """Makes the namespace.

        Raises:
            KubeStatusError, MemberUnreachable: the apiserver did not do as it should.
        """
        async with plane.client() as client:
            await client.create("/api/v1/namespaces", manifests.namespace(PLACE))

    async def run(self, rate: float) -> None:
        """Operates until cancelled. While the apiserver is away it keeps trying.

        Args:
            rate: operations per second, at most.

        Raises:
            KubeStatusError: a refusal that nothing of what happens here explains.
        """
        async with self._plane.client() as client:
            while True:
                await asyncio.sleep(self._random.expovariate(rate))
                await self._operate(client)

    async def enlarge(self) -> None:
        """Makes large objects, and changes all of them at once.

        Raises:
            KubeStatusError: as `run`.
        """
        self._number += 1
        async with self._plane.client() as client:
            for number in range(_LARGE):
                obj = manifests.config_map(PLACE, f"large-{number}", revision=self._number)
                obj["data"]["padding"] = "x" * _LARGE_BYTES
                await self._try("large", partial(client.create, _CONFIG_MAPS, obj))
            changes = {"metadata": {"labels": {"change": str(self._number)}}}
            large = [f"{_CONFIG_MAPS}/large-{number}" for number in range(_LARGE)]
            await asyncio.gather(*(self._try("large", partial(client.patch, path, changes)) for path in large))

    def statistics(self) -> Mapping[str, int]:
        """Operations by kind; `unreachable` of them found no apiserver, `refused` were refused."""
        return dict(self._done)

    async def _operate(self, client: AdminClient) -> None:
        (operation,) = self._random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
        name = f"{self._random.choice(_APPLICATIONS)}-{self._random.randrange(_NAMES)}"
        pod = f"{_PODS}/{name}"
        match operation:
            case "create":
                await self._try(operation, partial(client.create, _PODS, self._pod(name)))
            case "relabel":
                await self._try(operation, partial(client.patch, pod, {"metadata": {"labels": self._labels()}}))
            case "phase":
                phase = self._random.choice(_PHASES)
                await self._try(operation, partial(client.patch, f"{pod}/status", {"status": {"phase": phase}}))
            case "delete":
                await self._try(operation, partial(client.delete, pod, gracePeriodSeconds="0"))
            case "burst":
                self._number += 1
                made = [self._burst_map(f"burst-{self._number}-{each}") for each in range(_BURST)]
                await asyncio.gather(*(self._try(operation, partial(client.create, _CONFIG_MAPS, one)) for one in made))
            case "sweep":
                await self._try(operation, partial(client.delete, _CONFIG_MAPS, labelSelector="burst"))

    async def _try(self, operation: str, call: Callable[[], Awaitable[Json]]) -> None:
        try:
            await call()
        except (MemberUnreachable, TimeoutError):
            self._done["unreachable"] += 1
            await asyncio.sleep(_PAUSE)
        except KubeStatusError as error:
            if error.code < 500 and error.code not in _HARMLESS:
                raise
            self._done["refused"] += 1
        else:
            self._done[operation] += 1

    def _labels(self) -> Json:
        self._number += 1
        return {
            "track": self._random.choice(_TRACKS),
            "spare": self._random.choice(("", "yes", None)),
            "tier": self._random.choice(("backend", "frontend", None)),
            "change": str(self._number),
        }

    def _pod(self, name: str) -> Json:
        labels = {key: value for key, value in self._labels().items() if value is not None}
        spec = {"nodeName": f"node-{self._random.randrange(3)}", "containers": [manifests.container(name, "1.0.0")]}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    def _burst_map(self, name: str) -> Json:
        obj = manifests.config_map(PLACE, name, revision=self._number)
        obj["metadata"]["labels"] = {"burst": "yes", "track": self._random.choice(_TRACKS[:3])}
        return obj

"""What is put under faults: control planes, an aggregator and an agent for each, all processes of their own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from federator.api.cluster import ClusterState
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.robustness.plan import CLUSTERS, Round
from tests.robustness.traffic import Traffic

REDEFINING = "eu-1"
"""The cluster in which a custom type comes and goes. The others serve it always, so that it stays known."""

_BACK_WITHIN = 180.0
"""Seconds in which everything is LIVE again after a run that broke off."""

_ROOT = Path(__file__).parents[2]


class SpecialFederation(Federation):
    """A federation of modules of the tests."""

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"PYTHONPATH": str(_ROOT)}


class HastyFederation(SpecialFederation):
    """One that soon tells what is gone, and soon finds what is back, for tests that wait for that."""

    aggregator_module = agent_module = "tests.robustness.hasty"


class FederatedBed:
    """A testbed and a federation over it. Belongs to no event loop.

    Attributes:
        clusters: their names.
        folder: data and logs of everything that is its own; stays until `remove`.
        bed: the control planes.
        federation: aggregator and agents.
        substitutes: agents of the same clusters that push to the same aggregator, none of them started.
    """

    def __init__(
        self,
        kind: type[Federation] = Federation,
        *,
        clusters: Sequence[str] = CLUSTERS,
        bed: Testbed | None = None,
        aggregator_arguments: Sequence[str] = (),
    ) -> None:
        """Describes it.

        Args:
            kind: of the federation.
            clusters: their names.
            bed: control planes that run already, and stay; None for its own.
            aggregator_arguments: further arguments of its aggregator.
        """
        self.clusters = tuple(clusters)
        self.folder = Path(tempfile.mkdtemp(prefix="federator-faults-"))
        (self.folder / "federation").mkdir()
        self._owns_bed = bed is None
        self.bed = bed or Testbed(self.clusters, folder=self.folder / "clusters")
        self.federation = kind(
            self.bed.kubeconfig,
            self.clusters,
            folder=self.folder / "federation",
            aggregator_arguments=aggregator_arguments,
        )
        self.substitutes = kind(self.bed.kubeconfig, self.clusters, folder=self.folder / "federation")

    async def start(self) -> None:
        """Starts everything, makes what no load touches, and waits until all clusters are LIVE.

        Raises:
            TestbedError: something did not start.
        """
        if self._owns_bed:
            await self.bed.start()
        await asyncio.gather(*(Traffic.prepare(plane, redefines=plane.name == REDEFINING) for plane in self.bed))
        await self.federation.start()

    async def restore(self) -> None:
        """Brings back whatever does not run or is frozen, as after a run that broke off.

        Raises:
            TestbedError: something does not come back.
        """
        for process in self.substitutes.processes.values():
            process.kill()
        for plane in self.bed:
            for process in plane.processes.values():
                if process.running:
                    process.resume()
            await plane.start()
        for name, process in dict(self.federation.processes).items():
            if process.running:
                process.resume()
            elif name == "aggregator":
                self.federation.start_aggregator()
            else:
                self.federation.start_agent(name.removeprefix("agent-"))
        await self.federation.wait_state(ClusterState.LIVE, timeout=_BACK_WITHIN)

    def traffic(self, cluster: str, plan: Round) -> Traffic:
        """The load of one cluster in one round."""
        return Traffic(self.bed[cluster], plan.randomness(f"traffic {cluster}"), redefines=cluster == REDEFINING)

    async def close(self) -> None:
        """Kills everything that is its own; the folder stays."""
        self.substitutes.close()
        self.federation.close()
        if self._owns_bed:
            await self.bed.close()

    def remove(self) -> None:
        """Removes data and logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

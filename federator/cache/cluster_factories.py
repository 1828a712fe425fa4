"""ClusterInformerFactories: the informers of many clusters, which come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from federator.cache.delta_fifo import Transform
from federator.cache.factory import NewListWatch, SharedInformerFactory
from federator.cache.resync import AdaptiveResync
from federator.cache.shared_informer import InformerStopped, SharedInformer
from federator.cache.wait import CacheNotSynced, wait_for_cache_sync
from federator.errors import InvalidInput, UnknownCluster


class ClusterInformerFactories:
    """A `SharedInformerFactory` for each cluster.

        async with MemberClient.from_kubeconfig("eu-1") as client, ClusterInformerFactories() as factories:
            eu_1 = factories.add("eu-1", functools.partial(ResourceListWatch, client))
            eu_1.informer(PODS).add_event_handler(handler)
            factories.start()
            await factories.wait_for_cache_sync(timeout=30)

    Clusters don't know each other: one that fails, or does not answer, concerns no other. Names of informers begin with
    their cluster's. Connections belong to whoever made them: close them after their cluster was removed.

    As a context manager it starts on entry what was asked for by then, and shuts down on exit. Belongs to one event
    loop.
    """

    def __init__(
        self,
        *,
        resync_period: float | AdaptiveResync = 0.0,
        transform: Transform | None = None,
        compress: bool = False,
    ) -> None:
        """Prepares factories; there is no cluster yet.

        Args:
            resync_period: as of `SharedInformer`, for all.
            transform: as of `SharedInformer`, for all.
            compress: as of `Indexer`, for all.
        """
        self._resync_period = resync_period
        self._transform = transform
        self._compress = compress
        self._factories: dict[str, SharedInformerFactory] = {}
        self._leaving: list[SharedInformerFactory] = []
        self._to_be_raised: list[BaseExceptionGroup[BaseException]] = []
        self._shut_down = False

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that were added and not removed, in this order."""
        return tuple(self._factories)

    def add(self, cluster: str, new_list_watch: NewListWatch) -> SharedInformerFactory:
        """Adds a cluster and returns its factory; informers that are asked for there run from the next `start` on.

        Args:
            cluster: its name. That of a removed cluster can be used again at once.
            new_list_watch: makes the server's side of its informers.

        Raises:
            InvalidInput: the name is empty, or a cluster has it.
            InformerStopped: the factories were shut down.
        """
        self._refuse_if_shut_down()
        if not cluster or cluster in self._factories:
            raise InvalidInput("cluster", cluster, "a name that no other cluster has")
        factory = self._factories[cluster] = SharedInformerFactory(
            new_list_watch,
            cluster=cluster,
            resync_period=self._resync_period,
            transform=self._transform,
            compress=self._compress,
        )
        return factory

    def cluster(self, cluster: str) -> SharedInformerFactory:
        """The factory of a cluster.

        Raises:
            UnknownCluster: there is no such cluster.
        """
        factory = self._factories.get(cluster)
        if factory is None:
            raise UnknownCluster(cluster, self.clusters)
        return factory

    async def remove(self, cluster: str) -> None:
        """Stops the informers of a cluster, waits for them and forgets it; leaves no task of it.

        Cancelled, they stop nevertheless, and `shutdown` waits for them.

        Raises:
            UnknownCluster: there is no such cluster.
            BaseExceptionGroup: informers had ended by an exception, as of `SharedInformerFactory.shutdown`.
        """
        factory = self.cluster(cluster)
        del self._factories[cluster]
        self._leaving.append(factory)
        try:
            await factory.shutdown()
        finally:
            self._leaving = [leaving for leaving in self._leaving if not leaving.is_stopped]

    def start(self) -> None:
        """Starts the informers of all clusters that do not run yet; call it again after asking for more.

        Does not wait. A cluster whose factory was shut down by itself is left out.

        Raises:
            InformerStopped: the factories were shut down.
        """
        self._refuse_if_shut_down()
        for factory in self._factories.values():
            if not factory.is_shut_down:
                factory.start()

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Waits until all informers that were started have synced. Clusters that are removed meanwhile don't count.

        Cancelled, it leaves no task and everything else as it is.

        Args:
            timeout: seconds for all together; None waits for as long as it takes.

        Raises:
            CacheNotSynced: the time was up, or one stopped before; names those that have not synced.
            InformerStopped: the factories were shut down.
        """
        self._refuse_if_shut_down()
        unsynced: list[str] = []

        async def wait(factory: SharedInformerFactory, informers: Sequence[SharedInformer]) -> None:
            try:
                await wait_for_cache_sync(*informers, timeout=timeout)
            except CacheNotSynced as not_synced:
                if self._factories.get(factory.cluster) is factory:
                    unsynced.extend(not_synced.unsynced)

        async with asyncio.TaskGroup() as tasks:
            for factory in self._factories.values():
                tasks.create_task(wait(factory, factory.started()), name=f"{factory.cluster} sync")
        if unsynced:
            raise CacheNotSynced(tuple(unsynced))

    async def shutdown(self) -> None:
        """Stops the informers of all clusters at the same time and waits for them; leaves no task. Idempotent.

        Cancelled, they stop nevertheless; another call waits for the rest.

        Raises:
            BaseExceptionGroup: informers had ended by an exception: a group for each of their clusters. Raised once.
        """
        self._shut_down = True
        factories = [*self._factories.values(), *self._leaving]
        for factory in factories:
            factory.stop()
        for factory in factories:
            try:
                await factory.shutdown()
            except BaseExceptionGroup as failed:
                self._to_be_raised.append(failed)
        self._leaving.clear()
        failures, self._to_be_raised = self._to_be_raised, []
        if failures:
            raise BaseExceptionGroup("informers failed", failures)

    def failed(self) -> Mapping[str, BaseException]:
        """What informers of the clusters that are here have ended by, by their names; kept after `shutdown`."""
        return {name: error for factory in self._factories.values() for name, error in factory.failed().items()}

    def statistics(self) -> Mapping[str, Mapping[str, Mapping[str, object]]]:
        """By cluster, and there by name, each informer's statistics, as of `SharedInformerFactory.statistics`."""
        return {cluster: factory.statistics() for cluster, factory in self._factories.items()}

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()

    def _refuse_if_shut_down(self) -> None:
        if self._shut_down:
            raise InformerStopped("the factories were shut down")

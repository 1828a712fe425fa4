"""SharedInformerFactory: one informer per resource type, shared by all who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from federator.api.resource import ResourceType
from federator.cache.delta_fifo import Transform
from federator.cache.indexer import NAMESPACE_INDEX, meta_namespace_index_func
from federator.cache.list_watch import ListWatch
from federator.cache.lister import Lister
from federator.cache.shared_informer import InformerStopped, SharedInformer
from federator.cache.wait import wait_for_cache_sync


class NewListWatch(Protocol):
    """Makes the server's side of an informer, e.g. `functools.partial(ResourceListWatch, member_client)`."""

    def __call__(
        self,
        resource_type: ResourceType,
        /,
        *,
        namespace: str,
        label_selector: str,
        field_selector: str,
        metadata_only: bool,
    ) -> ListWatch:
        """Returns the list and watch of a type, narrowed as `SharedInformerFactory.informer` says."""
        ...


class _InformerKey(NamedTuple):
    resource_type: ResourceType
    namespace: str
    label_selector: str
    field_selector: str
    metadata_only: bool

    def __str__(self) -> str:
        narrowing = (self.namespace, self.label_selector, self.field_selector, "metadata" * self.metadata_only)
        named = " ".join(filter(None, narrowing))
        return f"{self.resource_type} [{named}]" if named else str(self.resource_type)


class SharedInformerFactory:
    """Makes, starts and stops informers.

    All who ask for the same type, narrowed alike, share one informer: one watch and one copy of the objects.

    As a context manager it starts on entry what was asked for by then, and shuts down on exit.
    """

    def __init__(
        self, new_list_watch: NewListWatch, *, resync_period: float = 0.0, transform: Transform | None = None
    ) -> None:
        """Prepares a factory.

        Args:
            new_list_watch: makes the server's side of an informer.
            resync_period: seconds; as of `SharedInformer`, for all.
            transform: as of `SharedInformer`, for all.
        """
        self._new_list_watch = new_list_watch
        self._resync_period = resync_period
        self._transform = transform
        self._informers: dict[_InformerKey, SharedInformer] = {}
        self._tasks: dict[_InformerKey, asyncio.Task[None]] = {}
        self._shut_down = False

    def informer(
        self,
        resource_type: ResourceType,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> SharedInformer:
        """The informer of a type, made when first asked for; a new one runs from the next `start` on.

        It has the namespace index.

        Args:
            resource_type: the type.
            namespace: one namespace only; empty for all.
            label_selector: only objects the server selects by it.
            field_selector: likewise.
            metadata_only: only the objects' metadata.

        Raises:
            InformerStopped: the factory was shut down.
        """
        if self._shut_down:
            raise InformerStopped("the factory was shut down")
        key = _InformerKey(resource_type, namespace, label_selector, field_selector, metadata_only)
        informer = self._informers.get(key)
        if informer is None:
            list_watch = self._new_list_watch(
                resource_type,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                metadata_only=metadata_only,
            )
            informer = self._informers[key] = SharedInformer(
                list_watch,
                name=str(key),
                transform=self._transform,
                resync_period=self._resync_period,
                indexers={NAMESPACE_INDEX: meta_namespace_index_func},
            )
        return informer

    def lister(self, resource_type: ResourceType, *, namespace: str = "") -> Lister:
        """A lister over the informer of a type; asking for it asks for the informer."""
        informer = self.informer(resource_type, namespace=namespace)
        return Lister(informer.indexer, resource=str(resource_type.group_resource))

    def start(self) -> None:
        """Starts the informers that do not run yet; call it again after asking for more. Does not wait.

        Raises:
            InformerStopped: the factory was shut down.
        """
        if self._shut_down:
            raise InformerStopped("the factory was shut down")
        for key, informer in self._informers.items():
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(informer.run(), name=f"{informer.name} informer")

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Waits until all informers that were started have synced.

        Raises:
            CacheNotSynced: the time was up, or one stopped before; names those that have not synced.
        """
        await wait_for_cache_sync(*(self._informers[key] for key in self._tasks), timeout=timeout)

    async def shutdown(self) -> None:
        """Stops all informers and waits for them; leaves no task. Idempotent.

        Raises:
            BaseExceptionGroup: informers had ended by an exception.
        """
        self._shut_down = True
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
        failures = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError)
        ]
        if failures:
            raise BaseExceptionGroup("informers failed", failures)

    def statistics(self) -> Mapping[str, object]:
        """Each informer's statistics by its name."""
        return {informer.name: informer.statistics() for informer in self._informers.values()}

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

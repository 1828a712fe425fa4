"""SharedInformerFactory: one informer per resource type, shared by all who ask for it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import structlog

from federator.api.resource import ResourceType
from federator.api.selector import LabelSelector
from federator.cache.delta_fifo import Transform
from federator.cache.indexer import NAMESPACE_INDEX, meta_namespace_index_func
from federator.cache.list_watch import ListWatch
from federator.cache.lister import Lister
from federator.cache.resync import AdaptiveResync
from federator.cache.shared_informer import InformerStopped, SharedInformer
from federator.cache.wait import wait_for_cache_sync
from federator.errors import InvalidInput

log = structlog.get_logger(__name__)


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


class SharedInformerFactory:
    """Makes, starts and stops the informers of one cluster.

    Promises:
        * All who ask for the same type, narrowed alike, share one informer: one watch and one copy of the objects.
          A type is its group, version and plural name; selectors that say the same are the same.
        * An informer that ends by an exception concerns no other. The exception is logged at once, told by `failed`
          from then on, and raised by `remove` or `shutdown`.
        * What was shut down leaves no task, and the factory keeps nothing of it; its name is free.

    As a context manager it starts on entry what was asked for by then, and shuts down on exit. Belongs to one event
    loop.
    """

    def __init__(
        self,
        new_list_watch: NewListWatch,
        *,
        cluster: str = "",
        resync_period: float | AdaptiveResync = 0.0,
        transform: Transform | None = None,
        compress: bool = False,
    ) -> None:
        """Prepares a factory.

        Args:
            new_list_watch: makes the server's side of an informer.
            cluster: begins the informers' names, e.g. `eu-1 v1 pods`; empty where there is one cluster only.
            resync_period: as of `SharedInformer`, for all.
            transform: as of `SharedInformer`, for all.
            compress: as of `Indexer`, for all.
        """
        self.cluster = cluster
        self._new_list_watch = new_list_watch
        self._resync_period = resync_period
        self._transform = transform
        self._compress = compress
        self._namespace = ""
        self._label_selector = ""
        self._informers = _Informers()

    def narrowed(self, *, namespace: str = "", label_selector: str = "") -> SharedInformerFactory:
        """This factory, narrowed for whoever asks it: all its informers are of this namespace and these labels.

        Informers, `start`, `shutdown` and all that is told of them are those of the factory that it was made from. A
        narrowed factory can be narrowed further, and its informers too. Cluster-scoped types know no namespace and are
        not narrowed to one.

        Raises:
            InvalidInput: it is narrowed to another namespace already.
            MalformedSelector: the label selector does not parse.
        """
        narrowed = copy.copy(self)
        narrowed._namespace = self._join_namespace(namespace)
        narrowed._label_selector = self._join_label_selector(label_selector)
        return narrowed

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

        It has the namespace index. One that has stopped by itself stays what it is, for all who share it, until
        `remove`.

        Args:
            resource_type: the type.
            namespace: one namespace only; empty for all. Of no effect for cluster-scoped types.
            label_selector: only objects the server selects by it.
            field_selector: likewise.
            metadata_only: only the objects' metadata.

        Raises:
            InformerStopped: the factory was shut down.
            InvalidInput: the factory is narrowed to another namespace.
            MalformedSelector: the label selector does not parse.
        """
        self._informers.refuse_if_shut_down()
        key = _InformerKey(
            self.cluster,
            resource_type.api_version,
            resource_type.resource,
            self._join_namespace(namespace) if resource_type.namespaced else "",
            self._join_label_selector(label_selector),
            field_selector,
            metadata_only,
        )
        known = self._informers.get(key)
        if known is not None:
            return known
        list_watch = self._new_list_watch(
            resource_type,
            namespace=key.namespace,
            label_selector=key.label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
        )
        informer = SharedInformer(
            list_watch,
            name=str(key),
            transform=self._transform,
            resync_period=self._resync_period,
            indexers={NAMESPACE_INDEX: meta_namespace_index_func},
            compress=self._compress,
        )
        self._informers.add(key, informer)
        return informer

    def lister(self, resource_type: ResourceType, *, namespace: str = "", label_selector: str = "") -> Lister:
        """A lister over the informer of a type; asking for it asks for the informer."""
        informer = self.informer(resource_type, namespace=namespace, label_selector=label_selector)
        return Lister(informer.indexer, resource=str(resource_type.group_resource))

    def start(self) -> None:
        """Starts the informers that do not run yet; call it again after asking for more. Does not wait.

        Raises:
            InformerStopped: the factory was shut down.
        """
        self._informers.start()

    async def wait_for_cache_sync(self, timeout: float | None = None) -> None:
        """Waits until all informers that were started have synced.

        Raises:
            CacheNotSynced: the time was up, or one stopped before; names those that have not synced.
            InformerStopped: the factory was shut down.
        """
        self._informers.refuse_if_shut_down()
        await wait_for_cache_sync(*self.started(), timeout=timeout)

    async def remove(self, informer: SharedInformer) -> None:
        """Stops one informer, for all who share it, and waits for it; asking for it again makes a new one.

        Of no effect for an informer that is not of this factory, or not any more. Cancelled, the informer stops
        nevertheless, and `shutdown` waits for it.

        Raises:
            BaseExceptionGroup: it had ended by an exception.
        """
        await self._informers.remove(informer)

    def stop(self) -> None:
        """Begins to shut down: every informer stops, and none can be asked for any more. Does not wait; idempotent."""
        self._informers.stop()

    async def shutdown(self) -> None:
        """Stops all informers and waits for them; leaves no task. Idempotent.

        Cancelled, the informers stop nevertheless; another call waits for the rest.

        Raises:
            BaseExceptionGroup: informers had ended by an exception; its message names them. Raised once.
        """
        self._informers.stop()
        await self._informers.wait_stopped()

    @property
    def is_shut_down(self) -> bool:
        """Whether it was told to stop: nothing can be asked for or started any more."""
        return self._informers.is_shut_down

    @property
    def is_stopped(self) -> bool:
        """Whether it was shut down and nothing of it runs any more."""
        return self._informers.is_stopped

    def informers(self) -> Sequence[SharedInformer]:
        """The informers that were asked for and not removed, oldest first."""
        return self._informers.all()

    def started(self) -> Sequence[SharedInformer]:
        """Those of them that were started, whether or not they still run."""
        return self._informers.started()

    def failed(self) -> Mapping[str, BaseException]:
        """What informers have ended by, by their names; kept after `shutdown`, forgotten by `remove`."""
        return self._informers.failed()

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        """Each informer's statistics by its name, with its `state`: `made`, `running`, `stopped` or `failed`."""
        return self._informers.statistics()

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

    def _join_namespace(self, namespace: str) -> str:
        if namespace and self._namespace and namespace != self._namespace:
            raise InvalidInput("namespace", namespace, f"{self._namespace!r}, to which the factory is narrowed")
        return namespace or self._namespace

    def _join_label_selector(self, label_selector: str) -> str:
        # Parsed each by itself, so that no selector can end within another; and joined in one spelling.
        selector = LabelSelector.parse(label_selector)
        if not self._label_selector:
            return str(selector)
        return str(LabelSelector.parse(",".join(filter(None, (self._label_selector, str(selector))))))


class _InformerKey(NamedTuple):
    """What makes an informer one: names and categories of a type may change, what is asked of the server may not."""

    cluster: str
    api_version: str
    resource: str
    namespace: str
    label_selector: str
    field_selector: str
    metadata_only: bool

    def __str__(self) -> str:
        named = " ".join(filter(None, (self.cluster, self.api_version, self.resource)))
        narrowing = {"namespace": self.namespace, "labels": self.label_selector, "fields": self.field_selector}
        narrowed = [f"{what}={to}" for what, to in narrowing.items() if to] + ["metadata"] * self.metadata_only
        return f"{named} [{' '.join(narrowed)}]" if narrowed else named


class _Entry:
    """One informer, and the task it runs in once it was started."""

    def __init__(self, informer: SharedInformer) -> None:
        self.informer = informer
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    @property
    def state(self) -> str:
        if self.failure is not None:
            return "failed"
        if self.task is None:
            return "made"
        return "stopped" if self.task.done() else "running"


class _Informers:
    """The informers of a factory and all that are narrowed from it."""

    def __init__(self) -> None:
        self._entries: dict[_InformerKey, _Entry] = {}
        # More than the entries' tasks: those of removed informers, until they have ended.
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: dict[str, BaseException] = {}
        self._to_be_raised: dict[str, BaseException] = {}
        self.is_shut_down = False

    @property
    def is_stopped(self) -> bool:
        return self.is_shut_down and not self._tasks

    def refuse_if_shut_down(self) -> None:
        if self.is_shut_down:
            raise InformerStopped("the factory was shut down")

    def get(self, key: _InformerKey) -> SharedInformer | None:
        entry = self._entries.get(key)
        return entry.informer if entry is not None else None

    def add(self, key: _InformerKey, informer: SharedInformer) -> None:
        self._entries[key] = _Entry(informer)

    def start(self) -> None:
        self.refuse_if_shut_down()
        for entry in self._entries.values():
            if entry.task is None:
                task = entry.task = asyncio.create_task(self._run(entry), name=f"{entry.informer.name} informer")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def remove(self, informer: SharedInformer) -> None:
        key = next((key for key, entry in self._entries.items() if entry.informer is informer), None)
        if key is None:
            return
        # Forgotten at once: whoever asks meanwhile must not get the one that stops.
        entry = self._entries.pop(key)
        try:
            if entry.task is not None:
                entry.task.cancel()
                await asyncio.wait([entry.task])
        finally:
            informer.close()
        if entry.failure is not None:
            self._failed.pop(informer.name, None)
            self._to_be_raised.pop(informer.name, None)
            raise BaseExceptionGroup(f"informer failed: {informer.name}", [entry.failure])

    def stop(self) -> None:
        self.is_shut_down = True
        for task in self._tasks:
            task.cancel()

    async def wait_stopped(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        for entry in self._entries.values():
            entry.informer.close()
        self._entries.clear()
        failures, self._to_be_raised = self._to_be_raised, {}
        if failures:
            raise BaseExceptionGroup(f"informers failed: {', '.join(failures)}", list(failures.values()))

    def all(self) -> Sequence[SharedInformer]:
        return [entry.informer for entry in self._entries.values()]

    def started(self) -> Sequence[SharedInformer]:
        return [entry.informer for entry in self._entries.values() if entry.task is not None]

    def failed(self) -> Mapping[str, BaseException]:
        return dict(self._failed)

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        return {
            entry.informer.name: {**entry.informer.statistics(), "state": entry.state}
            for entry in self._entries.values()
        }

    async def _run(self, entry: _Entry) -> None:
        name = entry.informer.name
        try:
            await entry.informer.run()
        except (Exception, BaseExceptionGroup) as error:  # the supervisor of one informer: the others must go on
            entry.failure = self._failed[name] = self._to_be_raised[name] = error
            # It is raised too, but by `shutdown`, which may be days away.
            log.error("informer failed", informer=name, exc_info=error)

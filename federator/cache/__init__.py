"""Informers for asyncio: client-go's `tools/cache`, for Python.

An informer learns what exists of one resource type, follows its watch for ever, keeps the objects in an indexed store,
and tells handlers what changed. Objects are `KubeObject`: identity, resourceVersion and the JSON bytes; `obj.meta()`
decodes metadata when asked. The flow, with client-go's names:

    ListWatch ─► Reflector ─► DeltaFIFO ─► Controller ─► Indexer ─► DeltaSink
                                                             └────► ResourceEventHandler, one task each

All of it runs on one event loop: plain functions are atomic, awaited ones may wait. A program needs this much:

    class Printer:
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            print("there is" if is_initial else "new", obj.key)

        async def on_update(self, old: KubeObject, new: KubeObject) -> None:
            await tell_somebody(new)

        def on_delete(self, obj: KubeObject | Tombstone) -> None:
            print("gone", obj.key)

    async with MemberClient.from_kubeconfig("prod") as client:
        factory = SharedInformerFactory(functools.partial(ResourceListWatch, client))
        pods = factory.informer(PODS)
        pods.add_indexers({"node": lambda obj: [node_name(obj)]})
        registration = pods.add_event_handler(Printer())
        async with factory:                                  # starts; leaves no task behind
            await factory.wait_for_cache_sync(timeout=30)    # names what has not synced
            await registration.wait_synced()                 # the handler has seen everything that existed
            pods.indexer.by_index("node", "worker-1")        # queries never wait
            factory.lister(PODS).namespace("kube-system").get("coredns-0")
            await asyncio.Event().wait()

What is not as in client-go, and why: a handler's buffer is bounded, and coalesces per object when full; a handler that
raises still syncs; an object that an index function or transform raises for is quarantined and named in `statistics()`
instead of ending the program; back-off starts over only after health; a stream that falls silent is dialled again;
where watch-lists are not finished lists are made; a cluster restored from a backup is noticed and read anew.
"""

from federator.api.delta import Tombstone
from federator.cache.backoff import Backoff
from federator.cache.delta_sink import DeltaSink
from federator.cache.factory import NewListWatch, SharedInformerFactory
from federator.cache.handler import (
    FilteringResourceEventHandler,
    ResourceEventHandler,
    ResourceEventHandlerFuncs,
)
from federator.cache.indexer import NAMESPACE_INDEX, Indexer, IndexFunc, meta_namespace_index_func
from federator.cache.key_func import meta_namespace_key, split_meta_namespace_key
from federator.cache.list_watch import ListWatch
from federator.cache.lister import LabelPredicate, Lister, NamespaceLister
from federator.cache.pager import each_item
from federator.cache.reflector import Reflector, ReflectorStore
from federator.cache.reflector_status import ReflectorState, ReflectorStatus
from federator.cache.retry_watcher import retry_watch
from federator.cache.shared_informer import HandlerRegistration, InformerStopped, SharedInformer
from federator.cache.wait import CacheNotSynced, Syncable, wait_for_cache_sync

__all__ = [
    "NAMESPACE_INDEX",
    "Backoff",
    "CacheNotSynced",
    "DeltaSink",
    "FilteringResourceEventHandler",
    "HandlerRegistration",
    "IndexFunc",
    "Indexer",
    "InformerStopped",
    "LabelPredicate",
    "ListWatch",
    "Lister",
    "NamespaceLister",
    "NewListWatch",
    "Reflector",
    "ReflectorState",
    "ReflectorStatus",
    "ReflectorStore",
    "ResourceEventHandler",
    "ResourceEventHandlerFuncs",
    "SharedInformer",
    "SharedInformerFactory",
    "Syncable",
    "Tombstone",
    "each_item",
    "meta_namespace_index_func",
    "meta_namespace_key",
    "retry_watch",
    "split_meta_namespace_key",
    "wait_for_cache_sync",
]

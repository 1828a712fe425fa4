"""Informers for asyncio: client-go's `tools/cache`, for Python. The manual is docs/informer.md.

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
from federator.cache.batching import BatchesSynced, BatchingEventHandler
from federator.cache.cluster_factories import ClusterInformerFactories
from federator.cache.conflict import is_conflict, retry_on_conflict
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
from federator.cache.mutation_cache import MutationCache
from federator.cache.notification import AddNotification, DeleteNotification, Notification, UpdateNotification
from federator.cache.pager import each_item
from federator.cache.predicates import Predicate, PredicateHandler
from federator.cache.rate_limiter import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    WithMaxWaitRateLimiter,
    default_controller_rate_limiter,
)
from federator.cache.reflector import Reflector, ReflectorStore, RelistCause
from federator.cache.reflector_status import ReflectorState, ReflectorStatus
from federator.cache.resync import AdaptiveResync
from federator.cache.retry_watcher import retry_watch
from federator.cache.shared_informer import HandlerRegistration, InformerStopped, SharedInformer
from federator.cache.wait import CacheNotSynced, Syncable, wait_for_cache_sync
from federator.cache.work_queue import QueueShutDown, RateLimitingQueue
from federator.cache.workers import RequeueAfter, WorkerPool, run_workers

__all__ = [
    "NAMESPACE_INDEX",
    "AdaptiveResync",
    "AddNotification",
    "Backoff",
    "BatchesSynced",
    "BatchingEventHandler",
    "BucketRateLimiter",
    "CacheNotSynced",
    "ClusterInformerFactories",
    "DeleteNotification",
    "DeltaSink",
    "FilteringResourceEventHandler",
    "HandlerRegistration",
    "IndexFunc",
    "Indexer",
    "InformerStopped",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "LabelPredicate",
    "ListWatch",
    "Lister",
    "MaxOfRateLimiter",
    "MutationCache",
    "NamespaceLister",
    "NewListWatch",
    "Notification",
    "Predicate",
    "PredicateHandler",
    "QueueShutDown",
    "RateLimiter",
    "RateLimitingQueue",
    "Reflector",
    "ReflectorState",
    "ReflectorStatus",
    "ReflectorStore",
    "RelistCause",
    "RequeueAfter",
    "ResourceEventHandler",
    "ResourceEventHandlerFuncs",
    "SharedInformer",
    "SharedInformerFactory",
    "Syncable",
    "Tombstone",
    "UpdateNotification",
    "WithMaxWaitRateLimiter",
    "WorkerPool",
    "default_controller_rate_limiter",
    "each_item",
    "is_conflict",
    "meta_namespace_index_func",
    "meta_namespace_key",
    "retry_on_conflict",
    "retry_watch",
    "run_workers",
    "split_meta_namespace_key",
    "wait_for_cache_sync",
]

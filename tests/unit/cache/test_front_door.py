"""What `federator.cache` offers."""

from __future__ import annotations

import inspect

import federator.cache


def test_the_public_names() -> None:
    assert set(federator.cache.__all__) == {
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
    }


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in federator.cache.__all__:
        public = getattr(federator.cache, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            assert public.__doc__, name

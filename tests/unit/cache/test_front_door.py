"""What `federator.cache` offers."""

from __future__ import annotations

import inspect

import federator.cache


def test_the_public_names() -> None:
    assert set(federator.cache.__all__) == {
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
    }


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in federator.cache.__all__:
        public = getattr(federator.cache, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            assert public.__doc__, name

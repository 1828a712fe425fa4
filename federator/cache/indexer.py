"""Indexer: a store of objects with indexes over them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from types import MappingProxyType

import structlog

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.compressor import Compressor
from federator.errors import InvalidInput

log = structlog.get_logger(__name__)

IndexFunc = Callable[[KubeObject], Iterable[str]]
"""Returns the values under which an object is found; the same ones for the same object."""

NAMESPACE_INDEX = "namespace"

_NAMED_QUARANTINED = 10

OBJECT_BYTES = 600
"""What an object takes besides its JSON: its names and versions, its key, its places in the store and one index."""


def meta_namespace_index_func(obj: KubeObject) -> Sequence[str]:
    """Indexes by namespace; cluster-scoped objects under the empty value."""
    return (obj.namespace,)


class _Index:
    """One index. Remembers each key's values, so that removing is exact whatever the index function does by then."""

    __slots__ = ("func", "keys_by_value", "name", "quarantined", "values_by_key")

    def __init__(self, name: str, func: IndexFunc) -> None:
        self.name = name
        self.func = func
        self.keys_by_value: dict[str, set[str]] = {}  # values without keys are dropped
        self.values_by_key: dict[str, tuple[str, ...]] = {}
        self.quarantined: dict[str, str] = {}

    def values(self, obj: KubeObject) -> tuple[str, ...]:
        values = self.func(obj)
        if isinstance(values, str):
            raise TypeError("an index function returned a string; a collection of strings is needed")
        return tuple(dict.fromkeys(values))

    def put(self, key: str, obj: KubeObject) -> None:
        try:
            values = self.values(obj)
        except Exception as error:  # noqa: BLE001 - foreign code; the object is quarantined
            log.warning("index function failed, object not in index", index=self.name, key=key, error=repr(error))
            self.remove(key)
            self.quarantined[key] = repr(error)
            return
        if self.values_by_key.get(key) == values:
            return
        self.remove(key)
        self.values_by_key[key] = values
        for value in values:
            self.keys_by_value.setdefault(value, set()).add(key)

    def remove(self, key: str) -> None:
        if self.quarantined:
            self.quarantined.pop(key, None)
        for value in self.values_by_key.pop(key, ()):
            keys = self.keys_by_value[value]
            keys.discard(key)
            if not keys:
                del self.keys_by_value[value]


class _Restored(Mapping[str, KubeObject]):
    """Compressed objects by key, each decompressed when it is asked for."""

    def __init__(self, items: Mapping[str, KubeObject], compressor: Compressor) -> None:
        self._items = items
        self._compressor = compressor

    def __getitem__(self, key: str) -> KubeObject:
        return self._compressor.restore(self._items[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Indexer:
    """Objects by key, and by the values that index functions give them.

    Promises:
        * Every function is atomic: a query sees one state of the whole store, also while it is replaced.
        * An object whose index function raises is stored all the same, but missing from that index: quarantined,
          counted and named, until a state comes that can be indexed.

    Bound to the thread that uses it first, the one of its event loop; any other gets a RuntimeError.
    """

    def __init__(self, indexers: Mapping[str, IndexFunc] | None = None, *, compress: bool = False) -> None:
        """Creates an empty store.

        Args:
            indexers: index functions, by index name.
            compress: keep the objects' JSON compressed, in a sixth of the memory or less. Each object that is read is
                decompressed then, some 10 µs for one of 3 KB; `list_keys` and `index_keys` need none of that.
        """
        self._thread = 0
        self._compressor = Compressor() if compress else None
        self._items: dict[str, KubeObject] = {}
        self._raw_bytes = 0
        self._hits = 0
        self._misses = 0
        self._indexes: dict[str, _Index] = {}
        self._last_resource_version = ""
        if indexers:
            self._indexes = {name: _Index(name, func) for name, func in indexers.items()}

    @property
    def last_resource_version(self) -> str:
        """Version of the last write, bookmark or replacement. In an informer, the low-water mark.

        Everything up to the low-water mark is applied; an object may already be newer.
        """
        return self._last_resource_version

    def add(self, obj: KubeObject) -> None:
        """Stores a state, replacing the one of the same key."""
        self.put(obj.key, obj)
        self.bookmark(obj.resource_version)

    def update(self, obj: KubeObject) -> None:
        """Same as `add`."""
        self.add(obj)

    def delete(self, obj: KubeObject | Tombstone) -> None:
        """Forgets the object; unknown ones are ignored."""
        self.remove(obj.key)
        if isinstance(obj, KubeObject):
            self.bookmark(obj.resource_version)

    def replace(self, objects: Sequence[KubeObject], resource_version: str) -> Mapping[str, KubeObject]:
        """Holds exactly these objects from now on; returns what was held before, by key and as it was kept."""
        self._check_thread()
        before = self._items
        if self._compressor is None:
            self._items = {obj.key: obj for obj in objects}
        else:
            self._compressor.learn(objects)
            self._items = {obj.key: self._compressor.compress(obj) for obj in objects}
        self._raw_bytes = sum(len(kept.raw) for kept in self._items.values())
        self._indexes = {name: self._build(name, index.func) for name, index in self._indexes.items()}
        self.bookmark(resource_version)
        return before

    def put(self, key: str, obj: KubeObject) -> KubeObject | None:
        """Stores a state and returns the one before; leaves `last_resource_version` alone."""
        self._check_thread()
        before = self._items.get(key)
        kept = self._items[key] = self._compressor.compress(obj) if self._compressor else obj
        self._raw_bytes += len(kept.raw) - (len(before.raw) if before else 0)
        for index in self._indexes.values():
            index.put(key, obj)
        return None if before is None else self.whole(before)

    def remove(self, key: str) -> KubeObject | None:
        """Forgets a key and returns its last state; leaves `last_resource_version` alone."""
        self._check_thread()
        before = self._items.pop(key, None)
        if before is not None:
            self._raw_bytes -= len(before.raw)
            for index in self._indexes.values():
                index.remove(key)
        return None if before is None else self.whole(before)

    def bookmark(self, resource_version: str) -> None:
        """Notes that everything up to a version is applied; an empty one says nothing."""
        if resource_version:
            self._last_resource_version = resource_version

    def get(self, obj: KubeObject | Tombstone) -> KubeObject | None:
        """The stored state of an object, or of the one a tombstone stands for."""
        return self.get_by_key(obj.key)

    def get_by_key(self, key: str) -> KubeObject | None:
        """The stored state, or None."""
        self._check_thread()
        kept = self._items.get(key)
        if kept is None:
            self._misses += 1
            return None
        self._hits += 1
        return self.whole(kept)

    def kept(self, key: str) -> KubeObject | None:
        """The stored state as it is kept, or None: whose JSON may be compressed, but which costs nothing to get.

        For who compares states, or gives the same ones to `replace` again; see `whole`.
        """
        self._check_thread()
        return self._items.get(key)

    def list_kept(self) -> list[KubeObject]:
        """All states as they are kept."""
        self._check_thread()
        return list(self._items.values())

    def keep(self, obj: KubeObject) -> KubeObject:
        """Returns a state as it will be kept, for who reads many and gives them to `replace`."""
        return obj if self._compressor is None else self._compressor.keep(obj)

    def whole(self, kept: KubeObject) -> KubeObject:
        """Returns a state with its JSON; what is whole already as it is."""
        return kept if self._compressor is None else self._compressor.restore(kept)

    def list(self) -> list[KubeObject]:
        """All states."""
        self._check_thread()
        return self._all_whole(self._items.values())

    def snapshot(self) -> Mapping[str, KubeObject]:
        """All states by key, as they are now: later changes are not in it. It holds the states, not their indexes."""
        self._check_thread()
        items = self._items.copy()
        return MappingProxyType(items) if self._compressor is None else _Restored(items, self._compressor)

    # Below, `list` is the method above.

    def list_keys(self) -> builtins.list[str]:
        """All keys."""
        self._check_thread()
        return [*self._items]

    def by_index(self, index_name: str, value: str) -> builtins.list[KubeObject]:
        """The objects an index has under a value.

        Raises:
            InvalidInput: there is no such index.
        """
        items = self._items
        keys = self._index(index_name).keys_by_value.get(value, ())
        return self._all_whole(items[key] for key in keys)

    def index_keys(self, index_name: str, value: str) -> builtins.list[str]:
        """The keys an index has under a value.

        Raises:
            InvalidInput: there is no such index.
        """
        return [*self._index(index_name).keys_by_value.get(value, ())]

    def index(self, index_name: str, obj: KubeObject) -> builtins.list[KubeObject]:
        """The objects that share at least one of an object's values.

        Raises:
            InvalidInput: there is no such index.
            Exception: what the index function raised for `obj`.
        """
        index = self._index(index_name)
        keys: set[str] = set().union(*(index.keys_by_value.get(value, ()) for value in index.values(obj)))
        return self._all_whole(self._items[key] for key in keys)

    def list_index_func_values(self, index_name: str) -> builtins.list[str]:
        """All values an index has objects under.

        Raises:
            InvalidInput: there is no such index.
        """
        return [*self._index(index_name).keys_by_value]

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {name: index.func for name, index in self._indexes.items()}

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Adds indexes, complete at once over what is stored.

        Raises:
            InvalidInput: a name is taken; nothing was added.
        """
        self._check_thread()
        if taken := self._indexes.keys() & indexers.keys():
            raise InvalidInput("index name", ", ".join(sorted(taken)), "a name that no index has yet")
        self._indexes |= {name: self._build(name, func) for name, func in indexers.items()}

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts.

        `bytes` are what the objects take, as good as it can be told; `hits` and `misses` lookups by key that found
        something or nothing; `quarantined_keys` the first ten of each index that has any.
        """
        quarantined = {name: index.quarantined for name, index in self._indexes.items() if index.quarantined}
        return {
            "objects": len(self._items),
            "bytes": self._raw_bytes + OBJECT_BYTES * len(self._items),
            "hits": self._hits,
            "misses": self._misses,
            "resource_version": self._last_resource_version,
            "index_values": {name: len(index.keys_by_value) for name, index in self._indexes.items()},
            "quarantined": len(set().union(*quarantined.values())),
            "quarantined_keys": {name: tuple(keys)[:_NAMED_QUARANTINED] for name, keys in quarantined.items()},
        }

    def _build(self, name: str, func: IndexFunc) -> _Index:
        index = _Index(name, func)
        for key, kept in self._items.items():
            index.put(key, self.whole(kept))
        return index

    def _all_whole(self, kept: Iterable[KubeObject]) -> builtins.list[KubeObject]:
        return [*kept] if self._compressor is None else [*map(self._compressor.restore, kept)]

    def _index(self, name: str) -> _Index:
        self._check_thread()
        index = self._indexes.get(name)
        if index is None:
            raise InvalidInput("index name", name, ", ".join(sorted(self._indexes)) or "none, there are no indexes")
        return index

    def _check_thread(self) -> None:
        if get_ident() != self._thread:
            if self._thread:
                raise RuntimeError("an Indexer is used from another thread than its event loop's")
            self._thread = get_ident()

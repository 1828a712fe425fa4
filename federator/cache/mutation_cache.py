"""MutationCache: reading one's own writes from an informer's store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from federator.api.object import KubeObject
from federator.api.resource_version import compare, is_older, is_ordered
from federator.cache.clock import loop_time
from federator.cache.indexer import Indexer

TTL = 300.0
"""Seconds for which a written state is given, if the informer does not catch up before; it mostly does in one."""

MAX_ENTRIES = 1000
"""Written states that are kept; a look at all of them, which `by_index` takes, is some 3 ms."""


class _Entry(msgspec.Struct):
    """What is known of a written state beside the state.

    Attributes:
        obj: the state.
        expires: on the clock.
        mark: the store's own version when it was written; one from before it means that the cluster was restored.
        was_stored: whether the store has held this object, by UID; when it then does not, the object was deleted.
    """

    obj: KubeObject
    expires: float
    mark: str
    was_stored: bool = False


class MutationCache:
    """An informer's Indexer with what the program itself wrote on top, until the informer has caught up.

    An informer hears of the program's own writes a moment after the program. A program that reads in between, and
    decides by what it reads, does things twice. It tells this of each answer to a write:

        cache = MutationCache(informer.indexer)
        cache.mutated(answered)                         # the object as the apiserver answered a create or update
        cache.get_by_key("shop/web")                    # what was written, or what has become of it since

    Promises:
        * A read gives the newer of the stored and the written state, by their resourceVersions. Where these cannot be
          compared it gives the stored one.
        * Once the store stands at the version of a write, whatever it then has or has not is newer. A write whose
          object was deleted, or deleted and created again, brings nothing back, also when the answer comes late.
        * It is bounded: a written state is given for `ttl` seconds at most, and of more than `max_entries` the oldest
          are given up.

    For the moment in which older changes of other objects still wait in the informer's queue, an object whose deletion
    was taken ahead of them may be given as it was written, if the answer came after that.

    Written states are given as they came: give it what the informer's transform would make of them, if there is one.
    Those that an informer of a part of the type does not select are given, too, until it has caught up.

    Like the Indexer it belongs to one event loop, and the Indexer must be one that an informer keeps.
    """

    def __init__(
        self,
        indexer: Indexer,
        *,
        ttl: float = TTL,
        max_entries: int = MAX_ENTRIES,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        """Puts an empty cache over a store.

        Args:
            indexer: an informer's.
            ttl: seconds.
            max_entries: at least 1.
            clock: monotonic, in seconds.
        """
        self._indexer = indexer
        self._ttl = ttl
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # oldest write first
        self._written = Indexer()  # the same objects, indexed as far as they were asked for by index
        self._caught_up = 0
        self._expired = 0
        self._evicted = 0
        self._incomparable = 0

    def mutated(self, obj: KubeObject) -> None:
        """Takes a state that the apiserver answered a write with; of several of one object the newest counts.

        One whose resourceVersion has no order is counted and not kept.
        """
        if not is_ordered(obj.resource_version):
            self._incomparable += 1
            return
        key = obj.key
        before = self._entries.get(key)
        if before is not None and is_older(obj.resource_version, before.obj.resource_version):
            return
        now = self._clock()
        was_stored = before is not None and before.was_stored and before.obj.uid == obj.uid
        entry = _Entry(obj, now + self._ttl, self._indexer.last_resource_version, was_stored)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._written.put(key, obj)
        self._is_given(key, entry, now)
        while self._entries:
            oldest_key, oldest = next(iter(self._entries.items()))
            if not self._is_given(oldest_key, oldest, now):
                continue
            if len(self._entries) <= self._max_entries:
                break
            self._evicted += 1
            self._drop(oldest_key)

    def get_by_key(self, key: str) -> KubeObject | None:
        """The newest state known, or None."""
        entry = self._entries.get(key)
        if entry is not None and self._is_given(key, entry, self._clock()):
            return entry.obj
        return self._indexer.get_by_key(key)

    def by_index(self, index_name: str, value: str) -> Sequence[KubeObject]:
        """The objects that an index of the Indexer has under a value, each found by, and in, its newest state.

        A written state that the index function raises for is missing, as it would be from the Indexer.

        Raises:
            InvalidInput: the Indexer has no such index.
        """
        stored = self._indexer.by_index(index_name, value)
        now = self._clock()
        for key, entry in list(self._entries.items()):
            self._is_given(key, entry, now)
        if not self._entries:
            return stored
        if index_name not in self._written.get_indexers():
            self._written.add_indexers({index_name: self._indexer.get_indexers()[index_name]})
        unwritten = [obj for obj in stored if obj.key not in self._entries]
        return unwritten + self._written.by_index(index_name, value)

    def statistics(self) -> Mapping[str, int]:
        """Counts of written states: that are kept, and that are not any more or never were, by reason."""
        return {
            "entries": len(self._entries),
            "caught_up": self._caught_up,
            "expired": self._expired,
            "evicted": self._evicted,
            "incomparable": self._incomparable,
        }

    def _is_given(self, key: str, entry: _Entry, now: float) -> bool:
        """Whether a written state is still to be given; drops it otherwise."""
        if self._has_caught_up(key, entry):
            self._caught_up += 1
        elif now >= entry.expires:
            self._expired += 1
        else:
            return True
        self._drop(key)
        return False

    def _has_caught_up(self, key: str, entry: _Entry) -> bool:
        version = entry.obj.resource_version
        mark = self._indexer.last_resource_version
        if mark and (compare(mark, version) != -1 or is_older(mark, entry.mark)):
            return True
        stored = self._indexer.kept(key)
        if stored is None:
            return entry.was_stored
        entry.was_stored = stored.uid == entry.obj.uid
        return compare(stored.resource_version, version) != -1

    def _drop(self, key: str) -> None:
        del self._entries[key]
        self._written.remove(key)

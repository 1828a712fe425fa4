"""Snapshot: a full listing on its way in, and what it leaves to be deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from federator.aggregator.ingest.frames import Change
from federator.aggregator.ledger.records import Delete, StoredKey
from federator.api.key import local_key
from federator.api.resource import ResourceType
from federator.api.resource_version import compare


class Snapshot:
    """Remembers which names a listing has named.

    Items are applied as they come, since each is true by itself. That something is gone is known only at the end:
    until then nothing is deleted, and a snapshot that never ends has deleted nothing.
    """

    def __init__(self, resource_type: ResourceType) -> None:
        self.type = resource_type
        self._named: set[str] = set()

    def name(self, changes: Iterable[Change]) -> None:
        """Takes note that these objects were spoken of: in the listing, or by a change after its begin."""
        self._named.update(local_key(change.namespace, change.name) for change in changes)

    def refused(self, namespace: str, name: str) -> None:
        """Takes note of an item that could not be taken: it exists, so what is stored of it stays."""
        self._named.add(local_key(namespace, name))

    def doomed(
        self, stored: Iterable[StoredKey], resource_version: str, version_of: Callable[[int], str]
    ) -> Iterator[Delete]:
        """Yields what has to be deleted at the end.

        Args:
            stored: what the ledger holds of the type.
            resource_version: of the listing. What is stored in a newer state stays: the listing came from a server
                that lags, and knows nothing of it yet. Versions that cannot be compared prove no such thing.
            version_of: tells an object's resourceVersion from the revision of its newest entry.
        """
        for held in stored:
            if local_key(held.namespace, held.name) in self._named:
                continue
            if compare(version_of(held.revision), resource_version) != 1:
                yield Delete(held.namespace, held.name)

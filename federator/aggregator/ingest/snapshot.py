"""Snapshot: a full listing on its way in, and what it leaves to be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from federator.aggregator.ingest.admission import Ticket
from federator.aggregator.ingest.frames import Change, Names, SnapshotBegin
from federator.aggregator.ingest.repairs import Repairs
from federator.aggregator.ingest.stored_states import StoredStates
from federator.api.key import local_key
from federator.api.resource_version import compare


class Plan(StrEnum):
    """What an agent is to send of a listing."""

    NOTHING = "nothing"
    DIFFERING = "differing"
    ALL = "all"


class Snapshot:
    """Remembers which names a listing has named, or which of the stored ones it was found not to have.

    Items are applied as they come, since each is true by itself. That something is gone is known only at the end:
    until then nothing is deleted, and a snapshot that never ends has deleted nothing.

    Attributes:
        type: the type listed.
        resource_version: of the list; "" where the agent has not told.
        left_out: objects that are not in the listing's digest.
        is_restored: resourceVersions from before the listing mean nothing.
        plan: what the agent was told to send; None before it was told.
        ticket: its place among the listings that are taken in; None where it needs none.
        states: what is stored, once they are compared.
        repairs: what is done about a mismatch; None where there is none.
    """

    def __init__(self, begin: SnapshotBegin) -> None:
        self.type = begin.type
        self.resource_version = begin.resource_version
        self.left_out: Names = begin.digest.left_out if begin.digest else frozenset()
        self.is_restored = begin.is_restored
        self.plan: Plan | None = None
        self.ticket: Ticket | None = None
        self.states: StoredStates | None = None
        self.repairs: Repairs | None = None
        self._named: set[str] = set()
        self.leave_out(self.left_out)

    def name(self, changes: Iterable[Change]) -> None:
        """Takes note that these objects were spoken of: in the listing, or by a change after its begin."""
        self._named.update(local_key(change.namespace, change.name) for change in changes)

    def leave_out(self, names: Iterable[tuple[str, str]]) -> None:
        """Takes note of objects that exist, and could not be sent or taken: what is stored of them stays."""
        self._named.update(local_key(namespace, name) for namespace, name in names)

    def is_named(self, namespace: str, name: str) -> bool:
        """Whether an object was spoken of."""
        return local_key(namespace, name) in self._named

    def is_gone(self, stored_version: str, listed_version: str) -> bool:
        """Whether a stored object is gone that was not spoken of.

        Args:
            stored_version: its resourceVersion.
            listed_version: of the listing. What is stored in a newer state stays: the listing came from a server that
                lags, and knows nothing of it yet. Versions that cannot be compared prove no such thing, nor do those
                from before a restore.
        """
        return self.is_restored or compare(stored_version, listed_version) != 1

    def moved(self) -> None:
        """A frame of it came."""
        if self.ticket is not None:
            self.ticket.moved()

    def close(self) -> None:
        """Gives its place up; again does nothing."""
        if self.ticket is not None:
            self.ticket.release()

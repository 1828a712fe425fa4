"""Deltas: what happened to one key, or to the whole of one type."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from federator.api.object import KubeObject


class DeltaType(StrEnum):
    """client-go's delta types; ReplacedAll, SyncAll and Bookmark concern the whole store and are barriers."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"
    REPLACED = "Replaced"
    SYNC = "Sync"
    REPLACED_ALL = "ReplacedAll"
    SYNC_ALL = "SyncAll"
    BOOKMARK = "Bookmark"


class Tombstone(msgspec.Struct, frozen=True):
    """A deletion that was found by its absence (client-go: DeletedFinalStateUnknown).

    Attributes:
        key: authoritative, `namespace/name` or `name`.
        object: the last state known, which may be out of date, or None.
    """

    key: str
    object: KubeObject | None


class Delta(msgspec.Struct, frozen=True):
    """One change of one key.

    Attributes:
        type: what happened.
        object: the new state; for DELETED the last state or a Tombstone.
    """

    type: DeltaType
    object: KubeObject | Tombstone

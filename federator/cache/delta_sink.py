"""The seam to whoever carries an informer's deltas further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from federator.api.object import KubeObject


class DeltaSink(Protocol):
    """Hears every change of one informer's Indexer, once each and in the order the Indexer took them.

    The calls are plain functions, made between the Indexer's update and the handlers' notifications; there is no queue
    between, so they must be quick. An exception is taken for a defect and ends the informer.
    """

    def replaced_all(self, resource_version: str, objects: Sequence[KubeObject]) -> None:
        """The Indexer now holds exactly these objects: all of a list, in the list's order, each with its bytes."""
        ...

    def upserted(self, obj: KubeObject) -> None:
        """One object was added or updated; `obj` has its bytes, whatever the Indexer retains."""
        ...

    def deleted(self, key: str, obj: KubeObject | None) -> None:
        """One object is gone; `obj` is the last state known, where one is."""
        ...

    def bookmark(self, resource_version: str) -> None:
        """Everything up to this version was told before."""
        ...

"""The seam to whoever carries an informer's deltas further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from federator.api.object import KubeObject


class DeltaSink(Protocol):
    """Hears every change of one informer's Indexer, once each and in the order the Indexer took them.

    The calls are plain functions, made between the Indexer's update and the handlers' notifications; there is no queue
    between, so they must be quick. An exception is taken for a defect and ends the informer.
    """

    def replaced_all(
        self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
    ) -> None:
        """A list was taken over.

        Args:
            resource_version: of the list.
            objects: all of the list, in its order, each with its bytes; the Indexer now holds exactly these, and the
                withheld ones that it held before.
            withheld: by key, the objects of the list whose transform failed, each with what the Indexer still holds.
        """
        ...

    def upserted(self, obj: KubeObject, before: KubeObject | None) -> None:
        """One object was added or updated.

        Args:
            obj: its new state with its bytes, whatever the Indexer retains.
            before: what the Indexer held.
        """
        ...

    def deleted(self, key: str, obj: KubeObject | None, before: KubeObject) -> None:
        """One object is gone.

        Args:
            key: its key.
            obj: the last state known, where one is: of a deletion that was seen with the deletion's version.
            before: what the Indexer held.
        """
        ...

    def bookmark(self, resource_version: str) -> None:
        """A bookmark came: everything up to this version was told before."""
        ...

    def settled(self, low_water: str) -> None:
        """Everything up to this version has been told by now; told after each of the calls above, once or for several.

        It may be behind the versions of objects that were told: of others, older changes still wait.
        """
        ...

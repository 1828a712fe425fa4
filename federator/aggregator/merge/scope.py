"""Scopes: what the asker may see. Every read path takes one and looks through it."""

from __future__ import annotations

from typing import Protocol

from pyroaring import BitMap

from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource


class Located(Protocol):
    """Where rows are, as far as a scope has to know."""

    def rows_in(self, cluster_id: ClusterID, resource: GroupResource) -> BitMap:
        """The rows of one type in one cluster; not to be changed."""
        ...


class Scope(Protocol):
    """A part of the inventory: whoever asks within it learns nothing of the rest, not even that it is there.

    Both methods say the same of an object. They decide by its key alone, so an object cannot enter or leave a scope.
    Scopes are equal, and hash alike, where they allow the same.
    """

    def rows(self, located: Located) -> BitMap | None:
        """The rows that are allowed just now; None for all of them, which spares the intersection."""
        ...

    def allows(self, key: ObjectKey) -> bool:
        """Whether an object may be seen; asked for each event of a watch, and for each past state."""
        ...


class _Everything:
    """The scope of whoever may see all: until rights are known, everybody."""

    def rows(self, located: Located) -> BitMap | None:
        return None

    def allows(self, key: ObjectKey) -> bool:
        return True


EVERYTHING: Scope = _Everything()
"""Allows every object."""

"""Merged objects: one state of one object of one cluster, decoded when somebody looks into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from federator.aggregator.ledger.records import ObjectEntry
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.wire.body import BodyCodec


class MergedObject:
    """One state of one object; immutable, and so has to stay what `content` returns.

    Attributes:
        key: which object: cluster, type, namespace and name.
        uid: its UID.
        resource_version: its cluster's, of this state.
        revision: the federation's, at which it took this state.
        labels: its labels.
        raw: its JSON.
    """

    __slots__ = ("_content", "key", "labels", "raw", "resource_version", "revision", "uid")

    def __init__(self, entry: ObjectEntry, bodies: BodyCodec) -> None:
        """Takes the state out of its entry.

        Raises:
            InvalidInput: its body cannot be read.
        """
        self.key: Final[ObjectKey] = entry.key
        self.uid: Final[str] = entry.uid
        self.resource_version: Final[str] = entry.resource_version
        self.revision: Final[int] = entry.revision
        self.labels: Final[Mapping[str, str]] = entry.indexed.labels
        self.raw: Final[bytes] = bodies.decode(entry.body)
        self._content: Any = None

    @property
    def cluster_id(self) -> ClusterID:
        """Its cluster."""
        return self.key.cluster_id

    @property
    def namespace(self) -> str:
        """Its namespace; empty for cluster-scoped types."""
        return self.key.namespace

    @property
    def name(self) -> str:
        """Its name."""
        return self.key.name

    @property
    def content(self) -> Any:
        """Its JSON, decoded once; not to be changed.

        Raises:
            msgspec.MsgspecError: it is no JSON.
            RecursionError: it is nested too deeply.
        """
        if self._content is None:
            self._content = msgspec.json.decode(self.raw)
        return self._content

    def __repr__(self) -> str:
        return f"MergedObject({str(self.key)!r}, revision={self.revision})"

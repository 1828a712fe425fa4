"""Field indexes: which fields of objects are indexed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from federator.api.key import ObjectKey
from federator.v1 import inventory_pb2


class FieldIndexState(StrEnum):
    """Whether a field index is used."""

    BUILDING = "BUILDING"
    """Questions are answered without it until it is built."""
    READY = "READY"
    TOO_LARGE = "TOO_LARGE"
    """Its values took too much memory: it was given up, and questions are answered without it."""


class FieldIndex(msgspec.Struct, frozen=True):
    """An index on a field of objects.

    Attributes:
        path: dotted path of the field, a part "*" standing for all elements of an array.
        resources: types whose objects are indexed, such as `deployments.apps`; empty for all.
        state: whether it is used.
        objects: objects that building it has looked at.
        values: different values.
        entries: pairs of a value and an object.
        bytes: memory it takes.
        quarantined: objects that are left out since they could not be read.
        quarantined_keys: the first of these.
        is_from_settings: whether the aggregator's settings name it; then it cannot be dropped at run time.
    """

    path: str
    resources: tuple[str, ...]
    state: FieldIndexState
    objects: int
    values: int
    entries: int
    bytes: int
    quarantined: int
    quarantined_keys: tuple[ObjectKey, ...]
    is_from_settings: bool

    @classmethod
    def from_message(cls, message: inventory_pb2.FieldIndex) -> FieldIndex:
        """Takes the index out of its message."""
        return cls(
            path=message.path,
            resources=tuple(message.resources),
            state=FieldIndexState(inventory_pb2.FieldIndexState.Name(message.state).removeprefix("FIELD_INDEX_STATE_")),
            objects=message.objects,
            values=message.values,
            entries=message.entries,
            bytes=message.bytes,
            quarantined=message.quarantined,
            quarantined_keys=tuple(map(ObjectKey.parse, message.quarantined_keys)),
            is_from_settings=message.is_from_settings,
        )

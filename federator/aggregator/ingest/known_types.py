"""KnownTypes: types that a session has described, so that its frames need not describe them again."""

from __future__ import annotations

from collections.abc import Iterable

from federator.errors import InvalidInput
from federator.v1 import ingest_pb2, types_pb2


class KnownTypes:
    """What one session has said of its types: in Hello, or whole in a frame. As many as the agent names."""

    def __init__(self, types: Iterable[types_pb2.ResourceType] = ()) -> None:
        """Knows those that Hello has described."""
        self._types = {(described.group, described.resource): described for described in types}

    def complete(self, request: ingest_pb2.PushRequest) -> None:
        """Completes the type of a numbered frame, where it has one; a whole one is remembered.

        Raises:
            InvalidInput: a type is only named that was never described.
        """
        kind = request.WhichOneof("frame")
        named = getattr(getattr(request, kind), "type", None) if kind else None
        if not isinstance(named, types_pb2.ResourceType):
            return
        key = (named.group, named.resource)
        if named.version or named.kind:
            if self._types.get(key) != named:
                described = self._types[key] = types_pb2.ResourceType()
                described.CopyFrom(named)
            return
        known = self._types.get(key)
        if known is None:
            raise InvalidInput("type", f"{named.resource[:64]}.{named.group[:64]}", "a type that was described before")
        named.CopyFrom(known)

"""Resource types and states between the vocabulary and its messages.

What comes from the wire is checked: its fields become parts of keys and URL paths.
"""

from __future__ import annotations

import re

from federator.api.cluster import ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.errors import InvalidInput
from federator.v1 import types_pb2

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?")
_KIND = re.compile(r"[A-Za-z0-9]{1,253}")

_TYPE_STATE_PREFIX = "TYPE_STATE_"
_CLUSTER_STATE_PREFIX = "CLUSTER_STATE_"


def resource_type_to_proto(resource_type: ResourceType) -> types_pb2.ResourceType:
    """Returns the message of a resource type."""
    return types_pb2.ResourceType(
        group=resource_type.group,
        version=resource_type.version,
        resource=resource_type.resource,
        kind=resource_type.kind,
        namespaced=resource_type.namespaced,
        singular=resource_type.singular,
        short_names=resource_type.short_names,
        categories=resource_type.categories,
    )


def resource_type_from_proto(message: types_pb2.ResourceType) -> ResourceType:
    """Returns the resource type of a message.

    Raises:
        InvalidInput: group, version, resource or kind is not what an apiserver could serve.
    """
    _check("type.group", message.group, _GROUP)
    _check("type.version", message.version, _LABEL)
    _check("type.resource", message.resource, _LABEL)
    _check("type.kind", message.kind, _KIND)
    return ResourceType(
        group=message.group,
        version=message.version,
        resource=message.resource,
        kind=message.kind,
        namespaced=message.namespaced,
        singular=message.singular,
        short_names=tuple(message.short_names),
        categories=tuple(message.categories),
    )


def type_state_to_proto(state: TypeState) -> types_pb2.TypeState.ValueType:
    """Returns the wire's number of a type's state."""
    return types_pb2.TypeState.Value(_TYPE_STATE_PREFIX + state.value)


def type_state_from_proto(number: types_pb2.TypeState.ValueType) -> TypeState:
    """Returns the state of a number.

    Raises:
        InvalidInput: unspecified, or a number of a newer program.
    """
    try:
        return TypeState(types_pb2.TypeState.Name(number).removeprefix(_TYPE_STATE_PREFIX))
    except ValueError as error:
        raise InvalidInput("state", number, ", ".join(TypeState)) from error


def cluster_state_to_proto(state: ClusterState) -> types_pb2.ClusterState.ValueType:
    """Returns the wire's number of a cluster's state."""
    return types_pb2.ClusterState.Value(_CLUSTER_STATE_PREFIX + state.value)


def cluster_state_from_proto(number: types_pb2.ClusterState.ValueType) -> ClusterState:
    """Returns the state of a number.

    Raises:
        InvalidInput: unspecified, or a number of a newer program.
    """
    try:
        return ClusterState(types_pb2.ClusterState.Name(number).removeprefix(_CLUSTER_STATE_PREFIX))
    except ValueError as error:
        raise InvalidInput("state", number, ", ".join(ClusterState)) from error


def _check(field: str, given: str, allowed: re.Pattern[str]) -> None:
    if not allowed.fullmatch(given):
        raise InvalidInput(field, given, allowed.pattern)

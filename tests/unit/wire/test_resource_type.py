"""Resource types and states survive the wire, and nothing that could not be a path segment gets in."""

from __future__ import annotations

import pytest

from federator.api.cluster import ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.errors import InvalidInput
from federator.v1 import types_pb2
from federator.wire.resource_type import (
    cluster_state_from_proto,
    cluster_state_to_proto,
    resource_type_from_proto,
    resource_type_to_proto,
    type_state_from_proto,
    type_state_to_proto,
)

DEPLOYMENTS = ResourceType(
    group="apps",
    version="v1",
    resource="deployments",
    kind="Deployment",
    namespaced=True,
    singular="deployment",
    short_names=("deploy",),
    categories=("all",),
)
PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)


@pytest.mark.parametrize("resource_type", [DEPLOYMENTS, PODS])
def test_a_resource_type_survives_the_wire(resource_type: ResourceType) -> None:
    sent = resource_type_to_proto(resource_type).SerializeToString()
    assert resource_type_from_proto(types_pb2.ResourceType.FromString(sent)) == resource_type


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("group", "apps/v1"),
        ("group", "Apps"),
        ("group", "."),
        ("version", ""),
        ("version", "v1/pods"),
        ("resource", ""),
        ("resource", "pods/log"),
        ("resource", "../nodes"),
        ("resource", "pods\n"),
        ("kind", ""),
        ("kind", "Pod List"),
    ],
)
def test_what_no_apiserver_could_serve_is_refused(field: str, given: str) -> None:
    message = resource_type_to_proto(DEPLOYMENTS)
    setattr(message, field, given)
    with pytest.raises(InvalidInput, match=rf"type\.{field}"):
        resource_type_from_proto(message)


def test_every_state_survives_the_wire() -> None:
    assert [type_state_from_proto(type_state_to_proto(state)) for state in TypeState] == list(TypeState)
    assert [cluster_state_from_proto(cluster_state_to_proto(state)) for state in ClusterState] == list(ClusterState)


def test_unspecified_states_and_those_of_a_newer_program_are_refused() -> None:
    with pytest.raises(InvalidInput):
        type_state_from_proto(types_pb2.TYPE_STATE_UNSPECIFIED)
    with pytest.raises(InvalidInput):
        type_state_from_proto(99)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        cluster_state_from_proto(types_pb2.CLUSTER_STATE_UNSPECIFIED)

"""Selection: what is collected by default, by name, by namespace, and what is refused."""

from __future__ import annotations

import pytest

from federator.agent.selection import DEFAULT_DENIALS, Selection
from federator.agent.settings import SecretMode
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, UnknownResourceType


def served(group: str, resource: str, kind: str, *short_names: str, namespaced: bool = True) -> ResourceType:
    return ResourceType(
        group=group,
        version="v1",
        resource=resource,
        kind=kind,
        namespaced=namespaced,
        singular=kind.lower(),
        short_names=short_names,
    )


PODS = served("", "pods", "Pod", "po")
NODES = served("", "nodes", "Node", "no", namespaced=False)
SECRETS = served("", "secrets", "Secret")
EVENTS = served("", "events", "Event", "ev")
NEW_EVENTS = served("events.k8s.io", "events", "Event", "ev")
LEASES = served("coordination.k8s.io", "leases", "Lease")
ENDPOINTS = served("", "endpoints", "Endpoints", "ep")
SLICES = served("discovery.k8s.io", "endpointslices", "EndpointSlice")
DEPLOYMENTS = served("apps", "deployments", "Deployment", "deploy")
KNATIVE = served("serving.knative.dev", "services", "Service", "ksvc")
SERVICES = served("", "services", "Service", "svc")
SERVED = (PODS, NODES, SECRETS, EVENTS, NEW_EVENTS, LEASES, ENDPOINTS, SLICES, DEPLOYMENTS, KNATIVE, SERVICES)


def test_by_default_everything_but_the_denials_each_with_its_reason() -> None:
    selected = Selection().select(SERVED)
    assert selected.types == (PODS, NODES, SLICES, DEPLOYMENTS, KNATIVE, SERVICES)
    assert selected.left_out.keys() == {SECRETS, EVENTS, NEW_EVENTS, LEASES, ENDPOINTS}
    assert selected.left_out[LEASES] == DEFAULT_DENIALS[GroupResource("coordination.k8s.io", "leases")]
    assert "secrets=metadata" in selected.left_out[SECRETS]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pods", {PODS}),
        ("pod", {PODS}),
        ("po", {PODS}),
        ("Pod", {PODS}),
        ("deployments.apps", {DEPLOYMENTS}),
        ("deploy.v1.apps", {DEPLOYMENTS}),
        ("services", {SERVICES, KNATIVE}),
        ("services.serving.knative.dev", {KNATIVE}),
        ("services.v1", {SERVICES}),
        ("events", {EVENTS, NEW_EVENTS}),
        ("events.events.k8s.io", {NEW_EVENTS}),
        ("leases", {LEASES}),
    ],
)
def test_a_name_narrows_as_kubectl_would_and_overrides_a_denial(name: str, expected: set[ResourceType]) -> None:
    selected = Selection([name]).select(SERVED)
    assert set(selected.types) == expected
    assert selected.left_out.keys() == set(SERVED) - expected


@pytest.mark.parametrize("name", ["deployments.batch", "pods.v2", "pods.apps", "podz"])
def test_what_nothing_matches_is_refused_unless_another_name_does(name: str) -> None:
    only, with_pods = Selection([name]), Selection([name, "pods"])
    with pytest.raises(UnknownResourceType, match=name):
        only.check(only.select(SERVED))
    selected = with_pods.select(SERVED)
    with_pods.check(selected)
    assert (selected.types, selected.unmatched) == ((PODS,), (name,))


def test_without_names_even_an_empty_cluster_is_no_mistake() -> None:
    Selection().check(Selection().select([]))


def test_a_namespace_leaves_out_types_without_one_unless_named() -> None:
    assert NODES not in Selection(namespace="shop").select(SERVED).types
    assert Selection(["nodes"], namespace="shop").select(SERVED).types == (NODES,)


@pytest.mark.parametrize("mode", [SecretMode.METADATA, SecretMode.FINGERPRINT])
def test_secrets_are_collected_when_asked_for(mode: SecretMode) -> None:
    assert SECRETS in Selection(secrets=mode).select(SERVED).types
    assert Selection(["secrets"], secrets=mode).select(SERVED).types == (SECRETS,)
    assert SECRETS not in Selection(["pods"], secrets=mode).select(SERVED).types


@pytest.mark.parametrize("name", ["secrets", "Secret", "secrets.v1"])
def test_naming_secrets_while_they_are_off_is_a_contradiction(name: str) -> None:
    with pytest.raises(InvalidInput, match="secrets=metadata"):
        Selection(["pods", name])


@pytest.mark.parametrize("name", ["", " ", "pods/log", "p o", "../secrets", "pods.", "*", "pods,nodes"])
def test_what_can_be_no_name_of_a_type_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="names of types") as refused:
        Selection(["pods", name])
    assert (refused.value.field, refused.value.given) == ("resources", name)


@pytest.mark.parametrize("namespace", ["a/b", "..", "Shop", "shop?watch=1", "a" * 64, "-a"])
def test_what_can_be_no_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Selection(namespace=namespace)
    assert (refused.value.field, refused.value.given) == ("namespace", namespace)

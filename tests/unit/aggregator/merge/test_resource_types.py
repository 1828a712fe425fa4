from __future__ import annotations

import itertools

import pytest

from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.merge.resource_types import MAX_NAMES, ResourceTypes
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, UnknownResourceType
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation


def crd(resource: str, group: str, kind: str, version: str = "v1", **names: tuple[str, ...]) -> ResourceType:
    return ResourceType(
        group=group, version=version, resource=resource, kind=kind, namespaced=True, singular=kind.lower(), **names
    )


INGRESSES = crd("ingresses", "networking.k8s.io", "Ingress", short_names=("ing",))
OLD_INGRESSES = crd("ingresses", "extensions", "Ingress", "v1beta1", short_names=("ing",))
CERTIFICATES = crd(
    "certificates", "cert-manager.io", "Certificate", short_names=("cert",), categories=("cert-manager",)
)
EVENTS = crd("events", "", "Event", short_names=("ev",))
NEW_EVENTS = crd("events", "events.k8s.io", "Event", short_names=("ev",))
HIJACK = crd("hijacks", "aaa.example.com", "Deployment", short_names=("po",), categories=("pods", "all"))
HIJACK_PLURAL = crd("deployments", "aaa.example.com", "Deployments")
GATEWAYS = crd("gateways", "gateway.networking.k8s.io", "Gateway")
OTHER_GATEWAYS = crd("gateways", "a.example.com", "Gateway")
WIDGETS = crd("widgets", "b.example.com", "Widget")
OTHER_WIDGETS = crd("widgets", "a.example.com", "Widget")


async def _types(*served: ResourceType, cluster: str = "a") -> ResourceTypes:
    federation = Federation()
    await federation.join(cluster, served)
    return federation.view.types


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pods", ["pods"]),
        ("pod", ["pods"]),
        ("po", ["pods"]),
        ("Pod", ["pods"]),
        ("PODS", ["pods"]),
        ("pods.", ["pods"]),
        ("pods.v1", ["pods"]),
        ("pods.v1.", ["pods"]),
        ("deployments.apps", ["deployments.apps"]),
        ("deploy.apps", ["deployments.apps"]),
        ("Deployment", ["deployments.apps"]),
        ("Deployment.apps", ["deployments.apps"]),
        ("deployments.v1.apps", ["deployments.apps"]),
        ("deployments.v1", ["deployments.apps"]),
        ("events", ["events"]),
        ("events.events.k8s.io", ["events.events.k8s.io"]),
        ("ing", ["ingresses.extensions"]),
        ("ingresses.networking.k8s.io", ["ingresses.networking.k8s.io"]),
        ("ingresses.networking", ["ingresses.networking.k8s.io"]),
        ("certificates.cert-manager", ["certificates.cert-manager.io"]),
        ("cert-manager", ["certificates.cert-manager.io"]),
        ("widgets", ["widgets.a.example.com"]),
        ("widgets.b", ["widgets.b.example.com"]),
        ("gateways", ["gateways.gateway.networking.k8s.io"]),
        ("all", ["deployments.apps", "hijacks.aaa.example.com", "pods"]),
        ("all.apps", ["deployments.apps"]),
        ("pods,nodes", ["nodes", "pods"]),
        ("po, no", ["nodes", "pods"]),
        ("deployments", ["deployments.apps"]),
    ],
)
async def test_names_resolve_with_kubectls_precedence(name: str, expected: list[str]) -> None:
    types = await _types(
        *(HIJACK, HIJACK_PLURAL, OTHER_WIDGETS, WIDGETS, PODS, NODES, DEPLOYMENTS, INGRESSES, OLD_INGRESSES),
        *(CERTIFICATES, EVENTS, NEW_EVENTS, OTHER_GATEWAYS, GATEWAYS),
    )
    assert sorted(map(str, types.resolve([name]))) == expected


@pytest.mark.parametrize(
    "name", ["widgets", "pods.apps", "pods.v2", "deployments.v2.apps", "deployments.v1.batch", "."]
)
async def test_what_no_member_serves_is_unknown(name: str) -> None:
    types = await _types(PODS, DEPLOYMENTS)
    with pytest.raises(UnknownResourceType) as raised:
        types.resolve(["pods", name])
    assert raised.value.resource == name


@pytest.mark.parametrize("names", [[], [""], ["pods", ""], ["pods,,nodes"], ["pods"] * (MAX_NAMES + 1)])
async def test_an_empty_question_is_refused_by_field(names: list[str]) -> None:
    types = await _types(PODS, NODES)
    with pytest.raises(InvalidInput, match=r"selection\.resources"):
        types.resolve(names, field="selection.resources")


async def test_a_type_of_some_members_is_a_type() -> None:
    federation = Federation()
    await federation.join("a", [PODS])
    await federation.join("b", [PODS, CERTIFICATES])
    types = federation.view.types
    assert types.resolve(["certificates"]) == {CERTIFICATES.group_resource}
    assert [(str(served.type), served.clusters) for served in types.served()] == [
        ("v1 pods", ("a", "b")),
        ("cert-manager.io/v1 certificates", ("b",)),
    ]
    assert types.kind(ClusterID("b"), CERTIFICATES.group_resource) == "Certificate"
    assert types.kind(ClusterID("a"), CERTIFICATES.group_resource) == ""
    assert types.is_namespaced(CERTIFICATES.group_resource)
    assert not types.is_namespaced(NODES.group_resource)


async def test_the_newest_version_describes_a_type() -> None:
    federation = Federation()
    versions = ["v1beta1", "v2", "v1", "v2alpha1", "odd", "v10beta2"]
    for number, version in enumerate(versions):
        await federation.join(f"c{number}", [crd("widgets", "b.example.com", "Widget", version)])
    (served,) = federation.view.types.served()
    assert served.type.version == "v2"
    assert len(served.clusters) == len(versions)
    for version in versions:
        assert federation.view.types.resolve([f"widgets.{version}"]) == {GroupResource("b.example.com", "widgets")}


async def test_a_type_that_nobody_serves_any_more_gives_way_but_still_resolves() -> None:
    federation = Federation()
    await federation.join("a", [OTHER_WIDGETS, WIDGETS])
    types, ledger = federation.view.types, federation.ledger
    await ledger.set_type_state(ClusterID("a"), OTHER_WIDGETS, TypeState.ABSENT)
    assert types.resolve(["widgets"]) == {WIDGETS.group_resource}
    await ledger.set_type_state(ClusterID("a"), WIDGETS, TypeState.ABSENT)
    assert types.resolve(["widgets"]) == {OTHER_WIDGETS.group_resource}
    assert types.served() == []


async def test_what_a_removed_cluster_served_is_not_served() -> None:
    federation = Federation()
    await federation.join("a", [PODS])
    await federation.join("b", [PODS, WIDGETS])
    await federation.ledger.set_cluster_state(ClusterID("b"), ClusterState.REMOVED)
    assert [served.clusters for served in federation.view.types.served()] == [("a",)]
    reloaded = ResourceTypes()
    reloaded.load(federation.ledger)
    assert reloaded.served() == federation.view.types.served()
    await federation.join("b", [WIDGETS])
    assert GroupResource("b.example.com", "widgets") in {s.type.group_resource for s in federation.view.types.served()}


async def test_of_a_removed_cluster_only_descriptions_are_kept() -> None:
    federation = Federation()
    await federation.join("a", [PODS])
    await federation.join("b", [PODS, WIDGETS])
    types, b = federation.view.types, ClusterID("b")
    await federation.ledger.set_cluster_state(b, ClusterState.REMOVED)
    await federation.ledger.set_type_state(b, WIDGETS, TypeState.ABSENT, "cluster removed")
    reloaded = ResourceTypes()
    reloaded.load(federation.ledger)
    for each in (types, reloaded):
        assert each.statistics() == {"described_types": 1, "former_types": 2}
        assert each.resolve(["widgets"]) == {WIDGETS.group_resource}, "a watch may resume from before"
        assert each.kind(b, WIDGETS.group_resource) == "Widget", "its history can be told"
        assert each.is_namespaced(WIDGETS.group_resource)
        assert each.resolve(["pods"]) == {PODS.group_resource}
    await federation.join("b", [NODES])
    assert types.kind(b, WIDGETS.group_resource) == "Widget"
    assert types.kind(b, NODES.group_resource) == "Node"
    assert [(str(served.type), served.clusters) for served in types.served() if served.type == NODES] == [
        ("v1 nodes", ("b",))
    ]


def test_an_empty_federation_serves_nothing() -> None:
    types = ResourceTypes()
    types.load(MemoryLedger())
    assert types.served() == []


async def test_a_star_means_every_type_that_some_member_collects_or_did() -> None:
    federation = Federation()
    await federation.join("a", [PODS, NODES])
    await federation.join("b", [PODS, CERTIFICATES])
    await federation.ledger.set_type_state(ClusterID("a"), EVENTS, TypeState.NOT_COLLECTED)
    await federation.ledger.set_type_state(ClusterID("a"), CERTIFICATES, TypeState.NOT_COLLECTED)
    await federation.ledger.set_type_state(ClusterID("a"), WIDGETS, TypeState.DENIED)
    await federation.ledger.set_type_state(ClusterID("b"), INGRESSES, TypeState.ABSENT)
    types = federation.view.types
    everything = {each.group_resource for each in (PODS, NODES, CERTIFICATES, WIDGETS, INGRESSES)}
    assert types.resolve(["*"]) == everything, "no member collects events"
    assert types.resolve(["po,*"]) == everything
    assert types.resolve(["*", "events"]) == everything | {EVENTS.group_resource}
    await federation.ledger.set_cluster_state(ClusterID("b"), ClusterState.REMOVED)
    assert types.resolve(["*"]) == everything - {CERTIFICATES.group_resource}, "the member that is left neglects them"


async def test_where_nothing_is_known_a_star_means_nothing() -> None:
    assert (await _types()).resolve(["*"]) == frozenset()


async def test_a_name_with_a_star_is_no_glob() -> None:
    with pytest.raises(UnknownResourceType):
        (await _types(PODS)).resolve(["po*"])


async def test_a_costly_list_of_names_is_refused_before_it_is_looked_up() -> None:
    types = await _types(PODS)
    for names in (["pods," * 1_000_000], ["pods"] * 1_000_000, itertools.repeat("pods")):
        with pytest.raises(InvalidInput, match="type names"):
            types.resolve(names)


async def test_what_a_name_means_is_asked_anew_when_types_have_changed() -> None:
    federation = Federation()
    await federation.join("a", (OTHER_WIDGETS,))
    types = federation.view.types
    assert types.resolve(["widgets"]) == types.resolve(["widgets"]) == {OTHER_WIDGETS.group_resource}
    assert types.resolve(["*"]) == {OTHER_WIDGETS.group_resource}
    await federation.join("b", (PODS,))
    assert types.resolve(["*"]) == {OTHER_WIDGETS.group_resource, PODS.group_resource}
    with pytest.raises(UnknownResourceType):
        types.resolve(["gateways"])
    await federation.join("c", (GATEWAYS,))
    assert types.resolve(["gateways"]) == {GATEWAYS.group_resource}

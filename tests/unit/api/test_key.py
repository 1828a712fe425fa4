from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey, local_key
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput

_part = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=10)


@given(_part, st.just("") | _part, _part, st.just("") | _part, st.text(min_size=1, max_size=10))
def test_a_key_reads_back_what_it_wrote(cluster: str, group: str, resource: str, namespace: str, name: str) -> None:
    key = ObjectKey(ClusterID(cluster), group, resource, namespace, name)
    assert ObjectKey.parse(str(key)) == key


def test_empty_fields_stay_fields() -> None:
    assert str(ObjectKey(ClusterID("eu-1"), "", "nodes", "", "n1")) == "eu-1//nodes//n1"


@pytest.mark.parametrize(
    "text", ["", "eu-1", "eu-1//pods/ns", "/apps/deployments/ns/a", "eu-1///ns/a", "eu-1//pods/ns/"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        ObjectKey.parse(text)


def test_local_keys_are_client_gos() -> None:
    assert local_key("shop", "web") == "shop/web"
    assert local_key("", "n1") == "n1"


def test_a_type_is_known_by_group_and_plural() -> None:
    deployments = ResourceType(group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True)
    assert str(deployments) == "apps/v1 deployments"
    assert deployments.group_resource == GroupResource("apps", "deployments")
    assert str(deployments.group_resource) == "deployments.apps"
    assert deployments.path("shop") == "/apis/apps/v1/namespaces/shop/deployments"
    nodes = ResourceType(group="", version="v1", resource="nodes", kind="Node", namespaced=False)
    assert nodes.path("shop") == "/api/v1/nodes"
    assert str(nodes.group_resource) == "nodes"
    key = ObjectKey(ClusterID("eu-1"), "apps", "deployments", "shop", "web")
    assert key.group_resource == deployments.group_resource

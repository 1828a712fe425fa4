"""Discovery: which types there are, as the apiserver says it in both ways."""

from __future__ import annotations

from collections.abc import Iterable

from federator.testing.fake_api_server.served_type import VERBS, ServedType
from federator.testing.fake_api_server.status import ApiError, Json, not_found_page, status

VERSION: Json = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.2",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.26.8",
    "compiler": "gc",
    "platform": "linux/amd64",
}
"""What /version says."""


def aggregated(types: Iterable[ServedType], *, core: bool, version: str, stale: frozenset[str]) -> Json:
    """The whole of discovery below /api or /apis.

    Args:
        types: all that are served.
        core: below /api.
        version: of the document, `v2` or `v2beta1`.
        stale: groups whose server does not answer.
    """
    groups: dict[str, dict[str, list[ServedType]]] = {}
    for served in types:
        if core is not bool(served.type.group):
            groups.setdefault(served.type.group, {}).setdefault(served.type.version, []).append(served)
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": name,
                    "resources": [_aggregated_resource(served) for served in members],
                    "freshness": "Stale" if group in stale else "Current",
                }
                for name, members in versions.items()
            ],
        }
        for group, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def document(path: str, types: Iterable[ServedType], *, stale: frozenset[str], address: str) -> Json:
    """The document of one path, without aggregation: /api, /apis, /api/v1, /apis/GROUP or /apis/GROUP/VERSION.

    Raises:
        ApiError: 404, or 503 for a stale group.
    """
    groups: dict[str, dict[str, list[ServedType]]] = {"": {"v1": []}}
    for served in types:
        groups.setdefault(served.type.group, {}).setdefault(served.type.version, []).append(served)
    match path.strip("/").split("/"):
        case ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
            return {
                "kind": "APIVersions",
                "versions": list(groups[""]),
                "serverAddressByClientCIDRs": addresses,
            }
        case ["apis"]:
            named = [_group(group, list(versions)) for group, versions in groups.items() if group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, list(groups[group]))}
        case ["api", version] if version in groups[""]:
            return _resources(version, groups[""][version])
        case ["apis", group, version] if version in groups.get(group, {}):
            if group in stale:
                raise ApiError(503, status(503, message="service unavailable"))
            return _resources(f"{group}/{version}", groups[group][version])
        case _:
            raise not_found_page()


def _aggregated_resource(served: ServedType) -> Json:
    kind = served.type
    resource: Json = {
        "resource": kind.resource,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(VERBS),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    return resource


def _group(group: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources(group_version: str, types: Iterable[ServedType]) -> Json:
    resources = []
    for served in types:
        kind = served.type
        resource: Json = {
            "name": kind.resource,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(VERBS),
        }
        if kind.short_names:
            resource["shortNames"] = list(kind.short_names)
        if kind.categories:
            resource["categories"] = list(kind.categories)
        resources.append(resource)
    named = {"apiVersion": "v1"} if "/" in group_version else {}  # the core group's is older and has none
    return {"kind": "APIResourceList", **named, "groupVersion": group_version, "resources": resources}

"""From a request to what it means: resource, verb and the form of the reply."""

from __future__ import annotations

from typing import NamedTuple

from federator.testing.fake_api_server import list_options
from federator.testing.fake_api_server.http import Incoming
from federator.testing.fake_api_server.served_type import ServedType, ServedTypes
from federator.testing.fake_api_server.status import ApiError, not_allowed, not_found_page, status, unserved

HEALTH = {"/readyz", "/livez", "/healthz"}

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Target(NamedTuple):
    """What a request is about.

    Attributes:
        verb: as RBAC names it.
        served: the resource type.
        namespace: from the path, "" for all or for cluster-scoped types.
        name: of one object, "" for a collection.
    """

    verb: str
    served: ServedType
    namespace: str
    name: str


def is_discovery(path: str) -> bool:
    """Whether a path is one of discovery, or of the server itself."""
    parts = path.strip("/").split("/")
    match parts:
        case ["api"] | ["api", _] | ["apis"] | ["apis", _] | ["apis", _, _]:
            return True
        case _:
            return False


def target(incoming: Incoming, types: ServedTypes) -> Target:
    """Reads the path of a resource.

    Raises:
        ApiError: 404, or 405 for the method.
    """
    match incoming.path.strip("/").split("/"):
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise not_found_page()
    match rest:
        case ["namespaces", namespace, resource, *names]:
            pass
        case [resource, *names]:
            namespace = ""
        case _:
            raise not_found_page()
    served = types.at(group, version, resource)
    one_of_none = served is not None and served.type.namespaced and names and not namespace
    if served is None or len(names) > 1 or one_of_none or (namespace and not served.type.namespaced):
        raise unserved()
    name = names[0] if names else ""
    verb = (_OBJECT_VERBS if name else _COLLECTION_VERBS).get(incoming.method)
    if verb is None:
        raise not_allowed()
    if verb == "list" and list_options.is_watch(incoming.query):
        verb = "watch"
    return Target(verb, served, namespace, name)


def wants_partial(accept: str) -> bool:
    """Whether a client would rather have only metadata.

    Raises:
        ApiError: 406: nothing the fake can write is accepted.
    """
    asks_json = False
    for media, parameters in _media_ranges(accept):
        if media not in {"application/json", "application/*", "*/*"}:
            continue
        asks_json = True
        wanted = parameters.get("as", "")
        if not wanted:
            return False
        if (
            wanted in {"PartialObjectMetadata", "PartialObjectMetadataList"}
            and parameters.get("g") == "meta.k8s.io"
            and parameters.get("v") == "v1"
        ):
            return True
    message = "only the following media types are accepted: application/json"
    raise ApiError(406, status(406, message=message, details=None if asks_json else {}))


def wants_aggregated(accept: str) -> str:
    """Which version of the aggregated discovery document a client would rather have; "" for none."""
    for media, parameters in _media_ranges(accept):
        if media == "application/json":
            if not parameters.get("as"):
                return ""
            version = parameters.get("v", "")
            if parameters["as"] == "APIGroupDiscoveryList" and version in {"v2", "v2beta1"}:
                return version
    return ""


def _media_ranges(accept: str) -> list[tuple[str, dict[str, str]]]:
    ranges = []
    for text in (accept or "*/*").split(","):
        media, *parameters = (part.strip() for part in text.split(";"))
        ranges.append((media.lower(), dict(part.split("=", 1) for part in parameters if "=" in part)))
    return ranges

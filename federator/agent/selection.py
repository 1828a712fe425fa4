"""Which resource types an agent collects.

By default everything that can be listed and watched, minus `DEFAULT_DENIALS`. Names narrow it to what they match and
override a denial. A namespace leaves out types that have none, unless they are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from federator.agent.settings import SecretMode
from federator.agent.transforms import SECRETS
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, UnknownResourceType

DEFAULT_DENIALS: Mapping[GroupResource, str] = MappingProxyType(
    {
        GroupResource("", "events"): "news, not inventory: short-lived, and often more than everything else together",
        GroupResource("events.k8s.io", "events"): "the same events a second time",
        GroupResource("coordination.k8s.io", "leases"): "renewed every few seconds by every node and controller",
        GroupResource("coordination.k8s.io", "leasecandidates"): "renewed like leases",
        GroupResource("", "componentstatuses"): "deprecated, and asked of the components at each read",
        GroupResource("", "endpoints"): "deprecated; endpointslices.discovery.k8s.io say the same",
    }
)
"""Types that are not collected unless they are named, and why. What can only be created, such as bindings and reviews,
is never listed and needs no denial. Secrets have a setting of their own."""

SECRETS_DENIAL = "Secrets are not collected unless asked for by secrets=metadata or secrets=fingerprint"

# What goes beyond this would reach into the rest of a URL, where an apiserver answers 404 for every type.
_TYPE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Selected(msgspec.Struct, frozen=True):
    """What a selection makes of one discovery.

    Attributes:
        types: to collect, in discovery's order.
        left_out: the other types, each with the reason why it is not collected.
        unmatched: names that nothing matches at present; their types may be installed later.
    """

    types: tuple[ResourceType, ...]
    left_out: Mapping[ResourceType, str]
    unmatched: tuple[str, ...] = ()


class Selection:
    """Chooses among the types that discovery found.

    A name is a plural, singular, short name or kind, perhaps with `.group` or `.version.group`, in any case, as
    kubectl takes it; it stands for every type it matches.
    """

    def __init__(self, resources: Sequence[str] = (), *, namespace: str = "", secrets: SecretMode = SecretMode.OFF):
        """Checks the names as far as that is possible without a cluster.

        Args:
            resources: names; empty for everything but the default denials.
            namespace: the agent's narrowing; empty for all.
            secrets: whether Secrets may be collected.

        Raises:
            InvalidInput: a name cannot be a type's, the namespace cannot be one, or Secrets are named while their mode
                is off.
        """
        self._names = tuple(name.strip().lower() for name in resources)
        self._namespace = namespace
        self._secrets = secrets
        for given, name in zip(resources, self._names, strict=True):
            if not _TYPE_NAME.fullmatch(name):
                raise InvalidInput("resources", given, "names of types, such as pods, deploy or deployments.v1.apps")
        if namespace and not _NAMESPACE.fullmatch(namespace):
            raise InvalidInput("namespace", namespace, f"{_NAMESPACE.pattern}: the name of one namespace")
        named_secret = next((name for name in self._names if _matches(_SECRET_TYPE, name)), None)
        if named_secret and secrets is SecretMode.OFF:
            raise InvalidInput("resources", named_secret, f"other types; {SECRETS_DENIAL}")

    def select(self, types: Iterable[ResourceType]) -> Selected:
        """Returns what to collect of these types."""
        chosen: list[ResourceType] = []
        left_out: dict[ResourceType, str] = {}
        matched: set[str] = set()
        for resource_type in types:
            names = {name for name in self._names if _matches(resource_type, name)}
            matched |= names
            reason = self._denial(resource_type, is_named=bool(names))
            if reason is None:
                chosen.append(resource_type)
            else:
                left_out[resource_type] = reason
        return Selected(tuple(chosen), left_out, tuple(name for name in self._names if name not in matched))

    def check(self, selected: Selected) -> None:
        """Refuses, at the start, a selection that can have nothing to collect.

        Raises:
            UnknownResourceType: names were given, and not one of them matches.
        """
        if self._names and len(selected.unmatched) == len(self._names):
            raise UnknownResourceType(", ".join(selected.unmatched))

    def _denial(self, resource_type: ResourceType, *, is_named: bool) -> str | None:
        if resource_type.group_resource == SECRETS and self._secrets is SecretMode.OFF:
            return SECRETS_DENIAL
        if is_named:
            return None
        if self._names:
            return "not among the resources to collect"
        if self._namespace and not resource_type.namespaced:
            return f"not in namespace {self._namespace}, nor in any"
        return DEFAULT_DENIALS.get(resource_type.group_resource)


_SECRET_TYPE = ResourceType(
    group="", version="v1", resource="secrets", kind="Secret", namespaced=True, singular="secret"
)


def _matches(resource_type: ResourceType, name: str) -> bool:
    own_name, _, rest = name.partition(".")
    known = {resource_type.resource, resource_type.singular, resource_type.kind.lower(), *resource_type.short_names}
    if own_name not in known:
        return False
    group = resource_type.group.lower()
    return rest in {"", group, f"{resource_type.version}.{group}".rstrip(".")}

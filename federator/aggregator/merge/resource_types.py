"""Resource types of all members: the merged discovery."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Commit, TypeEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, UnknownResourceType

MAX_NAMES = 100
"""Type names in one question."""

_MAX_RESOLVED = 1024
"""Names of which it is remembered what they mean."""

EVERY_TYPE = "*"
"""A name that means all types."""


class ServedType(NamedTuple):
    """A type and where it is served.

    Attributes:
        type: as the cluster with the newest version describes it.
        clusters: sorted.
    """

    type: ResourceType
    clusters: tuple[ClusterID, ...]


class ResourceTypes:
    """Resolves names as people write them to types; it changes by committed ledger entries alone.

    A name is the plural, singular, short name, kind or category of a type, with case ignored, optionally followed by
    `.group`, `.version` or `.version.group`; a group may be cut short (`certificates.cert-manager`). The first of these
    that fits any type wins:

    1. plural or singular, 2. short name, 3. kind, 4. category, which means all types that have it.

    kubectl looks at categories first; here they come last, since what one member names its custom resources must not
    change what `pods` means for all. For the same reason, where a plain name fits several groups, the core group is
    chosen, then Kubernetes' own groups without a dot (`apps`), then those that end in `.k8s.io`, then the others,
    alphabetically each; kubectl's order is alike, and a custom resource cannot be in the first two.

    `*` means every type that is known just then and that some member collects, or ever did: what no member collects
    cannot be in any answer, and would make each of them incomplete.

    A type that some members serve is a type. One that none serves any more still resolves, so that a watch can be
    resumed and learn of the deletions, but gives way to those that are served. Of clusters that were removed nothing
    more is kept: one description of each type that any of them had.
    """

    def __init__(self) -> None:
        self._types: dict[ClusterID, dict[GroupResource, tuple[ResourceType, TypeState]]] = {}
        self._removed: set[ClusterID] = set()
        self._former: dict[GroupResource, ResourceType] = {}
        self._servers: dict[ResourceType, set[ClusterID]] = {}
        self.version = 0
        self._resolved: dict[str, frozenset[GroupResource]] = {}  # by name; empty when anything has changed

    def load(self, ledger: Ledger) -> None:
        """Takes in the types of all members, once, before anything is applied."""
        for record in ledger.clusters().values():
            if record.state is ClusterState.REMOVED:
                self._removed.add(record.cluster_id)
            for known in ledger.types(record.cluster_id):
                self._set(record.cluster_id, known.type, known.state)

    def apply(self, commit: Commit) -> None:
        """Takes in the cluster and type entries of a commit."""
        for entry in commit.entries:
            if isinstance(entry, TypeEntry):
                self._set(entry.cluster_id, entry.resource_type, entry.state)
            elif isinstance(entry, ClusterEntry):
                self._set_removed(entry.cluster_id, removed=entry.state is ClusterState.REMOVED)

    def resolve(self, names: Iterable[str], *, field: str = "resources") -> frozenset[GroupResource]:
        """Returns the types that names mean.

        Args:
            names: type names; each may be several, comma-joined.
            field: name of the field they came in, for the message.

        Raises:
            InvalidInput: there is none, one is empty, or there are too many.
            UnknownResourceType: no member has ever named such a type.
        """
        single = _single_names(names)
        if not single or not all(single) or len(single) > MAX_NAMES:
            given = tuple(name[:64] for name in single[:10])
            raise InvalidInput(field, given, f"1 to {MAX_NAMES} type names, none of them empty")
        resolved: set[GroupResource] = set()
        for name in single:
            known = self._resolved.get(name)
            if known is None:
                known = frozenset(self._resolve_one(name))
                if len(self._resolved) < _MAX_RESOLVED:
                    self._resolved[name] = known
            resolved |= known
        return frozenset(resolved)

    def _every_type(self) -> set[GroupResource]:
        followed: set[GroupResource] = set()
        neglected: set[GroupResource] = set()
        for types in self._types.values():
            for group_resource, (_, state) in types.items():
                (neglected if state is TypeState.NOT_COLLECTED else followed).add(group_resource)
        return followed | (set(self._former) - neglected)

    def kind(self, cluster_id: ClusterID, group_resource: GroupResource) -> str:
        """Returns the kind of a type's objects as their cluster names it, or a former one; "" where neither did."""
        known = self._types.get(cluster_id, {}).get(group_resource)
        if known is not None:
            return known[0].kind
        former = self._former.get(group_resource)
        return former.kind if former else ""

    def is_namespaced(self, group_resource: GroupResource) -> bool:
        """Whether objects of the type live in namespaces, as far as any member tells, or a former one told."""
        described = [types[group_resource][0] for types in self._types.values() if group_resource in types]
        if not described and group_resource in self._former:
            described = [self._former[group_resource]]
        return any(each.namespaced for each in described)

    def served(self) -> list[ServedType]:
        """Returns the types that any member serves, by group and name."""
        descriptions: dict[GroupResource, list[ResourceType]] = {}
        for described in self._servers:
            descriptions.setdefault(described.group_resource, []).append(described)
        return [
            ServedType(
                min(versions, key=lambda described: (_version_rank(described.version), min(self._servers[described]))),
                tuple(sorted(set().union(*(self._servers[described] for described in versions)))),
            )
            for _, versions in sorted(descriptions.items())
        ]

    def statistics(self) -> Mapping[str, int]:
        """Descriptions of types that members gave, and of types that only former members are known to have had."""
        return {
            "described_types": sum(map(len, self._types.values())),
            "former_types": len(self._former),
        }

    def _change(self) -> None:
        self.version += 1
        self._resolved.clear()

    def _set(self, cluster_id: ClusterID, described: ResourceType, state: TypeState) -> None:
        self._change()
        if cluster_id in self._removed:
            self._former[described.group_resource] = described
            return
        types = self._types.setdefault(cluster_id, {})
        self._forget_server(cluster_id, types.get(described.group_resource))
        types[described.group_resource] = (described, state)
        if state is not TypeState.ABSENT:
            self._servers.setdefault(described, set()).add(cluster_id)

    def _set_removed(self, cluster_id: ClusterID, *, removed: bool) -> None:
        self._change()
        if not removed:
            self._removed.discard(cluster_id)
            return
        self._removed.add(cluster_id)
        for described, state in self._types.pop(cluster_id, {}).values():
            self._forget_server(cluster_id, (described, state))
            self._former[described.group_resource] = described

    def _forget_server(self, cluster_id: ClusterID, known: tuple[ResourceType, TypeState] | None) -> None:
        servers = self._servers.get(known[0]) if known else None
        if known and servers:
            servers.discard(cluster_id)
            if not servers:
                del self._servers[known[0]]

    def _resolve_one(self, name: str) -> set[GroupResource]:
        if name == EVERY_TYPE:
            return self._every_type()
        served = _matching(name, self._servers)
        if served:
            return served
        known = {described for types in self._types.values() for described, _ in types.values()}
        known.update(self._former.values())
        formerly_served = _matching(name, known)
        if not formerly_served:
            raise UnknownResourceType(name)
        return formerly_served


def _single_names(names: Iterable[str]) -> list[str]:
    """The names in comma lists; more than `MAX_NAMES`, not necessarily all, where there are too many."""
    single: list[str] = []
    for joined in names:
        single += [name.strip() for name in joined.split(",", MAX_NAMES)]
        if len(single) > MAX_NAMES:
            break
    return single


def _is_category(described: ResourceType, name: str) -> bool:
    return name in described.categories


_PRECEDENCE: tuple[Callable[[ResourceType, str], bool], ...] = (
    lambda described, name: name in {described.resource, described.singular},
    lambda described, name: name in described.short_names,
    lambda described, name: name == described.kind.lower(),
    _is_category,
)


def _matching(name: str, descriptions: Collection[ResourceType]) -> set[GroupResource]:
    plain, dot, suffix = name.lower().partition(".")
    for is_named in _PRECEDENCE:
        fitting = [described for described in descriptions if is_named(described, plain)]
        if dot:
            fitting = _qualified(fitting, suffix)
        if is_named is _is_category:
            return {described.group_resource for described in fitting}
        if fitting:
            return {min(fitting, key=_group_rank).group_resource}
    return set()


def _qualified(fitting: list[ResourceType], suffix: str) -> list[ResourceType]:
    """Those of a group; else of a version, or a version and group; else of a group that begins so."""
    version, dot, group = suffix.partition(".")
    return (
        [described for described in fitting if described.group == suffix]
        or [
            described for described in fitting if described.version == version and (not dot or described.group == group)
        ]
        or [described for described in fitting if suffix and described.group.startswith(suffix)]
    )


def _group_rank(described: ResourceType) -> tuple[int, str]:
    group = described.group
    if not group:
        return 0, group
    if "." not in group:
        return 1, group
    return (2 if group.endswith(".k8s.io") else 3), group


_VERSION = re.compile(r"v([0-9]{1,9})(?:(alpha|beta)([0-9]{1,9}))?")
_STAGES: Mapping[str | None, int] = {None: 0, "beta": 1, "alpha": 2}


def _version_rank(version: str) -> tuple[int, int, int, str]:
    """Sorts as Kubernetes prefers: v2, v1, v1beta2, v1beta1, v1alpha1, then anything else."""
    parts = _VERSION.fullmatch(version)
    if parts is None:
        return 3, 0, 0, version
    return _STAGES[parts[2]], -int(parts[1]), -int(parts[3] or 0), ""

"""A member cluster as the ledger sees it: a session that pushes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Commit,
    Delete,
    Entry,
    EntryType,
    ObjectEntry,
    Put,
)
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True, singular="pod")
DEPLOYMENTS = ResourceType(group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True)

_contents = itertools.count(1)


def put(
    name: str,
    *,
    namespace: str = "shop",
    uid: str = "uid-1",
    resource_version: str = "10",
    content_hash: int | None = None,
    body: bytes = b"{}",
) -> Put:
    """An object's state; another content each time, unless a hash is given."""
    return Put(namespace, name, uid, resource_version, content_hash or next(_contents), body)


def delete(name: str, *, namespace: str = "shop") -> Delete:
    return Delete(namespace, name)


def objects(entries: Sequence[Entry]) -> list[ObjectEntry]:
    return [entry for entry in entries if isinstance(entry, ObjectEntry)]


def changes(commit: Commit) -> list[tuple[EntryType, str]]:
    """Type and name of each change of an object."""
    return [(entry.type, entry.key.name) for entry in objects(commit.entries)]


class Member:
    """One cluster's session with a ledger."""

    def __init__(self, ledger: Ledger, record: ClusterRecord) -> None:
        self.ledger = ledger
        self.record = record

    @classmethod
    async def join(
        cls, ledger: Ledger, name: str = "berlin", *, uid: str | None = None, instance: str = "agent-1"
    ) -> Member:
        wanted = ClusterRecord(ClusterID(name), uid or f"uid-of-{name}", agent_instance=instance)
        return cls(ledger, await ledger.open_session(wanted))

    def batch(
        self,
        *wanted: Put | Delete,
        sequence: int = 0,
        of: ResourceType = PODS,
        low_water: str = "",
        skips_older: bool = False,
        listed_version: str = "",
        generation: int | None = None,
        is_replayed: bool = False,
        term: int | None = None,
    ) -> Batch:
        used_term = self.record.term if term is None else term
        return Batch(
            self.record.cluster_id,
            used_term,
            sequence,
            of,
            wanted,
            low_water,
            skips_older,
            listed_version,
            generation,
            is_replayed,
        )

    async def push(
        self,
        *wanted: Put | Delete,
        sequence: int = 0,
        of: ResourceType = PODS,
        low_water: str = "",
        skips_older: bool = False,
        listed_version: str = "",
        generation: int | None = None,
        is_replayed: bool = False,
        term: int | None = None,
    ) -> Commit:
        batch = self.batch(
            *wanted,
            sequence=sequence,
            of=of,
            low_water=low_water,
            skips_older=skips_older,
            listed_version=listed_version,
            generation=generation,
            is_replayed=is_replayed,
            term=term,
        )
        return await self.ledger.append(batch)

"""Listings: how the types of one session are brought up to date, and whether they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from federator.aggregator.ingest.batches import BatchRun, Origin
from federator.aggregator.ingest.frames import (
    Bookmark,
    Changes,
    ItemRefused,
    Names,
    PushedDigest,
    SnapshotBegin,
    SnapshotEnd,
    StateBuckets,
    StateItems,
)
from federator.aggregator.ingest.mismatches import Remedy
from federator.aggregator.ingest.repairs import Repairs
from federator.aggregator.ingest.shared import Shared
from federator.aggregator.ingest.snapshot import Plan, Snapshot
from federator.aggregator.ingest.stored_states import StoredStates
from federator.aggregator.ledger.damage import LOST, STATE_LOST
from federator.aggregator.ledger.records import ClusterRecord, Commit, Delete, ObjectEntry, StoredKey, TypeRecord
from federator.api.cluster import STATES_DIFFER, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, LedgerCorrupt
from federator.v1 import ingest_pb2
from federator.wire.digest import Digest, key_hash

log = structlog.get_logger(__name__)

LITTLE = 10
"""Where fewer than one in so many listed objects are stored, all are sent: comparing costs 16 bytes for each."""

Send = Callable[[ingest_pb2.PushResponse], None]


class Listings:
    """The open listings of one session, and what its digests are held against.

    Every object it touches is of the session's cluster: frames name types and objects, never a cluster.
    """

    def __init__(
        self,
        record: ClusterRecord,
        shared: Shared,
        *,
        send: Send,
        wants_bodies: Callable[[GroupResource], None],
        request_listing: Callable[[GroupResource], None],
    ) -> None:
        """None is open.

        Args:
            record: of the cluster, with the session's term.
            shared: what the session works with.
            send: sends an answer.
            wants_bodies: told, before the answer is sent, of a type whose objects it asks for.
            request_listing: asks the agent for a full listing.
        """
        self._cluster_id = record.cluster_id
        self._term = record.term
        self._ledger = shared.ledger
        self._lifecycle = shared.lifecycle
        self._freshness = shared.freshness
        self._digests = shared.digests
        self._admission = shared.admission
        self._mismatches = shared.mismatches
        self._counts = shared.counts
        self._send = send
        self._wants_bodies = wants_bodies
        self._request_listing = request_listing
        self._open: dict[GroupResource, Snapshot] = {}
        # Objects that were refused in this session and not changed since: what an agent adds up may still have them.
        self._refused: dict[GroupResource, set[tuple[str, str]]] = {}
        self._mismatches.reopened(self._cluster_id)

    def __contains__(self, resource: object) -> bool:
        return resource in self._open

    # Listings.

    async def begin(self, begin: SnapshotBegin, sequence: int, batches: BatchRun) -> None:
        """A listing begins; where it has a digest, it is told how to go on, at once or when it is its turn.

        Raises:
            SessionFenced, LedgerFull: from the ledger.
        """
        resource = begin.type.group_resource
        if self._drop(resource):
            self._counts.snapshots[self._cluster_id, "restarted"] += 1
        snapshot = self._open[resource] = Snapshot(begin)
        if self._mismatches.is_known(self._cluster_id, resource):
            snapshot.repairs = Repairs()
        await self._lifecycle.type_begun(self._cluster_id, self._term, begin.type)
        if begin.digest is None:
            snapshot.plan = Plan.ALL
            return
        await batches.flush(resource)
        plan = self._plan(resource, begin.digest)
        self._counts.plans[self._cluster_id, plan.value] += 1
        if plan is Plan.NOTHING:
            self._mismatches.equal(self._cluster_id, resource)
            self._tell(snapshot, plan, sequence)
        else:
            snapshot.ticket = self._admission.ask(self._cluster_id, lambda: self._tell(snapshot, plan, sequence))

    def note(self, changes: Changes, refused: Sequence[ItemRefused]) -> Origin:
        """Takes note of what an open listing named, or of changes beside it; returns where they come from.

        Raises:
            InvalidInput: items of no listing, or of one that was not asked for them.
        """
        resource = changes.type.group_resource
        unnamed = self._refused.setdefault(resource, set()) if refused else self._refused.get(resource)
        if unnamed is not None:
            unnamed.difference_update((change.namespace, change.name) for change in changes.changes)
            unnamed.update((item.namespace, item.name) for item in refused)
        snapshot = self._open.get(resource)
        if snapshot is not None:
            snapshot.name(changes.changes)
            snapshot.leave_out((item.namespace, item.name) for item in refused)
        if not changes.in_snapshot:
            return Origin(skips_older=changes.is_replayed, is_replayed=changes.is_replayed)
        if snapshot is None:
            raise InvalidInput("snapshot_items", changes.type, "items of a listing that has begun")
        if snapshot.plan not in {Plan.ALL, Plan.DIFFERING}:
            raise InvalidInput("snapshot_items", changes.type, "items that a SnapshotPlan has asked for")
        snapshot.moved()
        return Origin(in_snapshot=True, skips_older=not snapshot.is_restored, listed_version=snapshot.resource_version)

    async def compare_buckets(self, buckets: StateBuckets, sequence: int, batches: BatchRun) -> None:
        """Says which buckets differ.

        Raises:
            InvalidInput: nobody has asked, or it has been told.
            SessionFenced, LedgerFull: from the ledger.
        """
        snapshot = self._open.get(buckets.type.group_resource)
        if snapshot is None or snapshot.plan is not Plan.DIFFERING or snapshot.states is not None:
            raise InvalidInput(
                "state_buckets", buckets.type, "once in a listing, where a SnapshotPlan has asked for it"
            )
        snapshot.moved()
        await batches.flush(buckets.type.group_resource)
        snapshot.states = await self._stored_states(snapshot, buckets.bits)
        self._differ(sequence, snapshot.states.differing(buckets.sums))

    def compare_states(self, items: StateItems, sequence: int) -> None:
        """Says which objects differ, and takes note of those that the listing does not have.

        Raises:
            InvalidInput: nobody has asked for them.
        """
        snapshot = self._open.get(items.type.group_resource)
        if snapshot is None or snapshot.states is None:
            raise InvalidInput("state_items", items.type, "what is in buckets that differ, after StateBuckets")
        snapshot.moved()
        self._differ(sequence, snapshot.states.compare(items))

    async def end(self, end: SnapshotEnd, batches: BatchRun) -> None:
        """Only here is it known what is gone; only after its deletion is durable is the type LIVE.

        Raises:
            InvalidInput: the listing has not begun, or is not over.
            SessionFenced, LedgerFull: from the ledger.
        """
        resource = end.type.group_resource
        snapshot = self._open.get(resource)
        if snapshot is None:
            raise InvalidInput("snapshot_end", end.type, "the end of a listing that has begun")
        is_compared = snapshot.states is not None and snapshot.states.is_compared
        if snapshot.plan is None or (snapshot.plan is Plan.DIFFERING and not is_compared):
            raise InvalidInput("snapshot_end", end.type, "the end after what the SnapshotPlan asks for")
        snapshot.leave_out(end.left_out)
        await batches.flush()
        doomed = await self._doomed(snapshot, end.resource_version)
        await batches.delete(end.type, doomed, Origin(in_snapshot=True))
        batches.mark(end.type, end.resource_version, self._generation(snapshot))
        await batches.flush()
        self._mismatches.listed(self._cluster_id, resource)
        self._drop(resource)
        if end.proof_age is not None:
            self._freshness.proved(self._cluster_id, resource, end.proof_age)
        await self._lifecycle.type_told(self._cluster_id, self._term, end.type, TypeState.LIVE)
        self._counts.snapshots[self._cluster_id, "completed"] += 1

    def drop(self, resource: GroupResource) -> None:
        """The type is not collected any more: its listing and its mismatch are of no interest."""
        self._drop(resource)
        self._mismatches.equal(self._cluster_id, resource)

    def close(self) -> None:
        """The session has ended: what is open is broken, and gives its place up."""
        for resource in list(self._open):
            self._drop(resource)
            self._counts.snapshots[self._cluster_id, "broken"] += 1

    def committed(self, resource_type: ResourceType, commit: Commit, origin: Origin) -> None:
        """Counts a commit, and sees what it says of an open listing."""
        self._counts.committed(resource_type, commit)
        snapshot = self._open.get(resource_type.group_resource)
        if snapshot is None or not origin.in_snapshot:
            return
        if commit.has_gone_back and not snapshot.is_restored:
            snapshot.is_restored = True
            log.warning("versions have gone back", cluster=self._cluster_id, resource=str(resource_type.group_resource))
        if snapshot.repairs is not None:
            snapshot.repairs.add(commit)

    # Digests of bookmarks.

    async def bookmark(self, mark: Bookmark, batches: BatchRun) -> None:
        """Takes a bookmark in, if what it says the type adds up to is what is stored.

        A type that is being listed, or that is not LIVE for another reason, is not expected to be so. Nor is one of
        whose refused objects the agent has not heard yet, as far as its digest tells.

        Raises:
            SessionFenced, LedgerFull: from the ledger.
        """
        resource = mark.type.group_resource
        record = self._record(resource)
        differed = record is not None and (record.state, record.reason) == (TypeState.STALE, STATES_DIFFER)
        is_live = record is not None and record.state is TypeState.LIVE
        is_expected = resource not in self._open and (is_live or differed)
        if mark.digest is None or not is_expected or not self._refused.get(resource, set()) <= mark.digest.left_out:
            batches.mark(mark.type, mark.resource_version)
            return
        await batches.flush(resource)
        held = self._held(resource, mark.digest.left_out)
        if held != mark.digest.digest:
            await self._differs(mark.type, held, mark.digest.digest)
            return
        self._counts.comparisons[self._cluster_id, "equal"] += 1
        self._mismatches.equal(self._cluster_id, resource)
        batches.mark(mark.type, mark.resource_version)
        if differed:
            await self._lifecycle.type_told(self._cluster_id, self._term, mark.type, TypeState.LIVE)

    def differs(self, resource: GroupResource) -> bool:
        """Whether a type is known not to be as its agent has sent it, until it has been listed."""
        return self._mismatches.is_open(self._cluster_id, resource)

    async def _differs(self, resource_type: ResourceType, held: Digest, told: Digest) -> None:
        resource = resource_type.group_resource
        self._counts.comparisons[self._cluster_id, "different"] += 1
        remedy = self._mismatches.differs(self._cluster_id, resource)
        log.warning(
            "digest differs",
            cluster=self._cluster_id,
            resource=str(resource),
            stored_objects=held.count,
            agent_objects=told.count,
            asked_for=remedy.value if remedy else None,
        )
        await self._lifecycle.type_told(self._cluster_id, self._term, resource_type, TypeState.STALE, STATES_DIFFER)
        if remedy is Remedy.RECHECK:
            group, plural = resource
            mismatch = ingest_pb2.DigestMismatch(group=group, resource=plural)
            self._send(ingest_pb2.PushResponse(digest_mismatch=mismatch))
        elif remedy is Remedy.LISTING:
            self._request_listing(resource)

    # What is stored.

    def _plan(self, resource: GroupResource, listed: PushedDigest) -> Plan:
        held = self._held(resource, listed.left_out)
        record = self._record(resource)
        if record is not None and (record.state, record.reason) == (TypeState.SYNCING, STATE_LOST):
            return Plan.ALL  # lost objects are in no digest, and go only by not being named
        if held == listed.digest:
            return Plan.NOTHING
        return Plan.ALL if held.count * LITTLE < listed.digest.count else Plan.DIFFERING

    def _held(self, resource: GroupResource, left_out: Names) -> Digest:
        """The digest of what is stored, without some objects."""
        digest = self._digests.of(self._cluster_id, resource)
        for namespace, name in left_out:
            stored = self._ledger.stored(ObjectKey(self._cluster_id, *resource, namespace, name))
            if stored is not None and stored.fingerprint != LOST:
                digest = digest.minus(key_hash(namespace, name), stored.fingerprint)
        return digest

    async def _stored_states(self, snapshot: Snapshot, bits: int) -> StoredStates:
        """What is stored of a type, without what is left out. It also proves the digest that is kept of it."""
        resource = snapshot.type.group_resource
        states = StoredStates(bits)
        kept, found = self._digests.of(self._cluster_id, resource), Digest()
        async for keys in self._slices(resource):
            for held in keys:
                if held.fingerprint == LOST:
                    continue
                key = key_hash(held.namespace, held.name)
                if (held.namespace, held.name) in snapshot.left_out:
                    found = found.plus(key, held.fingerprint)
                else:
                    states.add(key, held.fingerprint, held.revision)
        compared = states.digest()
        found = found.changed(compared.count, compared.sum)
        if kept == self._digests.of(self._cluster_id, resource) != found:
            log.error("kept digest was wrong", cluster=self._cluster_id, resource=str(resource))
            self._digests.correct(self._cluster_id, resource, found)
        return states

    async def _doomed(self, snapshot: Snapshot, listed_version: str) -> list[Delete]:
        """What has to be deleted at the end."""
        if snapshot.plan is Plan.NOTHING:
            return []
        found: list[Delete] = []
        if snapshot.states is not None:
            for position, revision in enumerate(snapshot.states.missing):
                if position % 100 == 99:
                    await self._ledger.turn()
                entry = self._entry(revision)
                if entry is None or snapshot.is_named(entry.key.namespace, entry.key.name):
                    continue
                if snapshot.is_gone(entry.resource_version, listed_version):
                    found.append(Delete(entry.key.namespace, entry.key.name))
            return found
        async for keys in self._slices(snapshot.type.group_resource):
            for held in keys:
                if snapshot.is_named(held.namespace, held.name):
                    continue
                entry = self._entry(held.revision)
                if snapshot.is_gone(entry.resource_version if entry else "", listed_version):
                    found.append(Delete(held.namespace, held.name))
        return found

    async def _slices(self, resource: GroupResource) -> AsyncIterator[Sequence[StoredKey]]:
        for keys in self._ledger.key_slices(self._cluster_id, resource):
            yield keys
            await self._ledger.turn()

    def _entry(self, revision: int) -> ObjectEntry | None:
        try:
            return self._ledger.entry(revision)
        except LedgerCorrupt:
            return None

    def _record(self, resource: GroupResource) -> TypeRecord | None:
        known = self._ledger.types(self._cluster_id)
        return next((record for record in known if record.type.group_resource == resource), None)

    def _generation(self, snapshot: Snapshot) -> int | None:
        if not snapshot.is_restored:
            return None
        record = self._record(snapshot.type.group_resource)
        return record.generation + 1 if record else 1

    # Answers.

    def _tell(self, snapshot: Snapshot, plan: Plan, sequence: int) -> None:
        snapshot.plan = plan
        if plan is not Plan.NOTHING:
            self._wants_bodies(snapshot.type.group_resource)
        self._send(ingest_pb2.PushResponse(snapshot_plan=ingest_pb2.SnapshotPlan(sequence=sequence, plan=_PLANS[plan])))

    def _differ(self, sequence: int, positions: Sequence[int]) -> None:
        self._send(ingest_pb2.PushResponse(differing=ingest_pb2.Differing(sequence=sequence, positions=positions)))

    def _drop(self, resource: GroupResource) -> bool:
        """Lets go of an open listing; returns whether there was one."""
        snapshot = self._open.pop(resource, None)
        if snapshot is None:
            return False
        snapshot.close()
        if snapshot.repairs is not None:
            snapshot.repairs.tell(self._cluster_id, resource, self._counts)
        return True


_PLANS = {
    Plan.NOTHING: ingest_pb2.SnapshotPlan.PLAN_NOTHING,
    Plan.DIFFERING: ingest_pb2.SnapshotPlan.PLAN_DIFFERING,
    Plan.ALL: ingest_pb2.SnapshotPlan.PLAN_ALL,
}

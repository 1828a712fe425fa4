"""ClusterLifecycle: who may speak for which cluster, and what state each cluster is in.

    JOINING ── Hello ──> SYNCING ── all here ──> LIVE
                                                  │ silent, gone, or its apiserver out of reach
             all here                             v
    LIVE <─────────── RECOVERING <── back ────── STALE

A cluster is LIVE when no collected type is SYNCING or STALE, but for one that has failed for a while (`BROKEN_AFTER`),
and the agent has said where each type stands since its session opened. Once LIVE, single types may go STALE; the
cluster follows only when all have. DENIED types count for nothing. Nothing here deletes because of silence: a cluster
that cannot be heard keeps its objects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec
import structlog

from federator._aio.task_group import task_group
from federator.aggregator.ingest.batches import BatchRun
from federator.aggregator.ingest.freshness_sink import FreshnessSink
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.damage import STATE_LOST
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterRecord, Delete, TypeRecord
from federator.api.cluster import LISTING_ANEW, ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.errors import ClusterHeld, ClusterUIDChanged, FederatorError, LedgerError, SessionFenced

log = structlog.get_logger(__name__)

BROKEN_AFTER = 60.0
"""Seconds a type may fail before the cluster becomes LIVE without it: one dead conversion webhook must not make every
answer of a cluster incomplete. The type itself stays STALE. Longer than the types need to come back after an outage."""

_NOT_FOLLOWED = frozenset({TypeState.ABSENT, TypeState.NOT_COLLECTED})
_UNIMPORTANT = _NOT_FOLLOWED | {TypeState.DENIED}


SessionEnd = Callable[[FederatorError | None], None]
"""Ends a session from outside, with an error, or, with None, as if the agent had."""


class Candidate(msgspec.Struct, frozen=True):
    """Who asks for a session.

    Attributes:
        record: what Hello says of the cluster; its ClusterID from the session's proven identity.
        types: what the agent collects.
        replace: the ClusterID may be taken from another cluster UID.
        end: ends the session.
    """

    record: ClusterRecord
    types: Sequence[ResourceType]
    replace: bool
    end: SessionEnd


class Opened(msgspec.Struct, frozen=True):
    """A session that was let in.

    Attributes:
        record: the cluster's record, with the session's term and what is durable of its agent instance.
        snapshot_all: nothing was known of this agent instance.
        held_types: types of which something is kept.
    """

    record: ClusterRecord
    snapshot_all: bool
    held_types: tuple[ResourceType, ...]


class _Member(msgspec.Struct):
    """What this process knows of a cluster's newest session."""

    term: int = 0
    agent_instance: str = ""
    end: SessionEnd | None = None
    heard_at: float = 0.0
    has_left: bool = False
    is_silent: bool = False
    collected: dict[GroupResource, ResourceType] = {}
    unconfirmed: set[GroupResource] = set()
    failing: dict[GroupResource, str] = {}
    failing_since: dict[GroupResource, float] = {}


class ClusterLifecycle:
    """The state machine of all clusters. States are kept in the ledger; here is only what a restart may forget."""

    def __init__(
        self,
        ledger: Ledger,
        freshness: FreshnessSink,
        settings: IngestSettings,
        *,
        has_lost_states: Callable[[ClusterID, GroupResource], bool] = lambda *_: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Knows nobody yet.

        Args:
            ledger: keeps the states.
            freshness: hears of each sign of life.
            settings: the heartbeat's interval.
            has_lost_states: whether the ledger has lost states of a type in a cluster; it is not LIVE while it has.
            clock: monotonic seconds. Silence is measured by nothing else, so a clock that is set does no harm.
        """
        self._ledger = ledger
        self._freshness = freshness
        self._settings = settings
        self._has_lost_states = has_lost_states
        self._clock = clock
        self._members: dict[ClusterID, _Member] = {}
        self._locks: WeakValueDictionary[ClusterID, asyncio.Lock] = WeakValueDictionary()

    async def start(self) -> None:
        """Makes every member STALE: none has been heard by this process. Call it once, before serving."""
        for cluster_id, record in self._ledger.clusters().items():
            if record.state is not ClusterState.REMOVED:
                await self._ledger.set_cluster_state(cluster_id, ClusterState.STALE, "aggregator restarted")

    async def run(self) -> None:
        """Looks for silent clusters until cancelled."""
        interval = self._settings.heartbeat_interval / 2
        while True:
            before = self._clock()
            await asyncio.sleep(interval)
            # A process that did not run could not hear either; its lateness says nothing about the agents.
            if self._clock() - before < 2 * interval:
                try:
                    await self.look()
                except LedgerError as error:
                    # A disk that is full for the moment must not end the reading side; the next look says it again.
                    log.error("cluster states could not be written", cause=str(error))

    async def look(self) -> None:
        """Makes clusters STALE that have been silent for two heartbeats."""
        for cluster_id, member in list(self._members.items()):
            silence = self._clock() - member.heard_at
            if member.failing and not member.is_silent:
                async with self._lock(cluster_id):
                    await self._settle(cluster_id, member)
            if member.is_silent or silence <= self._settings.silence:
                continue
            async with self._lock(cluster_id):
                if self._members.get(cluster_id) is not member or self._clock() - member.heard_at < silence:
                    continue
                member.is_silent = True
                reason = f"agent silent for {silence:.0f} s" if member.end else _farewell(member)
                await self._enter(cluster_id, ClusterState.STALE, reason)

    async def open(self, candidate: Candidate) -> Opened:
        """Lets an agent instance in, and ends the session that was open before.

        Raises:
            ClusterHeld: another instance was heard within two heartbeats, and has not said goodbye.
            ClusterUIDChanged: the ClusterID belongs to another cluster, and `replace` was not given.
            ClusterUIDKnown: the cluster is a member under another ID.
        """
        wanted = candidate.record
        cluster_id = wanted.cluster_id
        async with self._lock(cluster_id):
            former = self._members.get(cluster_id)
            self._refuse_if_held(former, wanted)
            known = self._ledger.clusters().get(cluster_id)
            try:
                record = await self._ledger.open_session(wanted)
            except ClusterUIDChanged:
                if not candidate.replace:
                    raise
                known, record = None, await self._replace(wanted)
            if former is not None and former.end is not None:
                former.end(SessionFenced(cluster_id, former.term, record.term))
            is_resumed = (
                known is not None
                and known.state is not ClusterState.REMOVED
                and known.agent_instance == wanted.agent_instance
            )
            collected = {resource_type.group_resource: resource_type for resource_type in candidate.types}
            member = self._members[cluster_id] = _Member(
                record.term, wanted.agent_instance, candidate.end, self._clock(), collected=collected
            )
            member.unconfirmed = set(collected)
            self._freshness.seen(cluster_id)
            held_types = tuple(known.type for known in self._ledger.types(cluster_id) if self._is_held(known))
            await self._expect_types(cluster_id, member, is_resumed=is_resumed)
            if not (is_resumed and record.state is ClusterState.LIVE):
                await self._enter(cluster_id, _back(record.state), "")
            await self._settle(cluster_id, member)
        return Opened(record, not is_resumed, held_types)

    def closed(self, cluster_id: ClusterID, term: int, *, has_left: bool) -> None:
        """A session is over; if the agent said goodbye, another instance need not wait.

        The state changes only if no session follows within two heartbeats.
        """
        member = self._members.get(cluster_id)
        if member is not None and member.term == term:
            member.end = None
            member.has_left = has_left

    async def heard(self, cluster_id: ClusterID, term: int) -> None:
        """The agent gave a sign of life.

        Raises:
            SessionFenced: another session is the newest.
        """
        member = self._member(cluster_id, term)
        member.heard_at = self._clock()
        self._freshness.seen(cluster_id)
        if member.is_silent:
            async with self._lock(cluster_id):
                member.is_silent = False
                await self._settle(cluster_id, member)

    def collects(self, cluster_id: ClusterID, resource: GroupResource) -> bool:
        """Whether the newest session has spoken of a type."""
        member = self._members.get(cluster_id)
        return member is not None and resource in member.collected

    async def type_told(
        self, cluster_id: ClusterID, term: int, resource_type: ResourceType, state: TypeState, reason: str = ""
    ) -> None:
        """The agent has told where a type stands, by its word or by the end of a snapshot.

        Raises:
            SessionFenced: another session is the newest.
        """
        member = self._member(cluster_id, term)
        resource = resource_type.group_resource
        async with self._lock(cluster_id):
            self._member(cluster_id, term)  # again: another session may have come while this one waited
            known = (state, reason)
            if state in {TypeState.LIVE, TypeState.STALE} and self._has_lost_states(cluster_id, resource):
                known = (TypeState.SYNCING, STATE_LOST)
            await self._ledger.set_type_state(cluster_id, resource_type, *known)
            member.unconfirmed.discard(resource)
            member.failing.pop(resource, None)
            if state in _NOT_FOLLOWED:
                member.collected.pop(resource, None)
            else:
                member.collected[resource] = resource_type
            if state is TypeState.STALE:
                member.failing[resource] = reason
                member.failing_since.setdefault(resource, self._clock())
            else:
                member.failing_since.pop(resource, None)
            await self._settle(cluster_id, member)

    async def type_begun(self, cluster_id: ClusterID, term: int, resource_type: ResourceType) -> None:
        """A listing of a type has begun; one that was unknown or not followed is SYNCING from now on.

        Raises:
            SessionFenced: another session is the newest.
        """
        member = self._member(cluster_id, term)
        async with self._lock(cluster_id):
            self._member(cluster_id, term)
            member.collected[resource_type.group_resource] = resource_type
            known = self._type(cluster_id, resource_type.group_resource)
            if known is None or known.state in _UNIMPORTANT:
                await self._ledger.set_type_state(cluster_id, resource_type, TypeState.SYNCING)

    def statistics(self) -> Mapping[str, int]:
        """Clusters by state, as `clusters_<state>`."""
        counts = dict.fromkeys(ClusterState, 0)
        for record in self._ledger.clusters().values():
            counts[record.state] += 1
        return {f"clusters_{state.lower()}": count for state, count in counts.items()}

    def _refuse_if_held(self, former: _Member | None, wanted: ClusterRecord) -> None:
        if former is None or former.has_left or former.agent_instance == wanted.agent_instance:
            return
        if self._clock() - former.heard_at <= self._settings.silence:
            raise ClusterHeld(wanted.cluster_id, former.agent_instance)

    async def _replace(self, wanted: ClusterRecord) -> ClusterRecord:
        """Takes the cluster out that had the ID, and lets the new one join. Broken off, it can be done again."""
        cluster_id = wanted.cluster_id
        leaving = self._ledger.clusters()[cluster_id]
        log.warning("cluster replaced", cluster=cluster_id, leaving=leaving.cluster_uid, joining=wanted.cluster_uid)
        run = BatchRun(self._ledger, cluster_id, leaving.term, lambda *_: None)
        for known in self._ledger.types(cluster_id):
            keys = self._ledger.keys(cluster_id, known.type.group_resource)
            await run.delete(known.type, (Delete(key.namespace, key.name) for key in keys))
        reason = f"replaced by the cluster with UID {wanted.cluster_uid}"
        await self._ledger.set_cluster_state(cluster_id, ClusterState.REMOVED, reason)
        return await self._ledger.open_session(wanted)

    async def _expect_types(self, cluster_id: ClusterID, member: _Member, *, is_resumed: bool) -> None:
        """Says of each type that will be listed that it is not here yet, or not as it is now."""
        async with task_group() as tasks:
            for resource, resource_type in member.collected.items():
                expected = _expected(self._type(cluster_id, resource), resource_type, is_resumed=is_resumed)
                if expected is not None:
                    tasks.create_task(
                        self._ledger.set_type_state(cluster_id, resource_type, *expected),
                        name=f"expect {cluster_id} {resource}",
                    )

    async def _settle(self, cluster_id: ClusterID, member: _Member) -> None:
        """Enters the state that follows from the types'."""
        if self._members.get(cluster_id) is not member:
            return
        state = self._ledger.clusters()[cluster_id].state
        states = {known.type.group_resource: known.state for known in self._ledger.types(cluster_id)}
        important = [resource for resource in member.collected if states.get(resource) not in _UNIMPORTANT]
        if important and all(resource in member.failing for resource in important):
            await self._enter(cluster_id, ClusterState.STALE, next(iter(member.failing.values())))
        elif member.unconfirmed.isdisjoint(important) and all(
            states.get(one) is TypeState.LIVE or self._is_broken(member, one) for one in important
        ):
            if state is ClusterState.STALE:
                await self._enter(cluster_id, ClusterState.RECOVERING, "")
            await self._enter(cluster_id, ClusterState.LIVE, "")
        elif state in {ClusterState.STALE, ClusterState.JOINING}:
            await self._enter(cluster_id, _back(state), "")

    def _is_broken(self, member: _Member, resource: GroupResource) -> bool:
        since = member.failing_since.get(resource)
        return since is not None and self._clock() - since > BROKEN_AFTER

    async def _enter(self, cluster_id: ClusterID, state: ClusterState, reason: str) -> None:
        known = self._ledger.clusters()[cluster_id]
        if known.state in {state, ClusterState.REMOVED}:
            return
        await self._ledger.set_cluster_state(cluster_id, state, reason)
        log.info("cluster state", cluster=cluster_id, state=state, before=known.state, reason=reason)

    def _member(self, cluster_id: ClusterID, term: int) -> _Member:
        member = self._members[cluster_id]
        if member.term != term:
            raise SessionFenced(cluster_id, term, member.term)
        return member

    def _type(self, cluster_id: ClusterID, resource: GroupResource) -> TypeRecord | None:
        return next((one for one in self._ledger.types(cluster_id) if one.type.group_resource == resource), None)

    def _is_held(self, known: TypeRecord) -> bool:
        if known.state not in _NOT_FOLLOWED:
            return True
        return next(self._ledger.keys(known.cluster_id, known.type.group_resource), None) is not None

    def _lock(self, cluster_id: ClusterID) -> asyncio.Lock:
        return self._locks.setdefault(cluster_id, asyncio.Lock())


def _back(state: ClusterState) -> ClusterState:
    """The state in which a cluster is brought up to date."""
    is_first_time = state in {ClusterState.JOINING, ClusterState.SYNCING}
    return ClusterState.SYNCING if is_first_time else ClusterState.RECOVERING


def _expected(
    known: TypeRecord | None, resource_type: ResourceType, *, is_resumed: bool
) -> tuple[TypeState, str] | None:
    """State and reason of a collected type as a session opens, or None where they stay."""
    if known is None or known.state in _NOT_FOLLOWED or (known.state is TypeState.DENIED and not is_resumed):
        return TypeState.SYNCING, ""
    if known.state is TypeState.LIVE and not is_resumed:
        return TypeState.STALE, LISTING_ANEW
    if known.type != resource_type:
        return known.state, known.reason
    return None


def _farewell(member: _Member) -> str:
    return "agent stopped" if member.has_left else "connection to the agent lost"

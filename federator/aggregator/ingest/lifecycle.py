"""ClusterLifecycle: who may speak for which cluster, and what state each cluster is in.

    JOINING ── Hello ──> SYNCING ── all here ──> LIVE
                                                  │ silent, gone, or its apiserver out of reach
             all here                             v
    LIVE <─────────── RECOVERING <── back ────── STALE

    any of these ── removed by an operator, or replaced ──> REMOVED ── all gone, Hello ──> JOINING

A cluster is LIVE when no collected type is SYNCING or STALE, but for one that has failed for a while (`BROKEN_AFTER`),
and the agent has said where each type stands since its session opened. Once LIVE, single types may go STALE; the
cluster follows only when all have. DENIED types count for nothing. Nothing here deletes because of silence: a cluster
that cannot be heard keeps its objects, until it is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec
import structlog

from federator._aio.task_group import task_group
from federator.aggregator.ingest.departures import Departures
from federator.aggregator.ingest.freshness_sink import FreshnessSink
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.damage import STATE_LOST
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import RESTARTED, ClusterRecord, TypeRecord
from federator.api.cluster import LISTING_ANEW, ClusterID, ClusterState, TypeState, is_stand_in
from federator.api.resource import GroupResource, ResourceType
from federator.errors import (
    ClusterConnected,
    ClusterHeld,
    ClusterLeaving,
    ClusterRemoved,
    ClusterUIDChanged,
    FederatorError,
    InvalidInput,
    LedgerError,
    SessionFenced,
    UnknownCluster,
)

log = structlog.get_logger(__name__)

BROKEN_AFTER = 60.0
"""Seconds a type may fail before the cluster becomes LIVE without it: one dead conversion webhook must not make every
answer of a cluster incomplete. The type itself stays STALE. Longer than the types need to come back after an outage."""

REASON_INTERVAL = 60.0
"""Seconds between two commits that change nothing but the reason of a STALE type. Reasons are what an apiserver says,
in its own words: two that take turns would make an entry each, for as long as an outage lasts. The cause for which a
type that is listed anew does not come is told at once."""

LEAVING_WAIT = 5.0
"""Seconds for which a new session waits for the objects of the former cluster to leave; half of what agents allow."""

MAX_REFUSED = 1000
"""Agent instances that are refused because their cluster was removed; beyond that the oldest are forgotten. One whose
cluster has not come back under another agent is refused all the same, by the cluster's record."""

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
    reasons_told_at: dict[GroupResource, float] = {}
    untold: dict[GroupResource, tuple[ResourceType, str]] = {}
    closed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


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
        self._departures = Departures(ledger, settings.removal_objects_per_second)
        self._refused: OrderedDict[tuple[ClusterID, str], str] = OrderedDict()  # to the UID of what was removed

    def on_departed(self, listener: Callable[[ClusterID], None]) -> None:
        """Sets who is told, once, when nothing of a removed cluster is left; it must not raise or block."""
        self._departures.on_departed(listener)

    async def start(self) -> None:
        """Makes every member STALE: none has been heard by this process. Call it once, before serving."""
        for cluster_id, record in self._ledger.clusters().items():
            if record.state is not ClusterState.REMOVED:
                await self._ledger.set_cluster_state(cluster_id, ClusterState.STALE, RESTARTED)
        self._departures.recover()

    async def run(self) -> None:
        """Looks for silent clusters, and lets removed ones leave, until cancelled."""
        async with task_group() as tasks:
            tasks.create_task(self._departures.run(), name="departures")
            tasks.create_task(self._look_again_and_again(), name="silence")

    async def _look_again_and_again(self) -> None:
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
        """Makes clusters STALE that have been silent for two heartbeats, and tells reasons that have waited."""
        for cluster_id, record in self._ledger.clusters().items():
            if self._departures.is_leaving(record):  # else whoever removed it was cancelled right behind the commit
                self._let_leave(cluster_id)
        for cluster_id, member in list(self._members.items()):
            silence = self._clock() - member.heard_at
            if member.untold:
                async with self._lock(cluster_id):
                    await self._tell_reasons(cluster_id, member)
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

        Where the cluster that had the ID is on its way out, it waits for that, at most `LEAVING_WAIT` seconds.

        Raises:
            ClusterRemoved: the cluster was removed while this instance pushed for it.
            ClusterLeaving: objects of the cluster that had the ID are still being deleted.
            ClusterHeld: another instance was heard within two heartbeats, and has not said goodbye.
            ClusterUIDChanged: the ClusterID belongs to another cluster, and `replace` was not given.
            ClusterUIDKnown: the cluster is a member under another ID.
        """
        cluster_id = candidate.record.cluster_id
        while True:
            self._refuse_if_removed(candidate.record)
            await self._wait_departed(cluster_id)
            async with self._lock(cluster_id):
                if self._departures.is_leaving(self._ledger.clusters().get(cluster_id)):
                    continue  # removed meanwhile
                try:
                    return await self._open(candidate)
                except ClusterUIDChanged as error:
                    if not candidate.replace:
                        raise
                    log.warning(
                        "cluster replaced", cluster=cluster_id, leaving=error.known_uid, joining=error.given_uid
                    )
                    leaving = self._ledger.clusters()[cluster_id]
                    await self._take_out(leaving, f"replaced by the cluster with UID {error.given_uid}")

    async def remove(self, cluster_id: ClusterID, *, cluster_uid: str = "", force: bool = False) -> int:
        """Takes a cluster out of the federation, and returns how many of its objects were deleted, once all are.

        The agent instance that pushed for it is refused from then on; another one may join with the cluster anew. A
        cluster that is on its way out already is waited for. Cancelled, it goes on all the same, or has done no more
        than to end the session.

        Args:
            cluster_id: the cluster.
            cluster_uid: if not empty, it must be the cluster's.
            force: end the session of its agent.

        Raises:
            UnknownCluster: it is no member.
            InvalidInput: it has another UID.
            ClusterConnected: its agent has a session, and `force` was not given.
            LedgerError: it could not be committed; the cluster is a member as before.
        """
        async with self._lock(cluster_id):
            record = self.removable(cluster_id, cluster_uid=cluster_uid, force=force)
            if record.state is ClusterState.REMOVED:
                self._let_leave(cluster_id)
            else:
                await self._take_out(record, "removed by an operator")
                self._refuse_from_now_on(record)
        return await self._departures.wait_departed(cluster_id)

    def removable(self, cluster_id: ClusterID, *, cluster_uid: str = "", force: bool = False) -> ClusterRecord:
        """Checks whether a cluster could be removed just now, and returns its record; REMOVED while it is leaving.

        Raises:
            UnknownCluster, InvalidInput, ClusterConnected: as `remove` does.
        """
        clusters = self._ledger.clusters()
        record = clusters.get(cluster_id)
        is_member = record is not None and record.state is not ClusterState.REMOVED
        if record is None or not (is_member or self._departures.is_leaving(record)):
            members = (known.cluster_id for known in clusters.values() if known.state is not ClusterState.REMOVED)
            raise UnknownCluster(cluster_id, tuple(sorted(members)))
        if cluster_uid not in {"", record.cluster_uid}:
            raise InvalidInput("cluster_uid", cluster_uid, f"the UID of cluster {cluster_id!r}, {record.cluster_uid}")
        if self.is_connected(cluster_id) and not force:
            raise ClusterConnected(cluster_id, self._members[cluster_id].agent_instance)
        return record

    def is_connected(self, cluster_id: ClusterID) -> bool:
        """Whether the agent of a cluster has a session."""
        member = self._members.get(cluster_id)
        return member is not None and member.end is not None

    async def _open(self, candidate: Candidate) -> Opened:
        wanted = candidate.record
        cluster_id = wanted.cluster_id
        former = self._members.get(cluster_id)
        self._refuse_if_held(former, wanted)
        known = self._ledger.clusters().get(cluster_id)
        record = await self._ledger.open_session(wanted)
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
        if former is not None:
            member.reasons_told_at = former.reasons_told_at
        try:
            self._freshness.seen(cluster_id)
            held_types = tuple(known.type for known in self._ledger.types(cluster_id) if self._is_held(known))
            await self._expect_types(cluster_id, member, is_resumed=is_resumed)
            if not (is_resumed and record.state is ClusterState.LIVE):
                await self._enter(cluster_id, _back(record.state), "")
            await self._settle(cluster_id, member)
        except BaseException:
            self.closed(cluster_id, record.term, has_left=False)  # there will be no session that could say so
            raise
        return Opened(record, not is_resumed, held_types)

    def closed(self, cluster_id: ClusterID, term: int, *, has_left: bool) -> None:
        """A session is over; if the agent said goodbye, another instance need not wait.

        The state changes only if no session follows within two heartbeats.
        """
        member = self._members.get(cluster_id)
        if member is not None and member.term == term:
            member.end = None
            member.has_left = has_left
            member.closed.set()

    async def heard(self, cluster_id: ClusterID, term: int) -> None:
        """The agent gave a sign of life.

        Raises:
            SessionFenced: another session is the newest.
            ClusterRemoved: the cluster was removed.
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
            await self._tell(cluster_id, member, resource_type, *known)
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

    def _refuse_if_removed(self, wanted: ClusterRecord) -> None:
        cluster_id, instance = wanted.cluster_id, wanted.agent_instance
        removed_uid = self._refused.get((cluster_id, instance))
        if removed_uid is None:
            record = self._ledger.clusters().get(cluster_id)
            if record is None or record.state is not ClusterState.REMOVED or record.agent_instance != instance:
                return
            removed_uid = record.cluster_uid
        # A cluster that was built anew behind the same agent is another one, and joins as such.
        if removed_uid == wanted.cluster_uid or is_stand_in(removed_uid) or is_stand_in(wanted.cluster_uid):
            raise ClusterRemoved(cluster_id, instance)

    def _refuse_from_now_on(self, removed: ClusterRecord) -> None:
        self._refused[removed.cluster_id, removed.agent_instance] = removed.cluster_uid
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    async def _wait_departed(self, cluster_id: ClusterID) -> None:
        if not self._departures.is_leaving(self._ledger.clusters().get(cluster_id)):
            return
        self._let_leave(cluster_id)
        try:
            async with asyncio.timeout(LEAVING_WAIT):
                await self._departures.wait_departed(cluster_id)
        except TimeoutError:
            raise ClusterLeaving(cluster_id) from None

    async def _take_out(self, record: ClusterRecord, reason: str) -> None:
        """Ends a member's session, makes it REMOVED, and lets its objects leave.

        Broken off behind the commit, `look` sees to the rest.
        """
        cluster_id = record.cluster_id
        member = self._members.get(cluster_id)
        if member is not None and member.end is not None:
            member.end(ClusterRemoved(cluster_id, member.agent_instance))
            await member.closed.wait()  # nothing of the session is handed to the ledger behind the removal
        await self._ledger.set_cluster_state(cluster_id, ClusterState.REMOVED, reason)
        log.warning("cluster removed", cluster=cluster_id, reason=reason)
        self._let_leave(cluster_id)

    def _let_leave(self, cluster_id: ClusterID) -> None:
        self._members.pop(cluster_id, None)
        self._departures.begin(cluster_id)

    async def _tell(
        self, cluster_id: ClusterID, member: _Member, resource_type: ResourceType, state: TypeState, reason: str
    ) -> None:
        """Commits where a type stands; what is but another reason of a STALE one at most once in a while."""
        resource = resource_type.group_resource
        member.untold.pop(resource, None)
        known = self._type(cluster_id, resource)
        is_changed = known is None or (known.state, known.reason, known.type) != (state, reason, resource_type)
        if is_changed and state is TypeState.STALE:
            is_same_but_for_reason = (
                known is not None
                and (known.state, known.type) == (state, resource_type)
                and known.reason != LISTING_ANEW  # which says nothing of what fails
            )
            told_at = member.reasons_told_at.get(resource)
            if is_same_but_for_reason and told_at is not None and self._clock() - told_at < REASON_INTERVAL:
                member.untold[resource] = (resource_type, reason)
                return
            member.reasons_told_at[resource] = self._clock()
        await self._ledger.set_type_state(cluster_id, resource_type, state, reason)

    async def _tell_reasons(self, cluster_id: ClusterID, member: _Member) -> None:
        if self._members.get(cluster_id) is member:
            for resource_type, reason in list(member.untold.values()):
                await self._tell(cluster_id, member, resource_type, TypeState.STALE, reason)

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
        member = self._members.get(cluster_id)
        if member is None:
            raise ClusterRemoved(cluster_id, self._ledger.clusters()[cluster_id].agent_instance)
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

"""Agent: assembles what reads one cluster and pushes it to one aggregator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from importlib.metadata import version
from typing import TypeVar
from uuid import uuid4

import msgspec
import structlog

from federator._aio.task_group import task_group
from federator.agent.audit import Audit
from federator.agent.discovery import TypeFollower
from federator.agent.informers import NOT_SERVED, Informers, TypeHealth
from federator.agent.member import Member
from federator.agent.outbox import Outbox
from federator.agent.pusher import Proof, Pusher, PusherState, PusherStatus
from federator.agent.selection import Selection
from federator.agent.settings import AgentSettings
from federator.agent.spool import Spool, SpoolIdentity, signature_of
from federator.agent.transforms import read_key
from federator.api.cluster import TypeState, is_stand_in
from federator.api.resource import GroupResource, ResourceType
from federator.api.selector import LabelSelector
from federator.errors import (
    ClusterUIDChanged,
    CredentialsError,
    FederatorError,
    KubeStatusError,
    MemberUnreachable,
    UnknownResourceType,
)
from federator.v1 import ingest_pb2
from federator.wire.digest import PROTOCOL
from federator.wire.resource_type import resource_type_to_proto
from federator.wire.tls import require_dialable

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

MEMBER_BACKOFF = (1.0, 30.0)
"""Seconds of the first and the longest wait for an apiserver that does not answer at the start."""

UID_NEED = "get of namespaces, for kube-system"
"""The right without which a cluster's UID cannot be read."""


class AgentPhase(StrEnum):
    """How far an agent has come."""

    WAITING_FOR_MEMBER = "WAITING_FOR_MEMBER"
    """The cluster has not been reached: without its UID nothing can be said in its name."""
    WAITING_FOR_AGGREGATOR = "WAITING_FOR_AGGREGATOR"
    """No session is open."""
    PUSHING = "PUSHING"
    STOPPED = "STOPPED"


class AgentStatus(msgspec.Struct, frozen=True):
    """How an agent is.

    Attributes:
        cluster_id: its cluster.
        cluster_uid: the cluster's UID, empty before it was reached.
        phase: how far it has come.
        error: what it waits for, or None.
        session: how it stands with the aggregator.
        types: how each type is followed; none before the first session.
        left_out: by type, the first keys of objects that were refused or cannot be sent.
        lacking: why it has had nothing to collect since its cluster was reached, where it waits for the types named.
    """

    cluster_id: str
    cluster_uid: str
    phase: AgentPhase
    error: FederatorError | None
    session: PusherStatus
    types: tuple[TypeHealth, ...]
    left_out: Mapping[GroupResource, Sequence[str]] = {}
    lacking: UnknownResourceType | None = None


class Agent:
    """Reads one cluster and pushes it to one aggregator until it is cancelled.

    Order of start: member (client, UID, version, discovery; repeated until it answers), session, informers. Nothing is
    listed before a session is open, since nobody would take it: a standby costs its apiserver nothing. Order of stop:
    informers, then the pusher, which goes on for `flush_timeout`, then the member's client.
    """

    def __init__(self, settings: AgentSettings, member: Member) -> None:
        """Checks the settings; reads the files they name; asks nothing of anybody.

        Args:
            settings: what it is told.
            member: its cluster, opened and closed by `run`.

        Raises:
            InvalidInput: settings that cannot work: an address that others could reach without TLS, files of TLS
                that are not sound, a key file that cannot be read or is too short, names of types that contradict
                each other.
        """
        require_dialable(settings.aggregator, settings.tls, field="aggregator")
        if settings.tls is not None:
            settings.tls.read()
        LabelSelector.parse(settings.label_selector, field="selector")
        self._settings = settings
        self._member = member
        self._instance = uuid4().hex
        self._cluster_uid = ""
        self._server_version = ""
        self._is_stopped = False
        self._member_error: FederatorError | None = None
        self._unaccounted: dict[GroupResource, ResourceType] = {}
        self._told: set[GroupResource] = set()
        self._listening = asyncio.Event()
        self._outbox = Outbox(max_bytes=settings.outbox_bytes, frame_bytes=settings.frame_bytes)
        self._pusher = Pusher(self._outbox, settings, self)
        self._follower = TypeFollower(
            member,
            Selection(settings.resources, namespace=settings.namespace, secrets=settings.secrets),
            settings,
        )
        self._secrets_key = read_key(settings.secrets_key_file)
        self._spool: Spool | None = None
        self._informers = Informers(
            member,
            self._outbox,
            settings,
            secrets_key=self._secrets_key,
            types_may_have_changed=self._follower.types_may_have_changed,
        )
        self._audit = Audit(self._informers.audited, interval=settings.audit_interval, name=settings.cluster_id)

    async def run(self) -> None:
        """Runs until cancelled, then sends what it has, for `flush_timeout` at most, and leaves no task.

        An apiserver or aggregator that cannot be reached is waited for.

        Raises:
            UnknownResourceType: none of the names of types is served, and the settings do not have them waited for.
            ClusterUIDChanged: behind the same address there is another cluster now.
            InvalidInput: credentials or cluster cannot be what they have to be.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._reach_member(stack)
                async with task_group() as tasks:
                    pushing = tasks.create_task(self._pusher.run(), name=f"push {self._settings.cluster_id}")
                    if self._spool is not None:
                        spooling = tasks.create_task(self._spool.run(), name=f"spool {self._settings.cluster_id}")
                        pushing.add_done_callback(lambda _: spooling.cancel())
                    try:
                        await self._collect()
                    except ClusterUIDChanged:
                        pushing.cancel()  # what is still queued may be another cluster's
                        raise
                    finally:
                        await self._flush(pushing)
        finally:
            self._is_stopped = True

    def status(self) -> AgentStatus:
        """How the agent is at this moment."""
        session = self._pusher.status()
        if self._is_stopped:
            phase = AgentPhase.STOPPED
        elif not self._cluster_uid:
            phase = AgentPhase.WAITING_FOR_MEMBER
        elif session.state is PusherState.OPEN:
            phase = AgentPhase.PUSHING
        else:
            phase = AgentPhase.WAITING_FOR_AGGREGATOR
        return AgentStatus(
            self._settings.cluster_id,
            self._cluster_uid,
            phase,
            self._member_error or session.error,
            session,
            tuple(self._informers.health()),
            self._outbox.left_out(),
            self._follower.lacking,
        )

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        """What each part counts."""
        return {
            "outbox": self._outbox.statistics(),
            "pusher": self._pusher.statistics(),
            "discovery": self._follower.statistics(),
            "informers": self._informers.statistics(),
            "audit": self._audit.statistics(),
            "spool": self._spool.statistics() if self._spool is not None else {},
        }

    def hello(self) -> ingest_pb2.Hello:
        """Introduces the agent with what it collects now."""
        settings = self._settings
        return ingest_pb2.Hello(
            cluster_id=settings.cluster_id,
            cluster_uid=self._cluster_uid,
            agent_instance=self._instance,
            display_name=settings.display_name or settings.cluster_id,
            server_version=self._server_version,
            source=settings.source,
            agent_version=version("federator"),
            types=map(resource_type_to_proto, self._follower.types),
            namespace=settings.namespace,
            label_selector=settings.label_selector,
            replace=settings.replace,
            protocol=PROTOCOL,
            unread_groups=self._follower.unread_groups,
            labels=settings.cluster_labels,
        )

    def welcomed(self, held_types: Sequence[ResourceType], floors: Mapping[GroupResource, str]) -> None:
        """A session is open: starts the informers, the first time, and accounts for types that are not collected."""
        self._informers.start_from(floors)
        self._unaccounted = {held.group_resource: held for held in held_types}
        self._told.clear()
        self._account_for_types()
        self._listening.set()

    def proofs(self) -> Iterable[Proof]:
        """Per type, the seconds since the apiserver last gave a sign."""
        return self._informers.proofs()

    def proof_age(self, resource: GroupResource) -> float | None:
        """Seconds since the apiserver last gave a sign for a type; None where it has not yet."""
        return self._informers.proof_age(resource)

    def unread_groups(self) -> Sequence[str]:
        """API groups that discovery could not read when it last looked."""
        return self._follower.unread_groups

    def removed(self) -> None:
        """The cluster was taken out. The next process is another agent instance, which may join anew."""
        if self._spool is not None:
            self._spool.abandon()

    async def _reach_member(self, stack: AsyncExitStack) -> None:
        await self._until_reached(lambda: stack.enter_async_context(self._member))
        uid = await self._until_reached(self._member.cluster_uid)
        self._server_version = await self._until_reached(self._member.server_version)
        await self._until_reached(self._follower.start)
        self._informers.set_types(self._follower.types)
        await self._open_spool(stack, uid)
        self._cluster_uid = uid
        self._member_error = None
        if is_stand_in(uid):
            log.warning(
                "cluster UID may not be read, a stand-in is used", cluster=self._settings.cluster_id, need=UID_NEED
            )
        log.info(
            "cluster reached",
            cluster=self._settings.cluster_id,
            uid=uid,
            version=self._server_version,
            types=len(self._follower.types),
        )

    async def _open_spool(self, stack: AsyncExitStack, cluster_uid: str) -> None:
        """Goes on as the agent instance whose changes are still there, if there are any."""
        directory = self._settings.spool_directory
        if directory is None:
            return
        settings = self._settings
        identity = SpoolIdentity(cluster_uid, signature_of(settings, self._secrets_key))
        spool = await asyncio.to_thread(
            Spool.open, directory, settings.cluster_id, identity, max_bytes=settings.spool_bytes
        )
        stack.callback(spool.close)
        self._spool = spool
        self._instance = spool.instance
        self._outbox.use(spool)

    async def _until_reached(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Takes a step, again and again while the cluster cannot be reached or refuses."""
        wait, longest = MEMBER_BACKOFF
        while True:
            try:
                return await step()
            except (KubeStatusError, MemberUnreachable, CredentialsError) as error:
                if self._member_error is None or self._member_error.reason != error.reason:
                    log.warning("cluster not reached yet", cluster=self._settings.cluster_id, cause=str(error))
                self._member_error = error
            await asyncio.sleep(wait * random.uniform(0.5, 1))
            wait = min(longest, wait * 2)

    async def _collect(self) -> None:
        await self._listening.wait()
        async with task_group() as tasks:
            tasks.create_task(self._informers.run(), name=f"informers {self._settings.cluster_id}")
            tasks.create_task(self._follower.run(self._follow_types), name=f"discovery {self._settings.cluster_id}")
            tasks.create_task(self._watch_identity(), name=f"identity {self._settings.cluster_id}")
            if self._settings.audit_interval:
                tasks.create_task(self._audit.run(), name=f"audit {self._settings.cluster_id}")

    async def _watch_identity(self) -> None:
        """Looks, as often as at discovery, whether this is still the cluster that Hello named."""
        while True:
            await asyncio.sleep(self._settings.discovery_interval)
            try:
                uid = await self._member.cluster_uid()
            except (KubeStatusError, MemberUnreachable, CredentialsError):
                continue  # the informers say so already
            if is_stand_in(uid):
                continue
            if is_stand_in(self._cluster_uid):
                # Told with the next Hello: a stand-in gives way to the UID, and no session has to end for it.
                log.info("cluster UID read", cluster=self._settings.cluster_id, uid=uid)
                self._cluster_uid = uid
            if uid != self._cluster_uid:
                raise ClusterUIDChanged(self._settings.cluster_id, self._cluster_uid, uid)

    def _follow_types(self, types: Sequence[ResourceType]) -> None:
        self._informers.set_types(types)
        self._account_for_types()

    def _account_for_types(self) -> None:
        """Tells of the types that are not collected, so that nobody takes their absence for an empty list.

        Those that are served are NOT_COLLECTED. Those that are not, and that the aggregator holds or was told of in
        this session, are ABSENT; informers tell that of the collected ones themselves.
        """
        for resource_type, reason in self._follower.left_out.items():
            resource = resource_type.group_resource
            self._unaccounted[resource] = resource_type
            if resource not in self._told:
                self._told.add(resource)
                self._outbox.report(resource_type, TypeState.NOT_COLLECTED, reason)
        for collected in self._follower.types:
            self._unaccounted.pop(collected.group_resource, None)
        for resource, resource_type in list(self._unaccounted.items()):
            if self._follower.is_absent(resource):
                self._outbox.report(resource_type, TypeState.ABSENT, NOT_SERVED)
                self._told.discard(resource)
                del self._unaccounted[resource]

    async def _flush(self, pushing: asyncio.Task[None]) -> None:
        self._pusher.stop()
        try:
            async with asyncio.timeout(self._settings.flush_timeout):
                await asyncio.wait([pushing])
        except TimeoutError:
            log.warning("not everything was sent", cluster=self._settings.cluster_id, **self._outbox.statistics())
        pushing.cancel()

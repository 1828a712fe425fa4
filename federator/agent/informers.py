"""Informers: one SharedInformer per collected type, started and stopped as the types come and go."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus

import msgspec
import structlog

from federator.agent.audit import AuditedType
from federator.agent.member import Member, ObjectAccess
from federator.agent.outbox import Outbox, TypeSink
from federator.agent.settings import AgentSettings, SecretMode
from federator.agent.transforms import SECRETS, Transform, transform_for
from federator.api.cluster import TypeState
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.cache.reflector_status import ReflectorState, ReflectorStatus
from federator.cache.shared_informer import SharedInformer
from federator.errors import FederatorError, KubeStatusError, MemberUnreachable

log = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the informers' health."""

RESTART_AFTER = (5.0, 10.0)
"""Seconds, at least and at most, until an informer that failed by a defect is started anew."""

NOT_SERVED = "not served"

TYPE_DEFINITIONS = frozenset(
    {
        GroupResource("apiextensions.k8s.io", "customresourcedefinitions"),
        GroupResource("apiregistration.k8s.io", "apiservices"),
    }
)
"""Types whose objects decide which types there are."""


HURRY_FOR = 30.0
"""Seconds after an outage in which types that are still unreachable dial without waiting: longer than an apiserver
takes from its first answer to all of them, and short enough that a half-broken one is not dialled so for ever."""


class TypeHealth(msgspec.Struct, frozen=True):
    """How one collected type is followed.

    Attributes:
        resource_type: the type.
        state: LIVE, SYNCING (not yet listed), STALE or DENIED.
        reason: why it is not LIVE.
        reflector: what its Reflector says.
    """

    resource_type: ResourceType
    state: TypeState
    reason: str
    reflector: ReflectorStatus


class _Running(msgspec.Struct):
    """One informer, the task it runs in, and what was last found of its health."""

    resource_type: ResourceType
    informer: SharedInformer
    task: asyncio.Task[None]
    started_at: float
    state: TypeState = TypeState.SYNCING
    reason: str = ""
    is_not_found: bool = False


class Informers:
    """Runs the informers of one agent, feeds its outbox and reports how each type is followed.

    Types don't know each other: what fails, in whatever way, is reported as that type's state and tried again, while
    the others go on.
    """

    def __init__(
        self,
        member: Member,
        outbox: Outbox,
        settings: AgentSettings,
        *,
        secrets_key: bytes | None,
        types_may_have_changed: Callable[[], None],
    ) -> None:
        """Starts nothing.

        Args:
            member: the cluster, open as long as `run` runs.
            outbox: what is fed.
            settings: narrowing, secrets, `stale_after`.
            secrets_key: key of the fingerprints.
            types_may_have_changed: called when a definition of types changed or a type is not found.
        """
        self._member = member
        self._outbox = outbox
        self._settings = settings
        self._secrets_key = secrets_key
        self._types_may_have_changed = types_may_have_changed
        self._wanted: dict[GroupResource, ResourceType] = {}
        self._running: dict[GroupResource, _Running] = {}
        self._changed = asyncio.Event()
        self._floors: Mapping[GroupResource, str] = {}
        self._is_outage = False
        self._outage_seen_at = -math.inf
        self._counts: Counter[str] = Counter()

    @property
    def types(self) -> Sequence[ResourceType]:
        """What is to be collected."""
        return tuple(self._wanted.values())

    def set_types(self, types: Sequence[ResourceType]) -> None:
        """Sets what is to be collected; `run` starts and stops informers accordingly."""
        self._wanted = {resource_type.group_resource: resource_type for resource_type in types}
        self._changed.set()

    def start_from(self, floors: Mapping[GroupResource, str]) -> None:
        """Sets the resourceVersions that the cluster is known to have reached: informers to come list nothing older."""
        self._floors = floors

    async def run(self) -> None:
        """Runs the informers until cancelled; leaves no task."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                await self._stop_unwanted()
                for resource, resource_type in self._wanted.items():
                    if resource not in self._running:
                        self._start(tasks, resource_type)
                self._look()
                try:
                    async with asyncio.timeout(LOOK_INTERVAL):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def health(self) -> Iterator[TypeHealth]:
        """How each collected type is followed, as of the last look."""
        for running in self._running.values():
            yield TypeHealth(running.resource_type, running.state, running.reason, running.informer.status())

    def audited(self) -> Iterator[AuditedType]:
        """What an audit can compare: each type's informer with the apiserver."""
        for running in list(self._running.values()):
            objects = self._list_watch(running.resource_type, metadata_only=True)
            yield AuditedType(running.resource_type, running.informer, objects, running.informer.withheld)

    def proofs(self) -> Iterator[tuple[GroupResource, float]]:
        """Per type that the apiserver has confirmed once, the seconds since the last time."""
        for resource in self._running:
            age = self.proof_age(resource)
            if age is not None:
                yield resource, age

    def proof_age(self, resource: GroupResource) -> float | None:
        """Seconds since the apiserver last confirmed a type; None where it has not, or nobody follows the type."""
        running = self._running.get(resource)
        last_proof = running.informer.status().last_proof if running is not None else None
        return None if last_proof is None else max(0.0, asyncio.get_running_loop().time() - last_proof)

    def statistics(self) -> Mapping[str, object]:
        """Informers started, stopped and failed by a defect; per type what each counts, and its last proof."""
        return {
            "started": self._counts["started"],
            "stopped": self._counts["stopped"],
            "failed": self._counts["failed"],
            "proof_ages": {str(resource): age for resource, age in self.proofs()},
            "types": {str(resource): running.informer.statistics() for resource, running in self._running.items()},
        }

    def _start(self, tasks: asyncio.TaskGroup, resource_type: ResourceType) -> None:
        resource = resource_type.group_resource
        is_metadata = resource == SECRETS and self._settings.secrets is SecretMode.METADATA
        list_watch = self._list_watch(resource_type, metadata_only=is_metadata)
        transform = transform_for(resource_type, self._settings.secrets, self._secrets_key)
        source = _Source(list_watch, transform, tasks)
        source.sink = sink = self._outbox.add_type(resource_type, source)
        source.informer = informer = SharedInformer(
            list_watch,
            name=f"{self._settings.cluster_id} {resource}",
            transform=transform,
            retain=KubeObject.without_raw,
            use_watch_list=False,  # costs three times a list's CPU here: each event is flushed, read and framed alone
            start_from=self._floors.get(resource, ""),
            sink=_DefinitionSink(sink, self._types_may_have_changed) if resource in TYPE_DEFINITIONS else sink,
        )
        # What fails is told once, when a type's state changes, not with every try.
        informer.set_watch_error_handler(
            lambda error: log.debug("list and watch failed", informer=informer.name, cause=str(error))
        )
        task = tasks.create_task(self._run_informer(informer, resource_type), name=f"{informer.name} informer")
        self._running[resource] = _Running(resource_type, informer, task, asyncio.get_running_loop().time())
        self._counts["started"] += 1

    def _list_watch(self, resource_type: ResourceType, *, metadata_only: bool) -> ObjectAccess:
        return self._member.list_watch(
            resource_type,
            namespace=self._settings.namespace if resource_type.namespaced else "",
            label_selector=self._settings.label_selector,
            metadata_only=metadata_only,
        )

    async def _run_informer(self, informer: SharedInformer, resource_type: ResourceType) -> None:
        """Runs one informer; a defect ends it, and only it, until it is started anew."""
        try:
            await informer.run()
        except Exception as error:  # the supervisor of one type: the others must go on
            self._counts["failed"] += 1
            log.error("informer failed", cluster=self._settings.cluster_id, resource=str(resource_type), exc_info=error)
            self._outbox.report(resource_type, TypeState.STALE, f"defect: {type(error).__name__}")
            await asyncio.sleep(random.uniform(*RESTART_AFTER))
            del self._running[resource_type.group_resource]
            self._changed.set()

    async def _stop_unwanted(self) -> None:
        unwanted = [
            running
            for resource, running in self._running.items()
            if not _is_same_collection(running.resource_type, self._wanted.get(resource))
        ]
        for running in unwanted:
            running.task.cancel()
            self._counts["stopped"] += 1
        await asyncio.gather(*(running.task for running in unwanted), return_exceptions=True)
        for running in unwanted:
            resource = running.resource_type.group_resource
            self._running.pop(resource, None)
            if resource not in self._wanted and not self._outbox.is_retired(resource):
                # Else it is served and not collected any more, which was told already.
                self._outbox.report(running.resource_type, TypeState.ABSENT, NOT_SERVED)

    def _look(self) -> None:
        """Judges each type, and reports what was found."""
        now = asyncio.get_running_loop().time()
        looked = [(running, running.informer.status()) for running in self._running.values()]
        self._hurry_after_outage(looked, now)
        for running, status in looked:
            if running.informer.has_synced() or status.error:
                verdict = self._judge(status, now)
            else:
                verdict = self._judge_first(running, status, now)
            if verdict is not None:
                if verdict[0] is not running.state and not self._is_outage:
                    self._tell(running.resource_type, *verdict)
                running.state, running.reason = verdict
                self._outbox.report(running.resource_type, running.state, running.reason)
            error = status.error
            is_not_found = isinstance(error, KubeStatusError) and error.code == HTTPStatus.NOT_FOUND
            if is_not_found and not running.is_not_found:
                self._types_may_have_changed()
            running.is_not_found = is_not_found

    def _tell(self, resource_type: ResourceType, state: TypeState, reason: str) -> None:
        level = log.debug if state is TypeState.LIVE else log.warning
        level(
            "type changed state", cluster=self._settings.cluster_id, type=str(resource_type), state=state, cause=reason
        )

    def _hurry_after_outage(self, looked: Sequence[tuple[_Running, ReflectorStatus]], now: float) -> None:
        """Once an apiserver that answered nobody answers one type again, lets the others dial without waiting.

        Each would otherwise sit out a delay that has grown with the outage, up to a minute. A type that is denied asks
        too seldom to say whether anybody answers.
        """
        unreachable = [
            (running.informer, status.error)
            for running, status in looked
            if isinstance(status.error, MemberUnreachable)
        ]
        denied = sum(_is_denied(status) for _, status in looked)
        if unreachable and len(unreachable) + denied == len(looked):
            if not self._is_outage:
                _, cause = unreachable[0]
                log.warning("apiserver does not answer", cluster=self._settings.cluster_id, cause=str(cause))
            self._is_outage, self._outage_seen_at = True, now
            return
        if self._is_outage:
            log.info("apiserver answers again", cluster=self._settings.cluster_id)
            self._is_outage = False
        if now - self._outage_seen_at < HURRY_FOR:
            for informer, _ in unreachable:
                informer.dial_soon()

    def _judge_first(self, running: _Running, status: ReflectorStatus, now: float) -> tuple[TypeState, str] | None:
        """Of a type that has neither synced nor failed yet: after a while, what it waits for."""
        if now - running.started_at <= self._settings.stale_after or not status.waiting_for:
            return None
        what, _, _ = status.waiting_for.partition(",")  # without the seconds, which change
        return TypeState.SYNCING, f"waiting for {what}"

    def _judge(self, status: ReflectorStatus, now: float) -> tuple[TypeState, str] | None:
        """State and reason, or None where it is too early to tell."""
        if status.state is ReflectorState.WATCHING:
            # A stream that has just opened after a failure proves nothing yet, in either direction.
            return (TypeState.LIVE, "") if status.error is None else None
        if _is_denied(status):
            return TypeState.DENIED, str(status.error)
        if status.failing_since is not None and now - status.failing_since > self._settings.stale_after:
            return TypeState.STALE, str(status.error)
        return None


class _Source:
    """The `TypeSource` of one type."""

    informer: SharedInformer
    sink: TypeSink

    def __init__(self, objects: ObjectAccess, transform: Transform, tasks: asyncio.TaskGroup) -> None:
        self._objects = objects
        self._transform = transform
        self._tasks = tasks

    @property
    def epoch(self) -> int:
        return self.informer.epoch

    def request_list(self) -> None:
        self.informer.request_relist()

    def states(self) -> Sequence[KubeObject]:
        return self.informer.indexer.list()

    def fetch(self, objects: Sequence[KubeObject]) -> None:
        self._tasks.create_task(self._fetch(objects), name=f"{self.informer.name} repair")

    async def _fetch(self, objects: Sequence[KubeObject]) -> None:
        """Fetches objects one after the other; those that cannot be had are missing from what the sink gets."""
        fetched: list[KubeObject] = []
        try:
            for obj in objects:
                found = await self._objects.get(obj.namespace, obj.name)
                if found is not None:
                    fetched.append(self._transform(found))
        except (FederatorError, msgspec.MsgspecError) as error:
            log.info("repair broken off", informer=self.informer.name, cause=str(error))
        self.sink.fetched(objects, fetched)


class _DefinitionSink:
    """A sink that also tells that the types may have changed."""

    def __init__(self, sink: TypeSink, types_may_have_changed: Callable[[], None]) -> None:
        self._sink = sink
        self._types_may_have_changed = types_may_have_changed

    def replaced_all(
        self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
    ) -> None:
        self._sink.replaced_all(resource_version, objects, withheld)
        self._types_may_have_changed()

    def upserted(self, obj: KubeObject, before: KubeObject | None) -> None:
        self._sink.upserted(obj, before)
        self._types_may_have_changed()

    def deleted(self, key: str, obj: KubeObject | None, before: KubeObject) -> None:
        self._sink.deleted(key, obj, before)
        self._types_may_have_changed()

    def bookmark(self, resource_version: str) -> None:
        self._sink.bookmark(resource_version)

    def settled(self, low_water: str) -> None:
        self._sink.settled(low_water)


def _is_same_collection(running: ResourceType, wanted: ResourceType | None) -> bool:
    """Whether an informer can go on: short names and categories may change, what it reads may not."""
    return wanted is not None and (running.version, running.kind, running.namespaced) == (
        wanted.version,
        wanted.kind,
        wanted.namespaced,
    )


def _is_denied(status: ReflectorStatus) -> bool:
    return isinstance(status.error, KubeStatusError) and status.error.code == HTTPStatus.FORBIDDEN

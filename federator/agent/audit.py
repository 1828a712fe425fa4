"""Audit: now and then, whether what an informer holds is what its apiserver has.

Watches are trusted in everything else; an event that was lost on the way, by whatever defect, would stay unnoticed for
as long as its object does not change.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import structlog
from aiolimiter import AsyncLimiter

from federator.api.list_watch import ListOptions
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.api.resource_version import is_ordered
from federator.cache.list_watch import ListWatch
from federator.cache.shared_informer import SharedInformer
from federator.errors import FederatorError, KubeStatusError

log = structlog.get_logger(__name__)

PAGE_SIZE = 500
"""Objects asked for at once."""

MAX_PAGES = 240
"""Of one list; of a type with more objects, pages are larger. At `REQUEST_PAUSE` they take two minutes: an apiserver
keeps the state that a list began with for five."""

REQUEST_PAUSE = 0.5
"""Seconds between two requests, at least."""

MAX_NAMED = 20
"""Keys of differing objects that are named."""

SETTLE_LOOKS = 100
"""Looks for a moment in which an informer's queue is empty, before it is left for the next time."""

SETTLE_PAUSE = 0.1
"""Seconds between them."""


class AuditOutcome(StrEnum):
    """What came of one comparison."""

    EQUAL = "EQUAL"
    DIFFERENT = "DIFFERENT"
    """Something differs; the type is listed anew."""
    EXPIRED = "EXPIRED"
    """The state to compare with was forgotten by the apiserver, twice."""
    UNSUPPORTED = "UNSUPPORTED"
    """The server cannot list a type as it was at a resourceVersion."""
    UNSETTLED = "UNSETTLED"
    """The informer had not synced, or was never through with what it was told."""
    FAILED = "FAILED"
    """The apiserver did not answer, or refused."""


class AuditResult(msgspec.Struct, frozen=True):
    """The last comparison of one type.

    Attributes:
        type: the type.
        outcome: what came of it.
        objects: number of objects compared.
        missing: of those that the apiserver has and the informer had not.
        extra: of those that the informer had and the apiserver has not.
        differs: of those that both had in different states.
        keys: the first of them, each after the word for what is wrong with it.
        reason: why nothing was compared.
    """

    type: ResourceType
    outcome: AuditOutcome
    objects: int = 0
    missing: int = 0
    extra: int = 0
    differs: int = 0
    keys: tuple[str, ...] = ()
    reason: str = ""


def _none() -> Collection[str]:
    return ()


class AuditedType(NamedTuple):
    """What is compared with what.

    Attributes:
        type: the type.
        informer: what holds it; it is also what lists it anew.
        objects: lists metadata only, narrowed as the informer's own.
        withheld: keys of objects that the informer cannot hold and knows of.
    """

    type: ResourceType
    informer: SharedInformer
    objects: ListWatch
    withheld: Callable[[], Collection[str]] = _none


class _Held(NamedTuple):
    """What an informer held at one moment, in which it was through with everything up to a version."""

    resource_version: str
    objects: dict[str, KubeObject]


class _Difference(NamedTuple):
    kind: str
    key: str
    held: KubeObject | None
    listed: KubeObject | None


class _Unsupported(Exception):
    """A list is not what was asked for; the text says how."""


class Audit:
    """Compares the Indexers of one agent with its apiserver, one type at a time.

    What is compared is one state: the informer's, at a moment in which its queue is empty, with a list of exactly that
    resourceVersion. An object that has changed in the informer by the end of the list is not judged. So nothing that
    happens meanwhile is taken for a difference.

    It costs the apiserver one list of metadata for each type in `interval`, at two requests a second at most, and the
    agent the keys of one type.
    """

    def __init__(
        self,
        types: Callable[[], Iterable[AuditedType]],
        *,
        interval: float,
        name: str,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Asks nothing yet.

        Args:
            types: gives what there is to be compared at present.
            interval: seconds in which each type is compared once.
            name: of the cluster, in logs.
            uniform: draws a number between two.
        """
        self._types = types
        self._interval = interval
        self._name = name
        self._uniform = uniform
        self._limiter = AsyncLimiter(1, REQUEST_PAUSE)
        self._results: dict[GroupResource, AuditResult] = {}
        self._tried_at: dict[GroupResource, float] = {}
        self._compared_at: dict[GroupResource, float] = {}
        self._found: dict[GroupResource, int] = {}
        self._outcomes: Counter[str] = Counter()
        self._differences: Counter[str] = Counter()
        self._relists = 0

    async def run(self) -> None:
        """Compares one type after the other until cancelled, spread over the interval."""
        while True:
            # Drawn anew each time, so that agents that were started together part.
            number = max(1, sum(1 for _ in self._types()))
            await asyncio.sleep(self._interval / number * self._uniform(0.5, 1.5))
            audited = self._next()
            if audited is not None:
                await self.check(audited)

    async def check(self, audited: AuditedType) -> AuditResult:
        """Compares one type now, tells what was found and has it listed anew where it differs."""
        resource = audited.type.group_resource
        loop = asyncio.get_running_loop()
        try:
            result, found = await self._compare(audited)
        except FederatorError as error:
            result, found = AuditResult(audited.type, AuditOutcome.FAILED, reason=str(error)), []
        self._tried_at[resource] = loop.time()
        if result.outcome in {AuditOutcome.EQUAL, AuditOutcome.DIFFERENT}:
            self._compared_at[resource] = loop.time()
        before = self._results.get(resource)
        self._results[resource] = result
        self._outcomes[result.outcome] += 1
        if found:
            self._tell(audited, result, found)
        else:
            self._found.pop(resource, None)
        if result.reason and (before is None or before.reason != result.reason):
            log.info("type not audited", cluster=self._name, resource=str(resource), cause=result.reason)
        return result

    def results(self) -> Iterable[AuditResult]:
        """The last result of each type that is still collected."""
        return self._results.values()

    def statistics(self) -> Mapping[str, object]:
        """Comparisons by outcome, differences by kind, lists asked for; per type the seconds since the last one."""
        now = asyncio.get_running_loop().time() if self._compared_at else 0.0
        return {
            "outcomes": {outcome.value: self._outcomes[outcome] for outcome in AuditOutcome},
            "differences": {kind: self._differences[kind] for kind in ("missing", "extra", "differs")},
            "relists": self._relists,
            "ages": {str(resource): now - at for resource, at in self._compared_at.items()},
        }

    def _next(self) -> AuditedType | None:
        """The type that was tried longest ago; what is told of types that are gone is forgotten."""
        present = {audited.type.group_resource: audited for audited in self._types()}
        for kept in (self._results, self._tried_at, self._compared_at, self._found):
            for resource in kept.keys() - present.keys():
                del kept[resource]
        return min(
            present.values(),
            key=lambda audited: self._tried_at.get(audited.type.group_resource, -math.inf),
            default=None,
        )

    def _tell(self, audited: AuditedType, result: AuditResult, found: list[_Difference]) -> None:
        resource = audited.type.group_resource
        for difference in found:
            self._differences[difference.kind] += 1
        # A list that did not help would not help the next time either: only the log goes on.
        marks = hash(frozenset(found))
        is_new = self._found.get(resource) != marks
        self._found[resource] = marks
        log.warning(
            "audit found differences" if is_new else "audit found differences that a list did not mend",
            cluster=self._name,
            resource=str(resource),
            missing=result.missing,
            extra=result.extra,
            differs=result.differs,
            keys=result.keys,
        )
        if is_new:
            self._relists += 1
            audited.informer.request_relist()

    async def _compare(self, audited: AuditedType) -> tuple[AuditResult, list[_Difference]]:
        """Compares with the state of the moment, and where that is forgotten meanwhile, once more with a newer one.

        Raises:
            FederatorError: the apiserver did not answer, or refused.
        """
        asked = ""
        for _ in range(2):
            held = await _settled(audited.informer)
            if held is None:
                return AuditResult(audited.type, AuditOutcome.UNSETTLED), []
            if not is_ordered(held.resource_version):
                reason = "its resourceVersions are no numbers"
                return AuditResult(audited.type, AuditOutcome.UNSUPPORTED, reason=reason), []
            if held.resource_version == asked:
                break  # forgotten is forgotten
            asked = held.resource_version
            try:
                objects, found = await self._differences_from(audited, held)
            except _Unsupported as error:
                return AuditResult(audited.type, AuditOutcome.UNSUPPORTED, reason=str(error)), []
            except KubeStatusError as error:
                if error.code == HTTPStatus.BAD_REQUEST:
                    return AuditResult(audited.type, AuditOutcome.UNSUPPORTED, reason=str(error)), []
                if not error.is_expired:
                    raise
                continue
            kinds = Counter(difference.kind for difference in found)
            result = AuditResult(
                audited.type,
                AuditOutcome.DIFFERENT if found else AuditOutcome.EQUAL,
                objects,
                kinds["missing"],
                kinds["extra"],
                kinds["differs"],
                tuple(f"{difference.kind} {difference.key}" for difference in found[:MAX_NAMED]),
            )
            return result, found
        return AuditResult(audited.type, AuditOutcome.EXPIRED), []

    async def _differences_from(self, audited: AuditedType, held: _Held) -> tuple[int, list[_Difference]]:
        """Number of objects listed, and what differs. `held` is used up."""
        informer, objects = audited.informer, held.objects
        limit = max(PAGE_SIZE, -(-len(objects) // MAX_PAGES))
        options = ListOptions(resource_version=held.resource_version, resource_version_match="Exact", limit=limit)
        suspects: list[_Difference] = []
        number, is_whole = 0, True
        while True:
            await self._limiter.acquire()
            page = await audited.objects.list(options)
            if page.resource_version != held.resource_version:
                raise _Unsupported(
                    f"asked for exactly resourceVersion {held.resource_version}, it lists {page.resource_version}"
                )
            number += len(page.objects)
            is_whole = is_whole and not page.skipped
            for listed in page.objects:
                before = objects.pop(listed.key, None)
                if before is None:
                    suspects.append(_Difference("missing", listed.key, None, listed.without_raw()))
                elif not before.is_state(listed.uid, listed.resource_version):
                    suspects.append(_Difference("differs", listed.key, before, listed.without_raw()))
            if not page.continue_token:
                break
            options = ListOptions(limit=limit, continue_token=page.continue_token)
        if is_whole:  # else what is left may well be what the list could not name
            suspects += (_Difference("extra", key, before, None) for key, before in objects.items())
        withheld = frozenset(audited.withheld()) if suspects else frozenset()
        return number, [
            suspect
            for suspect in suspects
            if suspect.key not in withheld and _is_unchanged(informer.indexer.get_by_key(suspect.key), suspect.held)
        ]


async def _settled(informer: SharedInformer) -> _Held | None:
    """What an informer holds in a moment in which nothing waits in its queue; None where there is no such moment."""
    for _ in range(SETTLE_LOOKS if informer.has_synced() else 0):
        version = informer.last_sync_resource_version
        if informer.indexer.last_resource_version == version:
            return _Held(version, dict(zip(informer.indexer.list_keys(), informer.indexer.list(), strict=True)))
        await asyncio.sleep(SETTLE_PAUSE)
    return None


def _is_unchanged(now: KubeObject | None, before: KubeObject | None) -> bool:
    if now is None or before is None:
        return now is before
    return now.is_state(before.uid, before.resource_version)

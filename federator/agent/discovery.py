"""TypeFollower: which types the member serves, as they come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog

from federator.agent.member import Member
from federator.agent.selection import Selected, Selection
from federator.agent.settings import AgentSettings
from federator.api.resource import GroupResource, ResourceType
from federator.errors import FederatorError, UnknownResourceType
from federator.kube.discovery import Discovery

log = structlog.get_logger(__name__)


class TypeFollower:
    """Keeps the selected types in step with discovery.

    Only what is known to be gone is given up, since its objects are deleted then: a look that fails changes nothing, a
    group that discovery knows nothing of at the moment keeps its types, and a type has to be missing at two looks,
    `discovery_confirm` apart, and at those between.
    """

    def __init__(self, member: Member, selection: Selection, settings: AgentSettings) -> None:
        """Asks nothing yet.

        Args:
            member: the cluster, open as long as this is used.
            selection: chooses among what is served.
            settings: `discovery_interval`, `discovery_debounce`, `discovery_confirm`.
        """
        self._member = member
        self._selection = selection
        self._settings = settings
        self._discovery = Discovery(())
        self._selected = Selected((), {})
        self._missing_since: dict[GroupResource, float] = {}
        self._started_at = 0.0
        self._is_confirmed = False
        self._lacking: UnknownResourceType | None = None
        self._may_have_changed = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._failure = ""

    @property
    def types(self) -> Sequence[ResourceType]:
        """The types to collect."""
        return self._selected.types

    def types_may_have_changed(self) -> None:
        """Has discovery looked at soon."""
        self._may_have_changed.set()

    async def start(self) -> None:
        """Looks for the first time.

        Raises:
            UnknownResourceType: none of the names given matches, discovery is complete, and types are not waited for.
            KubeStatusError, MemberUnreachable, CredentialsError: discovery cannot be read.
        """
        discovery = await self._member.discover()
        self._started_at = asyncio.get_running_loop().time()
        self._take(discovery)
        if not discovery.failed_groups:
            try:
                self._selection.check(self._selected)
            except UnknownResourceType as error:
                if not self._settings.waits_for_types:
                    raise
                self._lacking = error

    async def run(self, apply: Callable[[Sequence[ResourceType]], None]) -> None:
        """Follows until cancelled.

        Args:
            apply: called with the types to collect after each look.
        """
        while True:
            await self._wait()
            self._may_have_changed.clear()
            await self._look()
            apply(self.types)

    async def _wait(self) -> None:
        is_certain = self._is_confirmed and not self._missing_since
        try:
            async with asyncio.timeout(
                self._settings.discovery_interval if is_certain else self._settings.discovery_confirm
            ):
                await self._may_have_changed.wait()
                await asyncio.sleep(self._settings.discovery_debounce)
        except TimeoutError:
            return

    @property
    def lacking(self) -> UnknownResourceType | None:
        """Why there was nothing to collect from the start on; None as soon as there is, or once was."""
        return self._lacking

    @property
    def left_out(self) -> Mapping[ResourceType, str]:
        """The types that are served and not collected, each with the reason."""
        return self._selected.left_out

    @property
    def unread_groups(self) -> Sequence[str]:
        """API groups of whose types nothing is known at present."""
        return self._discovery.failed_groups

    def is_absent(self, resource: GroupResource) -> bool:
        """Whether it is known for sure that a type is not served."""
        served = (*self.types, *self.left_out)
        is_served = any(resource == each.group_resource for each in served)
        return self._is_confirmed and not is_served and resource.group not in self._discovery.failed_groups

    def statistics(self) -> Mapping[str, object]:
        """Looks at discovery, those that failed, types collected, left out, and groups not known at the moment."""
        return {
            "looks": self._counts["looks"],
            "failures": self._counts["failures"],
            "collected": len(self.types),
            "left_out": len(self.left_out),
            "failed_groups": len(self._discovery.failed_groups),
        }

    async def _look(self) -> None:
        self._counts["looks"] += 1
        try:
            self._take(await self._member.discover())
            self._failure = ""
        except FederatorError as error:
            self._counts["failures"] += 1
            if self._failure != error.reason:
                self._failure = error.reason
                log.warning("discovery failed", cluster=self._settings.cluster_id, cause=str(error))
        except Exception as error:  # the types known so far are followed on: a defect here must not end the agent
            self._counts["failures"] += 1
            if self._failure != type(error).__name__:
                self._failure = type(error).__name__
                log.error("discovery failed unexpectedly", cluster=self._settings.cluster_id, exc_info=error)

    def _take(self, discovery: Discovery) -> None:
        now = asyncio.get_running_loop().time()
        before = self._selected
        known = {served.group_resource: served for served in discovery.types}
        missing = {one.group_resource: one for one in self.types if one.group_resource not in known}
        doubtful = {resource for resource in missing if resource.group in discovery.failed_groups}
        since = {resource: self._missing_since.get(resource, now) for resource in missing.keys() - doubtful}
        confirm = self._settings.discovery_confirm
        self._missing_since = {resource: at for resource, at in since.items() if now - at < confirm}
        known |= {resource: missing[resource] for resource in doubtful | self._missing_since.keys()}
        self._is_confirmed = now - self._started_at >= confirm
        self._discovery = discovery
        self._selected = self._selection.select(known.values())
        if self._selected.types:
            self._lacking = None
        self._tell(before)

    def _tell(self, before: Selected) -> None:
        if self._selected.unmatched and self._selected.unmatched != before.unmatched:
            log.warning(
                "no such resource types yet", cluster=self._settings.cluster_id, names=list(self._selected.unmatched)
            )
        came, went = _difference(self.types, before.types), _difference(before.types, self.types)
        if came or went:
            log.info("types changed", cluster=self._settings.cluster_id, came=len(came), went=sorted(map(str, went)))


def _difference(left: Sequence[ResourceType], right: Sequence[ResourceType]) -> set[GroupResource]:
    return {one.group_resource for one in left} - {other.group_resource for other in right}

"""The first part of a watch-list: everything that exists, as ADDED events that one bookmark ends."""

from __future__ import annotations

from collections.abc import Sequence

from federator.api.list_watch import Known, WatchEvent, WatchEventType, kept
from federator.api.object import KubeObject

MAX_ATTEMPTS = 2
"""Watch-lists in a row that may end before their bookmark; then the type is listed: this time where the server has
finished a watch-list before, else from then on.

client-go tries for ever, and with an aggregated API or a proxy that takes `sendInitialEvents` and ignores it, it never
syncs (kubernetes#140890).
"""


class UnfinishedWatchList(Exception):
    """A watch-list ended, or was ended, before the bookmark that makes it whole."""


class InitialEvents:
    """What a watch-list has sent so far. Its events come in no order, so nothing of it counts before its end."""

    def __init__(self, resource_version: str, known: Known) -> None:
        """`resource_version` is what was asked for; what is `known` in the state that is sent is not kept twice."""
        self.asked = resource_version
        self._known = known
        self._objects: dict[str, KubeObject] = {}

    @property
    def objects(self) -> Sequence[KubeObject]:
        """The state so far."""
        return list(self._objects.values())

    def take(self, event: WatchEvent) -> bool:
        """Takes the next event and returns whether it is the one that ends the initial events."""
        obj = event.object
        if event.type is WatchEventType.BOOKMARK:
            return event.initial_events_end
        if event.type is WatchEventType.DELETED:
            self._objects.pop(obj.key, None)
            return False
        held = self._known(obj.namespace, obj.name)
        if held is None or not held.is_state(obj.uid, obj.resource_version):
            held = kept(obj, self._known)
        self._objects[obj.key] = held
        return False

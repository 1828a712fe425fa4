"""Notifications: what waits for a handler, and how it is coalesced when too much waits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.handler import HandlerResult, ResourceEventHandler

Whole = Callable[[KubeObject], KubeObject]
"""Gives a state with its JSON, however it is kept; see `Indexer.whole`."""


class AddNotification(msgspec.Struct, frozen=True):
    """An object appeared."""

    key: str
    obj: KubeObject
    is_initial: bool

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_add(self.obj, self.is_initial)

    def restored(self, whole: Whole) -> AddNotification:
        """The same with whole objects."""
        return AddNotification(self.key, whole(self.obj), self.is_initial)


class UpdateNotification(msgspec.Struct, frozen=True):
    """An object changed, or is told again."""

    key: str
    old: KubeObject
    new: KubeObject

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_update(self.old, self.new)

    def restored(self, whole: Whole) -> UpdateNotification:
        """The same with whole objects."""
        return UpdateNotification(self.key, whole(self.old), whole(self.new))


class DeleteNotification(msgspec.Struct, frozen=True):
    """An object is gone."""

    key: str
    obj: KubeObject | Tombstone

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_delete(self.obj)

    def restored(self, whole: Whole) -> DeleteNotification:
        """The same with whole objects."""
        if not isinstance(self.obj, Tombstone):
            return DeleteNotification(self.key, whole(self.obj))
        last_state = None if self.obj.object is None else whole(self.obj.object)
        return DeleteNotification(self.key, Tombstone(self.obj.key, last_state))

    @property
    def last_state(self) -> KubeObject | None:
        """The last state known."""
        return self.obj.object if isinstance(self.obj, Tombstone) else self.obj


Notification = AddNotification | UpdateNotification | DeleteNotification


def coalesce(pending: Notification, coming: Notification) -> tuple[Notification, ...]:
    """What has the effect of two consecutive notifications of one key.

    Nothing when they cancel out, one when they merge, both when one cannot express them. The old state of an update and
    the last state of a delete stay those the handler was told of, or are those with which they were deleted, so that a
    filter in front of it decides as before.
    """
    key = pending.key
    match pending, coming:
        case AddNotification(), UpdateNotification():
            return (AddNotification(key, coming.new, pending.is_initial),)
        case AddNotification(), DeleteNotification():
            return ()
        case UpdateNotification(), UpdateNotification():
            return (UpdateNotification(key, pending.old, coming.new),)
        case UpdateNotification(), DeleteNotification():
            return (DeleteNotification(key, Tombstone(key, pending.old)),)
        case DeleteNotification(last_state=KubeObject() as last_state), AddNotification():
            return (UpdateNotification(key, last_state, coming.obj),)
        case _:
            return (pending, coming)


class CoalescingBuffer:
    """Notifications that wait to be delivered, in order, and how many initial adds are still owed.

    What was taken out is owed until it is settled.

    Attributes:
        initial_pending: initial adds that are neither settled nor merged away.
        coalesced: notifications merged away so far.
    """

    __slots__ = ("_newest_of_key", "_next_position", "_waiting", "coalesced", "initial_pending")

    def __init__(self) -> None:
        self.initial_pending = 0
        self.coalesced = 0
        self._waiting: OrderedDict[int, tuple[Notification, float]] = OrderedDict()  # by position
        self._newest_of_key: dict[str, int] = {}
        self._next_position = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Notification]:
        return (notification for notification, _ in self._waiting.values())

    def put(self, notification: Notification, arrived_at: float = 0.0, *, merge: bool) -> None:
        """Adds a notification.

        Args:
            notification: the newest of its key.
            arrived_at: is given back with it; of merged ones the first counts.
            merge: whether it is to be merged with the one that waits for its key, as `coalesce` can.
        """
        self._expect(notification)
        position = self._newest_of_key.get(notification.key) if merge else None
        if position is None or not self._merge(position, notification):
            self._waiting[self._next_position] = notification, arrived_at
            self._newest_of_key[notification.key] = self._next_position
            self._next_position += 1

    def pop(self) -> tuple[Notification, float]:
        """Takes out the first, and when it arrived."""
        position, (notification, arrived_at) = self._waiting.popitem(last=False)
        if self._newest_of_key.get(notification.key) == position:
            del self._newest_of_key[notification.key]
        return notification, arrived_at

    def clear(self) -> None:
        """Takes out all."""
        self._waiting.clear()
        self._newest_of_key.clear()

    def settle(self, notification: Notification) -> None:
        """Says that one that was taken out has been delivered, or failed."""
        if isinstance(notification, AddNotification) and notification.is_initial:
            self.initial_pending -= 1

    def _merge(self, position: int, coming: Notification) -> bool:
        pending, arrived_at = self._waiting[position]
        merged = coalesce(pending, coming)
        if len(merged) > 1:
            return False
        self.coalesced += 2 - len(merged)
        if merged:
            self._expect(merged[0])
            self._waiting[position] = merged[0], arrived_at
        else:
            del self._waiting[position], self._newest_of_key[coming.key]
        self.settle(pending)
        self.settle(coming)
        return True

    def _expect(self, notification: Notification) -> None:
        if isinstance(notification, AddNotification) and notification.is_initial:
            self.initial_pending += 1

"""Notifications: what waits for a handler, and how it is coalesced when too much waits."""

from __future__ import annotations

import msgspec

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.handler import HandlerResult, ResourceEventHandler


class AddNotification(msgspec.Struct, frozen=True):
    """An object appeared."""

    key: str
    obj: KubeObject
    is_initial: bool

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_add(self.obj, self.is_initial)


class UpdateNotification(msgspec.Struct, frozen=True):
    """An object changed, or is told again."""

    key: str
    old: KubeObject
    new: KubeObject

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_update(self.old, self.new)


class DeleteNotification(msgspec.Struct, frozen=True):
    """An object is gone."""

    key: str
    obj: KubeObject | Tombstone

    def deliver(self, handler: ResourceEventHandler) -> HandlerResult:
        """Tells the handler."""
        return handler.on_delete(self.obj)

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

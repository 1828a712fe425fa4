"""Event handlers: what a program does about changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from federator.api.delta import Tombstone
from federator.api.object import KubeObject

HandlerResult = Awaitable[None] | None
"""What a handler's function returns: nothing, or something to await before the next notification."""


class ResourceEventHandler(Protocol):
    """Is told of changes, one after the other; the functions may be plain or `async`.

    The store already holds the change, and perhaps later ones. An exception skips that one notification: it is logged
    and counted, and the next one comes a second later. Plain functions must be quick, as they hold up the loop.
    """

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        """An object appeared; `is_initial` where it was there before this handler."""
        ...

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        """An object changed. With equal resourceVersions it did not: this is a resync.

        A different UID means that the object was deleted and created again, and nobody saw it in between.
        """
        ...

    def on_delete(self, obj: KubeObject | Tombstone) -> HandlerResult:
        """An object is gone; a tombstone where only its absence was seen, with the last state known."""
        ...


class ResourceEventHandlerFuncs:
    """A handler made of functions, those that are wanted."""

    def __init__(
        self,
        *,
        add: Callable[[KubeObject, bool], HandlerResult] | None = None,
        update: Callable[[KubeObject, KubeObject], HandlerResult] | None = None,
        delete: Callable[[KubeObject | Tombstone], HandlerResult] | None = None,
    ) -> None:
        """Takes what is to be called for each kind of change."""
        self._add = add
        self._update = update
        self._delete = delete

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        """Calls `add`."""
        return self._add(obj, is_initial) if self._add else None

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        """Calls `update`."""
        return self._update(old, new) if self._update else None

    def on_delete(self, obj: KubeObject | Tombstone) -> HandlerResult:
        """Calls `delete`."""
        return self._delete(obj) if self._delete else None


class FilteringResourceEventHandler:
    """Passes on what a filter selects, as if nothing else existed.

    An object that comes to match is an add (not initial), one that ceases to match a delete.
    """

    def __init__(self, matches: Callable[[KubeObject], bool], handler: ResourceEventHandler) -> None:
        """Selects by `matches`; it sees objects, never tombstones."""
        self._matches = matches
        self._handler = handler

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        """Passes on an add that matches."""
        return self._handler.on_add(obj, is_initial) if self._matches(obj) else None

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        """Passes on an update, add or delete, by which of the states match."""
        matched, matches = self._matches(old), self._matches(new)
        if matched and matches:
            return self._handler.on_update(old, new)
        if matches:
            return self._handler.on_add(new, False)
        return self._handler.on_delete(old) if matched else None

    def on_delete(self, obj: KubeObject | Tombstone) -> HandlerResult:
        """Passes on a delete whose last state matches, or is not known: better one too many than one lost."""
        last_state = obj.object if isinstance(obj, Tombstone) else obj
        return self._handler.on_delete(obj) if last_state is None or self._matches(last_state) else None

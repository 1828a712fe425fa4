"""What passes between a member's apiserver and a Reflector: options, pages and watch events."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from federator.api.object import KubeObject


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one list or watch request, named as in the Kubernetes API.

    Attributes:
        resource_version: "" (consistent read), "0" (any) or a version, verbatim.
        resource_version_match: "", "NotOlderThan" or "Exact".
        limit: page size; 0 for none.
        continue_token: token of the previous page.
        timeout_seconds: length asked of a watch; 0 leaves it to the server.
        allow_bookmarks: ask a watch for bookmarks.
        send_initial_events: ask a watch for the present state first (watch-list).
    """

    resource_version: str = ""
    resource_version_match: str = ""
    limit: int = 0
    continue_token: str = ""
    timeout_seconds: int = 0
    allow_bookmarks: bool = False
    send_initial_events: bool = False


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list.

    Attributes:
        resource_version: the list's version (of page 1, when the list is paged).
        objects: in the server's order, each with apiVersion and kind stamped.
        continue_token: empty on the last page.
        skipped: names or reasons of items that could not be used (no name, no metadata).
    """

    resource_version: str
    objects: list[KubeObject]
    continue_token: str = ""
    skipped: tuple[str, ...] = ()


Known = Callable[[str, str], KubeObject | None]
"""Gives the object that is held for a namespace and a name, or None.

A list that finds the same UID and resourceVersion gives this object once more and not a copy of it, so that a relist
takes memory only for what changed.
"""


def nothing_known(namespace: str, name: str) -> KubeObject | None:
    """The `Known` of one who holds nothing, or trusts nothing of it."""


class Keeping:
    """A `Known` of one who keeps objects in a form of their own: new ones get it while the list is read.

    So a list of what is kept compressed takes no more memory than that, but for the object that is being read.

    Attributes:
        keep: gives an object that form.
    """

    def __init__(self, known: Known, keep: Callable[[KubeObject], KubeObject]) -> None:
        """Joins the two."""
        self._known = known
        self.keep = keep

    def __call__(self, namespace: str, name: str) -> KubeObject | None:
        """As of the `Known`."""
        return self._known(namespace, name)

    def distrusting(self) -> Keeping:
        """The same of one who trusts nothing of what is held."""
        return Keeping(nothing_known, self.keep)


def kept(obj: KubeObject, known: Known) -> KubeObject:
    """Returns a new object in the form in which it will be kept."""
    return known.keep(obj) if isinstance(known, Keeping) else obj


class WatchEventType(StrEnum):
    """Types of usable watch frames; an ERROR frame is raised as `KubeStatusError` instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, frozen=True):
    """One watch frame.

    Attributes:
        type: what happened.
        object: the object; for a bookmark a stub of which only `resource_version` means anything.
        initial_events_end: the bookmark carries the annotation `k8s.io/initial-events-end: "true"`.
    """

    type: WatchEventType
    object: KubeObject
    initial_events_end: bool = False

"""Predicates: which notifications a handler wants.

A predicate looks at one notification and says yes, no, or that it cannot tell (None), as of a delete whose last state
nobody knows. `PredicateHandler` drops those that are answered with no: what cannot be told counts as yes, so that no
predicate, nor any combination of them, loses such a delete.

Predicates drop notifications, they never change one. That is the difference from `FilteringResourceEventHandler`, which
makes an add of the update that lets an object into its selection and a delete of the one that takes it out, so that the
handler's picture of the selection is whole. Behind predicates it need not be: an object that ceases to match is not
told as gone, the first that is heard of one may be an update, and a delete may be of an object whose add was dropped. A
handler that keeps a picture wants the filter; one that looks at what a key is now, whatever happened, wants predicates.

    informer.add_event_handler(PredicateHandler(handler, in_namespace("shop"), any_of(is_delete, generation_changed)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from federator.api.delta import Tombstone
from federator.api.object import KubeObject, ObjectMeta
from federator.api.selector import LabelSelector
from federator.cache.handler import HandlerResult, ResourceEventHandler
from federator.cache.notification import AddNotification, DeleteNotification, Notification, UpdateNotification

Predicate = Callable[[Notification], bool | None]
"""Whether a notification is wanted; None where that cannot be told. Must be quick; what it raises is the handler's."""


class PredicateHandler:
    """Passes on, unchanged, the notifications that no predicate says no to.

    Initial adds that are dropped count as delivered. What a predicate raises fails that notification, as if the handler
    had raised.
    """

    def __init__(self, handler: ResourceEventHandler, *predicates: Predicate) -> None:
        """Stands in front of `handler`, whose functions may be plain or `async`; all predicates must agree."""
        self._handler = handler
        self._wanted = all_of(*predicates)
        self._passed = 0
        self._dropped = 0

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        """Passes on an add that is wanted."""
        return self._tell(AddNotification(obj.key, obj, is_initial))

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        """Passes on an update or resync that is wanted."""
        return self._tell(UpdateNotification(new.key, old, new))

    def on_delete(self, obj: KubeObject | Tombstone) -> HandlerResult:
        """Passes on a delete that is wanted, or may be."""
        return self._tell(DeleteNotification(obj.key, obj))

    def statistics(self) -> Mapping[str, object]:
        """Notifications that were passed on, and those that were dropped."""
        return {"passed": self._passed, "dropped": self._dropped}

    def _tell(self, notification: Notification) -> HandlerResult:
        if self._wanted(notification) is False:
            self._dropped += 1
            return None
        self._passed += 1
        return notification.deliver(self._handler)


def is_add(notification: Notification) -> bool:
    """An object appeared, or was there before the handler."""
    return isinstance(notification, AddNotification)


def is_initial_add(notification: Notification) -> bool:
    """An object was there before the handler."""
    return isinstance(notification, AddNotification) and notification.is_initial


def is_update(notification: Notification) -> bool:
    """An object changed; resyncs are no updates here."""
    return isinstance(notification, UpdateNotification) and not is_resync(notification)


def is_resync(notification: Notification) -> bool:
    """An object is told again, unchanged."""
    return (
        isinstance(notification, UpdateNotification)
        and notification.old.resource_version == notification.new.resource_version
    )


def is_delete(notification: Notification) -> bool:
    """An object is gone."""
    return isinstance(notification, DeleteNotification)


def resource_version_changed(notification: Notification) -> bool:
    """All but resyncs."""
    return not is_resync(notification)


def generation_changed(notification: Notification) -> bool:
    """Of updates and resyncs those with another `metadata.generation`; all adds and deletes.

    The apiserver counts it up when a spec changes, or when an object with finalizers is to be deleted, not when a
    status or labels change. Types without it, such as ConfigMaps, and objects that were deleted and created again pass.

    Raises:
        ValueError: the informer keeps objects without their bytes.
    """
    if not isinstance(notification, UpdateNotification) or notification.old.uid != notification.new.uid:
        return True
    before, after = _meta(notification.old).generation, _meta(notification.new).generation
    return before != after or not after


def labels_changed(notification: Notification) -> bool:
    """Of updates and resyncs those with other labels, or of another object of that name; all adds and deletes.

    Raises:
        ValueError: the informer keeps objects without their bytes.
    """
    return _changed(notification, lambda meta: meta.labels)


def annotations_changed(notification: Notification) -> bool:
    """Of updates and resyncs those with other annotations, or of another object of that name; all adds and deletes.

    Raises:
        ValueError: the informer keeps objects without their bytes.
    """
    return _changed(notification, lambda meta: meta.annotations)


def in_namespace(*namespaces: str) -> Predicate:
    """Objects in one of these namespaces; "" stands for cluster-scoped ones. The key decides, so it can always tell."""
    wanted = frozenset(namespaces)

    def is_in_namespace(notification: Notification) -> bool:
        return notification.key.rpartition("/")[0] in wanted

    return is_in_namespace


def label_selector(selector: str | LabelSelector) -> Predicate:
    """Objects whose labels are selected: the new ones of an update, the last known of a delete.

    Of deletes whose last state is unknown, or was kept without its bytes, it cannot tell. Of other objects without
    their bytes the predicate raises ValueError.

    Raises:
        MalformedSelector: the text is no label selector, see `LabelSelector.parse`.
    """
    parsed = LabelSelector.parse(selector) if isinstance(selector, str) else selector

    def is_selected(notification: Notification) -> bool | None:
        obj = _newest_state(notification)
        if obj is None or (is_delete(notification) and not obj.raw):
            return None
        return parsed.matches(_meta(obj).labels or {})

    return is_selected


def object_matches(matches: Callable[[KubeObject], bool]) -> Predicate:
    """Objects a function selects: the new state of an update, the last known of a delete.

    Of deletes whose last state is unknown it cannot tell, and the function is not called.
    """

    def is_matched(notification: Notification) -> bool | None:
        obj = _newest_state(notification)
        return None if obj is None else matches(obj)

    return is_matched


def all_of(*predicates: Predicate) -> Predicate:
    """No if one says no, else unknown if one cannot tell; yes without any. After a no the others are not asked."""

    def is_wanted_by_all(notification: Notification) -> bool | None:
        answer: bool | None = True
        for predicate in predicates:
            match predicate(notification):
                case False:
                    return False
                case None:
                    answer = None
        return answer

    return is_wanted_by_all


def any_of(*predicates: Predicate) -> Predicate:
    """Yes if one says yes, else unknown if one cannot tell; no without any. After a yes the others are not asked."""
    return not_(all_of(*map(not_, predicates)))


def not_(predicate: Predicate) -> Predicate:
    """The opposite; unknown where the predicate cannot tell."""

    def is_unwanted(notification: Notification) -> bool | None:
        answer = predicate(notification)
        return None if answer is None else not answer

    return is_unwanted


def _newest_state(notification: Notification) -> KubeObject | None:
    match notification:
        case AddNotification(obj=obj):
            return obj
        case UpdateNotification(new=new):
            return new
        case DeleteNotification(last_state=last_state):
            return last_state


def _changed(notification: Notification, part: Callable[[ObjectMeta], Mapping[str, str] | None]) -> bool:
    if not isinstance(notification, UpdateNotification) or notification.old.uid != notification.new.uid:
        return True
    return (part(_meta(notification.old)) or {}) != (part(_meta(notification.new)) or {})


def _meta(obj: KubeObject) -> ObjectMeta:
    if not obj.raw:
        raise ValueError(f"metadata of {obj.key} is not known: the informer keeps objects without their bytes")
    return obj.meta()

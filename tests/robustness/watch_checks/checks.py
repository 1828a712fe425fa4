"""The watch checks: one function per promise, each yielding what breaks it in one client's history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from federator.api.cluster import ClusterID, ClusterState
from federator.api.key import ObjectKey
from federator.client import Event, EventType, InventoryObject
from tests.robustness.watch_checks.asked import State
from tests.robustness.watch_checks.history import CHANGES, EXPIRED, MARKS, PRESENT, Call, History, Part
from tests.robustness.watch_checks.reference import Expected, Reference

Check = Callable[[History, Reference], Iterator[str]]

MESSAGE_BYTES = 1 << 20
"""A commit whose events are larger may come in several messages."""

_OVERHEAD = 1024
"""Bytes of an event besides its body, at most."""

_SHOWN = 3
"""Complaints of each check that are shown; one defect breaks a promise many times."""


def check_filter(history: History, reference: Reference) -> Iterator[str]:
    """Only what was asked for: states, also the last one of what is DELETED, clusters, and freshness."""
    asked = history.asked
    for event in _all_events(history):
        if event.object is not None and not asked.means(State.of(event.object)):
            yield f"{_told(event)} was not asked for"
        if event.cluster is not None and not asked.clusters(event.cluster.cluster_id):
            yield f"{_told(event)} was not asked for"
        for each in event.freshness:
            if not asked.clusters(each.cluster_id):
                yield f"{_told(event)} tells of {each.cluster_id}"


def check_ordered(history: History, reference: Reference) -> Iterator[str]:
    """Revisions never fall, also from one call to the next."""
    for part in history.parts:
        last = part.calls[0].after if part.calls else PRESENT
        for event in part.taken():
            if event.revision < last:
                yield f"{_told(event)} after revision {last}"
            last = max(last, event.revision)


def check_unique(history: History, reference: Reference) -> Iterator[str]:
    """No change comes twice, and no object twice in the present state."""
    for part in history.parts:
        present = [obj.key for obj in part.initial or ()]
        if len(present) != len(set(present)):
            yield f"the present state has {len(present) - len(set(present))} objects twice"
        seen: set[int] = set()
        for event in part.changes():
            if event.revision in seen:
                yield f"{_told(event)} twice"
            seen.add(event.revision)


def check_atomic(history: History, reference: Reference) -> Iterator[str]:
    """One commit's events are in one message, unless they are larger than 1 MiB.

    It sees no more than the commits that the reference knows of.
    """
    for part in history.parts:
        for call in part.calls:
            after = part.begin if call.after == PRESENT else call.after
            if after == PRESENT:
                continue
            message_of = {
                event.revision: number
                for number, message in enumerate(call.messages)
                for event in message.events
                if event.type in CHANGES and event.cursor
            }
            for commit in {tuple(reference.commit(revision)) for revision in message_of}:
                expected = reference.expected(history.asked, max(after, commit[0] - 1), commit[-1])
                size = sum(_size(each, with_previous=call.with_previous) for each in expected)
                if size > MESSAGE_BYTES:
                    continue
                places = {message_of.get(each.revision) for each in expected}
                if len(places) > 1:
                    whole = [(each.revision, message_of.get(each.revision)) for each in expected]
                    yield f"the commit {commit[0]}..{commit[-1]} ({size} bytes) is spread over messages: {whole[:8]}"


def check_reliable(history: History, reference: Reference) -> Iterator[str]:
    """No change is missing between the first and the last, and there is none that should not be."""
    for part in history.parts:
        if part.begin == PRESENT:
            continue
        received = {event.revision for event in part.changes()}
        last = max(received, default=part.begin)
        expected = {each.revision for each in reference.expected(history.asked, part.begin, last)}
        for revision in sorted(expected - received):
            yield f"the change at revision {revision} is missing between {part.begin} and {last}"
        for revision in sorted(received - expected):
            yield f"a change at revision {revision}, which changes nothing of what was asked for"


def check_resumable(history: History, reference: Reference) -> Iterator[str]:
    """A call that was opened with a cursor brings exactly what follows it: nothing before, nothing left out."""
    for call in _calls(history):
        if call.after == PRESENT:
            continue
        received = [event.revision for event in call.changes()]
        last = max(received, default=call.after)
        expected = [each.revision for each in reference.expected(history.asked, call.after, last)]
        if received != expected:
            first = next(islice(_differing(received, expected), 1))
            yield f"from the cursor of {call.after}: {first[0]} came in place of {first[1]}"


def check_bookmarkable(history: History, reference: Reference) -> Iterator[str]:
    """A bookmark is never ahead of a change that has not come: up to it there is nothing more to come."""
    for part in history.parts:
        if part.begin == PRESENT:
            continue
        delivered: set[int] = set()
        marked = looked_at = part.begin
        for event in part.taken():
            if event.type in MARKS:
                if not event.cursor:
                    yield f"{_told(event)} without a cursor"
                late = {each.revision for each in reference.expected(history.asked, looked_at, event.revision)}
                if missing := sorted(late - delivered):
                    yield f"{_told(event)} is ahead of the changes {missing[:5]}"
                looked_at = marked = max(marked, event.revision)
            elif event.type in CHANGES and event.cursor:
                if event.revision <= marked and event.revision > part.begin:
                    yield f"{_told(event)} comes after a bookmark of {marked}"
                delivered.add(event.revision)


def check_is_create(history: History, reference: Reference) -> Iterator[str]:
    """ADDED only of what the client does not hold, MODIFIED and DELETED only of what it does, as the order has it."""
    for part in history.parts:
        expected = _expected(history, part, reference)
        held = set(_held_at_begin(history, part, reference))
        for event in part.changes():
            wanted = expected.get(event.revision)
            if wanted is not None and wanted.type is not event.type:
                yield f"{_told(event)} should be {wanted.type}"
            if event.object is None:
                continue
            key = event.object.key
            if (key in held) is (event.type is EventType.ADDED):
                yield f"{_told(event)} of an object that is {'held' if key in held else 'not held'}"
            if event.type is EventType.DELETED:
                held.discard(key)
            else:
                held.add(key)


def check_objects(history: History, reference: Reference) -> Iterator[str]:
    """Each event carries the state that its revision made; DELETED the previous object, as the client holds it.

    Where the previous state was asked for, MODIFIED and DELETED carry it, and nothing else does.
    """
    for part in history.parts:
        expected = _expected(history, part, reference)
        yield from _wrong_previous(part, expected)
        held = _held_at_begin(history, part, reference)
        for event in part.changes():
            wanted = expected.get(event.revision)
            if wanted is not None and (wanted.object, wanted.cluster) != (event.object, event.cluster):
                yield f"{_told(event)} carries {_short(event)} in place of {_short(wanted)}"
            if event.object is None:
                continue
            key = event.object.key
            if event.type is EventType.DELETED:
                before = held.pop(key, None)
                if before is not None and before != event.object:
                    yield f"{_told(event)} carries another state than the last one told, of {before.revision}"
                continue
            if event.object.revision != event.revision:
                yield f"{_told(event)} carries a state of {event.object.revision}"
            held[key] = event.object


def check_cluster_order(history: History, reference: Reference) -> Iterator[str]:
    """Per object its cluster's versions grow, another UID is another object; a cluster's states follow each other."""
    for part in history.parts:
        held = _held_at_begin(history, part, reference)
        newest = {key: (obj.uid, int(obj.resource_version)) for key, obj in held.items()}
        gone: dict[ObjectKey, str] = {}
        states: dict[ClusterID, ClusterState] = {}
        for event in part.changes():
            if event.cluster is not None:
                moved = event.cluster
                before = states.get(moved.cluster_id, moved.previous_state)
                if moved.previous_state != before or moved.state == before:
                    yield f"{_told(event)} from {moved.previous_state} to {moved.state} follows {before}"
                states[moved.cluster_id] = moved.state
            if event.object is None:
                continue
            key, uid, version = event.object.key, event.object.uid, int(event.object.resource_version)
            former_uid, former_version = newest.get(key, (uid, 0))
            if version < former_version:
                yield f"{_told(event)} went back from version {former_version} to {version}"
            if uid != former_uid and key not in gone:
                yield f"{_told(event)} has another UID and was not deleted in between"
            if event.type is EventType.ADDED and history.asked.is_by_key and gone.get(key) == uid:
                yield f"{_told(event)} was told to be deleted, and was not"
            if event.type is EventType.DELETED:
                gone[key] = uid
            else:
                gone.pop(key, None)
            newest[key] = uid, version


def check_fenced(history: History, reference: Reference) -> Iterator[str]:
    """No change was made by a session after a newer one of its cluster was opened, or for another cluster.

    It sees no more than the origins that the reference knows of.
    """
    sessions = reference.record.sessions
    for event in _all_events(history):
        origin = reference.record.origins.get(event.revision)
        if origin is None or event.type not in CHANGES or not event.cursor:
            continue
        if event.object is not None and event.object.cluster_id != origin.cluster:
            yield f"{_told(event)} was made by a session of {origin.cluster}"
        for session in sessions:
            is_newer = session.cluster == origin.cluster and session.term > origin.term
            if is_newer and session.order < origin.order:
                yield f"{_told(event)} was made by a session of term {origin.term} after {session.term} was opened"
                break


def check_no_ghost(history: History, reference: Reference) -> Iterator[str]:
    """What a part begins with, and what it comes to, are the states of the order: no ghost, nothing lost between."""
    for part in history.parts:
        if part.begin == PRESENT:
            continue
        if part.initial is not None:
            wanted = reference.state(history.asked, part.begin)
            yield from _differences({obj.key: obj for obj in part.initial}, wanted, f"begins at {part.begin}")
        held = _held_at_begin(history, part, reference)
        for event in part.changes():
            if event.object is None:
                continue
            if event.type is EventType.DELETED:
                held.pop(event.object.key, None)
            else:
                held[event.object.key] = event.object
        yield from _differences(held, reference.state(history.asked, part.end), f"ends at {part.end}")


def check_expiry(history: History, reference: Reference) -> Iterator[str]:
    """A cursor is refused as expired if history behind it was compacted before, and only if it was."""
    compactions = reference.record.compactions
    for call in _calls(history):
        before = max((each.revision for each in compactions if each.ended_at < call.opened_at), default=0)
        by_then = max((each.revision for each in compactions if each.began_at < call.ended_at), default=0)
        if call.end == EXPIRED:
            revision, oldest = call.refused
            reached = max([call.after, *(event.revision for event in call.taken())])
            if oldest > by_then:
                yield f"refused from {oldest} on, when only what is up to {by_then} was compacted"
            if not reached <= revision <= oldest:
                yield f"refused at {revision} with {oldest} as the oldest, by a watch that stands at {reached}"
        elif PRESENT < call.after < before and call.messages:
            yield f"answered from the cursor of {call.after}, when history up to {before} was compacted"


CHECKS: Mapping[str, Check] = {
    "filter": check_filter,
    "ordered": check_ordered,
    "unique": check_unique,
    "atomic": check_atomic,
    "reliable": check_reliable,
    "resumable": check_resumable,
    "bookmarkable": check_bookmarkable,
    "is-create": check_is_create,
    "objects": check_objects,
    "cluster order": check_cluster_order,
    "fenced": check_fenced,
    "no ghost": check_no_ghost,
    "expiry": check_expiry,
}
"""All of them, by name."""


def broken(history: History, reference: Reference) -> dict[str, list[str]]:
    """Each check that a history breaks, with its first complaints."""
    found = {name: list(islice(check(history, reference), _SHOWN)) for name, check in CHECKS.items()}
    return {name: complaints for name, complaints in found.items() if complaints}


def broken_by(histories: Iterable[History], reference: Reference) -> list[str]:
    """All that is wrong, a line each; what is wrong with the reference itself comes first, and explains the rest."""
    lines = [f"reference: {each}" for each in (*reference.missing()[:_SHOWN], *reference.faults[:_SHOWN])]
    for history in histories:
        for name, complaints in broken(history, reference).items():
            lines += [f"{history.client}: {name}: {each}" for each in complaints]
    return lines


def _calls(history: History) -> Iterator[Call]:
    for part in history.parts:
        yield from part.calls


def _all_events(history: History) -> Iterator[Event]:
    for call in _calls(history):
        for message in call.messages:
            yield from message.events


def _held_at_begin(history: History, part: Part, reference: Reference) -> dict[ObjectKey, InventoryObject]:
    if part.initial is not None:
        return {obj.key: obj for obj in part.initial}
    return {} if part.begin == PRESENT else reference.state(history.asked, part.begin)


def _expected(history: History, part: Part, reference: Reference) -> dict[int, Expected]:
    if part.begin == PRESENT:
        return {}
    return {each.revision: each for each in reference.expected(history.asked, part.begin, part.end)}


def _wrong_previous(part: Part, expected: Mapping[int, Expected]) -> Iterator[str]:
    for call in part.calls:
        for message in call.messages:
            for event in message.events:
                wanted = expected.get(event.revision) if call.with_previous and event.type in CHANGES else None
                mine, theirs = message.previous.get(event.revision), wanted and wanted.previous
                if mine != theirs and (wanted or mine):
                    revisions = mine and mine.revision, theirs and theirs.revision
                    yield f"{_told(event)} comes with a previous state of {revisions[0]}, not of {revisions[1]}"


def _differing(received: list[int], expected: list[int]) -> Iterator[tuple[int | None, int | None]]:
    for number in range(max(len(received), len(expected))):
        one = received[number] if number < len(received) else None
        other = expected[number] if number < len(expected) else None
        if one != other:
            yield one, other


def _differences(
    mine: Mapping[ObjectKey, InventoryObject], wanted: Mapping[ObjectKey, InventoryObject], where: str
) -> Iterator[str]:
    for key in sorted(mine.keys() | wanted.keys()):
        one, other = mine.get(key), wanted.get(key)
        if one != other:
            yield f"{where} with {key} of {one and one.revision}, which should be of {other and other.revision}"


def _size(expected: Expected, *, with_previous: bool) -> int:
    states = (expected.object, expected.previous if with_previous else None)
    return _OVERHEAD + sum(len(state.body) for state in states if state is not None)


def _told(event: Event) -> str:
    what = event.object.key if event.object else event.cluster.cluster_id if event.cluster else ""
    return f"{event.type} {what} at {event.revision}"


def _short(event: Event | Expected) -> str:
    if event.object is not None:
        return f"the state of {event.object.revision} ({len(event.object.body)} bytes)"
    return f"{event.cluster.state} after {event.cluster.previous_state}" if event.cluster else "nothing"

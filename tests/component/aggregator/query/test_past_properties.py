"""Histories and changes against plain dicts, whatever happened and was forgotten, on both drivers."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import EntryType
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.changes import Change, Changes, ChangesQuestion
from federator.aggregator.query.gaps import Gap, gaps_of
from federator.aggregator.query.history import History, HistoryQuestion, Version
from federator.aggregator.query.patch import Patches
from federator.api.key import ObjectKey
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import RevisionExpired
from federator.wire.body import decode_body
from tests.component.aggregator.query.past import CLUSTERS, NAMES, RESOURCE, STEPS, Past, State, Step, key_of

Matches = Callable[[ObjectKey, Any], bool]
QUESTIONS: list[tuple[Selection, Matches]] = [
    (Selection(frozenset({RESOURCE})), lambda *_: True),
    (
        Selection(frozenset({RESOURCE}), ClusterSelector(("paris",)), name="a"),
        lambda key, _: key == key_of(CLUSTERS[1], "a"),
    ),
    (
        Selection(frozenset({RESOURCE}), labels=LabelSelector.parse("app=web")),
        lambda _, body: body["metadata"]["labels"]["app"] == "web",
    ),
    (
        Selection(frozenset({RESOURCE}), fields=FieldSelector.parse("spec.x=1")),
        lambda _, body: body["spec"]["x"] == 1,
    ),
]


async def history(past: Past, key: ObjectKey, *, before: int = 0, limit: int = 0) -> tuple[list[Version | Gap], int]:
    question = HistoryQuestion(key, before, limit=limit, with_objects=True)
    found = History(question, past.ledger, past.view.types, Patches(), Budget())
    entries = [entry async for entry in found.entries()]
    return entries, found.next_before_revision


async def check_history(past: Past, key: ObjectKey) -> None:
    expected = past.versions(key)
    entries, further = await history(past, key)
    versions = [entry for entry in entries if isinstance(entry, Version)]
    assert (further, [version.entry for version in versions]) == (0, expected)
    check_patches(versions)
    gaps = [(gap.from_revision, gap.to_revision) for gap in entries if isinstance(gap, Gap)]
    if expected:
        lasted = [gap for gap in past.gaps(key.cluster_id) if not gap[1] or gap[1] > expected[-1].revision]
        assert gaps == lasted[::-1]
    ends = [_end(entry) for entry in entries]
    assert ends == sorted(ends, reverse=True)
    await check_pages(past, key, entries)


def check_patches(versions: list[Version]) -> None:
    for version, former in zip_longest(versions, versions[1:]):
        assert version is not None
        entry, state = version.entry, version.state
        if entry.type is EntryType.MODIFIED and former is not None:
            assert entry.previous_revision == former.entry.revision
            before, after = _body(former), _body(version)
            made = jsonpatch.apply_patch(before, json.loads(version.patch))
            assert _text(made) == _text(after)
        else:
            assert version.patch == b""
        shown = former.entry if former and entry.type is EntryType.DELETED else entry
        if state is not None:
            assert state.message.revision == shown.revision
            assert state.message.body == decode_body(shown.body)
        else:
            assert former is None
            assert entry.type is EntryType.DELETED


async def check_pages(past: Past, key: ObjectKey, expected: list[Version | Gap]) -> None:
    """All entries come once, in the same order, page by page."""
    pages: list[Version | Gap] = []
    before = 0
    while True:
        page, before = await history(past, key, before=before, limit=2)
        pages += page
        if not before:
            break
        assert sum(isinstance(entry, Version) for entry in page) == 2
    assert [_told(entry) for entry in pages] == [_told(entry) for entry in expected]


async def check_changes(past: Past, after: int, until: int, *, with_transient: bool) -> None:
    for selection, matches in QUESTIONS:
        question = ChangesQuestion(selection, after, until, with_transient=with_transient, with_patches=True, limit=3)
        changes = Changes(question, past.ledger, past.view.types, Patches(), Budget())
        if after == until:
            assert [change async for change in changes.changes()] == []
            continue
        if after < past.ledger.oldest_revision:
            with pytest.raises(RevisionExpired):
                _ = [change async for change in changes.changes()]
            continue
        found = [change async for change in changes.changes()]
        expected = expected_changes(past, question, matches)
        assert changes.total == len(expected)
        assert [_changed(change) for change in found] == expected[:3]
        for change in found:
            if change.type is EntryType.MODIFIED:
                before = past.at(after)[change.state.key].body
                made = jsonpatch.apply_patch(before, json.loads(change.patch))
                assert _text(made) == _text(json.loads(change.state.message.body))
            else:
                assert change.patch == b""
        for cluster in CLUSTERS:
            told = [(gap.from_revision, gap.to_revision) for _, gap in await changes.gaps((cluster,))]
            gaps = past.gaps(cluster)
            assert told == [gap for gap in gaps if gap[0] <= until and (not gap[1] or gap[1] > after)]


def expected_changes(past: Past, question: ChangesQuestion, matches: Matches) -> list[tuple[Any, ...]]:
    """Type, key, revision of the state told, of the state before and of the newest change, and number of changes."""
    after, until = question.after_revision, question.until_revision
    states = {revision: past.at(revision) for revision in range(after, until + 1)}
    begin, end = states[after], states[until]
    expected = []
    for cluster in CLUSTERS:
        for name in NAMES:
            key = key_of(cluster, name)
            between = [entry.revision for entry in past.versions(key) if after < entry.revision <= until]
            if not between:
                continue
            selected: list[State | None] = []
            for revision in range(after, until + 1):
                state = states[revision].get(key)
                selected.append(state if state and matches(key, state.body) else None)
            was, now = selected[0], selected[-1]
            last = next((state for state in reversed(selected) if state), None)
            tail = (was.revision if was else 0, max(between), len(between))
            if now and was:
                if _text(begin[key].body) != _text(end[key].body):
                    expected.append(("MODIFIED", str(key), now.revision, *tail))
            elif now:
                expected.append(("ADDED", str(key), now.revision, *tail))
            elif last and (was or question.with_transient):
                expected.append(("DELETED", str(key), last.revision, *tail))
    return sorted(expected, key=lambda change: change[4])


def _changed(change: Change) -> tuple[Any, ...]:
    message = change.state.message
    return (
        change.type.name,
        str(change.state.key),
        message.revision,
        change.previous_revision,
        change.newest.revision,
        change.versions,
    )


def _text(body: Any) -> str:
    return json.dumps(body, sort_keys=True)


def _body(version: Version) -> Any:
    return json.loads(decode_body(version.entry.body))


def _end(entry: Version | Gap) -> float:
    if isinstance(entry, Gap):
        return (entry.to_revision or float("inf")) - 0.5
    return entry.entry.revision


def _told(entry: Version | Gap) -> object:
    return entry if isinstance(entry, Gap) else (entry.entry, entry.patch)


async def run(open_ledger: Callable[[Callable[[], float]], Ledger], steps: list[Step], data: st.DataObject) -> None:
    past = Past(open_ledger)
    try:
        await past.join()
        await past.live(*steps)
        for cluster in CLUSTERS:
            found = gaps_of(past.ledger, cluster, (RESOURCE,), after_revision=past.ledger.oldest_revision)
            assert [(gap.from_revision, gap.to_revision) for gap in found] == past.gaps(cluster)
            for name in NAMES:
                await check_history(past, key_of(cluster, name))
        ledger = past.ledger
        first = min(entry.revision for entry in past.entries) - 1
        after = data.draw(st.integers(max(first, ledger.oldest_revision - 2), ledger.revision), label="after")
        until = data.draw(st.integers(after, ledger.revision), label="until")
        await check_changes(past, after, until, with_transient=data.draw(st.booleans(), label="transient"))
        await check_changes(past, ledger.oldest_revision, ledger.revision, with_transient=True)
    finally:
        await past.ledger.close()


@settings(max_examples=settings().max_examples // 2)
@given(steps=STEPS, data=st.data())
def test_in_memory(steps: list[Step], data: st.DataObject) -> None:
    asyncio.run(run(lambda clock: MemoryLedger(clock=clock), steps, data))


@settings(max_examples=settings().max_examples // 2)
@given(steps=STEPS, data=st.data())
def test_on_disk(steps: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(lambda clock: LmdbLedger.open(Path(directory), clock=clock), steps, data))

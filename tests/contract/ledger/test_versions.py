"""What a key was at a revision, and all it ever was."""

from __future__ import annotations

import pytest

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.errors import CursorAhead, CursorExpired
from federator.wire.body import Dictionary
from tests.contract.ledger.conftest import OpenLedger
from tests.contract.ledger.member import Member, delete, objects, put
from tests.unit.wire.test_body import trained

ADDED, MODIFIED, DELETED = EntryType.ADDED, EntryType.MODIFIED, EntryType.DELETED


def web(member: Member) -> ObjectKey:
    return ObjectKey(member.record.cluster_id, "", "pods", "shop", "web")


async def lived(ledger: Ledger) -> tuple[Member, list[ObjectEntry]]:
    """A key's life: made, changed, made anew under the same name, deleted, made again; beside another key."""
    berlin = await Member.join(ledger)
    start = ledger.revision
    for step in (
        [put("web", body=b"1"), put("other")],
        [put("web", body=b"2")],
        [put("web", uid="uid-2", body=b"3")],
        [put("other"), delete("web")],
        [put("web", uid="uid-3", body=b"4")],
    ):
        await berlin.push(*step)
    return berlin, [entry for entry in objects(ledger.read(start, 100)) if entry.key == web(berlin)]


async def test_all_versions_are_one_chain(ledger: Ledger) -> None:
    berlin, entries = await lived(ledger)
    assert [entry.type for entry in entries] == [ADDED, MODIFIED, DELETED, ADDED, DELETED, ADDED]
    assert list(ledger.versions(web(berlin))) == entries[::-1]
    await berlin.push(delete("web"))
    assert [entry.type for entry in ledger.versions(web(berlin))][:2] == [DELETED, ADDED]


async def test_a_key_at_each_revision(ledger: Ledger) -> None:
    berlin, entries = await lived(ledger)
    state: ObjectEntry | None = None
    for revision in range(entries[0].revision - 1, ledger.revision + 1):
        for entry in entries:
            if entry.revision == revision:
                state = None if entry.type is DELETED else entry
        assert ledger.at(web(berlin), revision) == state
    assert ledger.at(ObjectKey(berlin.record.cluster_id, "", "pods", "shop", "never"), ledger.revision) is None
    with pytest.raises(CursorAhead):
        ledger.at(web(berlin), ledger.revision + 1)


async def test_compaction_keeps_what_may_still_be_asked_for(ledger: Ledger) -> None:
    berlin, entries = await lived(ledger)
    await berlin.push(delete("web"))
    for compacted in range(entries[0].revision, ledger.revision + 1):
        before = {revision: ledger.at(web(berlin), revision) for revision in range(compacted, ledger.revision + 1)}
        await ledger.compact(compacted)
        assert {revision: ledger.at(web(berlin), revision) for revision in before} == before
        with pytest.raises(CursorExpired):
            ledger.at(web(berlin), compacted - 1)
        assert all(
            version.revision > compacted or version.type is not DELETED for version in ledger.versions(web(berlin))
        )
    assert list(ledger.versions(web(berlin))) == []


async def test_what_comes_back_after_its_deletion_was_forgotten_has_no_past(ledger: Ledger) -> None:
    berlin, _ = await lived(ledger)
    await berlin.push(delete("web"))
    await ledger.compact(ledger.revision)
    await berlin.push(put("web"))
    (version,) = ledger.versions(web(berlin))
    assert (version.type, version.follows) == (ADDED, 0)


async def test_dictionaries_are_kept(open_ledger: OpenLedger, request: pytest.FixtureRequest) -> None:
    ledger = open_ledger(1 << 30)
    pods = GroupResource("", "pods")
    first, second = (Dictionary.of(pods, trained(number)) for number in (40_001, 40_002))
    for dictionary in (first, second):
        await ledger.add_dictionary(dictionary)
    assert ledger.bodies.newest() == {pods: second}
    body = ledger.bodies.encode(b'{"metadata":{"name":"web"}}' * 10, pods)
    berlin = await Member.join(ledger)
    await berlin.push(put("web", body=body))
    if "lmdb" in request.node.name:
        await ledger.close()
        ledger = open_ledger(1 << 30)
    assert list(ledger.bodies) == [first, second]
    assert ledger.bodies.newest() == {pods: second}
    (entry,) = ledger.present()
    assert ledger.bodies.decode(entry.body) == b'{"metadata":{"name":"web"}}' * 10


async def test_many_entries_are_read_as_each_by_itself(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    for number in range(40):
        await berlin.push(put(f"web-{number}"), put("same", body=b'{"n":%d}' % number))
    revisions = [*range(ledger.revision - 90, ledger.revision + 1), 0, 7]
    read = list(ledger.entries(iter(revisions)))
    assert [revision for revision, _ in read] == revisions
    assert [entry for _, entry in read] == [ledger.entry(revision) for revision in revisions]
    assert any(entry is None for _, entry in read)
    assert list(ledger.entries(())) == []

"""Purging: what was purged is nowhere any more, and everything else is where it was."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from federator.aggregator.ledger import purge as purging
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import holding, snapshot
from federator.aggregator.ledger.purge import PURGED_ANNOTATION, purge
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.aggregator.ledger.verification import verify
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.errors import LedgerError, LedgerLocked, ObjectNotFound
from federator.wire.body import BodyCodec, content_hash
from tests.component.aggregator.ledger.filled import BERLIN, CONFIG_MAPS, WEB, config_map, filled, put_raw, trained
from tests.contract.ledger.member import Member, delete

CANARY = "hunter2-is-the-password"


def secret_of(folder: Path) -> list[str]:
    """Where the canary still is: in files as they are, in bodies, in dictionaries."""
    found = [str(file) for file in folder.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    with snapshot(folder) as tables, reading(tables) as reader:
        bodies = BodyCodec()
        for dictionary in reader.dictionaries():
            bodies.add(dictionary)
            if CANARY.encode()[4:16] in dictionary.content:
                found.append(f"dictionary {dictionary.dictionary_id}")
        position = reader.position().revision
        for revision in range(reader.oldest_revision() - 100, position + 1):
            entry = reader.object_entry(revision)
            if entry is not None and CANARY.encode() in bodies.decode(entry.body):
                found.append(f"log {revision}")
    return found


def is_sound(folder: Path) -> bool:
    problems: list[str] = []
    with snapshot(folder) as tables:
        verify(tables, problems.append, bodies=True)
    assert not problems
    return True


async def with_a_password(path: Path, *, in_dictionary: bool = True) -> None:
    """A ledger where `web` had a password in former lives and states, and does not have it now."""
    await filled(path)
    ledger = LmdbLedger.open(path)
    berlin = Member(ledger, ledger.clusters()[BERLIN])
    raws = [config_map("web", uid="uid-2", version=version, password=f"{CANARY}-{version}") for version in (8, 9)]
    for raw in raws:
        await berlin.push(put_raw(ledger, raw), of=CONFIG_MAPS)
    if in_dictionary:
        others = [config_map(f"other-{number}", note="what others have as well") for number in range(3)]
        await berlin.push(*(put_raw(ledger, raw) for raw in others), of=CONFIG_MAPS)
        await ledger.add_dictionary(trained(*raws, *others, dictionary_id=8))
        await ledger.add_dictionary(trained(*others, dictionary_id=9))
        await berlin.push(put_raw(ledger, config_map("after", note="compressed with the newest")), of=CONFIG_MAPS)
    await berlin.push(delete("web"), of=CONFIG_MAPS)
    await berlin.push(put_raw(ledger, config_map("web", uid="uid-3", version=11, note="no password")), of=CONFIG_MAPS)
    await ledger.close()


def without_content(entry: ObjectEntry) -> ObjectEntry:
    return msgspec.structs.replace(entry, body=b"", content_hash=0)


async def test_what_was_purged_is_nowhere_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    await with_a_password(tmp_path)
    assert len(secret_of(tmp_path)) >= 3, "else this shows nothing"
    ledger = LmdbLedger.open(tmp_path)
    before = list(ledger.versions(WEB))
    history = ledger.read(ledger.oldest_revision, 1000)
    bodies = {each.revision: ledger.bodies.decode(each.body) for each in history if isinstance(each, ObjectEntry)}
    present = {entry.key: entry.revision for entry in ledger.present() if isinstance(entry, ObjectEntry)}
    cursor = ledger.cursors.encode(before[-1].revision)
    await ledger.close()

    purged = purge(tmp_path, WEB)
    assert secret_of(tmp_path) == []
    assert is_sound(tmp_path)
    assert (purged.is_present, purged.dictionaries) == (True, 1)
    assert purged.states == sum(entry.type is not EntryType.DELETED for entry in before) - 1
    assert purged.bytes_after == (tmp_path / "ledger" / "data.mdb").stat().st_size < purged.bytes_before

    ledger = LmdbLedger.open(tmp_path)
    after = list(ledger.versions(WEB))
    assert after[0] == before[0], "the present state stays"
    assert list(map(without_content, after)) == list(map(without_content, before))
    assert ledger.read(ledger.cursors.decode(cursor), 1)
    for entry in ledger.read(ledger.oldest_revision, 1000):
        if isinstance(entry, ObjectEntry) and (entry.key != WEB or entry.revision == after[0].revision):
            assert ledger.bodies.decode(entry.body) == bodies[entry.revision]
    assert {entry.key: entry.revision for entry in ledger.present() if isinstance(entry, ObjectEntry)} == present
    for entry in after[1:]:
        if entry.type is not EntryType.DELETED:
            raw = ledger.bodies.decode(entry.body)
            assert entry.content_hash == content_hash(raw)
            assert json.loads(raw) == {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": "web",
                    "namespace": "shop",
                    "uid": entry.uid,
                    "resourceVersion": entry.resource_version,
                    "labels": {"app": "web"},
                    "annotations": {PURGED_ANNOTATION: "true"},
                },
            }
        else:
            (ended,) = (each for each in after if each.revision == entry.previous_revision)
            assert entry.content_hash == ended.content_hash
    await ledger.close()


async def test_a_ledger_goes_on_after_a_purge(tmp_path: Path) -> None:
    await with_a_password(tmp_path)
    purge(tmp_path, WEB)
    ledger = LmdbLedger.open(tmp_path)
    berlin = Member(ledger, ledger.clusters()[BERLIN])
    await ledger.add_dictionary(trained(config_map("late", note="another dictionary"), dictionary_id=10))
    assert {each.dictionary_id for each in ledger.bodies} == {7, 9, 10}, "none was written over"
    await berlin.push(put_raw(ledger, config_map("late", note="later on")), delete("web"), of=CONFIG_MAPS)
    await ledger.close()
    assert is_sound(tmp_path)
    again = LmdbLedger.open(tmp_path)
    assert {each.dictionary_id for each in again.bodies} == {7, 9, 10}
    await again.close()


async def test_a_dictionary_that_knows_only_what_others_have_stays(tmp_path: Path) -> None:
    await filled(tmp_path)
    purged = purge(tmp_path, WEB)
    assert (purged.states, purged.dictionaries, purged.recoded) == (3, 0, 0)
    assert is_sound(tmp_path)


async def test_the_states_of_an_object_that_is_gone_are_purged_all(tmp_path: Path) -> None:
    await with_a_password(tmp_path, in_dictionary=False)
    ledger = LmdbLedger.open(tmp_path)
    berlin = Member(ledger, ledger.clusters()[BERLIN])
    raw = config_map("web", uid="uid-3", version=12, password=CANARY)
    await berlin.push(put_raw(ledger, raw), of=CONFIG_MAPS)
    await ledger.close()
    assert purge(tmp_path, WEB).is_present
    assert secret_of(tmp_path), "what is present is not purged"
    ledger = LmdbLedger.open(tmp_path)
    await Member(ledger, ledger.clusters()[BERLIN]).push(delete("web"), of=CONFIG_MAPS)
    await ledger.close()
    purged = purge(tmp_path, WEB)
    assert (purged.states, purged.is_present) == (1, False)
    assert secret_of(tmp_path) == []


async def test_a_second_purge_finds_nothing_but_writes_the_file_anew(tmp_path: Path) -> None:
    await with_a_password(tmp_path)
    purge(tmp_path, WEB)
    again = purge(tmp_path, WEB)
    assert (again.states, again.dictionaries) == (0, 0)
    assert again.bytes_after <= again.bytes_before


async def test_a_purge_that_was_stopped_before_the_new_file_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_a_password(tmp_path)

    def stop(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(purging, "replace_data", stop)
        with pytest.raises(LedgerError, match=r"cannot write the ledger in .*No space left"):
            purge(tmp_path, WEB)
    assert is_sound(tmp_path)
    assert str(tmp_path / "ledger" / "data.mdb") in secret_of(tmp_path), "free pages have it"
    await LmdbLedger.open(tmp_path).close()
    purge(tmp_path, WEB)
    assert secret_of(tmp_path) == []


async def test_a_purge_that_was_stopped_after_bodies_were_compressed_anew_finds_the_dictionary_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_a_password(tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(purging._Purger, "drop_dictionaries", stop)
        with pytest.raises(KeyboardInterrupt):
            purge(tmp_path, WEB)
    assert is_sound(tmp_path)
    assert purge(tmp_path, WEB).dictionaries == 1
    assert secret_of(tmp_path) == []


async def test_bodies_are_compressed_anew_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await with_a_password(tmp_path)
    monkeypatch.setattr(purging, "_SLICE", 3)
    assert purge(tmp_path, WEB).dictionaries == 1
    assert secret_of(tmp_path) == []
    assert is_sound(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        WEB._replace(name="webb"),
        WEB._replace(namespace="another"),
        WEB._replace(cluster_id=ClusterID("rome")),
        WEB._replace(resource="pods"),
    ],
    ids=str,
)
async def test_a_key_that_was_never_there_is_named(tmp_path: Path, key: ObjectKey) -> None:
    await filled(tmp_path)
    with pytest.raises(ObjectNotFound, match=key.name):
        purge(tmp_path, key)


async def test_the_aggregator_has_to_be_stopped(tmp_path: Path) -> None:
    await filled(tmp_path)
    ledger = LmdbLedger.open(tmp_path)
    with pytest.raises(LedgerLocked, match="has to end first"):
        purge(tmp_path, WEB)
    await ledger.close()
    with snapshot(tmp_path), pytest.raises(LedgerLocked, match="another process reads the ledger"):
        purge(tmp_path, WEB)
    with holding(tmp_path), pytest.raises(LedgerLocked):
        purge(tmp_path, WEB)


def test_without_a_ledger_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        purge(tmp_path / "none", WEB)
    assert not (tmp_path / "none").exists()

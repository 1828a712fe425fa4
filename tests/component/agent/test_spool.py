"""The spool, on real files: what it keeps over ends of every kind, and what it does with files it cannot use."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from federator.agent import spool as spool_module
from federator.agent.frame import Change
from federator.agent.settings import AgentSettings, SecretMode
from federator.agent.spool import Spool, SpooledType, SpoolIdentity, signature_of
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput
from federator.wire.body import Dictionary
from tests.component.agent import spooling_process
from tests.component.agent.spooling_process import CLUSTER, IDENTITY, OBJECTS, state
from tests.component.aggregator.ledger.file_size import writes_fail_beyond
from tests.unit.agent.scripted_cluster import NODES, PODS
from tests.unit.aggregator.federation import eventually

ROOM = 1 << 28


def put(name: str, version: int = 1, *, body: bytes = b'{"a":1}', namespace: str = "default") -> Change:
    return Change(namespace, name, f"uid-{name}", str(version), version * 7, body)


def gone(name: str) -> Change:
    return Change("default", name)


Opening = Callable[..., Spool]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    """Opens the spool of the test's folder; what is still open at its end is closed."""
    opened: list[Spool] = []

    def open_(identity: SpoolIdentity = IDENTITY, *, max_bytes: int = ROOM, folder: Path | None = None) -> Spool:
        spool = Spool.open(folder or tmp_path / "spool", CLUSTER, identity, max_bytes=max_bytes)
        opened.append(spool)
        return spool

    yield open_
    for spool in opened:
        spool.close()


def reopened(spool: Spool, opening: Opening) -> Spool:
    spool.close()
    return opening()


class TestWhatIsKept:
    def test_a_new_spool_is_empty_and_has_an_instance_of_its_own(self, opening: Opening, tmp_path: Path) -> None:
        first, second = opening(), opening(folder=tmp_path / "other")
        assert first.load() == []
        assert first.is_on
        assert not first.is_restored
        assert first.instance != second.instance

    def test_order_states_and_low_water_come_back(self, opening: Opening) -> None:
        spool = opening()
        spool.put(PODS, put("b"), "10")
        spool.put(NODES, put("n", namespace=""), "11")
        spool.put(PODS, put("a"), "12")
        spool.put(PODS, gone("c"), "13")
        spool.put(PODS, put("b", 14, body=b"{" + bytes(range(256)) * 40), "14")  # in place of its former state
        again = reopened(spool, opening)
        assert again.instance == spool.instance
        assert again.is_restored
        assert again.load() == [
            SpooledType(PODS, "14", [put("b", 14, body=b"{" + bytes(range(256)) * 40), put("a"), gone("c")]),
            SpooledType(NODES, "11", [put("n", namespace="")]),
        ]
        assert again.load() == [], "given once"

    def test_the_whole_type_and_every_field_come_back(self, opening: Opening) -> None:
        rich = ResourceType(
            group="apps",
            version="v1",
            resource="deployments",
            kind="Deployment",
            namespaced=True,
            singular="deployment",
            short_names=("deploy",),
            categories=("all",),
        )
        change = Change("n", "ä/漢🚀", "u", "18446744073709551616", 2**64 - 1, b"", 2**64 - 1)
        spool = opening()
        spool.put(rich, change)
        assert reopened(spool, opening).load() == [SpooledType(rich, "", [change])]

    def test_what_was_loaded_is_there_until_it_is_acknowledged(self, opening: Opening) -> None:
        spool = opening()
        spool.put(PODS, put("a"), "1")
        spool.put(PODS, put("b"), "2")
        again = reopened(spool, opening)
        ((_, _, changes),) = again.load()
        assert changes == [put("a"), put("b")]
        again.acknowledged(PODS.group_resource, changes[:1])
        assert reopened(again, opening).load() == [SpooledType(PODS, "2", [put("b")])]

    def test_an_acknowledgement_takes_no_newer_state_away(self, opening: Opening) -> None:
        spool = opening()
        for change in (put("a", 1), put("b", 1), put("c", 1), gone("d")):
            spool.put(PODS, change)
        spool.put(PODS, put("a", 2))
        spool.put(PODS, gone("c"))
        spool.put(PODS, put("d", 2))
        spool.acknowledged(PODS.group_resource, [put("a", 1), put("b", 1), put("c", 1), gone("d"), put("x")])
        spool.acknowledged(NODES.group_resource, [put("a", 2)])  # of a type that has nothing here
        assert reopened(spool, opening).load() == [SpooledType(PODS, "", [put("a", 2), gone("c"), put("d", 2)])]

    def test_neither_base_nor_body_matter_to_an_acknowledgement(self, opening: Opening) -> None:
        """A queue sets the base anew when states are joined, and compresses bodies anew for another ledger."""
        spool = opening()
        spool.put(PODS, put("a"))
        spool.acknowledged(PODS.group_resource, [msgspec.structs.replace(put("a"), base=5, body=b"{}")])
        assert reopened(spool, opening).load() == []

    def test_an_empty_spool_goes_on_with_its_instance(self, opening: Opening, tmp_path: Path) -> None:
        spool = opening()
        for number in range(300):
            spool.put(PODS, put(str(number), body=b"x" * 1000))
        spool.acknowledged(PODS.group_resource, [put(str(number)) for number in range(300)])
        spool.close()
        size = (tmp_path / "spool" / "eu-1.spool").stat().st_size
        again = opening()
        assert (again.load(), again.instance, again.is_restored) == ([], spool.instance, True)
        again.close()
        assert (tmp_path / "spool" / "eu-1.spool").stat().st_size < size / 5, "a small file again"
        assert opening().instance == spool.instance

    def test_a_bookmark_moves_the_low_water_and_says_nothing_of_a_type_without_entries(self, opening: Opening) -> None:
        spool = opening()
        spool.bookmark(PODS.group_resource, "5")
        spool.put(PODS, put("a"), "6")
        spool.bookmark(PODS.group_resource, "9")
        spool.bookmark(NODES.group_resource, "9")
        assert reopened(spool, opening).load() == [SpooledType(PODS, "9", [put("a")])]

    def test_a_dropped_type_is_gone_and_may_come_again(self, opening: Opening) -> None:
        spool = opening()
        for number in range(250):
            spool.put(PODS, put(str(number)), "5")
        spool.put(NODES, put("n", namespace=""), "6")
        spool.drop(PODS.group_resource)
        spool.drop(GroupResource("", "nothing"))
        spool.put(PODS, put("7", 8), "8")
        spool.flush()
        assert reopened(spool, opening).load() == [
            SpooledType(NODES, "6", [put("n", namespace="")]),
            SpooledType(PODS, "8", [put("7", 8)]),
        ]

    def test_what_was_dropped_leaves_the_file_while_the_agent_runs(self, opening: Opening, tmp_path: Path) -> None:
        spool = opening()
        for number in range(250):
            spool.put(PODS, put(str(number)))
        spool.drop(PODS.group_resource)
        spool.put(NODES, put("n", namespace=""))
        left = []
        for _ in range(5):
            spool.flush()
            with sqlite3.connect(tmp_path / "spool" / "eu-1.spool") as reader:
                left += reader.execute("SELECT count(*) FROM entries").fetchone()
            reader.close()
        assert left == [151, 51, 1, 1, 1]

    def test_a_type_that_is_served_in_another_version_begins_anew(self, opening: Opening) -> None:
        newer = msgspec.structs.replace(PODS, version="v2")
        spool = opening()
        spool.put(PODS, put("a"), "5")
        spool.put(newer, put("b"), "6")
        assert reopened(spool, opening).load() == [SpooledType(newer, "6", [put("b")])]

    def test_an_abandoned_spool_is_off_and_the_next_begins_as_a_new_instance(self, opening: Opening) -> None:
        spool = opening()
        spool.put(PODS, put("a"))
        spool.flush()
        spool.abandon()
        assert not spool.is_on
        spool.put(PODS, put("b"))
        again = reopened(spool, opening)
        assert (again.load(), again.is_restored) == ([], False)
        assert again.instance != spool.instance


class TestDictionaries:
    def dictionary(self) -> Dictionary:
        import zstandard

        draws = random.Random(5)
        samples: list[bytes | bytearray | memoryview] = [
            b'{"kind":"Pod","metadata":{"name":"pod-%d"}}' % draws.randrange(10**9) for _ in range(500)
        ]
        content = zstandard.train_dictionary(4096, samples).as_bytes()
        return Dictionary.of(PODS.group_resource, content)

    def body(self, dictionary: Dictionary) -> bytes:
        from federator.wire.body import BodyCodec, dictionary_of

        codec = BodyCodec()
        codec.add(dictionary)
        body = codec.encode(b'{"kind":"Pod","metadata":{"name":"pod-%s"}}' % (b"1" * 99), PODS.group_resource)
        assert dictionary_of(body) == dictionary.dictionary_id
        return body

    def test_those_that_are_needed_come_back(self, opening: Opening) -> None:
        dictionary = self.dictionary()
        spool = opening()
        spool.add_dictionary(dictionary)
        spool.add_dictionary(dictionary)
        spool.put(PODS, put("a", body=self.body(dictionary)))
        again = reopened(spool, opening)
        assert list(again.dictionaries()) == [dictionary]
        assert len(again.load()) == 1
        again.acknowledged(PODS.group_resource, [put("a")])
        assert list(reopened(again, opening).dictionaries()) == []

    def test_a_type_whose_bodies_nobody_could_read_is_dropped(self, opening: Opening) -> None:
        spool = opening()
        spool.put(PODS, put("a", body=self.body(self.dictionary())))
        spool.put(NODES, put("n"))
        assert reopened(spool, opening).load() == [SpooledType(NODES, "", [put("n")])]


class TestIdentity:
    @pytest.mark.parametrize("other", [SpoolIdentity("uid-2", "signature"), SpoolIdentity("uid-1", "another")])
    def test_another_one_empties_it_and_begins_a_new_instance(self, opening: Opening, other: SpoolIdentity) -> None:
        spool = opening()
        spool.put(PODS, put("a"))
        spool.close()
        again = opening(other)
        assert (again.load(), again.is_restored, again.statistics()["set_aside"]) == ([], False, 0)
        assert again.instance != spool.instance
        again.put(PODS, put("b"))
        again.close()
        assert opening(other).load() == [SpooledType(PODS, "", [put("b")])]

    def test_the_signature_is_of_all_that_decides_what_is_sent(self) -> None:
        plain = AgentSettings(cluster_id=CLUSTER, aggregator="unix:/a", display_name="a")
        changes = (
            {"resources": ("pods",)},
            {"namespace": "shop"},
            {"label_selector": "app=web"},
            {"secrets": SecretMode.METADATA},
        )
        signatures = [signature_of(msgspec.structs.replace(plain, **change), None) for change in changes]
        signatures += [signature_of(plain, None), signature_of(plain, b"k" * 32), signature_of(plain, b"l" * 32)]
        assert len(set(signatures)) == len(signatures)
        elsewhere = msgspec.structs.replace(plain, aggregator="unix:/b", display_name="b", replace=True)
        assert signature_of(elsewhere, None) == signature_of(plain, None)

    def test_a_key_is_not_written(self) -> None:
        plain = AgentSettings(cluster_id=CLUSTER, aggregator="unix:/a")
        assert len(signature_of(plain, b"k" * 32)) == 64


class TestTheFile:
    def test_nobody_else_may_read_it(self, opening: Opening, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            spool = opening()
            spool.put(PODS, put("a"))
            spool.flush()
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool").iterdir()}
        names = ("eu-1.spool", "eu-1.spool-wal", "eu-1.spool-shm", "eu-1.spool.lock")
        assert modes == dict.fromkeys(names, 0o600)
        assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700

    def test_a_second_opener_is_refused_with_the_path(self, opening: Opening, tmp_path: Path) -> None:
        first = opening()
        first.put(PODS, put("a"))
        with pytest.raises(InvalidInput, match=r"eu-1\.spool.* no other agent has open"):
            opening()
        other = Spool.open(tmp_path / "spool", ClusterID("eu-2"), IDENTITY, max_bytes=ROOM)
        other.close()
        assert reopened(first, opening).load() == [SpooledType(PODS, "", [put("a")])]

    def test_a_folder_that_is_none_is_refused(self, opening: Opening, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InvalidInput, match="a folder to write in") as refused:
            opening(folder=tmp_path / "file")
        assert (refused.value.field, refused.value.given) == ("spool", str(tmp_path / "file"))


class TestKilled:
    def test_what_was_flushed_survives_and_is_never_older_than_that(self, opening: Opening, tmp_path: Path) -> None:
        """And a second process is refused while the first lives."""
        told = 0
        for _ in range(2):  # the second goes on with what the first left
            with spooling(tmp_path / "spool", first=told + 1) as process:
                assert process.stdout is not None
                for _ in range(30):
                    told = int(process.stdout.readline())
                with pytest.raises(InvalidInput, match="no other agent has open"):
                    opening()
                process.send_signal(signal.SIGKILL)
                told = max([told, *map(int, process.stdout.read().split())])
            spool = opening()
            ((resource_type, low_water, changes),) = spool.load()
            assert resource_type == spooling_process.PODS
            found = {change.name: change for change in changes}
            assert len(found) == len(changes) == OBJECTS
            # Each is the state of the last round that was told of, or of the one that was being written.
            rounds = {int(low_water)}
            for number in range(OBJECTS):
                assert found[f"pod-{number:02}"] in (state(number, told), state(number, told + 1))
                rounds |= {each for each in (told, told + 1) if found[f"pod-{number:02}"] == state(number, each)}
            assert len(rounds) == 1, "a flush is whole or not at all"
            assert spool.is_restored
            told = max(told, rounds.pop())
            spool.close()


class spooling:  # noqa: N801 - a context manager
    """A process that spools until it is killed."""

    def __init__(self, folder: Path, first: int = 1) -> None:
        self._command = [sys.executable, "-m", spooling_process.__name__, str(folder), str(first)]

    def __enter__(self) -> subprocess.Popen[str]:
        root = Path(__file__).parents[3]
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=root)
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def sound() -> tuple[bytes, list[SpooledType]]:
    """A file that was closed in order, and what it keeps."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool.open(Path(folder), CLUSTER, IDENTITY, max_bytes=ROOM)
        for number in range(60):
            spool.put(PODS, put(f"pod-{number}", body=b"{" + random.Random(number).randbytes(300)), "5")
        spool.put(NODES, put("n", namespace=""), "6")
        spool.close()
        again = Spool.open(Path(folder), CLUSTER, IDENTITY, max_bytes=ROOM)
        kept = again.load()
        again.close()
        return Path(folder, "eu-1.spool").read_bytes(), kept


class TestDamage:
    def filled(self, folder: Path) -> tuple[Path, list[SpooledType]]:
        content, kept = sound()
        path = folder / "eu-1.spool"
        path.write_bytes(content)
        return path, kept

    def check(self, path: Path, kept: list[SpooledType]) -> None:
        """It opens; what it gives is all or nothing; what could not be used is beside it, and the new file is sound."""
        damaged = path.read_bytes()
        spool = Spool.open(path.parent, CLUSTER, IDENTITY, max_bytes=ROOM)
        loaded = spool.load()
        assert spool.is_on
        spool.put(PODS, put("after"), "9")
        spool.close()
        again = Spool.open(path.parent, CLUSTER, IDENTITY, max_bytes=ROOM)
        names = [change.name for each in again.load() for change in each.changes]
        again.close()
        if spool.statistics()["set_aside"]:
            assert loaded == []
            assert names == ["after"]
            assert not spool.is_restored
            assert path.with_name("eu-1.spool.damaged").read_bytes() == damaged
        else:
            assert loaded in (kept, [])
            assert "after" in names

    @given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    def test_a_changed_bit_changes_no_object(
        self, tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
    ) -> None:
        path, kept = self.filled(tmp_path_factory.mktemp("spool"))
        content = bytearray(path.read_bytes())
        content[int(place * len(content))] ^= 1 << bit
        path.write_bytes(content)
        self.check(path, kept)

    @pytest.mark.parametrize("keeps", [0, 100, 4096, 5000, 20000])
    def test_a_file_that_was_cut_short(self, tmp_path: Path, keeps: int) -> None:
        path, kept = self.filled(tmp_path)
        os.truncate(path, keeps)
        self.check(path, kept)

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_table_and_an_index_that_disagree(self, tmp_path: Path, which: int) -> None:
        path, kept = self.filled(tmp_path)
        content = bytearray(path.read_bytes())
        places = [match.end() - 1 for match in re.finditer(b"default/pod-30", content)]
        assert len(places) == 2, "one in the table, one in its index"
        content[places[which]] ^= 1
        path.write_bytes(content)
        with capture_logs() as logs:
            self.check(path, kept)
        assert "spool cannot be used, set aside" in [each["event"] for each in logs]

    def test_a_file_that_is_something_else(self, tmp_path: Path) -> None:
        path, kept = self.filled(tmp_path)
        path.write_bytes(b"a letter to a friend" * 1000)
        with capture_logs() as logs:
            self.check(path, kept)
        assert [(each["log_level"], each["event"]) for each in logs] == [("warning", "spool cannot be used, set aside")]
        assert path.with_name("eu-1.spool.damaged").read_bytes().startswith(b"a letter")

    def test_a_newer_format(self, tmp_path: Path) -> None:
        path, _ = self.filled(tmp_path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 2")
        connection.close()
        with capture_logs() as logs:
            spool = Spool.open(tmp_path, CLUSTER, IDENTITY, max_bytes=ROOM)
        assert (spool.load(), spool.is_on, spool.statistics()["set_aside"]) == ([], True, 1)
        spool.close()
        assert [each["cause"] for each in logs] == ["it has format 2, not 1"]
        connection = sqlite3.connect(path.with_name("eu-1.spool.damaged"))
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (61,)
        connection.close()

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE entries SET record = (SELECT record FROM entries WHERE position = 9) WHERE position = 1",
            "UPDATE entries SET key = 'default/other' WHERE position = 1",
            "UPDATE entries SET state = 1 WHERE position = 1",
            "UPDATE entries SET type = 2 WHERE position = 1",
            "UPDATE types SET record = (SELECT record FROM types WHERE id = 2) WHERE id = 1",
            "DELETE FROM about",
            "DROP TABLE dictionaries",
        ],
    )
    def test_records_that_are_sound_in_the_wrong_place(self, tmp_path: Path, change: str) -> None:
        path, kept = self.filled(tmp_path)
        connection = sqlite3.connect(path)
        connection.execute(change)
        connection.commit()
        connection.close()
        with capture_logs() as logs:
            self.check(path, kept)
        assert "spool cannot be used, set aside" in [each["event"] for each in logs]

    def test_a_file_that_cannot_be_opened(self, tmp_path: Path) -> None:
        path, _ = self.filled(tmp_path)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")  # somebody else's work: it is not followed
        spool = Spool.open(tmp_path, CLUSTER, IDENTITY, max_bytes=ROOM)
        assert (spool.load(), spool.is_on) == ([], True)
        assert not path.is_symlink()
        spool.close()

    def test_a_log_that_is_damaged_loses_its_end_at_most(self, tmp_path: Path) -> None:
        """As a power cut leaves it: the log is written without fsyncs."""
        spool = Spool.open(tmp_path / "live", CLUSTER, IDENTITY, max_bytes=ROOM)
        for number in range(20):
            spool.put(PODS, put("a", number))
            spool.flush()
        size = (tmp_path / "live" / "eu-1.spool-wal").stat().st_size
        seen = set()
        for kept_bytes in range(0, size, size // 17):
            folder = tmp_path / str(kept_bytes)
            shutil.copytree(tmp_path / "live", folder)
            os.truncate(folder / "eu-1.spool-wal", kept_bytes)
            cut = Spool.open(folder, CLUSTER, IDENTITY, max_bytes=ROOM)
            versions = [change.resource_version for each in cut.load() for change in each.changes]
            assert len(versions) <= 1
            seen |= set(versions)
            cut.close()
        spool.close()
        assert len(seen) > 3


class TestFull:
    def test_a_disk_without_room_switches_it_off_and_takes_the_file_away(
        self, opening: Opening, tmp_path: Path
    ) -> None:
        spool = opening()
        spool.put(PODS, put("a"))
        spool.flush()
        with capture_logs() as logs, writes_fail_beyond(100_000):
            for number in range(400):
                spool.put(PODS, put(str(number), body=b"x" * 1000))
                spool.acknowledged(PODS.group_resource, [put(str(number - 1))])
                spool.flush()
        assert not spool.is_on
        assert spool.statistics()["failures"] == 1
        assert [(each["log_level"], each["event"]) for each in logs] == [
            ("warning", "spool cannot be written to, it is off until a restart")
        ]
        # Everything does nothing now.
        spool.put(PODS, put("b"))
        spool.bookmark(PODS.group_resource, "5")
        spool.drop(PODS.group_resource)
        spool.flush()
        spool.close()
        assert not (tmp_path / "spool" / "eu-1.spool").exists(), "it would be older than what was sent"
        again = opening()
        assert (again.load(), again.is_restored, again.is_on) == ([], False, True)

    def test_a_disk_without_room_at_the_start(self, opening: Opening) -> None:
        with writes_fail_beyond(2000):
            spool = opening()
        assert (spool.is_on, spool.load(), spool.statistics()["failures"]) == (False, [], 1)
        spool.put(PODS, put("a"))
        spool.flush()
        spool.close()
        assert opening().is_on

    async def test_above_its_bound_the_heaviest_type_is_dropped(
        self, opening: Opening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spool_module, "TICK", 0.0)
        spool = opening(max_bytes=400_000)
        for number in range(20):
            spool.put(NODES, put(str(number), body=b"y" * 10_000), "4")
        for number in range(400):
            spool.put(PODS, put(str(number), body=b"x" * 1000), "5")
        with capture_logs() as logs:
            running = asyncio.create_task(spool.run())
            await eventually(lambda: spool.statistics()["bytes"] < 300_000)
            running.cancel()
            await asyncio.wait([running])
        assert spool.statistics()["overflows"] == 1
        assert [each["resource"] for each in logs if each["event"].startswith("spool full")] == ["v1 pods"]
        # What comes after is kept, but nobody can say any more that it is everything.
        spool.put(PODS, put("later"), "9")
        again = reopened(spool, opening)
        nodes, pods = again.load()
        assert (nodes.type, nodes.low_water, len(nodes.changes)) == (NODES, "4", 20)
        assert pods == SpooledType(PODS, "", [put("later")])
        # A new list begins it anew.
        again.drop(PODS.group_resource)
        again.put(PODS, put("listed"), "12")
        assert reopened(again, opening).load()[1] == SpooledType(PODS, "12", [put("listed")])


class TestRunning:
    async def test_what_nobody_flushes_is_written(self, opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spool_module, "TICK", 0.0)
        spool = opening()
        spool.put(PODS, put("a"))
        spool.flush()
        spool.acknowledged(PODS.group_resource, [put("a")])
        running = asyncio.create_task(spool.run())
        reader = sqlite3.connect(spool._path)

        def entries() -> int:
            (number,) = reader.execute("SELECT count(*) FROM entries").fetchone()
            return int(number)

        assert entries() == 1
        await eventually(lambda: entries() == 0)
        reader.close()
        running.cancel()
        await asyncio.wait([running])

    async def test_the_log_stays_short_while_much_is_written(
        self, opening: Opening, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spool_module, "TICK", 0.0)
        monkeypatch.setattr(spool_module, "CHECKPOINT_BYTES", 200_000)
        spool = opening()
        running = asyncio.create_task(spool.run())
        longest = 0
        for checkpoints in range(10):
            for round_ in range(10):
                for number in range(40):
                    spool.put(PODS, put(str(number), checkpoints * 10 + round_, body=b"x" * 1000))
                spool.flush()
            longest = max(longest, spool.statistics()["log_bytes"])
            await eventually(lambda done=checkpoints: spool.statistics()["checkpoints"] > done)  # type: ignore[misc]
            assert spool.statistics()["log_bytes"] == 0
        running.cancel()
        await asyncio.wait([running])
        assert longest < 2_000_000
        assert [len(each.changes) for each in reopened(spool, opening).load()] == [40]

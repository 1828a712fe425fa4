"""`federator ledger`: what it says, where, and with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml
import zstandard

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import holding
from federator.cli.main import COMMANDS, LazyGroup, main
from tests.component.aggregator.ledger.filled import WEB, filled
from tests.component.cli.conftest import Outcome

HINT = "<ClusterID>/<group>/<resource>/<namespace>/<name>"


@pytest.fixture(scope="module", autouse=True)
def _commands() -> None:
    """Each command is a process of its own: what it would import and read is there once, before."""
    group = LazyGroup()
    for name in COMMANDS:
        group.get_command(None, name)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with a filled ledger, which the environment names."""
    directory = tmp_path / "state"
    asyncio.run(filled(directory))
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(directory))
    return directory


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """What the command says, which a process of its own does."""
    return capfd


def run(told: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    code = main(["ledger", *map(str, arguments)])
    return Outcome(code, *told.readouterr())


def test_backup_and_restore(told: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    made = run(told, "backup", target)
    assert (made.code, made.err) == (0, "")
    assert re.fullmatch(
        rf"{target}: ledger [0-9a-f]{{16}} at revision \d+ of \d{{4}}-\S+Z, 22 objects, \S+ KiB\n", made.out
    )
    assert run(told, "backup", target).err.startswith(f"Error: FILE: '{target}' is not allowed; allowed: a path of")
    assert run(told, "backup", target, "--force").code == 0

    refused = run(told, "restore", target)
    assert refused == (1, "", f"Error: the ledger in {state / 'ledger'} is not empty; --force sets it aside\n")
    restored = run(told, "restore", target, "--force")
    assert restored.code == 0
    assert re.fullmatch(rf"Note: the former ledger is in {state}/ledger\.replaced-\d{{8}}T\d{{6}}Z\n", restored.err)
    assert re.fullmatch(
        rf"{state}: restored from {target}, ledger .*, 22 objects, \S+ KiB; now revision \d+\n", restored.out
    )
    assert run(told, "verify", "--bodies").code == 0


def test_restore_into_a_new_state_directory(told: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    run(told, "backup", tmp_path / "backup")
    made = run(told, "restore", tmp_path / "backup", "--state-directory", tmp_path / "new")
    assert (made.code, made.err) == (0, "")
    assert run(told, "verify", "--state-directory", tmp_path / "new").code == 0
    assert state.exists()


def test_nothing_but_the_result_is_on_stdout(told: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = Path(__file__).parents[1] / "aggregator" / "ledger" / "data" / "schema-1.mdb.zst"
    (tmp_path / "old" / "ledger").mkdir(parents=True)
    (tmp_path / "old" / "ledger" / "data.mdb").write_bytes(
        zstandard.ZstdDecompressor().decompress(written.read_bytes())
    )
    state = ("--state-directory", tmp_path / "old")
    assert "schema 1; an aggregator that opens it brings it to" in run(told, "verify", *state).err
    run(told, "backup", tmp_path / "backup", *state)
    restored = run(told, "restore", tmp_path / "backup", "--state-directory", tmp_path / "new")
    assert (restored.code, restored.err, restored.out.count("\n")) == (0, "", 1)
    assert run(told, "verify", "--bodies", "--state-directory", tmp_path / "new").code == 0


def test_verify_says_what_it_has_looked_at(told: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    run(told, "backup", tmp_path / "backup")
    for arguments, path in (((), state / "ledger"), ((tmp_path / "backup",), tmp_path / "backup")):
        verified = run(told, "verify", *arguments)
        assert (verified.code, verified.err) == (0, "")
        assert re.fullmatch(rf"{path}: ledger [0-9a-f]{{16}} is sound at revision \d+: \d+ records\n", verified.out)
    assert run(told, "verify", "--bodies").out.endswith(" records, 26 bodies\n")


def test_verify_names_each_problem_and_fails(told: pytest.CaptureFixture[str], state: Path) -> None:
    data_file = state / "ledger" / "data.mdb"
    content = data_file.read_bytes()
    assert content.count(b"count") >= 1
    data_file.write_bytes(content.replace(b"forbidden", b"forbiDDen"))
    verified = run(told, "verify")
    assert (verified.code, verified.out) == (1, "")
    *problems, error = verified.err.splitlines()
    assert problems
    assert all(line.startswith("Warning: ") for line in problems)
    assert [line for line in problems if line.endswith(": checksum differs")]
    assert error == (
        f"Error: the ledger in {state / 'ledger'} is damaged at {len(problems)} places, named above; "
        "restore it, or move it away and let it refill"
    )


def test_a_page_that_ends_the_process_is_damage(
    told: pytest.CaptureFixture[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)  # pytest has a handler
        os.kill(os.getpid(), signal.SIGBUS)

    monkeypatch.setattr("federator.cli.ledger.verify_tables", end)
    said = (
        f"Error: the ledger in {state} is damaged at a page (SIGBUS); restore it, or move it away and let it refill\n"
    )
    assert run(told, "verify") == (1, "", said)
    monkeypatch.setattr("federator.cli.ledger.verify_tables", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
    assert run(told, "verify") == (1, "", "Error: the command was ended by SIGKILL\n")


def test_a_bug_is_not_dressed_up(
    told: pytest.CaptureFixture[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federator.cli.ledger.verify_tables", lambda *_, **__: 1 / 0)
    shown = run(told, "verify")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.endswith("ZeroDivisionError: division by zero\n")
    assert state.exists()


def test_purge(told: pytest.CaptureFixture[str], state: Path) -> None:
    (state / "ledger.replaced-20260101T000000Z").mkdir()
    purged = run(told, "purge", str(WEB))
    assert purged.code == 0
    assert re.fullmatch(rf"{WEB}: 3 past states purged; ledger \S+ KiB before, \S+ KiB now\n", purged.out)
    assert purged.err.splitlines() == [
        f"Warning: {WEB} is present: its newest state stays as it is. "
        "Change the object in its cluster, then purge again.",
        "Note: backups of before are not touched.",
        f"Warning: {state}/ledger.replaced-20260101T000000Z is not touched.",
    ]
    assert run(told, "purge", "berlin//configmaps/shop/gone").out.startswith(
        "berlin//configmaps/shop/gone: 1 past state "
    )


@pytest.mark.parametrize(
    "key", ["web", "shop/web", "configmaps/shop/web", "berlin/configmaps/shop/web", "berlin////web"]
)
def test_purge_says_what_a_key_looks_like(told: pytest.CaptureFixture[str], state: Path, key: str) -> None:
    refused = run(told, "purge", key)
    assert refused == (2, "", f"Error: key: '{key}' is not allowed; allowed: {HINT}\n")
    assert state.exists()


def test_purge_of_what_was_never_there(told: pytest.CaptureFixture[str], state: Path) -> None:
    refused = run(told, "purge", "berlin//configmaps/shop/none")
    assert refused == (1, "", "Error: configmaps 'none' not found in namespace 'shop' of cluster 'berlin'\n")
    assert state.exists()


def test_info_for_people(told: pytest.CaptureFixture[str], state: Path) -> None:
    shown = run(told, "info")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert re.fullmatch(r"Ledger:   [0-9a-f]{16}, schema \d+", lines[0])
    assert re.fullmatch(r"Newest:   revision \d+, 2026-09-21T14:13:20Z \(\S+ ago\)", lines[1])
    assert re.fullmatch(r"Oldest:   revision \d+, 2026-09-21T14:13:20Z \(\S+ ago\)", lines[2])
    assert lines[3] == "Holds:    22 objects of 2 clusters, 31 entries"
    assert re.fullmatch(r"Takes:    \S+ KiB, of which \S+ KiB used, \d+% of it for history", lines[4])
    assert lines[6].split() == ["CLUSTER", "RESOURCE", "OBJECTS", "ENTRIES", "SIZE", "HISTORY"]
    assert lines[7].split()[:4] == ["berlin", "configmaps", "21", "27"]
    assert lines[10].split() == ["DICTIONARY", "RESOURCE", "SIZE", "BODIES", "RATIO"]
    assert lines[11].split()[:2] == ["7", "configmaps"]
    assert "CLUSTER" not in run(told, "info", "--no-headers").out
    assert state.exists()


def test_info_for_programs(told: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    run(told, "backup", tmp_path / "backup")
    document = json.loads(run(told, "info", "-ojson").out)
    assert yaml.safe_load(run(told, "info", "-o", "yaml").out) == document
    assert (document["objects"], document["entries"], document["clusters"]) == (22, 31, 2)
    assert document["time"] == document["oldestTime"] == "2026-09-21T14:13:20Z"
    assert document["types"][0]["clusterId"] == "berlin"
    assert document["dictionaries"][0]["bodies"] == 7
    assert document["backup"] is None
    of_backup = json.loads(run(told, "info", tmp_path / "backup", "-o=json").out)
    assert of_backup["backup"]["revision"] == document["revision"]
    assert {**of_backup, "backup": None, "fileBytes": 0} == {**document, "fileBytes": 0}
    assert run(told, "info", "-o", "wide").code == 2
    assert state.exists()


def test_info_leaves_out_what_is_small(
    told: pytest.CaptureFixture[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("federator.cli.ledger._SHOWN_TYPES", 1)
    shown = run(told, "info")
    assert "paris" not in shown.out
    assert shown.err == "1 type more with -o json.\n"
    assert state.exists()


@pytest.mark.parametrize("command", [("backup", "b"), ("verify",), ("info",), ("purge", str(WEB))], ids=lambda c: c[0])
def test_without_a_ledger(told: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]) -> None:
    refused = run(told, *command, "--state-directory", tmp_path / "none")
    assert refused == (1, "", f"Error: there is no ledger in {tmp_path}/none/ledger\n")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["restore", "verify", "info"])
def test_what_is_no_backup(told: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    state = ("--state-directory", tmp_path / "state")
    missing = run(told, command, tmp_path / "none", *state)
    assert missing.code == 2
    assert missing.err.startswith(
        f"Error: FILE: '{tmp_path}/none' is not allowed; allowed: a backup that can be read (No "
    )
    (tmp_path / "text").write_text("some text, long enough to be looked at")
    text = run(told, command, tmp_path / "text", *state)
    assert text == (1, "", f"Error: {tmp_path}/text cannot be used as a backup: it is none, or its end is missing\n")


def test_what_needs_the_ledger_alone_says_so(told: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    run(told, "backup", tmp_path / "backup")
    said = f"Error: another process appends to the ledger in {state / 'ledger'}; it has to end first\n"
    ledger = LmdbLedger.open(state)
    assert run(told, "purge", str(WEB)) == (1, "", said)
    assert run(told, "restore", tmp_path / "backup", "--force") == (1, "", said)
    asyncio.run(ledger.close())
    with holding(state):
        assert run(told, "info").err == (
            f"Error: another process replaces the file of the ledger in {state / 'ledger'}; it has to end first\n"
        )


def test_the_state_directory_comes_from_where_the_aggregator_has_it(
    told: pytest.CaptureFixture[str], state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"listen: 127.0.0.1:9090\nhistory: 3d\nstate-directory: {tmp_path / 'configured'}\n")

    def asked(*arguments: str | Path) -> str:
        return run(told, "verify", *arguments).err.removeprefix("Error: there is no ledger in ").strip()

    flag = ("--state-directory", tmp_path / "flag")
    assert asked("--config", config, *flag) == f"{tmp_path}/flag/ledger"
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path / "variable"))
    assert asked("--config", config) == f"{tmp_path}/variable/ledger"
    monkeypatch.delenv("FEDERATOR_STATE_DIRECTORY")
    assert asked("--config", config) == f"{tmp_path}/configured/ledger"
    monkeypatch.setenv("FEDERATOR_CONFIG", str(config))
    assert asked() == f"{tmp_path}/configured/ledger"
    monkeypatch.delenv("FEDERATOR_CONFIG")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert asked() == f"{tmp_path}/xdg/federator/ledger"
    config.write_text("state-directroy: /tmp\n")
    assert "did you mean state-directory?" in run(told, "verify", "--config", config).err
    assert state.exists()


def test_a_variable_that_nobody_knows_is_refused(
    told: pytest.CaptureFixture[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTROY", "/tmp")
    assert run(told, "verify").code == 2
    assert state.exists()


def test_the_commands_are_listed_and_an_unknown_one_names_them(told: pytest.CaptureFixture[str]) -> None:
    names = ("backup", "restore", "verify", "purge", "info")
    shown = run(told, "--help")
    assert shown.code == 0
    assert "..." not in shown.out.partition("Commands:")[2]
    assert re.findall(r"^  (\w+) ", shown.out.partition("Commands:")[2], re.MULTILINE) == list(names)
    assert run(told, "clean") == (
        2,
        "",
        f"Error: ledger command: 'clean' is not allowed; allowed: {', '.join(names)}\n",
    )
    assert run(told).code == 2


def test_progress_is_told_on_a_terminal_only(
    told: pytest.CaptureFixture[str], state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["ledger", "backup", str(tmp_path / "backup")]) == 0
    said = os.read(leader, 10_000).decode()
    os.close(leader)
    assert told.readouterr().out.startswith(f"{tmp_path / 'backup'}: ledger ")
    assert re.search(r"\S+ KiB of about \S+ KiB", said)
    assert said.endswith("\r\x1b[K"), "nothing of it stays"
    assert state.exists()


def test_a_reader_that_has_seen_enough_is_no_error(
    told: pytest.CaptureFixture[str], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert main(["ledger", "info"]) == 0
    assert told.readouterr().err == ""
    assert state.exists()

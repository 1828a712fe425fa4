"""Settings from variables and configuration files: what goes before what, and that no mistake is passed over."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperGroup

from federator.cli.config import PREFIX, CheckedCommand, ServiceCommand, check_environment
from federator.cli.main import COMMANDS, CommandEntry, LazyGroup, app, main
from federator.errors import InvalidInput

SERVICES = [name for name, entry in COMMANDS.items() if entry.command_class is ServiceCommand]


def probe(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    state_directory: Annotated[Path | None, typer.Option()] = None,
    history: Annotated[str, typer.Option("--history")] = "7d",
    listen: Annotated[str, typer.Option("--listen", "-L", envvar="FEDERATOR_LISTEN")] = "here",
    memory: Annotated[bool, typer.Option("--memory")] = False,
    resource: Annotated[list[str] | None, typer.Option("--resource")] = None,
    limit: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Says what it was told."""
    print(json.dumps(locals(), default=str))  # noqa: T201 - the output is the test's


class Probe:
    """Runs the probe as a command that runs until it is stopped."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.file = folder / "config.yaml"

    def config(self, text: str | bytes) -> str:
        self.file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return f"--config={self.file}"

    def told(self, *arguments: str) -> dict[str, Any]:
        code = main(["probe", *arguments])
        captured = self._capsys.readouterr()
        assert (code, captured.err) == (0, "")
        told: dict[str, Any] = json.loads(captured.out)
        return told

    def refused(self, *arguments: str) -> str:
        code = main(["probe", *arguments])
        captured = self._capsys.readouterr()
        assert (code, captured.out) == (2, "")
        assert captured.err.startswith("Error: ")
        assert captured.err.count("\n") == 1
        return captured.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Probe:
    monkeypatch.setitem(COMMANDS, "probe", CommandEntry(f"{__name__}:probe", "Tell.", ServiceCommand))
    return Probe(capsys, tmp_path)


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_file(
    command: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.told()["history"] == "7d"
    config = command.config("history: 1d\nlisten: there\n")
    assert command.told(config)["history"] == "1d"
    monkeypatch.setenv("FEDERATOR_HISTORY", "2d")
    told = command.told(config)
    assert (told["history"], told["listen"]) == ("2d", "there")
    assert command.told(config, "--history=3d")["history"] == "3d"


def test_the_file_may_be_named_by_a_variable(command: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    command.config("history: 1d")
    monkeypatch.setenv("FEDERATOR_CONFIG", str(command.file))
    assert command.told()["history"] == "1d"


def test_every_kind_of_setting_can_stand_in_the_file(command: Probe) -> None:
    config = command.config(
        "state-directory: /state\nmemory: true\nresource: [pods, nodes]\nlimit: 5\nwords: [a b, c]\n"
    )
    assert command.told(config) == {
        "words": ["a b", "c"],
        "state_directory": "/state",
        "history": "7d",
        "listen": "here",
        "memory": True,
        "resource": ["pods", "nodes"],
        "limit": 5,
    }
    assert command.told(command.config("resource: pods"))["resource"] == ["pods"]
    assert command.told(command.config("listen: ''"))["listen"] == ""
    assert command.told(command.config("# nothing\n"))["history"] == "7d"


@pytest.mark.parametrize("text", ["007", "1e3", "off", "1:30", "2026-01-01", "~", "0x10"])
def test_a_value_is_what_is_written_not_what_yaml_takes_it_for(command: Probe, text: str) -> None:
    assert command.told(command.config(f"history: {text}"))["history"] == text


def test_every_kind_of_setting_can_be_a_variable(command: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MEMORY": "1", "RESOURCE": "pods nodes", "LIMIT": "7", "STATE_DIRECTORY": "/x"}.items():
        monkeypatch.setenv(PREFIX + name, value)
    told = command.told()
    assert told["memory"] is True
    assert told["resource"] == ["pods", "nodes"]
    assert (told["limit"], told["state_directory"]) == (7, "/x")


def nested_too_deeply() -> str:
    """A list that is YAML but for its depth: its reader takes at least two calls of Python for each level."""
    levels = sys.getrecursionlimit() // 2
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("histroy: 7d", "key: 'histroy' is not allowed; allowed: words, state-directory, history"),
        ("histroy: 7d", "did you mean history?"),
        ("config: other", "key: 'config'"),
        ("help: true", "key: 'help'"),
        ("state_directory: /x", "did you mean state-directory?"),
        ("history: [7d]", "history: 'a list' is not allowed; allowed: one value"),
        ("history: {days: 7}", "history: 'a mapping' is not allowed; allowed: one value"),
        ("history: 1d\nhistory: 2d", "history: 'given twice'"),
        ("resource: {a: b}", "resource: 'something else' is not allowed; allowed: a value, or a list of values"),
        ("resource: [[pods]]", "resource: 'something else'"),
        ("memory: perhaps", "memory: 'perhaps' is not allowed; allowed: true or false"),
        ("memory:", "memory: '' is not allowed; allowed: true or false"),
        ("limit: many", "limit: 'many' is not allowed"),
        ("limit: -1", "limit: '-1' is not allowed"),
        ("- history", "a mapping from names"),
        ("history", "a mapping from names"),
        ("history: [", "YAML in UTF-8, which it is not in line"),
        ("a: 1\n---\na: 2", "YAML in UTF-8"),
        ("history: \tx: y: z", "YAML in UTF-8"),
        (b"history: \xff", "YAML in UTF-8"),
        (b"history: \x00", "YAML in UTF-8"),
        ("a: " + nested_too_deeply(), "YAML in UTF-8"),
    ],
)
def test_a_file_that_is_not_what_it_has_to_be_is_refused(command: Probe, text: str | bytes, said: str) -> None:
    err = command.refused(command.config(text))
    assert said in err
    assert str(command.file) in err


def test_a_file_that_is_another_one_is_not_quoted(command: Probe) -> None:
    for text in ("token: {hush-hush", "- hush-hush", "history: [hush-hush]", "hush-hush\nx: y"):
        assert "hush" not in command.refused(command.config(text))


def test_a_file_that_cannot_be_read_is_refused(command: Probe, tmp_path: Path) -> None:
    assert "No such file" in command.refused("--config=/nowhere/at/all")
    assert "Is a directory" in command.refused(f"--config={tmp_path}")


def test_a_variable_with_a_wrong_value_is_named(command: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDERATOR_MEMORY", "perhaps")
    assert "FEDERATOR_MEMORY: 'perhaps' is not allowed; allowed: true or false" in command.refused()
    assert command.told("--memory")["memory"] is True, "the flag goes before it"


def test_a_wrong_value_on_the_command_line_is_named(command: Probe) -> None:
    assert "--limit: '-1' is not allowed; allowed: greater than or equal to 0" in command.refused("--limit=-1")
    assert "--limit: 'many' is not allowed; allowed: a valid integer" in command.refused("--limit", "many")
    assert "No such option: --nope" in command.refused("--nope")
    assert "'--limit' requires an argument" in command.refused("--limit")


def test_a_variable_that_nobody_knows_is_refused(command: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDERATOR_HISTROY", "hush-hush")
    err = command.refused()
    assert "environment variable: 'FEDERATOR_HISTROY' is not allowed; allowed: FEDERATOR_" in err
    assert "did you mean FEDERATOR_HISTORY?" in err
    assert "hush" not in err
    monkeypatch.setitem(COMMANDS, "reader", CommandEntry(f"{__name__}:probe", "Read."))
    assert main(["reader"]) == 2
    assert main(["version"]) == 0
    assert main(["probe", "--help"]) == 0


def test_what_another_command_knows_is_nobody_elses_mistake(command: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDERATOR_SERVER", "FEDERATOR_CLUSTER_ID", "FEDERATOR_INGEST_LISTEN"):
        monkeypatch.setenv(name, "x")
    command.told()


@pytest.mark.parametrize(
    "name", ["FEDERATOR_SERVICE_HOST", "FEDERATOR_PORT", "FEDERATOR_SERVICE_PORT_GRPC", "FEDERATOR_PORT_9090_TCP_ADDR"]
)
def test_what_a_kubelet_tells_of_a_service_of_that_name_is_no_mistake(name: str) -> None:
    check_environment({name: "tcp://10.0.0.1:9090"}, (), set)
    with pytest.raises(InvalidInput):
        check_environment({name + "X_": "", "FEDERATOR_XPORT": ""}, (), set)


def test_other_commands_are_imported_only_for_names_that_the_command_does_not_know() -> None:
    def never() -> set[str]:
        raise AssertionError

    environment = {"FEDERATOR_LISTEN": "", "FEDERATOR_CONFIG": "", "PATH": ""}
    check_environment(environment, {"FEDERATOR_LISTEN"}, never)


@pytest.mark.parametrize("name", SERVICES)
def test_every_option_of_a_service_has_a_variable_that_help_names(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service = _command(name)
    assert isinstance(service, ServiceCommand)
    assert main([name, "--help"]) == 0
    helped = " ".join(capsys.readouterr().out.split())
    for option, setting in service.settings.items():
        assert setting.envvar == PREFIX + option.upper().replace("-", "_")
        assert f"[env var: {setting.envvar}" in helped
    assert "--config FILE" in helped


ADMINISTRATING = ("clusters remove", "indexes add", "indexes drop")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {*SERVICES, *ADMINISTRATING, "ledger", "version"}))
def test_reading_commands_check_their_environment(name: str) -> None:
    command = _command(name)
    assert isinstance(command, CheckedCommand)
    assert "FEDERATOR_SERVER" in command.variables


@pytest.mark.parametrize("name", ADMINISTRATING)
def test_administrating_commands_check_their_environment(name: str) -> None:
    command = _command(name)
    assert isinstance(command, CheckedCommand)
    assert {"FEDERATOR_ADMIN_LISTEN", "FEDERATOR_STATE_DIRECTORY"} <= command.variables


def test_commands_on_the_ledger_check_their_environment() -> None:
    group = _command("ledger")
    assert isinstance(group, TyperGroup)
    assert group.commands
    for command in group.commands.values():
        assert isinstance(command, CheckedCommand)
        assert "FEDERATOR_STATE_DIRECTORY" in command.variables


def _command(name: str) -> object:
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    return group.get_command(None, name)

"""The command line: which commands there are, and what their failures become.

A command's module is imported when the command is called, so that `federator --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from federator.cli.config import CheckedCommand, ServiceCommand
from federator.cli.messages import error as say_error
from federator.errors import ERRORS, FederatorError, InvalidInput, outcome


class CommandEntry(NamedTuple):
    """Where a command is and what it is for.

    Attributes:
        target: `module:function`; the function's parameters are its options and arguments, its docstring its help. Or
            `module:app`, whose commands are one word more.
        summary: one line for the list of commands.
        command_class: what it takes beside its command line.
    """

    target: str
    summary: str
    command_class: type[TyperCommand] = CheckedCommand


COMMANDS = {
    "get": CommandEntry("federator.cli.get:get", "Show objects of all clusters, and follow their changes."),
    "count": CommandEntry("federator.cli.count:count", "Count objects of all clusters, and sum up what they have."),
    "history": CommandEntry("federator.cli.history:history", "Show every version of one object."),
    "changes": CommandEntry("federator.cli.changes:changes", "Show what became of objects between two moments."),
    "clusters": CommandEntry("federator.cli.clusters:clusters", "Show the member clusters and how fresh each is."),
    "clusters remove": CommandEntry(
        "federator.cli.clusters_remove:remove", "Take a cluster out of the federation; on the aggregator's machine."
    ),
    "indexes": CommandEntry("federator.cli.indexes:indexes", "Show which fields are indexed, and how far."),
    "indexes add": CommandEntry(
        "federator.cli.indexes_change:add", "Index a field of objects; on the aggregator's machine."
    ),
    "indexes drop": CommandEntry(
        "federator.cli.indexes_change:drop", "Take the index on a field back; on the aggregator's machine."
    ),
    "api-resources": CommandEntry(
        "federator.cli.api_resources:api_resources", "Show the resource types of all clusters."
    ),
    "run": CommandEntry(
        "federator.cli.run:run", "Run the aggregator and an agent for each kubeconfig context.", ServiceCommand
    ),
    "agent": CommandEntry("federator.cli.agent:agent", "Run the agent of one cluster.", ServiceCommand),
    "aggregator": CommandEntry("federator.cli.aggregator:aggregator", "Run the aggregator.", ServiceCommand),
    "ledger": CommandEntry(
        "federator.cli.ledger:ledger", "Back up, restore, check, clean and look into the aggregator's ledger."
    ),
    "version": CommandEntry("federator.cli.version:version", "Show the version.", TyperCommand),
}


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Finds the command that the arguments begin with: one of two words, or of one.

        Raises:
            InvalidInput: there is no such command.
        """
        both = " ".join(args[:2])
        if len(args) > 1 and both in COMMANDS:
            return both, self.get_command(ctx, both), args[2:]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands, in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup:
        """Imports and returns a command.

        Raises:
            InvalidInput: there is no such command.
        """
        del ctx
        if cmd_name not in COMMANDS:
            raise InvalidInput("command", cmd_name, ", ".join(COMMANDS))
        entry = COMMANDS[cmd_name]
        module, function = entry.target.split(":")
        return _built(cmd_name, getattr(import_module(module), function), entry.command_class)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@cache  # typer reads a signature in about the time that a small command takes
def _built(name: str, target: Any, command_class: type[TyperCommand]) -> TyperCommand | TyperGroup:
    if isinstance(target, typer.Typer):
        group = typer.main.get_command(target)
        assert isinstance(group, TyperGroup)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=command_class)(target)
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand)
    return command


app = typer.Typer(
    cls=LazyGroup, add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
)


@app.callback()
def _federator() -> None:
    """Read many Kubernetes clusters as one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code: 0 done, 1 error, 2 usage, 3 incomplete, 4 cursor, 130 interrupted.

    Args:
        arguments: those after the program's name; None for the process's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        # The process is ours. structlog would import it for tracebacks that we do not have: a fifth of `federator get`.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    # Where they were closed before the start, as by `>&-`, Python has None: nobody reads, as of a pipe that was closed.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # Names and annotations are in any script, and what reads JSON and YAML expects UTF-8 whatever the terminal is.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        for argument in given:
            _require_text(argument)
        # Not `app()`, which would install typer's own report of exceptions over the interpreter's.
        result = typer.main.get_command(app).main(given or ["--help"], prog_name="federator", standalone_mode=False)
    except FederatorError as error:
        say_error(str(error))
        return outcome(error).exit
    except typer.TyperException as error:
        say_error(error.format_message())
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        # Commands tell of files and connections themselves. What is left is the output, on a full disk for one.
        say_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return ERRORS[FederatorError].exit
    return result if isinstance(result, int) else 0


def _require_text(argument: str) -> None:
    """Refuses bytes that are no text: neither a message nor a question to the aggregator could carry them."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise InvalidInput("argument", os.fsencode(argument), "text in UTF-8") from None

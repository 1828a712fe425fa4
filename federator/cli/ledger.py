"""`federator ledger`: work on the ledger of an aggregator, in its state directory."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from federator.aggregator.ledger.backup import Manifest, back_up, read_manifest
from federator.aggregator.ledger.census import Census, take_census
from federator.aggregator.ledger.maintenance import SnapshotTables, snapshot
from federator.aggregator.ledger.purge import purge as purge_ledger
from federator.aggregator.ledger.restore import REPLACED
from federator.aggregator.ledger.restore import restore as restore_ledger
from federator.aggregator.ledger.store import ASIDE
from federator.aggregator.ledger.verification import verify as verify_tables
from federator.api.key import ObjectKey
from federator.cli.age import human_duration
from federator.cli.command import run_command
from federator.cli.config import CONFIG_VARIABLE, CheckedCommand, read_config
from federator.cli.messages import counted, note, say, warn
from federator.cli.messages import error as say_error
from federator.cli.options import NoHeaders, require_format, short_value
from federator.cli.output.documents import to_json
from federator.cli.output.table import Table
from federator.cli.service import default_state_directory
from federator.errors import FederatorError, InvalidInput, LedgerCorrupt, LedgerError, outcome
from federator.observability.logs import configure_logging

_SHOWN_TYPES = 10
"""Types in the table of `info`; `-o json` has them all."""

_SHOWN_PROBLEMS = 1000
"""Problems that `verify` names."""

_FATAL = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV})

_SERVICES = ("aggregator", "run")
"""Commands whose configuration files name a state directory."""

StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-directory",
        envvar="FEDERATOR_STATE_DIRECTORY",
        help="Folder of the ledger, as the aggregator was told "
        "[default: $XDG_STATE_HOME/federator or ~/.local/state/federator].",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help="The aggregator's configuration file; only its state-directory is used.",
    ),
]
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
BackupInstead = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="A backup [default: the ledger of the state directory].")
]


class LedgerCommand(CheckedCommand):
    """A command whose work is done by a process of its own.

    LMDB trusts its pages: one that is damaged may end the process that reads it by a signal. Then there is still
    somebody to say so.
    """

    def invoke(self, ctx: Any) -> Any:
        """Runs it.

        Raises:
            LedgerCorrupt: a signal ended it that says of damaged pages.
            typer.Exit: it has ended, and has said what there is to say.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os._exit(self._run(ctx))
        try:
            _, status = os.waitpid(child, 0)
        except KeyboardInterrupt:  # the child has it from the terminal, too
            os.waitpid(child, 0)
            raise
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            cause = signal.Signals(number).name
            if number in _FATAL:
                raise LedgerCorrupt(
                    str(ctx.params.get("state_directory") or "the state directory"), f"a page ({cause})"
                )
            raise LedgerError(f"the command was ended by {cause}")
        raise typer.Exit(os.waitstatus_to_exitcode(status))

    def _run(self, ctx: Any) -> int:
        configure_logging("warning", "console")  # of what is done on the way, such as a migration, only what is wrong
        code = 1
        try:
            super().invoke(ctx)
            code = 0
        except FederatorError as error:
            say_error(str(error))
            code = outcome(error).exit
        except KeyboardInterrupt:
            code = 130
        except OSError as error:
            say_error(str(error))
        except BaseException:  # noqa: BLE001 - the process ends here, and its callers are the parent's
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
        return code


class LedgerGroup(TyperGroup):
    """The commands behind `federator ledger`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command.

        Raises:
            InvalidInput: there is no such command.
        """
        command = super().get_command(ctx, cmd_name)
        if command is None:
            raise InvalidInput("ledger command", cmd_name, ", ".join(self.list_commands(ctx)))
        return command


ledger = typer.Typer(
    cls=LedgerGroup,
    add_completion=False,
    rich_markup_mode=None,
    help="Work on the ledger of an aggregator, in its state directory.",
)


@ledger.command(cls=LedgerCommand)
def backup(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file, if there is one.")] = False,
    state_directory: StateDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Back up the ledger; the aggregator may be running.

    The backup has one state of the ledger. While it is being copied the aggregator cannot use the pages of that state
    again, so the ledger of a busy one grows meanwhile.
    """
    directory = _directory(context, state_directory, config)
    with _progress() as progress:
        manifest = back_up(directory, file, force=force, progress=progress)
    _write(f"{file}: {_described(manifest)}\n")


@ledger.command(cls=LedgerCommand)
def restore(
    context: typer.Context,
    file: Backup,
    force: Annotated[
        bool, typer.Option("--force", help="Set a ledger aside that is not empty, as ledger.replaced-<time>.")
    ] = False,
    state_directory: StateDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Make a ledger of a backup; the aggregator has to be stopped.

    That is a new ledger with the history of the old one: its revisions are new, cursors of before are refused as those
    of another ledger, and agents list everything anew.
    """
    directory = _directory(context, state_directory, config)
    restored = restore_ledger(directory, file, force=force)
    if restored.set_aside is not None:
        note(f"the former ledger is in {restored.set_aside}")
    _write(f"{directory}: restored from {file}, {_described(restored.manifest)}; now revision {restored.revision}\n")


@ledger.command(cls=LedgerCommand)
def verify(
    context: typer.Context,
    file: BackupInstead = None,
    bodies: Annotated[
        bool, typer.Option("--bodies", help="Decompress every body, too, and compare it with its hash.")
    ] = False,
    state_directory: StateDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Check every record of the ledger, or of a backup.

    The aggregator may be running. Each problem is named on stderr, and where there is one the exit code is 1. All is
    checked in one state; meanwhile the ledger of a busy aggregator grows, as by a backup.
    """
    told = 0

    def report(problem: str) -> None:
        nonlocal told
        told += 1
        if told <= _SHOWN_PROBLEMS:
            warn(problem)

    with _tables(context, file, state_directory, config) as tables:
        verified = verify_tables(tables, report, bodies=bodies)
        path = tables.path
    if verified.problems:
        if verified.problems > _SHOWN_PROBLEMS:
            note(f"{verified.problems - _SHOWN_PROBLEMS} problems more")
        raise LedgerCorrupt(str(path), f"{counted(verified.problems, 'place')}, named above")
    looked_at = counted(verified.records, "record") + (f", {_bodies(verified.bodies)}" if bodies else "")
    _write(f"{path}: ledger {verified.ledger_id} is sound at revision {verified.revision}: {looked_at}\n")


@ledger.command(cls=LedgerCommand)
def purge(
    context: typer.Context,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="<ClusterID>/<group>/<resource>/<namespace>/<name>, as -o name prints.")
    ],
    state_directory: StateDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Take an object's past states out of the ledger.

    For what should never have been in it, such as a password in a ConfigMap. The aggregator has to be stopped. Type,
    name, labels and revision of each state stay, so that watches go on from old cursors. The present state stays as it
    is: change the object in its cluster first. The file is written anew, so that free pages do not keep what was
    purged.
    """
    parsed = ObjectKey.parse(key)
    directory = _directory(context, state_directory, config)
    with _progress() as progress:
        purged = purge_ledger(directory, parsed, progress=progress)
    if purged.is_present:
        warn(f"{key} is present: its newest state stays as it is. Change the object in its cluster, then purge again.")
    if purged.dictionaries:
        note(
            f"dictionaries that had parts of it and went too: {purged.dictionaries}; "
            f"{_bodies(purged.recoded)} compressed anew."
        )
    note("backups of before are not touched.")
    for pattern in (REPLACED, ASIDE):
        for aside in sorted(directory.glob(f"{pattern}*")):
            warn(f"{aside} is not touched.")
    sizes = f"{_size(purged.bytes_before)} before, {_size(purged.bytes_after)} now"
    _write(f"{key}: {counted(purged.states, 'past state')} purged; ledger {sizes}\n")


@ledger.command(cls=LedgerCommand)
def info(
    context: typer.Context,
    file: BackupInstead = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", callback=short_value, help="json or yaml.")
    ] = "",
    no_headers: NoHeaders = False,
    state_directory: StateDirectory = None,
    config: ConfigFile = None,
) -> None:
    """Show what the ledger, or a backup, holds and what takes its room.

    The aggregator may be running.
    """
    require_format(output, "json", "yaml")
    with _tables(context, file, state_directory, config) as tables:
        census = take_census(tables)
    if output:
        document = _document(census, read_manifest(file) if file else None)
        _write(to_json(document) if output == "json" else _to_yaml(document))
    else:
        _write(_summary(census) + _tables_text(census, show_header=not no_headers))


def _directory(context: typer.Context, state_directory: Path | None, config: Path | None) -> Path:
    """The state directory: flag or variable, then the aggregator's configuration file, then the default."""
    configured = None
    if config is not None:
        root: Any = context.find_root().command
        commands = (root.get_command(context, name) for name in _SERVICES)
        settings = {name: setting for command in commands for name, setting in command.settings.items()}
        del settings["config"]
        configured = read_config(config, settings).get("state_directory")
    if state_directory is not None:
        return state_directory
    return Path(configured) if isinstance(configured, str) else default_state_directory()


@contextmanager
def _tables(
    context: typer.Context, backup_file: Path | None, state_directory: Path | None, config: Path | None
) -> Iterator[SnapshotTables]:
    if backup_file is None:
        with snapshot(_directory(context, state_directory, config)) as tables:
            yield tables
        return
    read_manifest(backup_file)
    tables = SnapshotTables(backup_file, is_backup=True)
    try:
        yield tables
    finally:
        tables.close()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Tells of progress on a terminal, in one line that is gone in the end."""
    if not sys.stderr.isatty():
        yield None
        return

    def tell(written: int, expected: int) -> None:
        sys.stderr.write(f"\r\x1b[K{_size(written)} of about {_size(expected)}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _described(manifest: Manifest) -> str:
    return (
        f"ledger {manifest.ledger_id} at revision {manifest.revision} of {_when(manifest.time)}, "
        f"{counted(manifest.objects, 'object')}, {_size(manifest.bytes)}"
    )


def _document(census: Census, manifest: Manifest | None) -> dict[str, object]:
    return {
        "ledgerId": census.ledger_id,
        "schemaVersion": census.schema_version,
        "revision": census.revision,
        "time": _timestamp(census.time_ms or None),
        "oldestRevision": census.oldest_revision,
        "oldestTime": _timestamp(census.oldest_time_ms),
        "clusters": census.clusters,
        "objects": census.objects,
        "entries": census.entries,
        "fileBytes": census.file_bytes,
        "usedBytes": census.used_bytes,
        "historyShare": round(census.history_share, 3),
        "types": [
            {
                "clusterId": each.cluster_id,
                "group": each.resource.group,
                "resource": each.resource.resource,
                "objects": each.objects,
                "entries": each.entries,
                "bytes": each.bytes,
                "historyBytes": each.history_bytes,
            }
            for each in census.types
        ],
        "dictionaries": [
            {
                "dictionaryId": each.dictionary_id,
                "group": each.resource.group,
                "resource": each.resource.resource,
                "bytes": each.bytes,
                "bodies": each.bodies,
                "ratio": None if each.ratio is None else round(each.ratio, 2),
            }
            for each in census.dictionaries
        ],
        "backup": None if manifest is None else msgspec.to_builtins(manifest),
    }


def _to_yaml(document: dict[str, object]) -> str:
    from federator.cli.output.yaml import to_yaml

    return to_yaml(document)


def _summary(census: Census) -> str:
    lines = {
        "Ledger": f"{census.ledger_id}, schema {census.schema_version}",
        "Newest": f"revision {census.revision}{_age(census.time_ms or None)}",
        "Oldest": f"revision {census.oldest_revision}{_age(census.oldest_time_ms)}",
        "Holds": f"{counted(census.objects, 'object')} of {counted(census.clusters, 'cluster')}, "
        f"{census.entries} entries",
        "Takes": f"{_size(census.file_bytes)}, of which {_size(census.used_bytes)} used, "
        f"{census.history_share:.0%} of it for history",
    }
    return "".join(f"{name + ':':10}{text}\n" for name, text in lines.items())


def _tables_text(census: Census, *, show_header: bool) -> str:
    types = Table(("CLUSTER", "RESOURCE", "OBJECTS", "ENTRIES", "SIZE", "HISTORY"), show_header=show_header).text(
        (
            each.cluster_id,
            str(each.resource),
            str(each.objects),
            str(each.entries),
            _size(each.bytes),
            _size(each.history_bytes),
        )
        for each in census.types[:_SHOWN_TYPES]
    )
    dictionaries = Table(("DICTIONARY", "RESOURCE", "SIZE", "BODIES", "RATIO"), show_header=show_header).text(
        (
            str(each.dictionary_id),
            str(each.resource),
            _size(each.bytes),
            str(each.bodies),
            "-" if each.ratio is None else f"{each.ratio:.1f}",
        )
        for each in census.dictionaries
    )
    hidden = len(census.types) - _SHOWN_TYPES
    if hidden > 0:
        say(f"{counted(hidden, 'type')} more with -o json.")
    return "".join(f"\n{text}" for text in (types, dictionaries) if text)


def _bodies(count: int) -> str:
    return "1 body" if count == 1 else f"{count} bodies"


def _write(text: str) -> None:
    async def write() -> None:
        sys.stdout.write(text)

    run_command(write())


def _timestamp(time_ms: int | None) -> str | None:
    return None if time_ms is None else _when(datetime.fromtimestamp(time_ms / 1000, UTC))


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _age(time_ms: int | None) -> str:
    return "" if time_ms is None else f", {_timestamp(time_ms)} ({human_duration(time.time() - time_ms / 1000)} ago)"


def _size(length: float) -> str:
    """Bytes, in the largest unit of which there is one."""
    units = ["B", "KiB", "MiB", "GiB"]
    while length >= 1024 and len(units) > 1:
        length /= 1024
        del units[0]
    return f"{length:.0f} B" if units[0] == "B" else f"{length:.1f} {units[0]}"

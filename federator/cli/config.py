"""Where options come from beside the command line: flag > environment variable > configuration file > default.

Every option of a command that runs until it is stopped has a variable, `FEDERATOR_` and its name, and a key in the file
that `--config` names. Values are written there as they are written after the flag: what YAML would take for a number or
a truth value stays text until the option reads it. A name that nobody knows is refused, never passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from federator.errors import InvalidInput

PREFIX = "FEDERATOR_"
CONFIG_VARIABLE = "FEDERATOR_CONFIG"

Setting = TyperOption | TyperArgument

_FLAG_VALUES = "true or false"

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""Variables that a kubelet gives to pods for each Service beside them, such as one named `federator`."""


class CheckedCommand(TyperCommand):
    """A command that does not start beside a variable that no command knows: it may be a misspelt setting."""

    @property
    def variables(self) -> set[str]:
        """Names of the variables that it reads."""
        return {setting.envvar for setting in self.settings.values() if isinstance(setting.envvar, str)}

    @property
    def settings(self) -> dict[str, Setting]:
        """What can be told to it, by name: its options without their dashes, and its arguments."""
        return {_name(param): param for param in self.params if isinstance(param, TyperOption | TyperArgument)}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line and what stands behind it.

        Raises:
            InvalidInput: a value is not what its setting takes; the error names where the value came from.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            refusal = _refusal(ctx, self.make_parser(ctx).parse_args(given)[0], error)
            if refusal is None:
                raise
            raise refusal from error

    def invoke(self, ctx: Any) -> Any:
        """Runs it.

        Raises:
            InvalidInput: the environment has a variable `FEDERATOR_…` that no command knows.
        """
        check_environment(os.environ, self.variables, lambda: _all_variables(ctx))
        return super().invoke(ctx)


class ServiceCommand(CheckedCommand):
    """A command with a variable for each setting, and a configuration file."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for name, setting in self.settings.items():
            setting.envvar = setting.envvar or PREFIX + name.upper().replace("-", "_")
        self.params.append(_config_option())


def check_environment(environment: Mapping[str, str], own: Collection[str], others: Callable[[], set[str]]) -> None:
    """Looks for variables `FEDERATOR_…` that nobody reads.

    Args:
        environment: the process's.
        own: names that the command reads.
        others: gives those of all commands; called only where `own` is not enough, since it imports them.

    Raises:
        InvalidInput: there is one; its value is not told.
    """
    given = [name for name in environment if name.startswith(PREFIX) and not _SERVICE_LINK.fullmatch(name)]
    unknown = sorted(set(given) - set(own) - {CONFIG_VARIABLE})
    if unknown:
        known = others() | {CONFIG_VARIABLE}
        for name in unknown:
            if name not in known:
                raise InvalidInput("environment variable", name, _allowed(name, sorted(known)))


def read_config(path: Path, settings: Mapping[str, Setting]) -> dict[str, str | list[str]]:
    """Reads a configuration file. Blocks briefly.

    Args:
        path: a YAML file: one mapping from names of settings to values, or to lists where several may be given.
        settings: those allowed, by name.

    Returns:
        Values by the settings' parameter names.

    Raises:
        InvalidInput: it cannot be read, is no such file, or has a key or value that is not allowed. What it holds is
            not quoted beyond its keys: it may be another file than was meant.
    """
    values: dict[str, str | list[str]] = {}
    for name, value in _entries(path):
        field = f"{path}: {name}"
        setting = settings.get(name)
        if setting is None:
            raise InvalidInput(f"{path}: key", name, _allowed(name, list(settings)))
        if setting.name in values:
            raise InvalidInput(field, "given twice", "one value for a key")
        if not _takes_several(setting):
            if not isinstance(value, str):
                raise InvalidInput(field, "a list" if isinstance(value, list) else "a mapping", "one value")
            if not value and _is_flag(setting):
                raise InvalidInput(field, value, _FLAG_VALUES)
            values[setting.name] = value
            continue
        several = [value] if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
            raise InvalidInput(field, "something else", "a value, or a list of values")
        values[setting.name] = several
    return values


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Key and value of each entry, in order and with repeated keys, which a mapping would swallow."""
    import yaml  # here, so that `federator --help` need not wait for it

    try:
        loader = yaml.BaseLoader(path.read_text("utf-8"))  # knows no tags: everything is text, a list or a mapping
        document = loader.get_single_node()
        if document is None:
            return
        if not isinstance(document, yaml.MappingNode):
            raise InvalidInput("--config", path, "a YAML file with a mapping from names of options to values")
        for key, value in document.value:
            yield str(loader.construct_object(key, deep=True)), loader.construct_object(value, deep=True)
    except OSError as error:
        raise InvalidInput("--config", path, f"a file that can be read ({error.strerror})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", which it is not in line {mark.line + 1}" if mark else ""
        raise InvalidInput("--config", path, f"YAML in UTF-8{place}") from None


def _config_option() -> TyperOption:
    """The option `--config`, made by typer from this declaration."""

    def declared(
        config: Annotated[
            Path | None,
            typer.Option(
                "--config",
                envvar=CONFIG_VARIABLE,
                metavar="FILE",
                is_eager=True,  # before the options whose values it has
                expose_value=False,
                callback=_take_config,
                help="YAML file with options of this command, e.g. 'log-level: debug'. "
                "A flag goes before a variable, a variable before the file.",
            ),
        ] = None,
    ) -> None:
        pass

    app = typer.Typer(add_completion=False)
    app.command()(declared)
    (option,) = (param for param in typer.main.get_command(app).params if isinstance(param, TyperOption))
    return option


def _take_config(ctx: typer.Context, path: Path | None) -> None:
    if path is not None:
        command = ctx.command
        assert isinstance(command, ServiceCommand)
        settings = {name: setting for name, setting in command.settings.items() if name != "config"}
        ctx.default_map = read_config(path, settings)
        ctx.meta[_CONFIG_FILE] = path


_CONFIG_FILE = "federator.config"
"""Where a context keeps the path."""


def _refusal(ctx: Any, given: Mapping[str, Any], error: typer.BadParameter) -> InvalidInput | None:
    """The error of a value that its setting does not take, by its source; None for one that is missing everywhere."""
    setting = error.param
    if not isinstance(setting, TyperOption | TyperArgument):
        return None
    allowed = _FLAG_VALUES if _is_flag(setting) else error.message.removeprefix("Input should be ")
    match ctx.get_parameter_source(setting.name).name:
        case "COMMANDLINE":
            return InvalidInput(max(setting.opts, key=len), given[setting.name], allowed)
        case "ENVIRONMENT":
            return InvalidInput(str(setting.envvar), os.environ[str(setting.envvar)], allowed)
        case "DEFAULT_MAP":
            return InvalidInput(f"{ctx.meta[_CONFIG_FILE]}: {_name(setting)}", ctx.default_map[setting.name], allowed)
        case _:
            return None


def _all_variables(ctx: Any) -> set[str]:
    group = ctx.find_root().command
    commands = (group.get_command(ctx, name) for name in group.list_commands(ctx))
    return {variable for command in commands if isinstance(command, CheckedCommand) for variable in command.variables}


def _name(setting: Setting) -> str:
    return max(setting.opts, key=len).lstrip("-") if isinstance(setting, TyperOption) else setting.name


def _is_flag(setting: Setting) -> bool:
    return isinstance(setting, TyperOption) and setting.is_flag


def _takes_several(setting: Setting) -> bool:
    return setting.multiple or setting.nargs != 1


def _allowed(given: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(given, known, n=1)
    return f"{', '.join(known)}{f'; did you mean {close[0]}?' if close else ''}"

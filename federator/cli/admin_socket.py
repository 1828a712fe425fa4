"""The aggregator's admin socket: where a command finds it, and how it asks there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer

from federator.aggregator.settings import admin_socket
from federator.api.address import UNIX
from federator.cli.config import CONFIG_VARIABLE, read_config
from federator.cli.service import default_state_directory
from federator.errors import AggregatorUnreachable, InvalidInput
from federator.v1 import admin_pb2_grpc
from federator.wire.status import from_rpc_error

ANSWER_SECONDS = 30.0
"""Seconds that the aggregator has for an answer that needs no work."""

_SERVICES = ("aggregator", "run")
"""Commands whose configuration files say where the admin socket is."""

AdminSocket = Annotated[
    str | None,
    typer.Option(
        "--admin",
        envvar="FEDERATOR_ADMIN_LISTEN",
        metavar="ADDRESS",
        help="The aggregator's admin socket, as its --admin-listen: unix:/path "
        "[default: admin.sock in the state directory].",
    ),
]
AggregatorStateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-directory",
        envvar="FEDERATOR_STATE_DIRECTORY",
        help="The aggregator's state directory [default: $XDG_STATE_HOME/federator or ~/.local/state/federator].",
    ),
]
AggregatorConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        metavar="FILE",
        help="The aggregator's configuration file; only its admin-listen and state-directory are used.",
    ),
]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def admin_address(context: typer.Context, admin: str | None, state_directory: Path | None, config: Path | None) -> str:
    """Returns the socket: flag or variable, then the aggregator's configuration file, then the state directory's.

    Raises:
        InvalidInput: it is no unix socket, or the file is none of an aggregator.
        AggregatorUnreachable: there is no such socket.
    """
    configured: dict[str, Any] = {}
    if config is not None:
        root: Any = context.find_root().command
        commands = (root.get_command(context, name) for name in _SERVICES)
        settings = {name: setting for command in commands for name, setting in command.settings.items()}
        del settings["config"]
        configured = read_config(config, settings)
    address = configured.get("admin_listen") if admin is None else admin
    if address is None:
        directory = state_directory or configured.get("state_directory") or default_state_directory()
        address = admin_socket(Path(directory))
    if not address.startswith(UNIX):
        raise InvalidInput("--admin", address, "unix:/path, the aggregator's admin socket")
    if not Path(address.removeprefix(UNIX)).exists():
        raise AggregatorUnreachable(
            address,
            "there is no such socket. Does it run on this machine, with this state directory? With --memory it needs "
            "--admin-listen, and then this command needs --admin",
        )
    return str(address)


async def ask_admin(
    address: str,
    method: Callable[[admin_pb2_grpc.AdminServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
    request: _Request,
    timeout: float | None = ANSWER_SECONDS,
) -> _Response:
    """Asks the aggregator at its admin socket.

    Args:
        address: as `admin_address` returns it.
        method: of the stub.
        request: what is asked.
        timeout: seconds; None for as long as it takes.

    Raises:
        AggregatorUnreachable: nobody answers, or not in time.
        FederatorError: what the aggregator refuses with.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub: admin_pb2_grpc.AdminServiceAsyncStub = admin_pb2_grpc.AdminServiceStub(channel)
        try:
            return await method(stub)(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise AggregatorUnreachable(address, "no answer within the timeout") from error
            raise from_rpc_error(error, address) from error

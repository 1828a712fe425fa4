"""`federator clusters remove`: a cluster leaves the federation."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from federator.aggregator.settings import admin_socket
from federator.api.address import UNIX
from federator.cli.age import human_duration
from federator.cli.config import CONFIG_VARIABLE, read_config
from federator.cli.messages import counted, note, say
from federator.cli.service import default_state_directory
from federator.errors import AggregatorUnreachable, InvalidInput
from federator.v1 import admin_pb2, admin_pb2_grpc
from federator.wire.resource_type import cluster_state_from_proto
from federator.wire.status import from_rpc_error

_SERVICES = ("aggregator", "run")
"""Commands whose configuration files say where the admin socket is."""

_ANSWER_SECONDS = 30.0
"""Seconds the aggregator has to tell what would be removed. The removal itself takes as long as it takes."""


def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="ClusterID, as 'federator clusters' shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where its agent is connected: its session is ended.")
    ] = False,
    uid: Annotated[
        str,
        typer.Option("--uid", metavar="UID", help="Only if this is the cluster's UID ('federator clusters -o wide')."),
    ] = "",
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin",
            envvar="FEDERATOR_ADMIN_LISTEN",
            metavar="ADDRESS",
            help="The aggregator's admin socket, as its --admin-listen: unix:/path "
            "[default: admin.sock in the state directory].",
        ),
    ] = None,
    state_directory: Annotated[
        Path | None,
        typer.Option(
            "--state-directory",
            envvar="FEDERATOR_STATE_DIRECTORY",
            help="The aggregator's state directory [default: $XDG_STATE_HOME/federator or ~/.local/state/federator].",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar=CONFIG_VARIABLE,
            metavar="FILE",
            help="The aggregator's configuration file; only its admin-listen and state-directory are used.",
        ),
    ] = None,
) -> None:
    """Take a cluster out of the federation; on the aggregator's machine, as its user.

    Its objects leave as deletions, 10,000 a second. Its history stays. Its agent is refused from then on, if it still
    runs; started anew, it lets the cluster join again, so stop it first.
    """
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("--yes", "nothing", "--yes, since there is no terminal to ask on")
    address = _address(context, admin, state_directory, config)
    if not Path(address.removeprefix(UNIX)).exists():
        raise AggregatorUnreachable(
            address,
            "there is no such socket. Does it run on this machine, with this state directory? With --memory it needs "
            "--admin-listen, and then this command needs --admin",
        )
    request = admin_pb2.RemoveClusterRequest(cluster_id=name, cluster_uid=uid, force=force)
    if not yes:
        asked = admin_pb2.RemoveClusterRequest(validate_only=True)
        asked.MergeFrom(request)
        found = asyncio.run(_call(address, asked, _ANSWER_SECONDS))
        if not _confirmed(found):
            say("Nothing was removed.")
            raise typer.Exit(1)
        request.cluster_uid = found.cluster_uid  # what was shown is what is removed
    try:
        removed = asyncio.run(_call(address, request, None))
    except KeyboardInterrupt:
        note("what has begun goes on; the same command waits for its end.")
        raise
    sys.stdout.write(
        f"{removed.cluster_id}: removed, {counted(removed.objects, 'object')} deleted; "
        f"nothing of it is left at revision {removed.revision}\n"
    )


def _address(context: typer.Context, admin: str | None, state_directory: Path | None, config: Path | None) -> str:
    """The admin socket: flag or variable, then the aggregator's configuration file, then the state directory's."""
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
        return admin_socket(Path(directory))
    if not address.startswith(UNIX):
        raise InvalidInput("--admin", address, "unix:/path, the aggregator's admin socket")
    return str(address)


async def _call(
    address: str, request: admin_pb2.RemoveClusterRequest, timeout: float | None
) -> admin_pb2.RemoveClusterResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: admin_pb2_grpc.AdminServiceAsyncStub = admin_pb2_grpc.AdminServiceStub(channel)
        try:
            return await stub.RemoveCluster(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise AggregatorUnreachable(address, "no answer within the timeout") from error
            raise from_rpc_error(error, address) from error


def _confirmed(found: admin_pb2.RemoveClusterResponse) -> bool:
    since = human_duration(time.time() - found.state_since_ms / 1000)
    state = f"{cluster_state_from_proto(found.state)} for {since}"
    agent = ", its agent is connected" if found.connected else ""
    sys.stderr.write(
        f"Cluster {found.cluster_id} (UID {found.cluster_uid}), {state}{agent}: "
        f"{counted(found.objects, 'object')} will be deleted from the federation. Remove it? [y/N] "
    )
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}

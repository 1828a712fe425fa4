"""`federator clusters remove`: a cluster leaves the federation."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import sys
import threading
import time
from typing import Annotated

import typer

from federator.cli.admin_socket import AdminSocket, AggregatorConfig, AggregatorStateDirectory, admin_address, ask_admin
from federator.cli.age import human_duration
from federator.cli.messages import counted, note, say
from federator.errors import InvalidInput
from federator.v1 import admin_pb2
from federator.wire.resource_type import cluster_state_from_proto


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
    admin: AdminSocket = None,
    state_directory: AggregatorStateDirectory = None,
    config: AggregatorConfig = None,
) -> None:
    """Take a cluster out of the federation; on the aggregator's machine, as its user.

    Its objects leave as deletions, 10,000 a second. Its history stays. Its agent is refused from then on, if it still
    runs; started anew, it lets the cluster join again, so stop it first.
    """
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("--yes", "nothing", "--yes, since there is no terminal to ask on")
    address = admin_address(context, admin, state_directory, config)
    request = admin_pb2.RemoveClusterRequest(cluster_id=name, cluster_uid=uid, force=force)
    if not yes:
        asked = admin_pb2.RemoveClusterRequest(validate_only=True)
        asked.MergeFrom(request)
        found = asyncio.run(ask_admin(address, lambda stub: stub.RemoveCluster, asked))
        if not _confirmed(found):
            say("Nothing was removed.")
            raise typer.Exit(1)
        request.cluster_uid = found.cluster_uid  # what was shown is what is removed
    try:
        removed = asyncio.run(ask_admin(address, lambda stub: stub.RemoveCluster, request, None))
    except KeyboardInterrupt:
        note("what has begun goes on; the same command waits for its end.")
        raise
    sys.stdout.write(
        f"{removed.cluster_id}: removed, {counted(removed.objects, 'object')} deleted; "
        f"nothing of it is left at revision {removed.revision}\n"
    )


def _confirmed(found: admin_pb2.RemoveClusterResponse) -> bool:
    since = human_duration(time.time() - found.state_since_ms / 1000)
    state = f"{cluster_state_from_proto(found.state)} for {since}"
    agent = ", its agent is connected" if found.connected else ""
    sys.stderr.write(
        f"Cluster {found.cluster_id} (UID {found.cluster_uid}), {state}{agent}: "
        f"{counted(found.objects, 'object')} will be deleted from the federation. Remove it? [y/N] "
    )
    sys.stderr.flush()
    if threading.current_thread() is threading.main_thread():
        _wait_for_line()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _wait_for_line() -> None:
    """Waits until something was typed, or raises KeyboardInterrupt.

    A bare read goes on waiting where another of the process's threads takes the signal, or where it comes just before:
    Python's part of the handling needs the main thread. Its wakeup descriptor is written to in either case.
    """
    woken, waking = socket.socketpair()
    with woken, waking:
        waking.setblocking(False)
        former = signal.set_wakeup_fd(waking.fileno())
        try:
            while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
                woken.recv(1)
        finally:
            signal.set_wakeup_fd(former)

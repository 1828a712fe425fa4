"""`federator indexes add` and `federator indexes drop`: which fields the aggregator indexes."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from federator.cli.admin_socket import AdminSocket, AggregatorConfig, AggregatorStateDirectory, admin_address, ask_admin
from federator.cli.options import short_value
from federator.v1 import admin_pb2

IndexedPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Dotted path of the field; a part '*' of it stands for all elements of an array."
    ),
]


def add(
    context: typer.Context,
    path: IndexedPath,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            callback=lambda given: list(map(short_value, given or ())),
            help="Index only objects of this type, as kubectl takes it; may be repeated. [default: all types]",
        ),
    ] = None,
    admin: AdminSocket = None,
    state_directory: AggregatorStateDirectory = None,
    config: AggregatorConfig = None,
) -> None:
    """Index a field of objects, such as spec.containers.*.image; on the aggregator's machine, as its user.

    It is built in the background: 'federator indexes' shows how far. It stays over restarts, until it is dropped. One
    that is there for other types is built anew for those that are given.
    """
    address = admin_address(context, admin, state_directory, config)
    request = admin_pb2.AddFieldIndexRequest(path=path, resources=types)
    added = asyncio.run(ask_admin(address, lambda stub: stub.AddFieldIndex, request))
    sys.stdout.write(f"{path}: {'is being built' if added.is_new else 'is indexed already'}\n")


def drop(
    context: typer.Context,
    path: IndexedPath,
    admin: AdminSocket = None,
    state_directory: AggregatorStateDirectory = None,
    config: AggregatorConfig = None,
) -> None:
    """Take the index on a field back; on the aggregator's machine, as its user.

    Questions on the field are answered all the same, by reading objects; lists can no longer be sorted by it.
    """
    address = admin_address(context, admin, state_directory, config)
    request = admin_pb2.DropFieldIndexRequest(path=path)
    asyncio.run(ask_admin(address, lambda stub: stub.DropFieldIndex, request))
    sys.stdout.write(f"{path}: dropped\n")

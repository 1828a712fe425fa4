"""Our printers against the Tables of a real apiserver, for every type it serves and many states of objects."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from federator.api.resource import GroupResource
from federator.cli.printers import Printer, printer_for
from federator.cli.printers.registry import built_in_printer
from federator.errors import KubeStatusError
from federator.testing import AdminClient, ControlPlane
from federator.testing.pytest_plugin import ControlPlaneFactory
from tests.unit.cli.printers import examples

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(180)]

NAMESPACE = "examples"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class ServedType(NamedTuple):
    """A type as discovery names it."""

    group: str
    version: str
    resource: str
    kind: str
    namespaced: bool
    has_status: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/{self.resource}"

    @property
    def writing_path(self) -> str:
        root, _, resource = self.path.rpartition("/")
        return f"{root}/namespaces/{NAMESPACE}/{resource}" if self.namespaced else self.path


async def discover(client: AdminClient) -> list[ServedType]:
    groups = (await client.get("/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    found = []
    for group_version in versions:
        group, _, version = group_version.rpartition("/")
        if group == "metrics.example.com":
            continue
        resources = (await client.get(f"/apis/{group_version}" if group else "/api/v1"))["resources"]
        names = {resource["name"] for resource in resources}
        found += [
            ServedType(group, version, r["name"], r["kind"], r["namespaced"], f"{r['name']}/status" in names)
            for r in resources
            if {"list", "watch"} <= set(r["verbs"])
        ]
    return found


async def create_examples(client: AdminClient) -> None:
    """Creates the objects of examples.yaml, in the states they are to be in."""
    await client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    custom = [example for example in examples() if example["apiVersion"] == "example.com/v1"]
    built_in = [example for example in examples() if example not in custom]
    for some in (built_in, custom):
        types = {(served.api_version, served.kind): served for served in await discover(client)}
        for example in some:
            await create_example(client, types[example["apiVersion"], example["kind"]], example)
        await wait_until_served(client, "example.com", {"gadgets", "plains"})


async def create_example(client: AdminClient, served: ServedType, example: dict[str, Any]) -> None:
    name, status = example["metadata"]["name"], example.pop("status", None)
    deleted = example["metadata"].pop("deleted", False)
    if served.namespaced:
        example["metadata"]["namespace"] = NAMESPACE
    await client.create(served.writing_path, example)
    if status is not None:
        suffix = "/status" if served.has_status else ""
        await client.patch(f"{served.writing_path}/{name}{suffix}", {"status": status})
    if deleted:
        await client.delete(f"{served.writing_path}/{name}", gracePeriodSeconds="100")


async def wait_until_served(client: AdminClient, group: str, resources: set[str]) -> None:
    for _ in range(200):
        try:
            served = {t.resource for t in await discover(client) if t.group == group}
        except KubeStatusError:
            served = set()
        if served >= resources:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{group} is not served")


@asynccontextmanager
async def table_session(plane: ControlPlane, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    access = plane.access
    pair = folder / "admin.pem"
    pair.write_bytes(access.user.certificate + access.user.key)
    tls = ssl.create_default_context(cadata=access.authority.decode())
    tls.load_cert_chain(pair)
    async with aiohttp.ClientSession(
        access.server, connector=aiohttp.TCPConnector(ssl=tls), headers={"Accept": TABLE}
    ) as session:
        yield session


def server_cells(row: dict[str, Any]) -> list[str]:
    return ["" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in row["cells"]]


async def differences(tables: aiohttp.ClientSession, served: ServedType, printer: Printer) -> list[str]:
    """What our printer shows differently from the server, for all objects of a type; at least one."""
    async with tables.get(served.path, params={"includeObject": "Object"}) as response:
        table = await response.json()
    now = datetime.now(UTC)
    columns = table["columnDefinitions"]
    found = []
    for wide in (False, True):
        theirs = tuple(column["name"].upper() for column in columns if wide or not column["priority"])
        if printer.header(wide=wide) != theirs:
            found.append(f"{served.path}: columns {printer.header(wide=wide)}, the server's {theirs}")
    if found:
        return found
    if not table["rows"]:
        return [f"{served.path}: no objects to compare"]
    for row in table["rows"]:
        # An age may have stepped on between the server's look at its clock and ours.
        ours = [printer.cells(row["object"], now - timedelta(seconds=back), wide=True) for back in (0, 1)]
        name = row["object"]["metadata"]["name"]
        found += [
            f"{served.path} {name}: {column['name']} {mine[0]!r}, the server's {cell!r}"
            for column, cell, *mine in zip(columns, server_cells(row), *ours, strict=True)
            if cell not in mine
        ]
    return found


async def test_columns_and_cells(control_plane_factory: ControlPlaneFactory, tmp_path: Path) -> None:
    plane = await control_plane_factory("printers", apiserver_arguments=("--disable-admission-plugins=ServiceAccount",))
    found: list[str] = []
    async with plane.client() as client, table_session(plane, tmp_path) as tables:
        await create_examples(client)
        definitions = (await client.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))["items"]
        for served in await discover(client):
            group_resource = GroupResource(served.group, served.resource)
            own = [definition for definition in definitions if definition["metadata"]["name"] == str(group_resource)]
            if own or built_in_printer(group_resource):
                found += await differences(tables, served, printer_for(group_resource, own, {served.version}))
    assert not found, "\n".join(found)

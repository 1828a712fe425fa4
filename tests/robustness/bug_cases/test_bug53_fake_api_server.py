"""First of all, the double itself: a fake that loses a deletion hides exactly the faults the others look for."""

from __future__ import annotations

import msgspec
import pytest

from federator.kube import MemberClient
from federator.testing import FakeApiServer

CONFIG_MAPS = "/api/v1/configmaps"


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class Meta(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    code: int = 0


class Event(msgspec.Struct, frozen=True):
    type: str
    object: Meta


async def listed_version(client: MemberClient) -> str:
    return msgspec.json.decode(await client.get(CONFIG_MAPS), type=Meta).metadata.resource_version


async def first_event(client: MemberClient, resource_version: str) -> Event:
    query = [("watch", "1"), ("resourceVersion", resource_version), ("timeoutSeconds", "10")]
    async with client.watch(CONFIG_MAPS, query, accept="application/json", length=10) as chunks:
        async for chunk in chunks:
            return msgspec.json.decode(chunk, type=Event)
    raise AssertionError("the watch ended without an event")


@pytest.mark.looptime
async def test_bug53_a_deletion_between_list_and_watch_is_replayed(server: FakeApiServer, client: MemberClient) -> None:
    server.put("configmaps", "phantom")
    version = await listed_version(client)
    deleted = server.delete("configmaps", "phantom")
    event = await first_event(client, version)
    assert (event.type, event.object.metadata.name) == ("DELETED", "phantom")
    assert event.object.metadata.resource_version == deleted["metadata"]["resourceVersion"]


@pytest.mark.looptime
async def test_bug53_a_deletion_that_is_out_of_history_is_told_by_410(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.put("configmaps", "phantom")
    version = await listed_version(client)
    server.delete("configmaps", "phantom")
    server.compact()
    event = await first_event(client, version)
    assert (event.type, event.object.code) == ("ERROR", 410)

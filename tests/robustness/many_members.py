"""Fake apiservers in a process of their own, so that what they use counts as nobody else's.

    python -m tests.robustness.many_members FOLDER CLUSTERS TYPES OBJECTS

serves so many clusters, each with so many types, each with so many objects of about 1 KB, and writes a kubeconfig for
each to the folder. Commands:

- `{"watches": true}` answers with the number of watches that are open on each cluster.
- `{"change": interval}` begins to change objects of the first type of the first cluster, one after the other, each so
  many seconds after the last.
- `{"stop": true}` ends that, and answers with the number of changes `written`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from federator.api.resource import ResourceType
from federator.testing import FakeApiServer
from tests.bench.load_process import Json, serve
from tests.bench.member_load import allow_many_files

FILLING = 700
"""Bytes of each object's content."""


def cluster_name(number: int) -> str:
    """Of the cluster with this number."""
    return f"c{number:02}"


def kubeconfig_of(folder: Path, number: int) -> Path:
    """The kubeconfig of the cluster with this number."""
    return folder / f"{cluster_name(number)}.kubeconfig"


def numbered_type(number: int) -> ResourceType:
    """One of the types."""
    return ResourceType(
        group="example.com", version="v1", resource=f"things{number}", kind=f"Thing{number}", namespaced=True
    )


def object_name(number: int) -> str:
    """Of the object of a type with this number."""
    return f"o{number:05}"


class Members:
    """All clusters of this process."""

    def __init__(self, servers: Sequence[FakeApiServer], objects: int) -> None:
        self._servers = servers
        self._objects = objects
        self._written = 0
        self._changing: asyncio.Task[None] | None = None

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        if "watches" in command:
            return {"watches": [len(server.watches()) for server in self._servers]}
        if "change" in command:
            self._written = 0
            self._changing = asyncio.create_task(self._change(command["change"]), name="changes")
        elif "stop" in command and self._changing is not None:
            self._changing.cancel()
            await asyncio.wait([self._changing])
            return {"written": self._written}
        return {}

    async def _change(self, interval: float) -> None:
        for number in count():
            self._servers[0].touch(numbered_type(0).resource, object_name(number % self._objects))
            self._written += 1
            await asyncio.sleep(interval)


async def main(folder: str, clusters: str, types: str, objects: str) -> None:
    """Serves commands."""
    allow_many_files()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeApiServer()) for _ in range(int(clusters))]
        for number, server in enumerate(servers):
            for resource_type in map(numbered_type, range(int(types))):
                server.add_resource(resource_type)
                for each in range(int(objects)):
                    filling = f"{number:02}{each:05}" * (FILLING // 7)
                    server.put(resource_type.resource, object_name(each), spec={"filling": filling})
            server.kubeconfig(kubeconfig_of(Path(folder), number), context=cluster_name(number))
        await serve(Members(servers, int(objects)).answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

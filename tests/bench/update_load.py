"""Load: pods of real clusters get annotations at a steady rate.

    python -m tests.bench.update_load NAME URL FOLDER [NAME URL FOLDER …]

with the name of each control plane, the URL of its apiserver and the folder with its certificates. The one command is
`{"rate": updates a second over all clusters, "seconds": how long}`; its answer has, by cluster, the number of updates
`written`, and the `seconds` that each request took.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path

from federator.errors import KubeStatusError
from federator.testing.admin_client import AdminClient
from tests.bench.load_process import Json, serve
from tests.bench.stamp import ANNOTATION, new_stamp

WRITERS = 8
"""Clients of one cluster, each with one request at a time."""

PODS = "/api/v1/pods"


class Target:
    """The pods of one cluster; each command starts with the pod that follows the last one annotated."""

    def __init__(self, name: str, clients: Sequence[AdminClient], pods: Sequence[str]) -> None:
        self.name = name
        self.clients = clients
        self._pods = pods
        self._next = 0

    def next_pod(self) -> str:
        """Path of the next pod."""
        path = self._pods[self._next % len(self._pods)]
        self._next += 1
        return path


class Round:
    """Updates at one rate for some time, in turn over the clusters."""

    def __init__(self, targets: Sequence[Target], rate: float, seconds: float) -> None:
        self._targets = targets
        self._interval = len(targets) / rate
        self._seconds = seconds
        self._written: Counter[str] = Counter()
        self._taken: list[float] = []

    async def run(self) -> Json:
        """Runs it to its end. What an apiserver does not take in time is left out at the end."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as writers:
            for place, target in enumerate(self._targets):
                numbers = count()
                start = began + place * self._interval / len(self._targets)
                for client in target.clients:
                    writers.create_task(self._write(target, client, numbers, start), name=f"write {target.name}")
        return {"written": self._written, "seconds": self._taken, "wall": time.monotonic() - began}

    async def _write(self, target: Target, client: AdminClient, numbers: Iterator[int], start: float) -> None:
        updates = round(self._seconds / self._interval)
        while time.monotonic() < start + self._seconds:
            number = next(numbers)  # the writers of a cluster share the iterator
            if number >= updates:
                return
            await asyncio.sleep(start + number * self._interval - time.monotonic())
            began = time.monotonic()
            stamp = {"metadata": {"annotations": {ANNOTATION: str(new_stamp(number))}}}
            await _patch(target, client, stamp)
            self._taken.append(time.monotonic() - began)
            self._written[target.name] += 1


async def _patch(target: Target, client: AdminClient, change: Json) -> None:
    """Makes one change, of another pod where the apiserver has too much to do for this one."""
    while True:
        try:
            await client.patch(target.next_pod(), change)
        except KubeStatusError as error:
            if error.code < 500:
                raise
        else:
            return


async def main(arguments: Sequence[str]) -> None:
    """Serves commands."""
    async with AsyncExitStack() as stack:
        targets = []
        for place in range(0, len(arguments), 3):
            name, url, folder = arguments[place : place + 3]
            tls = _tls(Path(folder))
            clients = [await stack.enter_async_context(AdminClient(url, tls)) for _ in range(WRITERS)]
            listed = await clients[0].get(PODS)
            pods = [
                f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                for pod in listed["items"]
            ]
            targets.append(Target(name, clients, pods))
        await serve(partial(_answer, targets))


async def _answer(targets: Sequence[Target], command: Json) -> Json:
    return await Round(targets, command["rate"], command["seconds"]).run()


def _tls(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    return context


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

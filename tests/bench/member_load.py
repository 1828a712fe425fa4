"""Load: fake apiservers with objects of the corpus, some of which change at a steady rate.

    python -m tests.bench.member_load SAMPLE FOLDER FIRST CLUSTERS OBJECTS

serves a cluster for each number from FIRST on, with so many objects each, and writes a kubeconfig for each to the
folder. Commands:

- `{"rate": changes a second over all clusters}` begins to annotate pods, round the clusters and in each round its pods.
  Nobody asks for that over HTTP: the fakes' own process writes, so that only what the agents watch costs anything else.
- `{"stop": true}` ends that, and answers with the number of changes `written`, by cluster.
- `{"count": true}` answers with the number of objects of each type, over all clusters.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import msgspec

from federator.testing.fake_api_server import FakeApiServer
from tests.bench.corpus import FIRST_VERSION, Corpus
from tests.bench.load_process import Json, serve
from tests.bench.stamp import ANNOTATION, new_stamp

HISTORY = 10_000
"""Events that a fake keeps: more than there are, so that a watch is never told to list anew."""


def member_name(number: int) -> str:
    """Context and ClusterID of the cluster with this number."""
    return f"member-{number:03}"


def kubeconfig_of(folder: Path, number: int) -> Path:
    """The kubeconfig of the cluster with this number."""
    return folder / f"{member_name(number)}.kubeconfig"


def allow_many_files() -> None:
    """Lets this process have as many files as the system grants: each watch is a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Member:
    """One cluster."""

    def __init__(self, name: str, server: FakeApiServer) -> None:
        """Describes it; `fill` makes it."""
        self.name = name
        self.server = server
        self.written = 0
        self._pods: list[tuple[str, str]] = []

    async def fill(self, corpus: Corpus, number: int, objects: int) -> None:
        """Gives it the corpus's objects of the cluster with this number."""
        for resource_type in corpus.types.values():
            try:
                self.server.list(resource_type.resource)
            except LookupError:
                self.server.add_resource(resource_type, custom=False)
        for name, of_type in corpus.counts(objects).items():
            kind = {"apiVersion": corpus.types[name].api_version, "kind": corpus.types[name].kind}
            for index in range(of_type):
                state = corpus.state(name, number, index, FIRST_VERSION)
                manifest = msgspec.json.decode(state.raw, type=Json)
                del manifest["metadata"]["resourceVersion"]
                self.server.put_manifest({**manifest, **kind})
                if name == "pods":
                    self._pods.append((state.namespace, state.name))
            await asyncio.sleep(0)

    def change(self) -> None:
        """Annotates the next pod."""
        namespace, name = self._pods[self.written % len(self._pods)]
        stamp = {"metadata": {"annotations": {ANNOTATION: str(new_stamp(self.written))}}}
        self.server.patch("pods", name, stamp, namespace)
        self.written += 1


class Load:
    """All clusters of this process."""

    def __init__(self, members: Sequence[Member], types: Sequence[str]) -> None:
        self._members = members
        self._types = types
        self._changing: asyncio.Task[None] | None = None

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        if "rate" in command:
            for member in self._members:
                member.written = 0
            self._changing = asyncio.create_task(self._change(command["rate"]), name="changes")
        elif "stop" in command and self._changing is not None:
            self._changing.cancel()
            await asyncio.wait([self._changing])
            return {"written": {member.name: member.written for member in self._members}}
        elif "count" in command:
            counted: Counter[str] = Counter()
            for member in self._members:
                counted.update({name: len(member.server.list(name)) for name in self._types})
            return dict(counted)
        return {}

    async def _change(self, rate: float) -> None:
        began = time.monotonic()
        for number in count():
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            self._members[number % len(self._members)].change()


async def main(sample: str, folder: str, first: str, clusters: str, objects: str) -> None:
    """Serves commands."""
    allow_many_files()
    corpus = Corpus.read(Path(sample))
    async with AsyncExitStack() as stack:
        members = []
        for number in range(int(first), int(first) + int(clusters)):
            server = await stack.enter_async_context(FakeApiServer(history=HISTORY))
            members.append(Member(member_name(number), server))
            await members[-1].fill(corpus, number, int(objects))
            server.kubeconfig(kubeconfig_of(Path(folder), number), context=member_name(number))
        await serve(Load(members, list(corpus.types)).answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

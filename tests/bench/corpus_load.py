"""Load: agents without clusters, which push the corpus over the real protocol.

    python -m tests.bench.corpus_load ADDRESS SAMPLE FIRST CLUSTERS OBJECTS [FOLDER]

opens a session for each cluster, numbered from FIRST, and pushes a snapshot of so many objects of the sample's corpus
in each. With a FOLDER it waits for `{"snapshot": true}` instead, having written the snapshots' frames to files there:
then making them takes no CPU from whoever takes them in, and no memory. Commands:

- `{"snapshot": true}` pushes them, and answers when all is acknowledged.
- `{"prepare": changes over all clusters, "frame": changes in one}` makes frames that are pushed as fast as the windows
  allow.
- `{"prepare": changes, "rate": a second over all clusters}` makes frames that are written when they are due, each with
  what comes due within `TICK`; or later, where a window is full.
- `{"push": true}` pushes what was prepared, and answers when all is acknowledged.

Changes go round the objects of each type, and the types take turns by weight, a frame each. Answers tell when it
`began` and was `settled` (monotonic), the `cpu` that the load used, and by cluster: the `frames`, each
`[resourceVersion of its last change, written, acknowledged]`, the resourceVersion that they `began_after`, and what was
`changed` so far: by type, how many of its changes were `done`, and the resourceVersions of those that changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto
from tests.bench.corpus import FIRST_VERSION, Corpus, State, by_weight
from tests.bench.load_process import Json, serve
from tests.bench.push_load import TICK, PushingAgent, SentFrame, new_frame, pushed_object

_SNAPSHOT_ITEMS = 500
_LENGTH_BYTES = 4

DICTIONARY_SECONDS = 6.0
"""Seconds in which the aggregator trains dictionaries from what it got; what is made later is compressed with them."""


class Prepared(NamedTuple):
    """A frame that was made, and the resourceVersion of the last change in it."""

    frame: bytes
    last_version: int


class CorpusAgent(PushingAgent):
    """An agent of one cluster of the corpus."""

    def __init__(self, address: str, number: int, corpus: Corpus, objects: int) -> None:
        self._protos = {resource: resource_type_to_proto(each) for resource, each in corpus.types.items()}
        super().__init__(address, cluster_id(number), list(self._protos.values()))
        self._number = number
        self._corpus = corpus
        self._counts = corpus.counts(objects)
        self._turns = by_weight(corpus.types)
        self._done = dict.fromkeys(corpus.types, 0)
        self._versions: dict[str, dict[int, int]] = {resource: {} for resource in corpus.types}
        self._version = FIRST_VERSION + sum(self._counts.values())
        self._began_after = self._version
        self._sent: list[tuple[int, SentFrame]] = []

    def snapshot(self) -> Iterator[bytes]:
        """Makes the frames of a snapshot of everything."""
        sequences = count(self.next_sequence)
        version = FIRST_VERSION
        for resource, number in self._counts.items():
            proto = self._protos[resource]
            yield new_frame(next(sequences), snapshot_begin=ingest_pb2.SnapshotBegin(type=proto))
            for start in range(0, number, _SNAPSHOT_ITEMS):
                states = (
                    self._corpus.state(resource, self._number, index, version + index + 1)
                    for index in range(start, min(number, start + _SNAPSHOT_ITEMS))
                )
                objects = (self._pushed(resource, state) for state in states)
                items = ingest_pb2.SnapshotItems(type=proto, objects=objects)
                yield new_frame(next(sequences), snapshot_items=items)
            version += number
            end = ingest_pb2.SnapshotEnd(type=proto, resource_version=str(version))
            yield new_frame(next(sequences), snapshot_end=end)

    async def prepare(self, sizes: Sequence[int]) -> list[Prepared]:
        """Makes frames of so many changes each."""
        self._began_after = self._version
        prepared = []
        for sequence, size in enumerate(sizes, self.next_sequence):
            prepared.append(self._deltas(size, sequence))
            await asyncio.sleep(0)  # the sessions have heartbeats to send
        return prepared

    async def push(self, prepared: Sequence[Prepared], start: float = 0.0, interval: float = 0.0) -> None:
        """Pushes frames, each not before it is due, and waits until they are acknowledged.

        Args:
            prepared: the frames.
            start: when the first is due, monotonic.
            interval: seconds between two.
        """
        self._sent.clear()
        for number, each in enumerate(prepared):
            if (wait := start + number * interval - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._sent.append((each.last_version, await self.send(each.frame)))
        await self.settle()

    def told(self) -> Json:
        """What the answer says of the cluster."""
        return {
            "began_after": self._began_after,
            "frames": [[version, frame.written_at, frame.acknowledged_at] for version, frame in self._sent],
            "changed": {
                resource: {"done": done, "versions": list(self._versions[resource].items())}
                for resource, done in self._done.items()
            },
        }

    def _deltas(self, size: int, sequence: int) -> Prepared:
        resource = next(self._turns)
        deltas = []
        for number in range(self._done[resource], self._done[resource] + size):
            turn, index = divmod(number, self._counts[resource])
            self._version += 1
            self._versions[resource][index] = self._version
            state = self._corpus.state(resource, self._number, index, self._version, turn + 1)
            deltas.append(
                ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=self._pushed(resource, state))
            )
        self._done[resource] += size
        message = ingest_pb2.Deltas(type=self._protos[resource], deltas=deltas)
        return Prepared(new_frame(sequence, deltas=message), self._version)

    async def greet(self) -> None:
        """Pushes an object of each type: dictionaries are given to whoever sends objects."""
        for resource, proto in self._protos.items():
            state = self._corpus.state(resource, self._number, 0, FIRST_VERSION)
            put = ingest_pb2.Delta(
                operation=ingest_pb2.Delta.OPERATION_PUT, object=CorpusAgent._pushed(self, resource, state)
            )
            deltas = ingest_pb2.Deltas(type=proto, deltas=[put])
            await self.send(new_frame(self.next_sequence, deltas=deltas))
        await self.settle()

    async def wait_for_dictionaries(self, seconds: float) -> None:
        """Waits until there is one for each type, but no longer: rare types may get none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self.bodies.newest()) < len(self._protos):
                    self.dictionary_came.clear()
                    await self.dictionary_came.wait()

    def _pushed(self, resource: str, state: State) -> ingest_pb2.PushedObject:
        encode = partial(self.bodies.encode, resource=self._corpus.types[resource].group_resource)
        return pushed_object(state.namespace, state.name, state.uid, state.version, state.raw, encode)


class Load:
    """All agents of this process."""

    def __init__(
        self, agents: Sequence[CorpusAgent], folder: Path | None, dictionary_seconds: float = DICTIONARY_SECONDS
    ) -> None:
        self._agents = agents
        self._folder = folder
        self._dictionary_seconds = dictionary_seconds
        self._prepared: list[list[Prepared]] = []
        self._interval = 0.0

    async def prepare(self) -> None:
        """Writes the snapshots to files, or pushes them where there are to be none."""
        if self._folder is None:
            await asyncio.gather(*(_push_all(agent, agent.snapshot()) for agent in self._agents))
        else:
            await asyncio.gather(*(agent.greet() for agent in self._agents))
        await asyncio.gather(*(agent.wait_for_dictionaries(self._dictionary_seconds) for agent in self._agents))
        if self._folder is None:
            return
        for agent in self._agents:
            with self._file(agent).open("wb") as file:
                for frame in agent.snapshot():
                    file.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
                    await asyncio.sleep(0)  # the sessions have heartbeats to send

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        if "snapshot" in command:
            cpu, began = time.process_time(), time.monotonic()
            await asyncio.gather(*(_push_all(agent, _frames(self._file(agent))) for agent in self._agents))
            return {"began": began, "settled": time.monotonic(), "cpu": time.process_time() - cpu}
        if "prepare" in command:
            await self._prepare_changes(command["prepare"] // len(self._agents), command)
            return {}
        cpu, began = time.process_time(), time.monotonic()
        # Not in step: clusters know nothing of each other.
        starts = (began + self._interval * number / len(self._agents) for number in range(len(self._agents)))
        pushes = zip(self._agents, self._prepared, starts, strict=True)
        await asyncio.gather(*(agent.push(frames, start, self._interval) for agent, frames, start in pushes))
        settled = time.monotonic()
        clusters = {agent.cluster_id: agent.told() for agent in self._agents}
        return {"began": began, "settled": settled, "cpu": time.process_time() - cpu, "clusters": clusters}

    async def _prepare_changes(self, each: int, command: Json) -> None:
        if rate := command.get("rate"):
            size = max(1, round(rate / len(self._agents) * TICK))
            self._interval = size * len(self._agents) / rate
        else:
            size, self._interval = command["frame"], 0.0
        sizes = [min(size, each - start) for start in range(0, each, size)]
        self._prepared = [await agent.prepare(sizes) for agent in self._agents]

    def _file(self, agent: CorpusAgent) -> Path:
        assert self._folder is not None
        return self._folder / f"{agent.cluster_id}.frames"


def cluster_id(number: int) -> str:
    """ClusterID of the corpus's cluster with this number."""
    return f"corpus-{number}"


async def _push_all(agent: CorpusAgent, frames: Iterator[bytes]) -> None:
    for frame in frames:
        await agent.send(frame)
    await agent.prove()
    await agent.settle()


def _frames(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while length := file.read(_LENGTH_BYTES):
            yield file.read(int.from_bytes(length, "big"))


async def main(address: str, sample: str, first: str, clusters: str, objects: str, folder: str = "") -> None:
    """Serves commands."""
    corpus = Corpus.read(Path(sample))
    numbers = range(int(first), int(first) + int(clusters))
    async with AsyncExitStack() as stack:
        agents = [CorpusAgent(address, number, corpus, int(objects)) for number in numbers]
        await asyncio.gather(*(stack.enter_async_context(agent) for agent in agents))
        load = Load(agents, Path(folder) if folder else None)
        await load.prepare()
        await serve(load.answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

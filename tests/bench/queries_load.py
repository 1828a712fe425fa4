"""Load of `queries`: agents without clusters, which push the corpus once, come back to it, and replace pods.

    python -m tests.bench.queries_load ADDRESS SAMPLE FIRST CLUSTERS OBJECTS FOLDER DICTIONARY_SECONDS

As `tests.bench.corpus_load`, with these differences:

- It waits so long for dictionaries, at most.
- `{"snapshot": true}` leaves in FOLDER what the snapshots add up to. Where that is there already, the agents tell it
  instead of their snapshots, as agents do whose clusters have not changed, and the command is not needed.
- `{"prepare": changes, "rate": a second, "frame": changes in one}` has frames of just so many changes, at least one for
  each cluster, however long it takes until so many come together.
- Every tenth change of pods is a replacement: one pod leaves, and in the same frame another one of the same application
  comes, with a name and UID of its own. So names come and go, while every number that is asked for stays.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from federator.v1 import ingest_pb2
from federator.wire.digest import Digest, key_hash, state_hash
from tests.bench.corpus import FIRST_VERSION, Corpus, State
from tests.bench.corpus_load import CorpusAgent, Load, Prepared
from tests.bench.load_process import Json, serve
from tests.bench.push_load import new_frame

_REPLACED = "pods"
_EVERY = 10
_OTHERS = 1 << 16
"""Added to a cluster's number for the replacing pods, once for each time that a pod was replaced."""


class QueriesAgent(CorpusAgent):
    """An agent of one cluster of the corpus."""

    def __init__(self, address: str, number: int, corpus: Corpus, objects: int) -> None:
        super().__init__(address, number, corpus, objects)
        self._digests = dict.fromkeys(corpus.types, Digest())
        self._replaced: dict[int, int] = {}
        self._changes = 0

    @property
    def digests(self) -> dict[str, Digest]:
        """What the snapshot adds up to, by type; complete once it was made."""
        return self._digests

    async def resume(self, digests: dict[str, Digest]) -> None:
        """Tells that nothing has changed since the snapshot that added up to this."""
        version = FIRST_VERSION
        for resource, number in self._counts.items():
            version += number
            proto, digest = self._protos[resource], digests[resource]
            told = ingest_pb2.Digest(count=digest.count, sum=digest.sum)
            begin = ingest_pb2.SnapshotBegin(type=proto, resource_version=str(version), digest=told)
            await self.send(new_frame(self.next_sequence, snapshot_begin=begin))
            end = ingest_pb2.SnapshotEnd(type=proto, resource_version=str(version))
            await self.send(new_frame(self.next_sequence, snapshot_end=end))
        await self.prove()
        await self.settle()

    def _pushed(self, resource: str, state: State) -> ingest_pb2.PushedObject:
        pushed = super()._pushed(resource, state)
        if not self._changes:
            api_version = self._corpus.types[resource].api_version
            hashed = state_hash(pushed.content_hash, api_version, state.uid)
            self._digests[resource] = self._digests[resource].plus(key_hash(state.namespace, state.name), hashed)
        return pushed

    def _deltas(self, size: int, sequence: int) -> Prepared:
        resource = next(self._turns)
        deltas = []
        for number in range(self._done[resource], self._done[resource] + size):
            turn, index = divmod(number, self._counts[resource])
            self._version += 1
            self._changes += 1
            if resource == _REPLACED and number % _EVERY == 0:
                gone = self._state(resource, index, turn)
                deleted = ingest_pb2.PushedObject(namespace=gone.namespace, name=gone.name)
                deltas.append(ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_DELETE, object=deleted))
                self._replaced[index] = self._replaced.get(index, 0) + 1
            pushed = self._pushed(resource, self._state(resource, index, turn + 1))
            deltas.append(ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed))
        self._done[resource] += size
        message = ingest_pb2.Deltas(type=self._protos[resource], deltas=deltas)
        return Prepared(new_frame(sequence, deltas=message), self._version)

    def _state(self, resource: str, index: int, turn: int) -> State:
        replaced = self._replaced.get(index, 0) if resource == _REPLACED else 0
        number = self._number + replaced * _OTHERS
        return self._corpus.state(resource, number, index, self._version, turn)


class QueriesLoad(Load):
    """All agents of this process."""

    def __init__(self, agents: Sequence[QueriesAgent], folder: Path, dictionary_seconds: float) -> None:
        super().__init__(agents, folder, dictionary_seconds)
        self._all = agents
        self._digests_in = folder

    async def prepare(self) -> None:
        """Writes the snapshots to files, or comes back where they were pushed before."""
        if all(self._digest_file(agent).exists() for agent in self._all):
            await asyncio.gather(*map(self._resume, self._all))
        else:
            await super().prepare()

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        answer = await super().answer(command)
        if "snapshot" in command:
            for agent in self._all:
                self._digest_file(agent).write_bytes(msgspec.json.encode(agent.digests))
        return answer

    async def _prepare_changes(self, each: int, command: Json) -> None:
        size = command["frame"]
        self._interval = size * len(self._all) / command["rate"]
        self._prepared = [await agent.prepare([size] * max(1, each // size)) for agent in self._all]

    async def _resume(self, agent: QueriesAgent) -> None:
        digests = msgspec.json.decode(self._digest_file(agent).read_bytes(), type=dict[str, Digest])
        await agent.resume(digests)

    def _digest_file(self, agent: QueriesAgent) -> Path:
        return self._digests_in / f"{agent.cluster_id}.digests"


async def main(
    address: str, sample: str, first: str, clusters: str, objects: str, folder: str, dictionary_seconds: str
) -> None:
    """Serves commands."""
    corpus = Corpus.read(Path(sample))
    numbers = range(int(first), int(first) + int(clusters))
    async with AsyncExitStack() as stack:
        agents = [QueriesAgent(address, number, corpus, int(objects)) for number in numbers]
        await asyncio.gather(*(stack.enter_async_context(agent) for agent in agents))
        load = QueriesLoad(agents, Path(folder), float(dictionary_seconds))
        await load.prepare()
        await serve(load.answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Scenario `digest-cost`: what part of all work is knowing what the objects of each type add up to.

In one process and without a network, so that what is compared is the work itself: what an agent does with a change, and
what an aggregator does to check, plan and write it, each with the part of it that only digests need. That part is timed
by itself, as the same calls with the same objects. Against an aggregator that also takes messages, indexes and serves,
it is smaller still.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from federator.agent.frame import Bookmark, Frame, StatedDigest
from federator.agent.type_queue import TypeQueue
from federator.aggregator.ingest.frames import Bookmark as PushedBookmark
from federator.aggregator.ingest.frames import Changes, decode
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Commit,
    DigestChange,
    EntryType,
    ObjectEntry,
)
from federator.aggregator.merge.digest_table import DigestTable
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.testing.scratch import ScratchFolder
from federator.v1 import ingest_pb2
from federator.wire.body import BodyCodec, content_hash
from federator.wire.digest import Digest, key_hash, leaf, state_hash
from federator.wire.resource_type import resource_type_to_proto
from tests.bench.corpus import FIRST_VERSION, Corpus
from tests.bench.figure import FEDERATOR, Figure, WrongResult

OBJECTS = 1_000_000

CLUSTERS, _TYPES = 250, 200
"""Of the table: so many types in each cluster would be a large installation of operators."""

_RATE, _BOOKMARKS = 100.0, _TYPES / 60
"""A second, of one cluster: changes, and bookmarks where each type has one a minute."""

_CHANGES, _FRAME = 20_000, 100
_LOADED_AT_ONCE = 10_000
REPEATS = 10_000
"""Of a bookmark."""

_TYPE = "pods"


async def digest_cost(sample: Path, objects: int, *, clusters: int = CLUSTERS, repeats: int = REPEATS) -> list[Figure]:
    """Changes of one cluster's pods; a table of so many objects."""
    corpus = Corpus.read(sample)
    pods = corpus.types[_TYPE]
    changes = min(_CHANGES, objects)
    before, after = (_states(corpus, changes, turn) for turn in (0, 1))
    agent, frames = _agent(pods, before, after)
    agent_part = _agent_part(pods, before, after) / changes
    aggregator, digest = await _aggregator(pods, before, frames)
    aggregator_part = _aggregator_part(pods, before, after) / changes
    bookmark = await _bookmark(pods, digest, repeats)
    loading, memory = _load(objects), _memory(clusters)
    share = _RATE * (agent_part + aggregator_part) + _BOOKMARKS * bookmark
    scenario = f"digests, {objects} objects"
    return [
        Figure(scenario, FEDERATOR, "an agent's CPU per change", agent / changes * 1e6, "CPU-us"),
        Figure(scenario, FEDERATOR, "an agent's CPU per change, for digests", agent_part * 1e6, "CPU-us"),
        Figure(scenario, FEDERATOR, "an aggregator's CPU per change, in part", aggregator / changes * 1e6, "CPU-us"),
        Figure(scenario, FEDERATOR, "an aggregator's CPU per change, for digests", aggregator_part * 1e6, "CPU-us"),
        Figure(scenario, FEDERATOR, "CPU per digest of a bookmark, both sides", bookmark * 1e6, "CPU-us"),
        Figure(
            scenario,
            FEDERATOR,
            f"CPU of a core for digests, {_RATE:g} changes/s and a bookmark a minute of {_TYPES} types",
            share * 100,
            "%",
            "<= 1",
        ),
        Figure(scenario, FEDERATOR, "CPU of loading the table at a start", loading, "CPU-s"),
        Figure(scenario, FEDERATOR, f"memory of the table, {clusters} x {_TYPES} types", memory / 1e6, "MB"),
    ]


def _states(corpus: Corpus, number: int, turn: int) -> list[KubeObject]:
    first = FIRST_VERSION + turn * number
    states = (corpus.state(_TYPE, 0, index, first + index, turn) for index in range(number))
    return [
        KubeObject(each.namespace, each.name, each.uid, str(each.version), each.raw, content_hash(each.raw))
        for each in states
    ]


def _cpu(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


# The agent.


class _NoSource:
    """Of a queue that never lists."""

    epoch = 0

    def request_list(self) -> None:
        pass

    def states(self) -> Sequence[KubeObject]:
        return ()

    def fetch(self, objects: Sequence[KubeObject]) -> None:
        pass


def _agent(pods: ResourceType, before: Sequence[KubeObject], after: Sequence[KubeObject]) -> tuple[float, list[bytes]]:
    """CPU time from the change to the serialised frame, and the frames."""
    queue = TypeQueue(pods, _NoSource(), BodyCodec())
    queue.replace("1", before, {})
    while queue.can_take or queue.needs_hashing:
        if queue.needs_hashing:
            queue.hash_some()
        else:
            queue.take(1 << 20, 0)
    frames: list[bytes] = []

    def push() -> None:
        for start in range(0, len(after), _FRAME):
            for old, new in zip(before[start : start + _FRAME], after[start : start + _FRAME], strict=True):
                queue.put(new, old)
            while queue.can_take:
                content = queue.take(1 << 20, 0)
                assert content is not None
                frames.append(Frame(len(frames) + 1, pods, content).to_message().SerializeToString())

    return _cpu(push), frames


def _agent_part(pods: ResourceType, before: Sequence[KubeObject], after: Sequence[KubeObject]) -> float:
    """CPU time of what only digests need: the hashes of both states, and two steps of the sum."""
    version = pods.api_version

    def account() -> None:
        sent = Digest()
        for old, new in zip(before, after, strict=True):
            key = key_hash(new.namespace, new.name)
            sent = sent.minus(key, state_hash(old.content_hash, version, old.uid))
            sent = sent.plus(key, state_hash(new.content_hash, version, new.uid))

    return _cpu(account)


# The aggregator.


async def _aggregator(
    pods: ResourceType, before: Sequence[KubeObject], frames: Iterable[bytes]
) -> tuple[float, Digest]:
    """CPU time of reading, checking, planning and writing the changes, and the digest that the table ends with."""
    bodies, table, scratch = BodyCodec(), DigestTable(), ScratchFolder()
    ledger = LmdbLedger.open(scratch.path)
    try:
        ledger.on_commit(table.apply)
        record = await ledger.open_session(ClusterRecord(ClusterID("bench"), "uid-of-bench"))
        objects = [_pushed(obj, bodies) for obj in before]
        for start in range(0, len(objects), _FRAME):
            items = ingest_pb2.SnapshotItems(type=resource_type_to_proto(pods), objects=objects[start : start + _FRAME])
            await _take(ledger, record, pods, ingest_pb2.PushRequest(snapshot_items=items), bodies)
        gc.collect()
        began = time.process_time()
        for frame in frames:
            await _take(ledger, record, pods, ingest_pb2.PushRequest.FromString(frame), bodies)
        used = time.process_time() - began
        digest = table.of(record.cluster_id, pods.group_resource)
        if digest.count != len(before):
            raise WrongResult(f"a digest of {digest.count} of {len(before)} objects")
        return used, digest
    finally:
        await ledger.close()
        scratch.remove()


def _pushed(obj: KubeObject, bodies: BodyCodec) -> ingest_pb2.PushedObject:
    return ingest_pb2.PushedObject(
        namespace=obj.namespace,
        name=obj.name,
        uid=obj.uid,
        resource_version=obj.resource_version,
        content_hash=obj.content_hash,
        body=bodies.encode(obj.raw, GroupResource("", _TYPE)),
    )


async def _take(
    ledger: LmdbLedger, record: ClusterRecord, pods: ResourceType, request: ingest_pb2.PushRequest, bodies: BodyCodec
) -> None:
    frame, refused = await decode(request, bodies, _no_turn)
    if refused or not isinstance(frame, Changes):
        raise WrongResult(f"refused: {refused[:1]}")
    await ledger.append(Batch(record.cluster_id, record.term, 0, pods, frame.changes))


async def _no_turn() -> None:
    pass


def _aggregator_part(pods: ResourceType, before: Sequence[KubeObject], after: Sequence[KubeObject]) -> float:
    """CPU time of what only digests need: heads have the state's hash anyway, so two leaves, and a step a commit."""
    version = pods.api_version
    marks = [
        (state_hash(old.content_hash, version, old.uid), state_hash(new.content_hash, version, new.uid))
        for old, new in zip(before, after, strict=True)
    ]
    table, cluster_id, resource = DigestTable(), ClusterID("bench"), pods.group_resource

    def account() -> None:
        for start in range(0, len(after), _FRAME):
            total = 0
            for obj, (old, new) in zip(after[start : start + _FRAME], marks[start : start + _FRAME], strict=True):
                key = key_hash(obj.namespace, obj.name)
                total += leaf(key, new)
                total -= leaf(key, old)
            table.apply(Commit(0, digests=(DigestChange(cluster_id, resource, 0, total),)))

    return _cpu(account)


async def _bookmark(pods: ResourceType, digest: Digest, repeats: int) -> float:
    """CPU-seconds that a bookmark takes with a digest, on both sides together, which are nearly all the digest's."""
    table, cluster_id, resource = DigestTable(), ClusterID("bench"), pods.group_resource
    bodies = BodyCodec()
    table.correct(cluster_id, resource, digest)
    gc.collect()
    began = time.process_time()
    for _ in range(repeats):
        told = Bookmark("1", StatedDigest(digest, ()))
        message = Frame(1, pods, told).to_message().SerializeToString()
        frame, _ = await decode(ingest_pb2.PushRequest.FromString(message), bodies, _no_turn)
        assert isinstance(frame, PushedBookmark)
        assert frame.digest is not None
        if table.of(cluster_id, resource) != frame.digest.digest:
            raise WrongResult("a digest differs from itself")
    return (time.process_time() - began) / repeats


# The table.


def _load(objects: int) -> float:
    """CPU time in which the table takes in so many objects; making them is not counted."""
    table, used = DigestTable(), 0.0
    for start in range(0, objects, _LOADED_AT_ONCE):
        entries = [_entry(number, objects) for number in range(start, min(objects, start + _LOADED_AT_ONCE))]
        began = time.process_time()
        for entry in entries:
            table.take_in(entry)
        used += time.process_time() - began
    table.loaded()
    return used


def _entry(number: int, objects: int) -> ObjectEntry:
    cluster_id = ClusterID(f"cluster-{number * CLUSTERS // objects}")
    key = ObjectKey(cluster_id, "", _TYPE, f"namespace-{number % 16}", f"web-7d9f8b6c5d-{number:07}")
    uid = f"00000000-0000-4000-8000-{number:012}"
    return ObjectEntry(number + 1, 0, EntryType.ADDED, 0, key, "v1", uid, str(number), number * 7919, b"")


def _memory(clusters: int) -> int:
    """Bytes of a table of all types."""
    names = [ClusterID(f"cluster-{number}") for number in range(clusters)]
    types = [GroupResource(f"group-{number}.example.com", f"things{number}") for number in range(_TYPES)]
    tracemalloc.start()
    try:
        table = DigestTable()
        for number, (cluster_id, resource) in enumerate((one, other) for one in names for other in types):
            table.apply(Commit(0, digests=(DigestChange(cluster_id, resource, 1, number << 40 | 1),)))
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

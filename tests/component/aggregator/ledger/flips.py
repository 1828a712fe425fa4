"""Damages a ledger's file at places drawn from a seed, starts it until it serves, and judges what it then says.

A program of its own (`python -m`), since a damaged page may kill whoever reads it: each start is a forked process with
a deadline. It prints what it saw that must never be, with its seed, ends with 1 then, and counts the outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import structlog

from federator.aggregator.ledger.damage import STATE_LOST
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import MAX_CHANGES, Delete, Entry, EntryType, ObjectEntry, Put
from federator.aggregator.ledger.store import ASIDE, MAX_BAD_ENDS, Store
from federator.api.cluster import ClusterID, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import ResourceType
from federator.errors import CursorExpired, LedgerCorrupt, LedgerError
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, objects

CLUSTERS = ("berlin", "paris", "oslo")
DEADLINE = 20  # seconds for a start; beyond, it hangs
PAGE = 4096
TURNS = 20
"""Batches of each cluster: some 130 pages."""

State = tuple[str, str, int, bytes]
"""UID, resourceVersion, content hash and body of an object."""


class Truth(NamedTuple):
    """What was written: present objects and history by revision."""

    ledger_id: bytes
    revision: int
    present: Mapping[ObjectKey, State]
    log: Mapping[int, Entry]


class Start(NamedTuple):
    """What a start had to say.

    Attributes:
        ledger_id: of the ledger it serves.
        revision: at the start.
        present: objects told.
        incomplete: (cluster, type) that are SYNCING because states were lost.
        wrong: entries of history that are not what was written, or missing without a word.
        changes: what the agents' listings then changed.
        after: objects told after that.
    """

    ledger_id: bytes
    revision: int
    present: dict[ObjectKey, State]
    incomplete: set[tuple[ClusterID, str]]
    wrong: list[str]
    changes: list[tuple[EntryType, ObjectKey]]
    after: dict[ObjectKey, State]


async def write(directory: Path, seed: int) -> Truth:
    """Makes a ledger with a past: changes, deletions, objects that came again, compaction."""
    draw = Random(seed)
    ledger = LmdbLedger.open(directory)
    members = [await Member.join(ledger, name) for name in CLUSTERS]
    for turn in range(1, TURNS + 1):
        for member in members:
            of = draw.choice((PODS, DEPLOYMENTS))
            names = draw.sample(range(60), 12)
            wanted: list[Put | Delete] = [_drawn(draw, f"app-{name}", turn) for name in names]
            await member.push(*wanted, of=of, sequence=turn, low_water=str(turn))
        if turn == TURNS // 2:
            await ledger.compact(ledger.revision - 75)
    entries: dict[int, Entry] = {entry.revision: entry for entry in ledger.read(ledger.oldest_revision, 1 << 20)}
    truth = Truth(ledger.cursors.ledger_id, ledger.revision, _states(ledger), entries)
    await ledger.close()
    return truth


def _drawn(draw: Random, name: str, turn: int) -> Put | Delete:
    if draw.random() < 0.2:
        return Delete("shop", name)
    body = draw.randbytes(draw.choice((40, 200, 1500)))
    return Put("shop", name, f"uid-{draw.randrange(3)}", str(turn), draw.getrandbits(64), body)


def _states(ledger: LmdbLedger) -> dict[ObjectKey, State]:
    return {
        entry.key: (entry.uid, entry.resource_version, entry.content_hash, entry.body) for entry in ledger.present()
    }


async def start(directory: Path, truth: Truth) -> Start:
    """Starts as an aggregator does, reads everything, and lets the agents list everything."""
    store = Store(directory)
    ledger = store.open(lambda: LmdbLedger.open(directory, thorough=store.ended_badly))
    present = _states(ledger)
    await ledger.mend()
    if ledger.failure is not None:
        raise ledger.failure
    store.serves()
    incomplete = {
        (cluster, record.type.resource)
        for cluster in ledger.clusters()
        for record in ledger.types(cluster)
        if (record.state, record.reason) == (TypeState.SYNCING, STATE_LOST)
    }
    revision = ledger.revision
    wrong = [] if ledger.cursors.ledger_id != truth.ledger_id else _history(ledger, truth)
    changes = [
        (entry.type, entry.key)
        for name in CLUSTERS
        for of in (PODS, DEPLOYMENTS)
        for entry in await _listed(ledger, name, of, truth)
    ]
    after = _states(ledger)
    later = await _changed(ledger, Random(revision))
    if ledger.failure is not None:
        raise ledger.failure
    ledger_id = ledger.cursors.ledger_id
    await ledger.close()
    store.close()
    again = LmdbLedger.open(directory)
    found = _states(again)
    wrong += [f"{key} is {found.get(key)} after later commits" for key in later if found.get(key) != later[key]]
    await again.close()
    return Start(ledger_id, revision, present, incomplete, wrong, changes, after)


async def _changed(ledger: LmdbLedger, draw: Random) -> Mapping[ObjectKey, State]:
    """Goes on committing, into whatever pages LMDB takes for free; returns what is present then."""
    for turn in range(TURNS // 2):
        member = await Member.join(ledger, draw.choice(CLUSTERS), instance="later")
        await member.push(*(_drawn(draw, f"app-{name}", 100 + turn) for name in draw.sample(range(60), 12)))
    return _states(ledger)


def _history(ledger: LmdbLedger, truth: Truth) -> list[str]:
    """Reads history as a watch does; a refusal says from where on it can be read."""
    wrong: list[str] = []
    position = ledger.oldest_revision
    while position < truth.revision:
        try:
            entries = ledger.read(position, 64)
        except CursorExpired as expired:
            assert expired.oldest > position, "else a watch would go round in circles"
            position = expired.oldest
            continue
        if not entries:
            wrong.append(f"history ends at {position}, {truth.revision} was acknowledged")
            break
        for entry in entries:
            position += 1
            if entry.revision != position or (position <= truth.revision and truth.log.get(position) != entry):
                wrong.append(f"history at {position - truth.revision} from its end: {entry}")
                position = entry.revision
    for entry in truth.log.values():
        if isinstance(entry, ObjectEntry):
            try:
                found = ledger.entry(entry.revision)
            except LedgerCorrupt:
                continue
            if found is not None and found != entry:
                wrong.append(f"entry {entry.revision}: {found}")
    return wrong


async def _listed(ledger: LmdbLedger, cluster: str, of: ResourceType, truth: Truth) -> list[ObjectEntry]:
    member = await Member.join(ledger, cluster, instance="after")
    named = {
        (key.namespace, key.name): Put(key.namespace, key.name, *state)
        for key, state in truth.present.items()
        if (key.cluster_id, key.group_resource) == (cluster, of.group_resource)
    }
    puts = list(named.values())
    changes = []
    for at in range(0, len(puts), MAX_CHANGES):
        changes += objects((await member.push(*puts[at : at + MAX_CHANGES], of=of, skips_older=True)).entries)
    stored = ledger.keys(ClusterID(cluster), of.group_resource)
    gone = [Delete(key.namespace, key.name) for key in stored if (key.namespace, key.name) not in named]
    return changes + objects((await member.push(*gone, of=of)).entries)


def damage(file: Path, draw: Random) -> str:
    """Damages a file, and says how."""
    size = file.stat().st_size
    how = draw.choice(("bit",) * 6 + ("page", "sector", "end"))
    at = draw.randrange(size)
    if how == "end":
        os.truncate(file, at)
        return f"cut at {at} of {size}"
    with file.open("r+b") as data:
        if how == "bit":
            data.seek(at)
            byte = data.read(1)[0]
            data.seek(at)
            data.write(bytes((byte ^ 1 << draw.randrange(8),)))
            return f"bit of byte {at} of {size} flipped"
        length = PAGE if how == "page" else 512
        at -= at % length
        data.seek(at)
        if draw.random() < 0.5:
            data.write(bytes(length))
            return f"{how} at {at} zeroed"
        other = draw.randrange(0, size, length)
        data.seek(other)
        copied = data.read(length)
        data.seek(at)
        data.write(copied)
        return f"{how} at {at} replaced by that at {other}"


def judge(truth: Truth, result: Start) -> tuple[str, list[str]]:
    """Names the outcome, and everything about it that must never be."""
    wrong = list(result.wrong)
    missing = truth.present.keys() - result.present.keys()
    if result.after != truth.present:
        wrong.append("after the listings it is not what the agents have")
    if result.ledger_id != truth.ledger_id:
        if result.present or result.revision <= truth.revision:
            wrong.append(f"a new ledger starts at {result.revision} with {len(result.present)} objects")
        return "set aside", wrong
    if result.revision < truth.revision:
        wrong.append(f"stands at {result.revision}, {truth.revision} was acknowledged")
    for key, state in result.present.items():
        if truth.present.get(key) != state:
            wrong.append(f"{key} is {state}")
    wrong += [
        f"{key} is missing without a word" for key in missing if (key.cluster_id, key.resource) not in result.incomplete
    ]
    for kind, key in result.changes:
        if kind is not EntryType.MODIFIED or key not in missing:
            wrong.append(f"{kind.name} of {key}")
    return ("resynced" if missing else "equal"), wrong


def run(written: Path, scratch: Path, truth: Truth, seed: int) -> tuple[str, str, list[str]]:
    """Damages a copy, and starts it until it serves; returns how it was damaged, the outcome, and what was wrong."""
    draw = Random(f"damage {seed}")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(written, scratch)
    how = damage(scratch / "ledger" / "data.mdb", draw)
    ends: list[str] = []
    while len(ends) < MAX_BAD_ENDS + 2:  # it may serve first, and be killed by a reader
        outcome = _fork(scratch, truth)
        if isinstance(outcome, Start):
            name, wrong = judge(truth, outcome)
            if name == "set aside" and not list(scratch.glob(f"{ASIDE}*")):
                wrong.append("nothing was kept")
            return how, " ".join((*ends, name)), wrong
        ends.append(outcome)
        if outcome not in {"SIGBUS", "SIGSEGV", "SIGABRT", "SIGFPE", "typed"}:
            return how, " ".join(ends), [outcome]
    return how, " ".join(ends), ["never served"]


def _fork(directory: Path, truth: Truth) -> Start | str:
    reading, writing = os.pipe()
    sys.stdout.flush()  # else the child has what was not written yet, too
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE)
        os.close(reading)
        try:
            result: object = asyncio.run(start(directory, truth))
        except LedgerError as error:
            result = f"typed: {error}"
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not be
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    result = pickle.loads(said)
    if isinstance(result, str) and result.startswith("typed: "):
        return "typed"
    assert isinstance(result, Start | str)
    return result


def main() -> None:
    """`flips FOLDER FIRST LAST`."""
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    truth = asyncio.run(write(folder / "written", first))
    counts: Counter[str] = Counter()
    is_wrong = 0
    for seed in range(first, last):
        how, outcome, wrong = run(folder / "written", folder / "scratch", truth, seed)
        counts[outcome] += 1
        for each in wrong:
            is_wrong = 1
            sys.stdout.write(f"seed {seed}, {how}: {outcome}: WRONG: {each[:300]}\n")
    sys.stdout.write(f"{dict(counts)}\n")
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()

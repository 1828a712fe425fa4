"""BatchRun: few commits, types in their order, and the sequence only with the last of them."""

from __future__ import annotations

import asyncio

import pytest

from federator.aggregator.ingest.batches import MAX_BATCH_BYTES, BatchRun, Origin
from federator.aggregator.ingest.frames import Changes
from federator.aggregator.ledger.records import Batch, Commit, Delete, Put
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType
from federator.errors import LedgerFull
from tests.unit.agent.scripted_cluster import DEPLOYMENTS, NODES, PODS


class Ledger:
    """Takes batches, slowly, and can be full."""

    def __init__(self, *, full_at: int | None = None) -> None:
        self.batches: list[Batch] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._full_at = full_at

    async def append(self, batch: Batch) -> Commit:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if len(self.batches) == self._full_at:
            raise LedgerFull("test")
        self.batches.append(batch)
        return Commit(len(self.batches))


def run_on(ledger: Ledger) -> BatchRun:
    return BatchRun(ledger, ClusterID("c"), 1, lambda *_: None)  # type: ignore[arg-type]


def puts(resource_type: ResourceType, *names: str, size: int = 1, in_snapshot: bool = False) -> Changes:
    changes = tuple(Put("ns", name, "u", "1", 1, b"x" * size) for name in names)
    return Changes(resource_type, changes, in_snapshot)


LISTED = Origin(in_snapshot=True, skips_older=True, listed_version="100")


def names(batch: Batch) -> list[str]:
    return [change.name for change in batch.changes]


async def test_frames_of_a_type_share_a_batch_in_their_order() -> None:
    run = run_on(ledger := Ledger())
    run.add(puts(PODS, "a"))
    run.add(puts(NODES, "n"))
    run.add(puts(PODS, "b", "a"))
    run.mark(PODS, "7")
    await run.finish(9, PODS)
    assert {batch.type.kind: names(batch) for batch in ledger.batches} == {"Pod": ["a", "b", "a"], "Node": ["n"]}
    assert [(batch.low_water, batch.type) for batch in ledger.batches if batch.low_water] == [("7", PODS)]


async def test_only_the_last_batch_makes_the_sequence_durable() -> None:
    run = run_on(ledger := Ledger())
    for resource_type in (PODS, NODES, DEPLOYMENTS):
        run.add(puts(resource_type, *(f"p{number}" for number in range(1500))))
    await run.finish(9, PODS)
    assert [batch.sequence for batch in ledger.batches] == [0, 0, 0, 0, 0, 9]
    assert ledger.most_in_flight > 1, "types don't wait for each other"


async def test_a_full_ledger_leaves_the_sequence_as_it_was() -> None:
    for full_at in range(3):
        run = run_on(ledger := Ledger(full_at=full_at))
        for resource_type in (PODS, NODES, DEPLOYMENTS):
            run.add(puts(resource_type, "a"))
        with pytest.raises(LedgerFull):
            await run.finish(9, PODS)
        assert all(batch.sequence == 0 for batch in ledger.batches)


async def test_a_sequence_alone_is_a_batch() -> None:
    run = run_on(ledger := Ledger())
    run.add(puts(PODS))
    await run.finish(9, PODS)
    assert ledger.batches == [Batch(ClusterID("c"), 1, 9, PODS)]


async def test_batches_are_cut_by_number_by_bytes_and_where_a_listing_begins_or_ends() -> None:
    run = run_on(ledger := Ledger())
    run.add(puts(PODS, *(f"p{number}" for number in range(1025))))
    run.add(puts(PODS, "listed", in_snapshot=True), LISTED)
    run.add(puts(PODS, "large", "larger", size=MAX_BATCH_BYTES))
    await run.finish(9, PODS)
    assert [len(batch.changes) for batch in ledger.batches] == [1024, 1, 1, 1, 1]
    assert [batch.skips_older for batch in ledger.batches] == [False, False, True, False, False]
    assert [batch.listed_version for batch in ledger.batches] == ["", "", "100", "", ""]


async def test_one_type_can_be_committed_before_the_others() -> None:
    run = run_on(ledger := Ledger())
    run.add(puts(PODS, "a"))
    run.add(puts(NODES, "n"))
    run.mark(PODS, "7", 3)
    run.mark(PODS, "8")
    await run.flush(PODS.group_resource)
    assert [(names(batch), batch.low_water, batch.generation) for batch in ledger.batches] == [(["a"], "8", 3)]
    await run.flush(PODS.group_resource)
    await run.finish(9, PODS)
    assert [names(batch) for batch in ledger.batches] == [["a"], ["n"]]


async def test_whoever_hears_of_commits_is_told_where_they_come_from() -> None:
    told: list[tuple[str, bool]] = []
    run = BatchRun(
        Ledger(),  # type: ignore[arg-type]
        ClusterID("c"),
        1,
        lambda of, _, origin: told.append((of.kind, origin.in_snapshot)),
    )
    run.add(puts(PODS, "a"))
    run.add(puts(PODS, "b", in_snapshot=True), LISTED)
    await run.delete(NODES, [Delete("", "n")], LISTED)
    assert told == [("Pod", False), ("Pod", True), ("Node", True)]


async def test_deletions_come_behind_what_was_added() -> None:
    run = run_on(ledger := Ledger())
    run.add(puts(PODS, "a"))
    await run.delete(PODS, [Delete("ns", "b")])
    await run.flush()
    assert [names(batch) for batch in ledger.batches] == [["a"], ["b"]]

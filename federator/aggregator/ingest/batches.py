"""Batches: a run of frames, made into as few commits as their order allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from federator._aio.task_group import task_group
from federator.aggregator.ingest.frames import Change, Changes
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import MAX_CHANGES, Batch, Commit, Delete
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource, ResourceType

MAX_BATCH_BYTES = 1024 * 1024
"""Bodies in one batch; one larger object makes a batch of its own."""


class Origin(msgspec.Struct, frozen=True):
    """Where changes come from.

    Attributes:
        in_snapshot: from a listing.
        skips_older: as in Batch.
        listed_version: as in Batch.
        is_replayed: as in Batch.
    """

    in_snapshot: bool = False
    skips_older: bool = False
    listed_version: str = ""
    is_replayed: bool = False


_LIVE = Origin()

OnCommit = Callable[[ResourceType, Commit, Origin], None]
"""Told of each commit: the type, the commit, and where its changes come from."""


class _Draft(msgspec.Struct):
    """A batch that still grows."""

    type: ResourceType
    origin: Origin = _LIVE
    changes: list[Change] = []
    bytes: int = 0
    low_water: str = ""
    generation: int | None = None


class BatchRun:
    """Collects the frames of one session between two barriers and commits them.

    Types keep their order and don't wait for each other; within a type, frames that follow each other share a batch.
    No batch has a sequence except the last one of the run, so that a run which breaks off is sent again, and commits
    nothing twice, since equal content commits nothing.
    """

    def __init__(self, ledger: Ledger, cluster_id: ClusterID, term: int, on_commit: OnCommit) -> None:
        """Starts empty.

        Args:
            ledger: what is appended to.
            cluster_id: of the session.
            term: of the session.
            on_commit: told of each commit.
        """
        self._ledger = ledger
        self._cluster_id = cluster_id
        self._term = term
        self._on_commit = on_commit
        self._drafts: dict[GroupResource, list[_Draft]] = {}

    def add(self, frame: Changes, origin: Origin = _LIVE) -> None:
        """Adds changes behind those of their type."""
        if not (frame.changes or frame.low_water):
            return
        drafts = self._drafts.setdefault(frame.type.group_resource, [])
        for change in frame.changes:
            size = 0 if isinstance(change, Delete) else len(change.body)
            last = drafts[-1] if drafts else None
            if (
                last is None
                or (last.type, last.origin) != (frame.type, origin)
                or len(last.changes) >= MAX_CHANGES
                or (last.changes and last.bytes + size > MAX_BATCH_BYTES)
            ):
                last = _Draft(frame.type, origin)
                drafts.append(last)
            last.changes.append(change)
            last.bytes += size
        if frame.low_water:
            self.mark(frame.type, frame.low_water)

    def mark(self, resource_type: ResourceType, low_water: str, generation: int | None = None) -> None:
        """Says that a type is complete up to a resourceVersion with what was added; and how often it was restored."""
        drafts = self._drafts.setdefault(resource_type.group_resource, [])
        if not drafts or drafts[-1].type != resource_type:
            drafts.append(_Draft(resource_type))
        drafts[-1].low_water = low_water
        if generation is not None:
            drafts[-1].generation = generation

    async def flush(self, resource: GroupResource | None = None) -> None:
        """Commits what was added, and waits until it is durable; no sequence becomes durable by it.

        Args:
            resource: the type whose changes are committed; None for all types.

        Raises:
            SessionFenced, LedgerFull: from the ledger; some types may have been committed.
        """
        if resource is not None:
            await self._append_all(self._drafts.pop(resource, ()))
            return
        drafts, self._drafts = self._drafts, {}
        if len(drafts) == 1:
            await self._append_all(*drafts.values())
        elif drafts:
            async with task_group() as tasks:
                for of_type in drafts.values():
                    tasks.create_task(self._append_all(of_type), name=f"append {self._cluster_id}")

    async def finish(self, sequence: int, resource_type: ResourceType) -> None:
        """Commits what was added, and with the last of it makes everything up to a sequence durable.

        Args:
            sequence: of the newest frame of the run.
            resource_type: stands in the batch where nothing is left to commit but the sequence.

        Raises:
            SessionFenced, LedgerFull: from the ledger; the sequence is not durable then.
        """
        if not self._drafts:
            await self._append(_Draft(resource_type), sequence)
            return
        resource, drafts = self._drafts.popitem()
        last = drafts.pop()
        if drafts:
            self._drafts[resource] = drafts
        if self._drafts:
            await self.flush()
        await self._append(last, sequence)

    async def delete(self, resource_type: ResourceType, doomed: Iterable[Delete], origin: Origin = _LIVE) -> None:
        """Commits deletions, behind everything that was added, as `flush` does."""
        await self.flush()
        self.add(Changes(resource_type, tuple(doomed), in_snapshot=origin.in_snapshot), origin)
        await self.flush()

    async def _append_all(self, drafts: Iterable[_Draft]) -> None:
        for draft in drafts:
            await self._append(draft, 0)

    async def _append(self, draft: _Draft, sequence: int) -> None:
        batch = Batch(
            self._cluster_id,
            self._term,
            sequence,
            draft.type,
            tuple(draft.changes),
            draft.low_water,
            draft.origin.skips_older,
            draft.origin.listed_version,
            draft.generation,
            draft.origin.is_replayed,
        )
        self._on_commit(draft.type, await self._ledger.append(batch), draft.origin)

"""Batches: a run of frames, made into as few commits as their order allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from federator._aio.task_group import task_group
from federator.aggregator.ingest.frames import Bookmark, Change, Changes
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import MAX_CHANGES, Batch, Commit, Delete
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource, ResourceType

MAX_BATCH_BYTES = 1024 * 1024
"""Bodies in one batch; one larger object makes a batch of its own."""


class _Draft(msgspec.Struct):
    """A batch that still grows."""

    type: ResourceType
    in_snapshot: bool
    changes: list[Change]
    bytes: int = 0
    low_water: str = ""


class BatchRun:
    """Collects the frames of one session between two barriers and commits them.

    Types keep their order and don't wait for each other; within a type, frames that follow each other share a batch.
    No batch has a sequence except the last one of the run, so that a run which breaks off is sent again, and commits
    nothing twice, since equal content commits nothing.
    """

    def __init__(
        self, ledger: Ledger, cluster_id: ClusterID, term: int, on_commit: Callable[[ResourceType, Commit], None]
    ) -> None:
        """Starts empty.

        Args:
            ledger: what is appended to.
            cluster_id: of the session.
            term: of the session.
            on_commit: told of each commit; only for counting.
        """
        self._ledger = ledger
        self._cluster_id = cluster_id
        self._term = term
        self._on_commit = on_commit
        self._drafts: dict[GroupResource, list[_Draft]] = {}

    def add(self, frame: Changes | Bookmark) -> None:
        """Adds a frame behind those of its type."""
        if isinstance(frame, Changes) and not (frame.changes or frame.low_water):
            return
        drafts = self._drafts.setdefault(frame.type.group_resource, [])
        if isinstance(frame, Bookmark):
            self._mark(drafts, frame.type, frame.resource_version)
            return
        for change in frame.changes:
            size = 0 if isinstance(change, Delete) else len(change.body)
            last = drafts[-1] if drafts else None
            if (
                last is None
                or (last.type, last.in_snapshot) != (frame.type, frame.in_snapshot)
                or len(last.changes) >= MAX_CHANGES
                or (last.changes and last.bytes + size > MAX_BATCH_BYTES)
            ):
                last = _Draft(frame.type, frame.in_snapshot, [])
                drafts.append(last)
            last.changes.append(change)
            last.bytes += size
        if frame.low_water:
            self._mark(drafts, frame.type, frame.low_water)

    @staticmethod
    def _mark(drafts: list[_Draft], resource_type: ResourceType, low_water: str) -> None:
        if not drafts or drafts[-1].type != resource_type:
            drafts.append(_Draft(resource_type, False, []))
        drafts[-1].low_water = low_water

    async def flush(self) -> None:
        """Commits what was added, and waits until it is durable; no sequence becomes durable by it.

        Raises:
            SessionFenced, LedgerFull: from the ledger; some types may have been committed.
        """
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
        last = _Draft(resource_type, False, [])
        if self._drafts:
            resource, drafts = self._drafts.popitem()
            last = drafts.pop()
            if drafts:
                self._drafts[resource] = drafts
        await self.flush()
        await self._append(last, sequence)

    async def delete(self, resource_type: ResourceType, doomed: Iterable[Delete]) -> None:
        """Commits deletions, behind everything that was added, as `flush` does."""
        await self.flush()
        self.add(Changes(resource_type, tuple(doomed), in_snapshot=False))
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
            draft.in_snapshot,
        )
        self._on_commit(draft.type, await self._ledger.append(batch))

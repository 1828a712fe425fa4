"""What must be found in a ledger when it is opened again, and whether it is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import xxhash

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterRecord, Entry, EntryType, ObjectEntry
from federator.api.cluster import ClusterID, ClusterState
from federator.api.key import ObjectKey
from tests.contract.ledger.model import Model, check_order
from tests.robustness.ledger_script import CLUSTERS, REPEATED, Script, reason_of

K = TypeVar("K")
V = TypeVar("V")

_ALL = 1 << 30
"""More entries than any ledger here has."""


class Difference(AssertionError):
    """The ledger is not what it has to be.

    Attributes:
        lost: acknowledged entries that are gone.
        doubled: entries that are there twice.
    """

    def __init__(self, text: str, *, lost: int = 0, doubled: int = 0) -> None:
        super().__init__(text)
        self.lost = lost
        self.doubled = doubled


@dataclass
class Expectation:
    """What is known of a ledger: what it was found to be when it was last opened, and what it acknowledged since.

    Attributes:
        script: what its clusters do.
        model: as it was found.
        revision: newest revision found.
        digests: of each entry found whose history is not forgotten, by revision.
        sequences: last step of each cluster that was found.
        terms: of the newest session of each cluster that was acknowledged since.
        acknowledged: digests of the entries acknowledged since, by revision.
        acknowledged_sequences: last step of each cluster that was acknowledged.
        acknowledged_revision: newest revision that any acknowledgement named.
        oldest: history is forgotten up to here, as far as it was acknowledged or found.
        may_forget: up to where the newest compaction that was begun may have forgotten.
    """

    script: Script
    model: Model = field(default_factory=Model)
    revision: int = 0
    digests: dict[int, int] = field(default_factory=dict)
    sequences: dict[ClusterID, int] = field(default_factory=dict)
    terms: dict[ClusterID, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    acknowledged_sequences: dict[ClusterID, int] = field(default_factory=dict)
    acknowledged_revision: int = 0
    oldest: int = 0
    may_forget: int = 0

    def acknowledge(
        self, cluster_id: ClusterID, sequence: int, revision: int, entries: Sequence[tuple[int, int]]
    ) -> None:
        """Takes in that a request was answered.

        Args:
            cluster_id: whose request.
            sequence: of the batch; 0 where it was none.
            revision: of the commit.
            entries: what it committed, as pairs of revision and digest.

        Raises:
            Difference: a revision was given away twice.
        """
        for each, content in entries:
            if each <= self.revision or each in self.acknowledged:
                raise Difference(f"revision {each} is given away twice")
            self.acknowledged[each] = content
        if sequence:
            self.acknowledged_sequences[cluster_id] = max(sequence, self.acknowledged_sequences.get(cluster_id, 0))
        self.acknowledged_revision = max(self.acknowledged_revision, revision)

    def check(self, ledger: Ledger) -> Expectation:
        """Looks at everything a ledger that was just opened has, and returns what is known now; uses this one up.

        Raises:
            Difference: it is not what it has to be.
        """
        entries = ledger.read(ledger.oldest_revision, _ALL)
        check_order(None, entries)
        self._check_numbers(ledger, entries)
        _check_once(entries)
        digests = {entry.revision: digest(entry) for entry in entries}
        self._check_known(digests)
        after = self._follow(ledger, [entry for entry in entries if entry.revision > self.revision])
        after.revision = after.acknowledged_revision = ledger.revision
        after.oldest = after.may_forget = ledger.oldest_revision
        after.acknowledged_sequences = dict(self.acknowledged_sequences)
        after.digests = digests
        after.model.forgotten = (ledger.oldest_revision, ledger.oldest_revision)
        after._check_present(ledger)
        after._check_versions(ledger, entries)
        return after

    def _check_numbers(self, ledger: Ledger, entries: Sequence[Entry]) -> None:
        newest = max(self.revision, self.acknowledged_revision)
        oldest = ledger.oldest_revision
        if entries and entries[-1].revision != ledger.revision:
            raise Difference(f"the last entry is {entries[-1].revision}, the newest revision {ledger.revision}")
        if self.revision and not self.oldest <= oldest <= max(self.oldest, self.may_forget):
            raise Difference(
                f"history starts after {oldest}; {self.oldest} was surely forgotten, {self.may_forget} asked for"
            )
        wanted = [revision for revision in self.digests | self.acknowledged if revision > oldest]
        found = {entry.revision for entry in entries}
        if lost := [revision for revision in wanted if revision not in found]:
            raise Difference(f"{len(lost)} acknowledged entries are lost, the first is {min(lost)}", lost=len(lost))
        if ledger.revision < newest:
            raise Difference(f"the newest revision is {ledger.revision}, but {newest} was acknowledged")

    def _check_known(self, found: Mapping[int, int]) -> None:
        for revision, wanted in (self.digests | self.acknowledged).items():
            if found.get(revision, wanted) != wanted:
                raise Difference(f"entry {revision} is not what it was")
        for revision in found:
            if revision <= self.revision and revision not in self.digests:
                raise Difference(f"entry {revision} was not there when the newest was {self.revision}")

    def _follow(self, ledger: Ledger, entries: Sequence[Entry]) -> Expectation:
        """Holds what is new against what the clusters do, in their order."""
        streams: dict[ClusterID, list[Entry]] = defaultdict(list)
        for entry in entries:
            streams[_cluster_of(entry)].append(entry)
        # What was compacted since may have been there when an entry was made.
        self.model.forgotten = (self.model.forgotten[0], max(self.oldest, self.may_forget))
        found = Expectation(self.script, self.model)
        records = ledger.clusters()
        if strangers := [*(records.keys() - set(CLUSTERS)), *(streams.keys() - records.keys())]:
            raise Difference(f"the ledger has entries of {strangers}")
        for cluster_id in CLUSTERS:
            record = records.get(cluster_id)
            least = max(self.acknowledged_sequences.get(cluster_id, 0), self.sequences.get(cluster_id, 0))
            if (record.durable_sequence if record else 0) < least:
                raise Difference(f"{cluster_id}: sequence {least} was acknowledged, the ledger has {record}")
            if record is not None:
                _Following(self, found, record, streams[cluster_id]).run()
        return found

    def _check_present(self, ledger: Ledger) -> None:
        present = {entry.key: entry for entry in ledger.present()}
        _check_same("present objects", present, self.model.present)
        _check_same("clusters", ledger.clusters(), self.model.clusters)
        records = [record for cluster_id in ledger.clusters() for record in ledger.types(cluster_id)]
        types = {(record.cluster_id, record.type.group_resource): record for record in records}
        _check_same("types", types, self.model.types)
        for (cluster_id, resource), record in types.items():
            keys = sorted((key.namespace, key.name) for key in ledger.keys(cluster_id, resource))
            of_type = [key for key in present if (key.cluster_id, key.group_resource) == (cluster_id, resource)]
            if keys != sorted((key.namespace, key.name) for key in of_type):
                raise Difference(f"{cluster_id} has keys of {record.type} for other objects than are present")

    def _check_versions(self, ledger: Ledger, entries: Sequence[Entry]) -> None:
        """Each key's entries are one chain, down to what it was when the history begins."""
        versions: dict[ObjectKey, list[ObjectEntry]] = {key: [] for key in self.model.present}
        for entry in reversed(entries):
            if isinstance(entry, ObjectEntry):
                versions.setdefault(entry.key, []).append(entry)
        for key, wanted in versions.items():
            found = list(ledger.versions(key))
            if found[: len(wanted)] != wanted:
                raise Difference(f"versions of {key}: the ledger has {found}, not {wanted}")
            before = found[len(wanted) :]
            last = wanted[-1].previous_revision if wanted else self.model.present[key].revision
            if [entry.revision for entry in before] != ([last] if last else []):
                raise Difference(f"versions of {key}: before its history the ledger has {before}, not {last}")


class _Following:
    """One cluster's entries, held against its script up to the sequence that the ledger says is durable."""

    def __init__(self, before: Expectation, found: Expectation, record: ClusterRecord, entries: list[Entry]) -> None:
        self._before = before
        self._found = found
        self._record = record
        self._cluster_id = record.cluster_id
        self._entries = entries
        self._next = 0

    def run(self) -> None:
        script, model = self._found.script, self._found.model
        sequence = self._before.sequences.get(self._cluster_id, 0)
        try:
            self._open_session()
            self._change_state(sequence)  # of the last step that was found; the child after it may have made it
            while sequence < self._record.durable_sequence:
                sequence += 1
                start = self._next
                model.append(script.batch(self._cluster_id, sequence, self._record.term), self._take())
                self._check_whole(self._entries[start : self._next])
                self._change_state(sequence)
        except Difference:
            raise
        except AssertionError as error:
            raise Difference(f"{self._cluster_id}, step {sequence}: {error}") from error
        if self._next < len(self._entries):
            raise Difference(f"{self._cluster_id}: {self._entries[self._next]} comes after the last step, {sequence}")
        self._found.sequences[self._cluster_id] = sequence

    def _open_session(self) -> None:
        known = self._found.model.clusters.get(self._cluster_id)
        terms = known.term if known else 0
        least = max(terms, self._before.terms.get(self._cluster_id, 0))
        if not least <= self._record.term <= terms + 1:
            raise Difference(f"{self._cluster_id}: session {least} was opened, the ledger has {self._record}")
        if self._record.term > terms:
            self._found.model.open_session(self._found.script.record(self._cluster_id), self._take())

    def _change_state(self, sequence: int) -> None:
        """The change of state after a step; after the last step it may still be missing."""
        change = self._found.script.state(self._cluster_id, sequence) if sequence else None
        if change is None or (sequence == self._record.durable_sequence and self._next == len(self._entries)):
            return
        model, reason = self._found.model, reason_of(sequence)
        if isinstance(change, ClusterState):
            model.set_cluster_state(self._cluster_id, change, reason, self._take())
        else:
            model.set_type_state(self._cluster_id, *change, reason, self._take())

    def _take(self) -> Iterator[Entry]:
        while self._next < len(self._entries):
            self._next += 1
            yield self._entries[self._next - 1]

    def _check_whole(self, batch: Sequence[Entry]) -> None:
        """A batch is committed in one piece: nothing of another one stands between its entries."""
        if batch and batch[-1].revision - batch[0].revision != len(batch) - 1:
            raise Difference(f"{self._cluster_id}: other entries stand between those of one batch: {batch}")


def digest(entry: Entry) -> int:
    """Tells entries apart by all that they have."""
    return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(entry))


def _check_once(entries: Sequence[Entry]) -> None:
    """No content comes twice, but for the few that are meant to."""
    contents = Counter(
        (entry.key, entry.content_hash)
        for entry in entries
        if isinstance(entry, ObjectEntry) and entry.type is not EntryType.DELETED and entry.content_hash >= REPEATED
    )
    if doubled := sum(contents.values()) - len(contents):
        first = contents.most_common(1)
        raise Difference(f"{doubled} entries are there twice, {first} for one", doubled=doubled)


def _check_same(what: str, found: Mapping[K, V], wanted: Mapping[K, V]) -> None:
    for key in [*wanted, *found]:
        if found.get(key) != wanted.get(key):
            raise Difference(f"{what}: the ledger has {found.get(key)}, not {wanted.get(key)}")


def _cluster_of(entry: Entry) -> ClusterID:
    return entry.key.cluster_id if isinstance(entry, ObjectEntry) else entry.cluster_id

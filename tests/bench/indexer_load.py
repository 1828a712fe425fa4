"""Scenario `indexer-queries`: the merged Indexer by itself, with made entries, without gRPC, ledger and disk.

    python -m tests.bench.indexer_load [--objects N] [--clusters N]

loads it in this process and prints what it holds and how long its parts take, as JSON; the scenario runs this as a
process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np

from federator.aggregator.ledger.indexed_state import IndexedState
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, ObjectEntry
from federator.aggregator.merge.axis import Axis, AxisKind, Codes, Rows
from federator.aggregator.merge.merged_indexer import MergedIndexer, row_numbers
from federator.aggregator.merge.selection import Selection
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from tests.bench.figure import FEDERATOR, Figure, WrongResult, percentile
from tests.bench.made_entries import APP, TEMPLATE, TIER, TYPES, VERSION, MadeClusters, cluster_id

OBJECTS = 1_000_000
CLUSTERS = 20
_ROUNDS = 200
_FEW_ROUNDS = 9
_CHANGES, _OF_COMMIT = 4_000, 40
_PAGE = 500
_MIB = 1 << 20


class Row(NamedTuple):
    """One figure of the process."""

    metric: str
    value: float
    unit: str


async def indexer_queries(objects: int, clusters: int = CLUSTERS) -> list[Figure]:
    """Runs the process and takes over its figures."""
    arguments = ("--objects", str(objects), "--clusters", str(clusters))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise WrongResult(f"{__name__} ended with exit code {process.returncode}")
    rows = msgspec.json.decode(output, type=list[Row])
    return [Figure(f"indexer of {objects} objects", FEDERATOR, *row) for row in rows]


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class Measurement:
    """One Indexer, and what was found of it."""

    def __init__(self, objects: int, clusters: int) -> None:
        self._made = MadeClusters(clusters, objects)
        self._indexer = MergedIndexer()
        self.rows: list[Row] = []

    def run(self) -> None:
        """Takes all figures."""
        self._load()
        self._selects()
        self._columns()
        self._changes()
        self._tell_parts("at the end")

    # ------------------------------------------------------------------------------------------------------ memory

    def _load(self) -> None:
        began = time.thread_time()
        for _ in self._made.present():
            pass
        making = time.thread_time() - began
        gc.collect()
        before = anonymous_bytes()
        began = time.thread_time()
        self._indexer.load(cast(Ledger, self._made))
        took = time.thread_time() - began
        gc.collect()
        self._tell("objects", len(self._made), "")
        self._tell("load, without making entries", took - making, "s")
        self._tell("load of an object", (took - making) / len(self._made) * 1e6, "us")
        self._tell("anonymous memory after load", (anonymous_bytes() - before) / _MIB, "MiB")
        self._tell("anonymous memory of an object", (anonymous_bytes() - before) / len(self._made), "bytes")
        if len(self._indexer) != len(self._made):
            raise WrongResult(f"{len(self._indexer)} objects instead of {len(self._made)}")
        self._before = before
        self._tell_parts("after load")

    def _tell_parts(self, when: str) -> None:
        parts = self._indexer.bytes()
        for part, number in parts.items():
            self._tell(f"{part}, {when}", number / _MIB, "MiB")
        self._tell(f"all parts, {when}", sum(parts.values()) / _MIB, "MiB")
        self._tell(f"anonymous memory, {when}", (anonymous_bytes() - self._before) / _MIB, "MiB")

    # ----------------------------------------------------------------------------------------------------- selecting

    def _selects(self) -> None:
        first = self._made.clusters[0]
        pods = first.counts["pods"]
        indexed = first.entry("pods", 0, 1).indexed
        version, app = indexed.labels[VERSION], indexed.labels[APP]
        everything = _selection()
        own = ClusterSelector.parse([cluster_id(0)])
        some = ClusterSelector.parse(["made-1*", "!made-13"])
        self._select("label and cluster and type", _selection("pods", clusters=own, labels=f"{VERSION}={version}"))
        self._select("app in some clusters", _selection(clusters=some, labels=f"{APP}={app}"))
        self._select(
            "two labels and a type", _selection("pods", labels=f"{VERSION}={version},{TIER} in (frontend,edge)")
        )
        self._select("notin", _selection("pods", labels=f"{VERSION} notin ({version},1.1.0),{TIER}!=batch"))
        self._select("type", _selection("pods"))
        self._select("namespace in all clusters", _selection(namespace="team-7"))
        self._select("name anywhere", _selection(name=app))
        self._select("node", _selection("pods", fields=f"spec.nodeName={first.node_of_pod(pods - 1)}"))
        self._select("owner", msgspec.structs.replace(everything, owner_uid=first.owner_of_pod(0)))
        self._select("uid", msgspec.structs.replace(everything, uid=first.entry("pods", 0, 1).uid))
        self._select("everything", everything)
        self._select("exists", _selection(labels=TEMPLATE))

    def _select(self, what: str, selection: Selection) -> None:
        self._tell(f"{what}: hits", len(self._indexer.select(selection)), "")
        self._time(f"{what}: select", lambda: self._indexer.select(selection))

    # ------------------------------------------------------------------------------------------------------- columns

    def _columns(self) -> None:
        axes = {
            "cluster": Axis(AxisKind.CLUSTER),
            "type": Axis(AxisKind.TYPE),
            "namespace": Axis(AxisKind.NAMESPACE),
            "node": Axis(AxisKind.NODE),
            "owner kind": Axis(AxisKind.OWNER_KIND),
            "label name": Axis(AxisKind.LABEL, APP),
            "label template": Axis(AxisKind.LABEL, TEMPLATE),
            "label version": Axis(AxisKind.LABEL, VERSION),
        }
        indexer = self._indexer
        everything = indexer.select(_selection())
        self._time("rows as an array", lambda: row_numbers(everything), few=True)
        rows = row_numbers(everything)
        for name, axis in axes.items():
            self._time_first(f"column {name}", partial(indexer.column, axis))
            column = indexer.column(axis)
            self._tell(f"column {name}: values", len(column.values), "")
            self._time(f"count by {name}", partial(self._count, axis, rows), few=True)
        self._time("count by cluster and type", self._count_by_cluster_and_type, few=True)
        for name, axis in {**axes, "name": Axis(AxisKind.NAME), "created": Axis(AxisKind.CREATED)}.items():
            self._time_first(f"ranks {name}", partial(indexer.ranks, axis))
        by_name = Axis(AxisKind.NAME)
        self._time("first page by name", lambda: _first_page(indexer.ranks(by_name), rows), few=True)
        pods = row_numbers(indexer.select(_selection("pods")))
        self._time("first page of pods by name", lambda: _first_page(indexer.ranks(by_name), pods), few=True)
        self._time("revisions of everything", lambda: indexer.revisions(rows), few=True)
        self._tell_parts("with columns and ranks")

    def _count(self, axis: Axis, rows: Rows) -> None:
        column = self._indexer.column(axis)
        np.bincount(column.codes[rows], minlength=len(column.values))

    def _count_by_cluster_and_type(self) -> None:
        rows = self._indexer.select(_selection())
        found = {
            (cluster, resource): rows.intersection_cardinality(self._indexer.rows_in(cluster, resource))
            for cluster in map(cluster_id, range(len(self._made.clusters)))
            for resource in TYPES.values()
        }
        if sum(found.values()) != len(self._made):
            raise WrongResult(f"{sum(found.values())} objects by cluster and type")

    # ------------------------------------------------------------------------------------------------------- changes

    def _changes(self) -> None:
        commits = list(self._commits())
        began = time.thread_time()
        for commit in commits:
            self._indexer.apply(commit)
        took = time.thread_time() - began
        self._tell("a change", took / (len(commits) * _OF_COMMIT) * 1e6, "us")
        self._time_first("ranks name, after changes", lambda: self._indexer.ranks(Axis(AxisKind.NAME)))
        self._time_first("column version, after changes", lambda: self._indexer.column(Axis(AxisKind.LABEL, VERSION)))

    def _commits(self) -> Iterator[Commit]:
        revision = self._made.revision
        for start in range(0, _CHANGES, _OF_COMMIT):
            cluster = self._made.clusters[start // _OF_COMMIT % len(self._made.clusters)]
            entries: list[ObjectEntry] = []
            before: dict[int, IndexedState] = {}
            pods = cluster.counts["pods"]
            for index in range(start // len(self._made.clusters), start // len(self._made.clusters) + _OF_COMMIT):
                revision += 1
                if index < pods:
                    entries.append(cluster.entry("pods", index, revision, previous=1))
                    before[revision] = cluster.entry("pods", index, 1).indexed
            yield Commit(revision, tuple(entries), before=before)

    # ------------------------------------------------------------------------------------------------------- figures

    def _tell(self, metric: str, value: float, unit: str) -> None:
        self.rows.append(Row(metric, value, unit))
        sys.stderr.write(f"{metric:<50}{value:>14,.3f} {unit}\n")

    def _time_first(self, what: str, call: Callable[[], object]) -> None:
        """Times a call that nobody has made before, and then as one that was."""
        began = time.thread_time()
        call()
        self._tell(f"{what}, first", (time.thread_time() - began) * 1e3, "ms")
        self._time(what, call, few=True)

    def _time(self, what: str, call: Callable[[], object], *, few: bool = False) -> None:
        times = []
        for _ in range(_FEW_ROUNDS if few else _ROUNDS):
            began = time.thread_time()
            call()
            times.append(time.thread_time() - began)
        self._tell(f"{what}, p50", percentile(times, 50) * 1e3, "ms")
        self._tell(f"{what}, {'most' if few else 'p99'}", percentile(times, 99) * 1e3, "ms")


def _selection(
    *resources: str,
    clusters: ClusterSelector = ClusterSelector(),  # noqa: B008 - immutable
    namespace: str = "",
    name: str = "",
    labels: str = "",
    fields: str = "",
) -> Selection:
    return Selection(
        frozenset(TYPES[resource] for resource in resources or TYPES),
        clusters,
        namespace,
        name,
        LabelSelector.parse(labels),
        FieldSelector.parse(fields),
    )


def _first_page(ranks: Codes, rows: Rows) -> Rows:
    """The rows of the first page, as a listing would take them."""
    keys = ranks[rows]
    if len(rows) <= _PAGE:
        return rows[np.argsort(keys)]
    first = np.argpartition(keys, _PAGE)[:_PAGE]
    return rows[first[np.argsort(keys[first])]]


def main() -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.indexer_load")
    parser.add_argument("--objects", type=int, default=OBJECTS, help=f"in all clusters together ({OBJECTS})")
    parser.add_argument("--clusters", type=int, default=CLUSTERS, help=f"({CLUSTERS})")
    options = parser.parse_args()
    measurement = Measurement(options.objects, options.clusters)
    measurement.run()
    sys.stdout.buffer.write(msgspec.json.encode(measurement.rows) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

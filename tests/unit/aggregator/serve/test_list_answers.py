"""List, against a model of plain dicts: orders, pages while the world moves, the past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from federator.aggregator.ledger.records import Put
from federator.aggregator.merge.scope import EVERYTHING, Located, Scope
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve import list_answers
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.list_answers import MAX_PAGE_SIZE, ListAnswers
from federator.api.cluster import ClusterID, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import ResourceType
from federator.errors import (
    FederatorError,
    InvalidInput,
    LedgerCorrupt,
    MalformedSelector,
    PageTokenExpired,
    PageTokenForeign,
    PageTokenMalformed,
    QueryTooCostly,
    RevisionExpired,
    UnknownCluster,
)
from federator.v1 import inventory_pb2, types_pb2
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, delete, put, raw_put

TYPES = {str(each.group_resource): each for each in (PODS, DEPLOYMENTS, NODES)}


class Answered(NamedTuple):
    """An answer, put together."""

    objects: list[inventory_pb2.InventoryObject]
    summary: inventory_pb2.ListSummary

    @property
    def keys(self) -> list[str]:
        return [str(_key(message)) for message in self.objects]


class Bed:
    """A federation, and who answers List from it.

    Attributes:
        history: by revision of each commit, everything that was present, by key.
        times: by revision, when it was committed.
    """

    def __init__(self, *, limits: QueryLimits | None = None) -> None:
        self.now = 1_800_000_000.0
        self.federation = Federation(clock=lambda: self.now, max_entries=1)
        indexer = self.federation.view.indexer
        indexer.fields.add(("spec", "weight"))
        indexer.fields.add(("spec", "odd"), frozenset({PODS.group_resource}))
        for _ in indexer.building_fields():
            pass
        self._limits = limits
        self._answers: ListAnswers | None = None
        self.restart()
        self._present: dict[str, Mapping[str, Any]] = {}
        self.history: dict[int, Mapping[str, Mapping[str, Any]]] = {}
        self.times: dict[int, float] = {}

    def restart(self) -> None:
        """Who answers forgets everything."""
        if self._answers is not None:
            self._answers.close()
        self.pins = Pins()
        view, ledger = self.federation.view, self.federation.ledger
        self.freshness = FreshnessAnswers(view, ledger)
        self.answers = self._answers = ListAnswers(
            view, ledger, self.pins, limits=self._limits, freshness=self.freshness, clock=lambda: self.now
        )

    async def start(self, *clusters: str) -> None:
        for cluster in clusters:
            await self.federation.join(cluster)
        self._note()

    async def commit(self, cluster: str, change: Put | Any, type: ResourceType = PODS) -> None:  # noqa: A002
        self.now += 1
        await self.federation.commit(cluster, change, type=type)
        key = str(ObjectKey.parse(f"{cluster}/{type.group}/{type.resource}/{change.namespace}/{change.name}"))
        if isinstance(change, Put):
            self._present[key] = {"type": str(type.group_resource), **msgspec.json.decode(_raw(change))}
        else:
            self._present.pop(key, None)
        self._note()

    def _note(self) -> None:
        revision = self.federation.ledger.revision
        self.history[revision] = dict(self._present)
        self.times[revision] = self.now

    async def ask(self, *resources: str, scope: Scope = EVERYTHING, **fields: Any) -> Answered:
        asked = request(*resources, **fields)
        objects: list[inventory_pb2.InventoryObject] = []
        summary = None
        async with aclosing(self.answers.answer(asked, scope)) as responses:
            async for encoded in responses:
                response = inventory_pb2.ListResponse.FromString(encoded)
                assert summary is None
                objects.extend(response.objects)
                summary = response.summary if response.HasField("summary") else None
        assert summary is not None
        return Answered(objects, summary)

    async def refused(self, kind: type[FederatorError], **fields: Any) -> Any:
        with pytest.raises(kind) as refusal:
            await self.ask(**fields)
        return refusal.value


def _raw(change: Put) -> bytes:
    return change.body


def _key(message: inventory_pb2.InventoryObject) -> ObjectKey:
    return ObjectKey.parse(
        f"{message.cluster_id}/{message.group}/{message.resource}/{message.namespace}/{message.name}"
    )


def request(
    resources: str = "pods,deployments,nodes",
    *,
    labels: str = "",
    fields: str = "",
    clusters: str = "",
    namespace: str = "",
    **others: Any,
) -> inventory_pb2.ListRequest:
    selection = inventory_pb2.Selection(
        resources=resources.split(","),
        clusters=clusters.split(",") if clusters else [],
        label_selector=labels,
        field_selector=fields,
        namespace=namespace,
    )
    return inventory_pb2.ListRequest(selection=selection, **others)


# ------------------------------------------------------------------------------------------------- against the model

TERMS: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "name": lambda key, _: key.split("/")[4],
    "namespace": lambda key, _: key.split("/")[3] or None,
    "cluster": lambda key, _: key.split("/")[0],
    "type": lambda _, body: body["type"],
    "created": lambda _, body: body["metadata"].get("creationTimestamp"),
    "metadata.labels.app": lambda _, body: body["metadata"]["labels"].get("app"),
    ".spec.nodeName": lambda _, body: body["spec"].get("nodeName"),
    "spec.weight": lambda _, body: WEIGHTS[body["spec"].get("weight")],
}
WEIGHTS: Mapping[str | None, float | None] = {None: None, "500m": 0.5, "1": 1, "1000m": 1, "1Ki": 1024}
TIE_BREAKERS = ("type", "cluster", "namespace", "name")

NAMES = ["a", "b", "b-1", "b.1", "é", "z"]
TIMES = [None, "2026-11-29T10:00:00Z", "2026-11-29T09:00:00Z", "1985-01-01T00:00:00Z"]


def made(
    name: str, namespace: str, app: str | None, node: str | None, weight: str | None, created: str | None, phase: str
) -> Put:
    body = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {} if app is None else {"app": app},
            **({"creationTimestamp": created} if created else {}),
        },
        "spec": {**({"nodeName": node} if node else {}), **({"weight": weight} if weight else {})},
        "status": {"phase": phase},
    }
    return raw_put(name, msgspec.json.encode(body), namespace=namespace)


def sorted_keys(present: Mapping[str, Mapping[str, Any]], order: str) -> list[str]:
    """Sorts the slow way: term by term from the last on, as sorting keeps what is equal in its order."""
    keys = list(present)
    terms = [term.strip() for term in order.split(",") if term.strip()]
    for term in reversed([*terms, *TIE_BREAKERS]):
        name, _, direction = term.partition(" ")
        value = TERMS["created" if name == "age" else name]
        of = {key: value(key, present[key]) for key in keys}
        having = [key for key in keys if of[key] is not None]
        having.sort(key=lambda key: of[key], reverse=(direction == "desc") is not (name == "age"))
        keys = having + [key for key in keys if of[key] is None]
    return keys


_terms = st.sampled_from([*TERMS, "age"])
_orders = st.lists(st.builds(lambda term, desc: term + desc, _terms, st.sampled_from(["", " desc"])), max_size=3).map(
    ",".join
)
_nodes = st.sampled_from([None, "n1", "n2"])
_changes = st.one_of(
    st.builds(
        made,
        st.sampled_from(NAMES),
        st.sampled_from(["", "shop", "shop-2"]),
        st.sampled_from([None, "", "web", "db"]),
        _nodes,
        st.sampled_from(list(WEIGHTS)),
        st.sampled_from(TIMES),
        st.sampled_from(["Running", "Failed"]),
    ),
    st.builds(
        lambda name, namespace: delete(name, namespace=namespace),
        st.sampled_from(NAMES),
        st.sampled_from(["", "shop", "shop-2"]),
    ),
)


class _Conditions(NamedTuple):
    resources: str
    labels: str
    fields: str
    clusters: str

    def holds(self, key: str, body: Mapping[str, Any]) -> bool:
        return (
            body["type"] in self.resources.split(",")
            and (not self.labels or body["metadata"]["labels"].get("app") == "web")
            and (not self.fields or body["status"]["phase"] == "Running")
            and (not self.clusters or key.startswith("b/"))
        )


_conditions = st.builds(
    _Conditions,
    st.sampled_from(["pods,deployments.apps,nodes", "pods,deployments.apps", "pods"]),
    st.sampled_from(["", "", "app=web"]),
    st.sampled_from(["", "", "status.phase=Running"]),
    st.sampled_from(["", "", "b"]),
)


def expected(bed: Bed, revision: int, conditions: _Conditions, order: str) -> list[str]:
    newest = max(each for each in bed.history if each <= revision)
    present = {key: body for key, body in bed.history[newest].items() if conditions.holds(key, body)}
    return sorted_keys(present, order)


class _Walk:
    """A list that is being read page by page."""

    def __init__(self, conditions: _Conditions, order: str, limit: int) -> None:
        self.conditions = conditions
        self.order = order
        self.limit = limit
        self.revision = 0
        self.keys: list[str] = []
        self.token = b""
        self.is_done = False

    async def step(self, bed: Bed, page_size: int) -> None:
        page = await bed.ask(
            **self.conditions._asdict(),
            order_by=self.order,
            limit=self.limit,
            page_size=page_size,
            page_token=self.token,
        )
        if self.revision:
            assert page.summary.revision == self.revision
        self.revision = page.summary.revision
        whole = expected(bed, self.revision, self.conditions, self.order)
        wanted = whole[: self.limit or None]
        assert page.summary.total == len(whole)
        assert page.keys == wanted[len(self.keys) : len(self.keys) + page_size]
        self.keys += page.keys
        self.token = page.summary.next_page_token
        self.is_done = not self.token
        assert self.is_done == (len(self.keys) >= len(wanted))


@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_pages_are_of_one_revision_whatever_happens_between_them(data: st.DataObject) -> None:
    async def run() -> None:
        bed = Bed()
        await bed.start("a", "b")

        async def change() -> None:
            await bed.commit(
                data.draw(st.sampled_from("ab")), data.draw(_changes), TYPES[data.draw(st.sampled_from(list(TYPES)))]
            )

        for _ in range(data.draw(st.integers(0, 25))):
            await change()
        walks = [
            _Walk(data.draw(_conditions), data.draw(_orders), data.draw(st.sampled_from([0, 0, 0, 3])))
            for _ in range(data.draw(st.integers(1, 2)))
        ]
        while left := [walk for walk in walks if not walk.is_done]:
            await data.draw(st.sampled_from(left)).step(bed, data.draw(st.integers(1, 6)))
            if data.draw(st.integers(0, 3)) == 0:
                bed.restart()
            for _ in range(data.draw(st.integers(0, 4))):
                await change()
            if data.draw(st.booleans()):
                read = [walk.revision for walk in walks if walk.token]
                await bed.federation.ledger.compact(min([*read, bed.federation.ledger.revision]))
        bed.answers.close()
        assert not bed.pins.readers

    asyncio.run(run())


@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_any_past_is_what_it_was(data: st.DataObject) -> None:
    async def run() -> None:
        bed = Bed()
        await bed.start("a", "b")
        for _ in range(data.draw(st.integers(0, 25))):
            await bed.commit(
                data.draw(st.sampled_from("ab")), data.draw(_changes), TYPES[data.draw(st.sampled_from(list(TYPES)))]
            )
        ledger = bed.federation.ledger
        revisions = sorted(bed.history)
        await ledger.compact(data.draw(st.sampled_from(revisions)))
        asked = data.draw(st.sampled_from([each for each in revisions if each >= ledger.oldest_revision]))
        conditions, order = data.draw(_conditions), data.draw(_orders)
        limit = data.draw(st.sampled_from([0, 0, 2]))
        at: dict[str, Any] = (
            {"at_revision": asked}
            if data.draw(st.booleans())
            else {"at_time_ms": int(bed.times[asked] * 1000) + data.draw(st.sampled_from([0, 0, 999]))}
        )
        if "at_time_ms" in at and at["at_time_ms"] > bed.now * 1000:
            return
        answer = await bed.ask(**conditions._asdict(), order_by=order, limit=limit, **at)
        whole = expected(bed, asked, conditions, order)
        assert answer.keys == whole[: limit or None]
        assert answer.summary.total == len(whole)
        for message in answer.objects:
            body = dict(bed.history[asked][str(_key(message))])
            del body["type"]
            assert msgspec.json.decode(message.body) == body
        assert (await bed.ask(**conditions._asdict(), count_only=True, **at)).summary.total == len(whole)

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------------ one by one


async def _bed(*names: str) -> Bed:
    bed = Bed()
    await bed.start("a", "b")
    for number, name in enumerate(names):
        await bed.commit("ab"[number % 2], put(name, status={"phase": "Running"}))
    return bed


async def test_a_token_is_of_its_request_and_ledger() -> None:
    bed, other = await _bed("x", "y", "z"), await _bed("x", "y", "z")
    first = await bed.ask("pods", page_size=1, order_by="name")
    token = first.summary.next_page_token
    assert first.keys == ["a//pods/shop/x"]
    for fields in ({"order_by": "age"}, {"limit": 2}, {"labels": "a"}, {"read_mask": ["spec"]}, {"count_only": True}):
        await bed.refused(PageTokenForeign, **{"resources": "pods", "order_by": "name", "page_token": token, **fields})
    await other.refused(PageTokenMalformed, resources="pods", page_size=1, order_by="name", page_token=token)
    for malformed in (b"x", token[:-1], token[:-4] + b"AAA=", b"A" * 88):
        await bed.refused(PageTokenMalformed, resources="pods", page_size=1, order_by="name", page_token=malformed)
    rest = await bed.ask("pods", order_by="name", page_token=token, limits=inventory_pb2.Limits(time_ms=5000))
    assert rest.keys == ["b//pods/shop/y", "a//pods/shop/z"]
    assert not rest.summary.next_page_token


async def test_a_token_whose_revision_is_compacted_has_expired() -> None:
    bed = await _bed("x", "y", "z")
    page = await bed.ask("pods", page_size=1)
    revision = page.summary.revision
    await bed.commit("a", put("x", labels={"v": "2"}))
    await bed.federation.ledger.compact(bed.federation.ledger.revision)
    expired = await bed.refused(
        PageTokenExpired, resources="pods", page_size=1, page_token=page.summary.next_page_token
    )
    assert (expired.revision, expired.oldest) == (revision, bed.federation.ledger.oldest_revision)


async def test_a_list_that_is_kept_pins_its_revision_until_its_last_page() -> None:
    bed = await _bed("w", "x", "y", "z")
    first = await bed.ask("pods", page_size=1)
    assert bed.pins.readers == 0
    second = await bed.ask("pods", page_size=1, page_token=first.summary.next_page_token)
    assert bed.pins.oldest() == first.summary.revision
    await bed.ask("pods", page_size=9, page_token=second.summary.next_page_token)
    assert bed.pins.readers == 0
    assert bed.answers.statistics()["page_list_hits"] == 1


async def test_an_answer_that_is_left_early_leaves_no_pin() -> None:
    bed = await _bed("x")
    async with aclosing(bed.answers.answer(request("pods"))) as responses:
        await anext(responses)
    assert bed.pins.readers == 0


async def test_the_past_that_is_gone_and_the_future() -> None:
    bed = await _bed("x", "y")
    ledger = bed.federation.ledger
    before = ledger.revision
    await bed.commit("a", put("x", labels={"v": "2"}))
    await ledger.compact(ledger.revision)
    expired = await bed.refused(RevisionExpired, at_revision=before)
    assert (expired.revision, expired.oldest) == (before, ledger.revision)
    await bed.refused(RevisionExpired, at_time_ms=1000)
    assert (await bed.refused(InvalidInput, at_revision=ledger.revision + 1)).field == "at_revision"
    assert (await bed.refused(InvalidInput, at_time_ms=int(bed.now * 1000) + 1)).field == "at_time_ms"


async def test_what_had_no_namespace_comes_last_in_the_past_too() -> None:
    bed = await _bed("x", "y")
    await bed.commit("a", put("n1", namespace=""), NODES)
    before = bed.federation.ledger.revision
    await bed.commit("a", put("n1", namespace="", labels={"v": "2"}), NODES)
    for at in (before, bed.federation.ledger.revision):
        for order in ("namespace", "namespace desc"):
            assert (await bed.ask(order_by=order, at_revision=at)).keys[-1] == "a//nodes//n1"


async def test_what_is_damaged_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = await _bed("x", "y", "z")
    ledger = bed.federation.ledger
    damaged = (await bed.ask("pods", order_by="name")).objects[1].revision
    entry = ledger.entry
    bed.restart()  # else it is still remembered

    def read(revision: int) -> Any:
        if revision == damaged:
            raise LedgerCorrupt("log", "damaged")
        return entry(revision)

    monkeypatch.setattr(ledger, "entry", read)
    asked = asyncio.create_task(bed.ask("pods", order_by="name"))
    await asyncio.sleep(0)
    assert not asked.done()  # nobody has said yet that something is missing
    await ledger.set_type_state(ClusterID("b"), PODS, TypeState.SYNCING, "damaged")
    answer = await asked
    assert (answer.keys, answer.summary.total) == (["a//pods/shop/x", "a//pods/shop/z"], 2)
    assert not answer.summary.complete
    (lacking,) = answer.summary.clusters[1].incomplete_types
    assert lacking.state == types_pb2.TYPE_STATE_SYNCING


async def test_damage_of_the_past_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = await _bed("x", "y")
    before = bed.federation.ledger.revision
    await bed.commit("a", put("x", labels={"v": "2"}))

    def read(_: int) -> Any:
        raise LedgerCorrupt("log", "damaged")

    monkeypatch.setattr(bed.federation.ledger, "entry", read)
    await bed.refused(LedgerCorrupt, at_revision=before)
    assert bed.pins.readers == 0


async def test_a_mask_keeps_what_is_asked_for() -> None:
    bed = await _bed("x")
    (message,) = (await bed.ask("pods", read_mask=["status.phase"])).objects
    assert msgspec.json.decode(message.body) == {
        "metadata": {"name": "x", "namespace": "shop"},
        "status": {"phase": "Running"},
    }
    assert message.uid == "uid-shop-x"


async def test_counting_reads_no_object() -> None:
    bed = await _bed("x", "y")
    answer = await bed.ask("pods", count_only=True, page_size=1)
    assert (answer.objects, answer.summary.total, answer.summary.next_page_token) == ([], 2, b"")


async def test_a_scan_says_that_it_is_one() -> None:
    bed = await _bed("x", "y")
    answer = await bed.ask("pods", fields="status.phase=Running")
    assert (answer.summary.scan.objects, answer.summary.total) == (2, 2)
    for indexed in ("metadata.name=x", "spec.weight!=1"):
        assert not (await bed.ask("pods", fields=indexed)).summary.HasField("scan")


async def test_a_scan_for_a_first_page_is_not_made_again_for_the_second() -> None:
    bed = await _bed("x", "y", "z")
    first = await bed.ask("pods", fields="status.phase=Running", page_size=1)
    second = await bed.ask("pods", fields="status.phase=Running", page_size=1, page_token=first.summary.next_page_token)
    assert bed.answers.statistics()["page_list_hits"] == 1
    assert second.keys == ["a//pods/shop/z"]


async def test_what_costs_too_much_is_refused() -> None:
    bed = await _bed("x", "y")
    for limits, name in (({"scanned_objects": 1}, "scanned_objects"), ({"memory_bytes": 64}, "memory_bytes")):
        error = await bed.refused(
            QueryTooCostly, resources="pods", fields="status.phase=Running", limits=inventory_pb2.Limits(**limits)
        )
        assert error.limit == name
    beyond = await bed.refused(InvalidInput, limits=inventory_pb2.Limits(time_ms=1_000_000))
    assert beyond.field == "limits.time_ms"


@pytest.mark.parametrize(
    ("fields", "kind", "field"),
    [
        ({"order_by": "colour"}, InvalidInput, "order_by"),
        ({"order_by": "spec.odd"}, InvalidInput, "order_by"),  # indexed of pods only
        ({"page_size": MAX_PAGE_SIZE + 1}, InvalidInput, "page_size"),
        ({"read_mask": ["a..b"]}, InvalidInput, "read_mask"),
        ({"labels": "a in ("}, MalformedSelector, "selection.label_selector"),
        ({"clusters": "nowhere"}, UnknownCluster, None),
    ],
)
async def test_refusals_name_the_field(fields: dict[str, Any], kind: type[FederatorError], field: str | None) -> None:
    bed = await _bed("x")
    assert getattr(await bed.refused(kind, **fields), "field", None) == field


async def test_freshness_has_every_type_that_is_not_absent() -> None:
    bed = await _bed("x")
    summary = (await bed.ask()).summary
    assert summary.complete
    assert [[of_type.resource for of_type in cluster.types] for cluster in summary.clusters] == [
        ["nodes", "pods", "deployments"]
    ] * 2
    assert {of_type.state for cluster in summary.clusters for of_type in cluster.types} == {types_pb2.TYPE_STATE_LIVE}
    assert bed.freshness.statistics()["answers_list_complete"] == 1


class _Shop2:
    """Sees one namespace."""

    def __init__(self, bed: Bed) -> None:
        self._indexer = bed.federation.view.indexer

    def rows(self, located: Located) -> BitMap:
        everything = BitMap().union(*(located.rows_in(*place) for place in self._indexer.objects()))
        return BitMap([row for row in everything if self.allows(self._indexer.key(row))])

    def allows(self, key: ObjectKey) -> bool:
        return key.namespace == "shop-2"


async def test_whoever_may_see_a_part_is_told_of_that_part_alone() -> None:
    bed = await _bed("x", "y")
    for name in ("x", "z"):
        await bed.commit("a", put(name, namespace="shop-2"))
    before = bed.federation.ledger.revision
    await bed.commit("a", put("x", namespace="shop-2", labels={"v": "2"}))
    await bed.commit("a", put("x", labels={"v": "2"}))
    scope = _Shop2(bed)
    moments: tuple[dict[str, Any], ...] = ({}, {"at_revision": before})
    for when in moments:
        answer = await bed.ask("pods", scope=scope, **when)
        assert (answer.keys, answer.summary.total) == (["a//pods/shop-2/x", "a//pods/shop-2/z"], 2)
    page = await bed.ask("pods", scope=scope, page_size=1)
    token = page.summary.next_page_token
    bed.restart()
    assert (await bed.ask("pods", scope=scope, page_size=1, page_token=token)).keys == ["a//pods/shop-2/z"]
    # With another's token: what follows in the list of whoever asks.
    assert (await bed.ask("pods", page_size=9, page_token=token)).keys == ["a//pods/shop-2/z", "b//pods/shop/y"]


# ----------------------------------------------------------------------------------------------- what is asked again


async def test_a_list_that_is_asked_again_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = await _bed("x", "y", "z")
    first = await bed.ask("pods", order_by="name")
    await bed.commit("b", put("y", labels={"v": "2"}))
    await bed.ask("pods", order_by="name desc", page_size=4)
    entries, read = bed.federation.ledger.entries, list[int]()

    def noted(revisions: Iterable[int]) -> Iterator[Any]:
        for revision, entry in entries(revisions):
            read.append(revision)
            yield revision, entry

    monkeypatch.setattr(bed.federation.ledger, "entries", noted)
    again = await bed.ask("pods", order_by="name")
    assert not read
    assert again.keys == first.keys
    changed = {_key(message).name for message in again.objects if message not in first.objects}
    assert changed == {"y"}
    masked = await bed.ask("pods", read_mask=["metadata.name"])
    assert not read
    assert {len(msgspec.json.decode(message.body)) for message in masked.objects} == {1}
    assert (await bed.ask("pods", order_by="name")).objects == again.objects  # a mask changes nothing that is kept


async def test_long_lists_and_later_pages_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_answers, "_SHORT", 2)
    bed = await _bed("x", "y", "z")
    await bed.ask("pods")
    assert bed.answers.statistics()["cached_states"] == 0
    page = await bed.ask("pods", page_size=2)
    assert bed.answers.statistics()["cached_states"] == 2
    await bed.ask("pods", page_size=2, page_token=page.summary.next_page_token)
    assert bed.answers.statistics()["cached_states"] == 2


async def test_a_kind_that_is_described_anew_is_told() -> None:
    bed = await _bed("x")
    assert {message.kind for message in (await bed.ask("pods")).objects} == {"Pod"}
    await bed.federation.join("a", (msgspec.structs.replace(PODS, kind="Hull"),))
    assert {message.kind for message in (await bed.ask("pods", clusters="a")).objects} == {"Hull"}

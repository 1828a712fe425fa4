"""SharedInformer end to end, against an apiserver in memory."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from structlog.typing import EventDict

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.backoff import Backoff
from federator.cache.indexer import NAMESPACE_INDEX, meta_namespace_index_func
from federator.cache.reflector_status import ReflectorState
from federator.cache.shared_informer import InformerStopped, SharedInformer
from federator.errors import InvalidInput, KubeStatusError
from tests.unit.cache.doubles import (
    FakeSource,
    RecordingHandler,
    RecordingSink,
    expired,
    pod,
    refused,
    running,
    settle,
)

pytestmark = pytest.mark.looptime


def informer_of(source: FakeSource, **options: object) -> SharedInformer:
    options.setdefault("backoff", Backoff(uniform=lambda: 0.0))
    return SharedInformer(source, name="pods", **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- state and handlers


async def test_ct02_only_legal_transitions_are_told() -> None:
    """CT02 Update, S3: a random history with cuts and compactions; per object add, update*, delete, in order."""
    source, known = FakeSource(), {}

    class Strict(RecordingHandler):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            assert obj.key not in known
            known[obj.key] = int(obj.resource_version)

        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            assert known[new.key] == int(old.resource_version) < int(new.resource_version)
            known[new.key] = int(new.resource_version)

        def on_delete(self, obj: KubeObject | Tombstone) -> None:
            del known[obj.key]

    informer = informer_of(source)
    registration = informer.add_event_handler(Strict())
    dice = random.Random(7)
    async with running(informer):
        for _ in range(2000):
            name = f"p{dice.randrange(10)}"
            if f"default/{name}" in source.objects and dice.random() < 0.3:
                source.remove(name)
            else:
                source.put(name)
            match dice.randrange(40):
                case 0:
                    source.cut()
                case 1:
                    source.compact()
                    source.cut(expired())
                case 2:
                    source.bookmark()
                case 3:
                    await asyncio.sleep(2.0)
                case 4:
                    await asyncio.sleep(0)
        await asyncio.sleep(100.0)  # the longest delay
        assert registration.failed == 0
        assert known == {obj.key: int(obj.resource_version) for obj in source.objects.values()}
        assert {obj.key: obj for obj in informer.indexer.list()} == source.objects


async def test_ct04_si09_events_and_store_are_transformed_deletes_too() -> None:
    """CT04 TransformingInformer, SI09 Transformer."""
    source, handler = FakeSource(pod("a", 1)), RecordingHandler()

    def redact(obj: KubeObject) -> KubeObject:
        return KubeObject(obj.namespace, obj.name, "redacted", obj.resource_version, b"{}")

    informer = informer_of(source, transform=redact)
    told: list[KubeObject] = []
    handler.on_add = lambda obj, is_initial: told.append(obj)  # type: ignore[method-assign]
    handler.on_update = lambda old, new: told.extend((old, new))  # type: ignore[method-assign]
    informer.add_event_handler(handler)
    async with running(informer):
        await settle()
        source.put("a")
        await settle()
        assert [obj.uid for obj in informer.indexer.list()] == ["redacted"]
        source.remove("a")
        await settle()
    assert [obj.uid for obj in told] == ["redacted"] * 3
    (gone,) = handler.deletes
    assert isinstance(gone, KubeObject)
    assert gone.uid == "redacted"


async def test_ct05_a_resync_never_transforms_again() -> None:
    """CT05 TransformingInformerRace."""
    source, transformed = FakeSource(pod("a", 1)), []

    def count(obj: KubeObject) -> KubeObject:
        transformed.append(obj.key)
        return obj

    informer = informer_of(source, transform=count, resync_period=1.0)
    handler = RecordingHandler()
    informer.add_event_handler(handler)
    async with running(informer):
        await asyncio.sleep(5.5)
    assert len(transformed) == 1
    assert len(handler.events) == 6


async def test_ct10_after_a_gap_what_changed_is_told_as_not_initial() -> None:
    """CT10 ResetWatch."""
    source, handler = FakeSource(pod("a", 1)), RecordingHandler()
    informer = informer_of(source)
    informer.add_event_handler(handler)
    async with running(informer):
        await settle()
        assert handler.take() == [("initial", "default/a", "1")]
        source.cut(expired())
        source.compact()
        source.put("a")
        source.put("b")
        await asyncio.sleep(1.0)
        assert handler.take() == [("update", "default/a", "1", "101"), ("add", "default/b", "102")]


async def test_bug20_after_an_expired_watch_each_change_is_told_exactly_once() -> None:
    """Bug 20: one add, one update, one delete by tombstone."""
    source, handler, sink = FakeSource(pod("a", 1), pod("b", 1)), RecordingHandler(), RecordingSink()
    informer = informer_of(source, sink=sink)
    informer.add_event_handler(handler)
    async with running(informer):
        await settle()
        handler.take()
        source.cut(refused())
        source.put("new")
        source.put("a")
        source.remove("b")
        source.compact()
        await asyncio.sleep(5.0)
    assert sorted(handler.take()) == [
        ("add", "default/new", "101"),
        ("delete", "default/b"),
        ("update", "default/a", "1", "102"),
    ]
    assert handler.deletes == [Tombstone("default/b", pod("b", 1))]
    assert [call[0] for call in sink.calls] == ["replaced_all", "replaced_all"]


@pytest.mark.parametrize("keeps_raw", [True, False])
async def test_a_relist_keeps_what_did_not_change_and_transforms_only_what_did(keeps_raw: bool) -> None:
    source, transformed = FakeSource(pod("a", 1), pod("b", 1)), []
    retain = None if keeps_raw else KubeObject.without_raw

    def transform(obj: KubeObject) -> KubeObject:
        transformed.append(obj.name)
        return msgspec.structs.replace(obj, content_hash=7)

    informer = informer_of(source, transform=transform, retain=retain)
    async with running(informer):
        await settle()
        before = {obj.name: obj for obj in informer.indexer.list()}
        source.cut(refused())
        source.put("b")
        source.compact()
        await asyncio.sleep(5.0)
        after = {obj.name: obj for obj in informer.indexer.list()}
    assert [obj.content_hash for obj in after.values()] == [7, 7]
    assert after["b"].resource_version == "101"
    assert (after["a"] is before["a"]) is keeps_raw
    # Without its bytes a stored object cannot stand for the listed one.
    assert transformed == ["a", "b", *(["b"] if keeps_raw else ["a", "b"])]


async def test_si01_indexes_added_while_running_are_complete_at_once() -> None:
    """SI01 Indexer."""
    source = FakeSource(pod("a", 1), pod("b", 1, namespace="other"))
    informer = informer_of(source)
    async with running(informer):
        await informer.wait_synced()
        informer.add_indexers({NAMESPACE_INDEX: meta_namespace_index_func})
        assert informer.indexer.index_keys(NAMESPACE_INDEX, "other") == ["other/b"]
        source.put("c", namespace="other")
        await settle()
        assert sorted(informer.indexer.index_keys(NAMESPACE_INDEX, "other")) == ["other/b", "other/c"]
        with pytest.raises(InvalidInput):
            informer.add_indexers({NAMESPACE_INDEX: meta_namespace_index_func})


async def test_si05_handlers_may_be_added_while_it_starts() -> None:
    """SI05 InitializationRace, H2: at any moment of the start a handler is told of everything exactly once."""
    source = FakeSource(*(pod(f"p{n}", n + 1) for n in range(50)))
    informer = informer_of(source)
    handlers = []
    async with running(informer):
        for _ in range(40):
            handlers.append(RecordingHandler())
            informer.add_event_handler(handlers[-1])
            await asyncio.sleep(0)
        await settle()
    expected = sorted(("initial", obj.key, obj.resource_version) for obj in source.objects.values())
    for handler in handlers:
        assert sorted(handler.events) == expected


async def test_si06_after_a_disruption_only_resyncing_handlers_are_told_what_did_not_change() -> None:
    """SI06 WatchDisruption, H5."""
    source = FakeSource(pod("a", 1), pod("b", 1))
    informer = informer_of(source, resync_period=1.0)
    without, resyncing = RecordingHandler(), RecordingHandler()
    informer.add_event_handler(without, resync_period=0)
    informer.add_event_handler(resyncing)
    async with running(informer):
        await asyncio.sleep(1.601)
        without.take()
        resyncing.take()
        source.put("a")
        source.compact()
        source.cut(expired())
        await asyncio.sleep(0.9)
        assert without.take() == [("update", "default/a", "1", "101")]
        told = resyncing.take()
        assert ("update", "default/a", "1", "101") in told
        assert ("update", "default/b", "1", "1") in told


@pytest.mark.parametrize(("periods", "expected"), [((0, 2, 3), (0, 2, 3)), ((0.2, 1, 5), (1, 1, 5))])
async def test_si02_each_handler_is_resynced_at_its_period(
    periods: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    """SI02 ListenerResyncPeriods, H6: never more often than asked, at least a second, 0 for never."""
    source = FakeSource(pod("a", 1))
    informer = informer_of(source, resync_period=12 * 3600)
    times: dict[int, list[float]] = {n: [] for n in range(len(periods))}
    for n, period in enumerate(periods):

        class Timing(RecordingHandler):
            def on_update(self, old: KubeObject, new: KubeObject, n: int = n) -> None:
                times[n].append(asyncio.get_running_loop().time())

        informer.add_event_handler(Timing(), resync_period=period)
    async with running(informer):
        await asyncio.sleep(31)
    for n, period in enumerate(expected):
        gaps = [b - a for a, b in zip(times[n], times[n][1:], strict=False)]
        assert bool(gaps) is bool(period)
        assert all(period - 0.001 <= gap <= 2 * period for gap in gaps)
    assert (source.lists, source.watches) == (0, 1)


async def test_si04_the_check_period_follows_the_smallest_request_before_the_start_only() -> None:
    """SI04 ResyncCheckPeriod, H6: 12 h, 1 min, 55 s; once it runs, 5 s is raised."""

    def periods(informer: SharedInformer) -> list[object]:
        handlers = informer.statistics()["handlers"]
        assert isinstance(handlers, dict)
        return [statistics["resync_period"] for statistics in handlers.values()]

    informer = informer_of(FakeSource(), resync_period=12 * 3600)
    informer.add_event_handler(RecordingHandler())
    informer.add_event_handler(RecordingHandler(), resync_period=60)
    assert periods(informer) == [43200, 60]
    informer.add_event_handler(RecordingHandler(), resync_period=55)
    assert periods(informer) == [43200, 60, 55]
    async with running(informer):
        await settle()
        informer.add_event_handler(RecordingHandler(), resync_period=5)
        assert periods(informer) == [43200, 60, 55, 55]


async def test_h6_without_a_period_of_its_own_an_informer_resyncs_nobody() -> None:
    informer, handler = informer_of(FakeSource(pod("a", 1))), RecordingHandler()
    informer.add_event_handler(handler, resync_period=2)
    async with running(informer):
        await asyncio.sleep(10)
    assert handler.events == [("initial", "default/a", "1")]


async def test_si07_list_errors_reach_the_error_handler() -> None:
    """SI07 ErrorHandling: one handler, the last set wins, and only before the start."""
    source = FakeSource()
    source.failure = KubeStatusError(403, "Forbidden", "no")
    informer = informer_of(source)
    errors: list[Exception] = []
    informer.set_watch_error_handler(lambda error: None)
    informer.set_watch_error_handler(errors.append)
    async with running(informer):
        await asyncio.sleep(1.0)
        assert errors == [source.failure, source.failure]
        assert informer.status().error is source.failure
        with pytest.raises(RuntimeError):
            informer.set_watch_error_handler(errors.append)


# ---------------------------------------------------------------- registrations


async def test_si10_a_removed_handler_is_told_nothing_more_the_others_are() -> None:
    """SI10 RemoveHandler, SI22: without waiting."""
    source = FakeSource()
    informer = informer_of(source)
    first, second = RecordingHandler(), RecordingHandler()
    registration = informer.add_event_handler(first)
    informer.add_event_handler(second)
    async with running(informer):
        await settle()
        informer.remove_event_handler(registration)
        source.put("a")
        await settle()
    assert first.events == []
    assert second.events == [("add", "default/a", "101")]


async def test_si11_a_foreign_registration_is_ignored() -> None:
    """SI11 RemoveForeignHandler."""
    source, handler = FakeSource(), RecordingHandler()
    mine, other = informer_of(source), informer_of(source)
    mine.add_event_handler(handler)
    foreign = other.add_event_handler(RecordingHandler())
    mine.remove_event_handler(foreign)
    async with running(mine):
        await settle()
        source.put("a")
        await settle()
    assert len(handler.events) == 1


async def test_si12_si13_a_handler_may_be_added_twice_and_each_is_removed_once() -> None:
    """SI12 MultipleRegistration, SI13 RemovingRemoved."""
    source, handler = FakeSource(), RecordingHandler()
    informer = informer_of(source)
    first = informer.add_event_handler(handler)
    informer.add_event_handler(handler)
    async with running(informer):
        await settle()
        source.put("a")
        await settle()
        assert len(handler.take()) == 2
        informer.remove_event_handler(first)
        informer.remove_event_handler(first)
        source.put("b")
        await settle()
        assert len(handler.take()) == 1


async def test_si14_handlers_come_and_go_under_load() -> None:
    """SI14 HandlerAbuse: every handler ends up with every object, or is gone."""
    source = FakeSource()
    informer = informer_of(source)
    dice = random.Random(14)
    kept: list[RecordingHandler] = []

    async def abuse() -> None:
        for _ in range(5):
            handler = RecordingHandler()
            registration = informer.add_event_handler(handler)
            await asyncio.sleep(dice.random())
            if dice.random() < 0.7:
                informer.remove_event_handler(registration)
                handler.take()
            else:
                kept.append(handler)

    async def write() -> None:
        for n in range(100):
            source.put(f"p{n % 20}")
            await asyncio.sleep(0.05)

    async with running(informer):
        await asyncio.gather(write(), *(abuse() for _ in range(10)))
        await settle()
    assert kept
    final = {obj.key: obj.resource_version for obj in source.objects.values()}
    for handler in kept:
        assert {event[1]: event[-1] for event in handler.events} == final


async def test_si15_states_of_a_life(logs: list[EventDict]) -> None:
    """SI15 State, H8: a second run is refused with a warning."""
    informer = informer_of(FakeSource())
    assert not informer.is_stopped
    async with running(informer):
        await settle()
        assert not informer.is_stopped
        await informer.run()
        assert [entry["log_level"] for entry in logs if "not running it again" in entry["event"]] == ["warning"]
        assert informer.status().state is ReflectorState.WATCHING
    assert informer.is_stopped


async def test_si16_si17_after_the_stop_adding_is_refused_removing_is_not() -> None:
    """SI16 AddOnStopped, SI17 RemoveOnStopped; indexers too."""
    informer = informer_of(FakeSource())
    registration = informer.add_event_handler(RecordingHandler())
    async with running(informer):
        await settle()
    with pytest.raises(InformerStopped):
        informer.add_event_handler(RecordingHandler())
    with pytest.raises(InformerStopped):
        informer.add_indexers({})
    informer.remove_event_handler(registration)


async def test_si18_a_handler_may_remove_itself() -> None:
    """SI18 RemoveWhileActive."""
    source = FakeSource(pod("a", 1), pod("b", 1))
    informer = informer_of(source)
    handler = RecordingHandler(lambda key: informer.remove_event_handler(registration))
    registration = informer.add_event_handler(handler)
    async with running(informer):
        await settle()
    assert handler.events == [("initial", "default/a", "1")]


async def test_si19_a_late_handler_syncs_on_its_own() -> None:
    """SI19 AddWhileActive, H2, H3: initial adds first, then what is new; false until they are processed."""
    source = FakeSource(pod("a", 1))
    informer = informer_of(source)
    early = informer.add_event_handler(RecordingHandler())
    assert not early.has_synced()
    async with running(informer):
        await early.wait_synced()
        handler = RecordingHandler()
        late = informer.add_event_handler(handler)
        assert early.has_synced()
        assert not late.has_synced()
        source.put("b")
        await late.wait_synced()
        assert late.has_synced()
        await settle()
        assert handler.events == [("initial", "default/a", "1"), ("add", "default/b", "101")]


async def test_h3_a_handler_without_objects_syncs_with_the_informer() -> None:
    source = FakeSource()
    source.failure = refused()
    informer = informer_of(source)
    registration = informer.add_event_handler(RecordingHandler())
    async with running(informer):
        await settle()
        assert not registration.has_synced()
        source.failure = None
        await registration.wait_synced()
        assert informer.has_synced()


async def test_bug34_a_handler_that_raises_on_initial_objects_still_syncs() -> None:
    """Bug 34: synced, one failure counted, others unaffected."""

    class Picky(RecordingHandler):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            super().on_add(obj, is_initial)
            if obj.name == "bad":
                raise ValueError("bad")

    picky, fine = Picky(), RecordingHandler()
    informer = informer_of(FakeSource(pod("bad", 1), pod("good", 1)))
    of_picky, of_fine = informer.add_event_handler(picky), informer.add_event_handler(fine)
    async with running(informer):
        await of_fine.wait_synced()
        assert not of_picky.has_synced()
        await of_picky.wait_synced()
        assert (of_picky.failed, of_fine.failed) == (1, 0)
        assert picky.events == fine.events


async def test_bug35_the_store_stays_up_to_date_whatever_a_handler_does() -> None:
    """Bug 35, H1: a handler that never returns keeps neither the store nor the others."""

    class Stuck(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            await asyncio.sleep(1e9)

    source, other = FakeSource(pod("a", 1)), RecordingHandler()
    informer = informer_of(source, handler_buffer_size=10)
    stuck = informer.add_event_handler(Stuck())
    informer.add_event_handler(other)
    async with running(informer):
        await settle()
        for _ in range(200):
            source.put("a")
            source.put("b")
            await asyncio.sleep(0)
        await settle()
        assert {obj.name: obj.resource_version for obj in informer.indexer.list()} == {"a": "499", "b": "500"}
        pending = stuck.statistics()["pending"]
        assert isinstance(pending, int)
        assert pending <= 12
        assert len(other.events) == 401


# ---------------------------------------------------------------- waiting and stopping


async def test_si20_stopping_leaves_no_task_wherever_it_is() -> None:
    """SI20 Shutdown; the fixture looks for what is left. Handlers are cancelled where they wait."""
    cancelled: list[str] = []

    class Waiting(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            try:
                await asyncio.sleep(1e9)
            except asyncio.CancelledError:
                cancelled.append(obj.key)
                raise

    for failure in (None, refused()):
        source = FakeSource(pod("a", 1))
        source.failure = failure
        informer = informer_of(source)
        informer.add_event_handler(Waiting())
        async with running(informer):
            await settle()
    assert cancelled == ["default/a"]


async def test_a_handler_that_is_being_stopped_cannot_add_another() -> None:
    refusals: list[InformerStopped] = []

    class Clinging(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            try:
                await asyncio.sleep(1e9)
            finally:
                try:
                    informer.add_event_handler(RecordingHandler())
                except InformerStopped as refusal:
                    refusals.append(refusal)

    informer = informer_of(FakeSource(pod("a", 1)))
    informer.add_event_handler(Clinging())
    async with running(informer):
        await settle()
    assert len(refusals) == 1


async def test_who_waits_for_a_sync_that_cannot_come_any_more_is_told() -> None:
    source = FakeSource()
    source.failure = refused()
    informer = informer_of(source)
    registration = informer.add_event_handler(RecordingHandler())
    async with running(informer):
        waiting = [asyncio.create_task(waiter.wait_synced()) for waiter in (informer, registration)]
        await settle()
    assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [InformerStopped] * 2


async def test_who_waits_for_a_handler_that_is_removed_is_told() -> None:
    class Stuck(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            await asyncio.sleep(1e9)

    informer = informer_of(FakeSource(pod("a", 1)))
    registration = informer.add_event_handler(Stuck())
    async with running(informer):
        waiting = asyncio.create_task(registration.wait_synced())
        await settle()
        informer.remove_event_handler(registration)
        with pytest.raises(InformerStopped):
            await waiting


async def test_ct03_a_failing_sink_ends_the_run_loudly_and_leaves_no_task() -> None:
    """CT03 PanicPropagated."""

    class Failing(RecordingSink):
        def bookmark(self, resource_version: str) -> None:
            raise ZeroDivisionError

    source = FakeSource(pod("a", 1))
    informer = informer_of(source, sink=Failing())
    informer.add_event_handler(RecordingHandler())
    run = asyncio.create_task(informer.run())
    await settle()
    source.bookmark()
    with pytest.raises(BaseExceptionGroup) as raised:
        await run
    assert raised.group_contains(ZeroDivisionError)
    assert informer.is_stopped


async def test_a_requested_relist_reaches_the_sink_as_one_replacement() -> None:
    sink = RecordingSink()
    informer = informer_of(FakeSource(pod("a", 1)), sink=sink)
    async with running(informer):
        await informer.wait_synced()
        informer.request_relist()
        await settle()
    assert sink.calls == [("replaced_all", "100", ["default/a"])] * 2


async def test_a_slow_store_holds_up_the_reading_not_the_memory() -> None:
    """Hop 2 of the flow: the Reflector waits while the backlog is full."""
    source = FakeSource()
    informer = informer_of(source, max_backlog=10)
    async with running(informer):
        await informer.wait_synced()
        await settle()
        for n in range(500):
            source.put(f"p{n}")
        await settle()
        assert len(informer.indexer.list()) == 500
        queue = informer.statistics()["queue"]
        assert isinstance(queue, dict)
        assert queue["producer_waits"] > 0
        assert queue["backlog"] == 0


# ---------------------------------------------------------------- never run


@pytest.mark.parametrize("how", ["closed", "cancelled before its first step"])
async def test_who_waits_for_an_informer_that_never_ran_is_told(how: str) -> None:
    informer = informer_of(FakeSource())
    registration = informer.add_event_handler(RecordingHandler())
    waiting = [asyncio.create_task(each.wait_synced()) for each in (informer, registration)]
    if how != "closed":
        run = asyncio.create_task(informer.run())
        run.cancel()
        await asyncio.wait([run])
    await settle()
    assert not any(task.done() for task in waiting)
    informer.close()
    informer.close()
    for task in waiting:
        with pytest.raises(InformerStopped):
            await task
    assert informer.is_stopped
    with pytest.raises(InformerStopped):
        informer.add_event_handler(RecordingHandler())


async def test_closing_a_running_informer_does_nothing() -> None:
    informer = informer_of(FakeSource(pod("a", 90)))
    async with running(informer):
        await settle()
        informer.close()
        await informer.wait_synced()
        assert not informer.is_stopped


async def test_the_status_is_told_in_ages() -> None:
    source = FakeSource(pod("a", 90))
    informer = informer_of(source)
    never = informer.statistics()["status"]
    assert never == {"state": "STARTING", "last_proof_age": None, "failing_for": None, "attempts": 0, "error": ""}
    async with running(informer):
        await informer.wait_synced()
        source.bookmark()
        await asyncio.sleep(7)
        status = informer.statistics()["status"]
    assert status == {"state": "WATCHING", "last_proof_age": 7.0, "failing_for": None, "attempts": 0, "error": ""}

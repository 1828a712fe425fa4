"""What client-go's shared informer tests check of the informer itself, over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from contextlib import suppress

import msgspec
import pytest
from structlog.typing import EventDict

from federator.api.object import KubeObject
from federator.cache import HandlerRegistration, InformerStopped
from federator.cache.processor import ProcessorListener
from federator.cache.reflector_status import ReflectorState
from federator.errors import InvalidInput, KubeStatusError
from federator.kube import MemberClient
from federator.testing import FakeApiServer, faults
from tests.conformance.informer_rig import (
    Blocking,
    Picture,
    followed,
    informer_of,
    names,
    resync_periods,
    states,
    states_of,
    until,
)
from tests.conformance.rig import LONG, settle
from tests.scale import scale, scaled
from tests.unit.cache.doubles import RecordingHandler, running

pytestmark = pytest.mark.looptime


def label_names(obj: KubeObject) -> Collection[str]:
    return obj.meta().labels or {}


# ---------------------------------------------------------------- the Indexer


async def test_si01_indexes_hold_late_objects_and_late_indexes_hold_all(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI01: an index added while it runs is complete at once; a name that is taken is an error."""

    def under(index: str, value: str) -> list[str]:
        return sorted(obj.name for obj in informer.indexer.by_index(index, value))

    server.put("configmaps", "one", labels={"a": "1", "b": "1"})
    server.put("configmaps", "two", labels={"b": "2"})
    informer = informer_of(client, resync_period=1.0)
    informer.add_indexers({"labels": label_names})
    async with running(informer):
        await informer.wait_synced()
        assert under("labels", "a") == ["one"]
        server.put("configmaps", "three", labels={"a": "2"})
        await followed(server, informer)
        assert under("labels", "a") == ["one", "three"]
        informer.add_indexers({"labels again": label_names})
        assert under("labels again", "a") == ["one", "three"]
        server.put("configmaps", "one", labels={"c": "1"})
        server.delete("configmaps", "two")
        await followed(server, informer)
        for index in ("labels", "labels again"):
            assert sorted(informer.indexer.list_index_func_values(index)) == ["a", "c"]
            assert (under(index, "a"), under(index, "b")) == (["three"], [])
        with pytest.raises(InvalidInput):
            informer.add_indexers({"labels": label_names})
        with pytest.raises(InvalidInput):
            informer.indexer.by_index("no such index", "a")


# ---------------------------------------------------------------- resyncs


async def resyncs_come_at_their_periods(server: FakeApiServer, client: MemberClient) -> None:
    """Handlers with 0, 2 and 3 s: after 2 s only the second is resynced, a second later only the third."""
    server.put("configmaps", "one")
    server.put("configmaps", "two")
    informer = informer_of(client, resync_period=1.0)
    never, each_two, each_three = handlers = [RecordingHandler() for _ in range(3)]
    for handler, period in zip(handlers, (0, 2, 3), strict=True):
        informer.add_event_handler(handler, resync_period=period)
    started = asyncio.get_running_loop().time()
    async with running(informer):
        await until(lambda: all(len(handler.events) == 2 for handler in handlers))
        assert [{event for event, *_ in handler.take()} for handler in handlers] == [{"initial"}] * 3

        async def told_at(seconds: float) -> list[int]:
            await asyncio.sleep(started + seconds + 0.5 - asyncio.get_running_loop().time())
            return [len(handler.take()) for handler in handlers]

        assert await told_at(2) == [0, 2, 0]
        assert await told_at(3) == [0, 0, 2]
        assert await told_at(5) == [0, 2, 0]
        each_two.events, each_three.events = [], []
        await told_at(60)
        assert len(server.requests.of("*", "configmaps")) == 1, "a resync asks the server nothing"
        assert never.events == []


async def test_si02_each_handler_is_resynced_at_its_period(server: FakeApiServer, client: MemberClient) -> None:
    """SI02."""
    await resyncs_come_at_their_periods(server, client)


async def test_si03_also_where_handlers_run_only_after_the_first_distribution(
    server: FakeApiServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SI03: what is distributed before waits for them, and nothing locks up."""
    at_once = ProcessorListener.run

    async def late(listener: ProcessorListener) -> None:
        await asyncio.sleep(1.0)
        await at_once(listener)

    monkeypatch.setattr(ProcessorListener, "run", late)
    await resyncs_come_at_their_periods(server, client)


@pytest.mark.parametrize(
    ("requested", "first_resyncs"),
    [
        ([0], [None]),
        ([0, 60], [None, 60]),
        # Looked at every 55 s, one that asks for 60 gets them at 110: never sooner than asked.
        ([0, 60, 55], [None, 110, 55]),
        ([0, 60, 55, 5], [None, 60, 55, 5]),
    ],
    ids=["12 h", "1 min", "55 s", "5 s"],
)
async def test_si04_each_smaller_request_before_the_start_lowers_how_often_is_looked(
    server: FakeApiServer, client: MemberClient, requested: list[float], first_resyncs: list[float | None]
) -> None:
    """SI04: for all handlers, while the period of each stays what it asked for."""
    server.put("configmaps", "one")
    informer = informer_of(client, resync_period=12 * 3600)
    first: list[float | None] = [None] * len(requested)
    started = asyncio.get_running_loop().time()

    class Timing(RecordingHandler):
        def __init__(self, number: int) -> None:
            super().__init__()
            self._number = number

        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            if first[self._number] is None:
                first[self._number] = asyncio.get_running_loop().time() - started

    for number, period in enumerate(requested):
        informer.add_event_handler(Timing(number), resync_period=period)
    assert resync_periods(informer) == requested
    async with running(informer):
        await asyncio.sleep(150)
        assert [seconds and pytest.approx(seconds, abs=0.9) for seconds in first_resyncs] == first


async def test_si04_once_it_runs_a_smaller_request_is_raised(
    server: FakeApiServer, client: MemberClient, logs: list[EventDict]
) -> None:
    """SI04: to what is looked at by then, with a warning; a larger one is granted, and less than a second never."""
    informer = informer_of(client, resync_period=12 * 3600)
    informer.add_event_handler(RecordingHandler(), resync_period=55)
    async with running(informer):
        await informer.wait_synced()
        informer.add_event_handler(RecordingHandler(), resync_period=5)
        informer.add_event_handler(RecordingHandler(), resync_period=60)
        assert resync_periods(informer) == [55, 55, 60]
    assert [entry["asked"] for entry in logs if entry["log_level"] == "warning"] == [5]
    least = informer_of(client, resync_period=12 * 3600)
    least.add_event_handler(RecordingHandler(), resync_period=0.2)
    assert resync_periods(least) == [1.0]
    without = informer_of(client)
    without.add_event_handler(RecordingHandler(), resync_period=5)
    assert resync_periods(without) == [0]


# ---------------------------------------------------------------- starting


async def test_si05_a_handler_added_while_it_starts_and_stops_does_no_harm(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI05: whatever the moment; it is told of each object at most once."""
    server.put("configmaps", "one")
    told = set[int]()
    for turns in [*range(20), 50, 100, 200]:
        informer, handler = informer_of(client, resync_period=1.0), Picture()
        run = asyncio.create_task(informer.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        registration = informer.add_event_handler(handler)
        for _ in range(turns):
            await asyncio.sleep(0)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
        assert registration.failed == 0
        told.add(len(handler.events))
    assert told == {0, 1}


async def test_si05_handlers_added_at_any_moment_of_the_start_are_told_of_all(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI05: each of everything, exactly once, and as initial."""
    for number in range(50):
        server.put("configmaps", f"c{number}")
    informer, handlers = informer_of(client), list[Picture]()
    async with running(informer):
        while len(handlers) < 10 or not informer.has_synced():
            handlers.append(Picture())
            registration = informer.add_event_handler(handlers[-1])
            await asyncio.sleep(0)
        after_sync = Picture()
        handlers.append(after_sync)
        registration = informer.add_event_handler(after_sync)
        await registration.wait_synced()
        await settle()
    expected = sorted(("initial", f"default/{name}", version) for name, version in states_of(server).items())
    for handler in handlers:
        assert sorted(handler.events) == expected


async def test_si08_what_is_set_while_it_starts_is_taken_or_refused(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI08: an error handler races with the start; the last that was not refused gets the errors.

    A transform cannot race: it is given when the informer is made.
    """
    server.fail("*", "configmaps", faults.HttpError(403), times=None)
    informer, heard, refused = informer_of(client), list[int](), list[int]()

    async def set_again_and_again() -> None:
        for number in range(20):
            try:
                informer.set_watch_error_handler(lambda error, number=number: heard.append(number))  # type: ignore[misc]
            except RuntimeError:
                refused.append(number)
            await asyncio.sleep(0)

    setting = asyncio.create_task(set_again_and_again())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with running(informer):
        await setting
        await until(lambda: len(heard) >= 2)
    assert refused
    assert refused == list(range(refused[0], 20))
    assert set(heard) == {refused[0] - 1}


# ---------------------------------------------------------------- disruptions and failures


async def test_si06_after_a_disruption_only_who_resyncs_is_told_of_what_did_not_change(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI06: the others of what changed or is new; 1.601 s after the end of the watch all is told."""
    server.put("configmaps", "one")
    server.put("configmaps", "two", data={"a": "1"})
    informer = informer_of(client, resync_period=1.0)
    without, resyncing = Picture(), Picture()
    registrations = [
        informer.add_event_handler(without, resync_period=0),
        informer.add_event_handler(resyncing, resync_period=1),
    ]
    async with running(informer):
        await until(lambda: len(without.events) == len(resyncing.events) == 2)
        watch, before = await server.wait_for_watch(), states_of(server)
        with server.losing_events():
            server.put("configmaps", "three")
            server.put("configmaps", "two", data={"a": "2"})
        await settle()
        assert [names(handler) for handler in (without, resyncing)] == [["one", "two"]] * 2
        await asyncio.sleep(1.0)
        resyncing.take()
        server.compact()
        watch.error(410)
        await asyncio.sleep(1.601)
        now = states_of(server)
        assert sorted(without.take()) == [
            ("add", "default/three", now["three"]),
            ("update", "default/two", before["two"], now["two"]),
        ]
        assert names(resyncing) == ["one", "three", "two"]
        assert resyncing.objects == without.objects == now
        assert [registration.failed for registration in registrations] == [0, 0]


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_si07_what_fails_a_list_reaches_the_error_handler(
    server: FakeApiServer, client: MemberClient, use_watch_list: bool
) -> None:
    """SI07: each failed round does; nothing else learns of it, and it is in the status."""
    server.put("configmaps", "one")
    server.fail("*", "configmaps", faults.HttpError(403, message="Access Denied"), times=None)
    informer, errors = informer_of(client, use_watch_list=use_watch_list), list[Exception]()
    informer.set_watch_error_handler(errors.append)
    registration = informer.add_event_handler(RecordingHandler())
    async with running(informer):
        await asyncio.sleep(3.0)  # at 0 s, 0.8 s and 2.4 s
        assert len(errors) == 3
        assert all(isinstance(error, KubeStatusError) and "Access Denied" in str(error) for error in errors)
        assert informer.status().error is errors[-1]
        assert not registration.has_synced()
        server.heal()
        await registration.wait_synced()
        await server.wait_for_watch()
        await settle()
        assert informer.status().state is ReflectorState.WATCHING


async def test_after_a_restore_a_version_that_names_another_state_is_told(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI06 with a cluster restored from a backup: what the Indexer takes over, handlers are told, resyncs or not."""
    server.put("configmaps", "one", data={"a": "1"})
    backup = server.snapshot()
    lost = server.put("configmaps", "one", data={"a": "2"})
    server.put("configmaps", "two")
    informer, told = informer_of(client), list[bytes]()

    class Remembering(RecordingHandler):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            told.append(obj.raw)

        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            told.append(new.raw)

    informer.add_event_handler(Remembering())
    async with running(informer):
        await followed(server, informer)
        server.restore(backup, cut_watches=True)
        restored = server.put("configmaps", "one", data={"a": "3"})
        assert restored["metadata"]["resourceVersion"] == lost["metadata"]["resourceVersion"]
        await asyncio.sleep(1000.0)  # until a watch that waits for a version of the future has ended
        assert informer.epoch == 1
        (held,) = informer.indexer.list()
        assert b'"3"' in held.raw
        assert told[-1] == held.raw


# ---------------------------------------------------------------- transforms


async def test_si09_the_store_and_all_that_is_told_are_transformed(server: FakeApiServer, client: MemberClient) -> None:
    """SI09: of lists and watches, of deletions too, and once each."""
    server.put("configmaps", "one")
    server.put("configmaps", "two")
    calls: list[str] = []

    def transform(obj: KubeObject) -> KubeObject:
        calls.append(f"{obj.name}@{obj.resource_version}")
        return msgspec.structs.replace(obj, uid=obj.uid.upper() + "!")

    told: list[KubeObject] = []

    class Remembering(RecordingHandler):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            told.append(obj)

        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            told.extend((old, new))

    informer, handler = informer_of(client, transform=transform, resync_period=1.0), Remembering()
    informer.add_event_handler(handler)
    async with running(informer):
        await informer.wait_synced()
        server.touch("configmaps", "one")
        server.put("configmaps", "three")
        server.delete("configmaps", "two")
        await followed(server, informer)
        late = Remembering()
        await informer.add_event_handler(late).wait_synced()
        await asyncio.sleep(3.0)
        held = informer.indexer.list()
    assert sorted(obj.name for obj in held) == ["one", "three"]
    gone = [obj for obj in handler.deletes if isinstance(obj, KubeObject)]
    assert [obj.name for obj in gone] == ["two"]
    assert len(told) > 10
    for obj in (*told, *held, *gone):
        assert obj.uid == obj.meta().uid.upper() + "!"
    assert len(calls) == len(set(calls)) == 5


# ---------------------------------------------------------------- many handlers at once


@scaled
async def test_si14_a_hundred_workers_add_and_remove_handlers_under_load(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI14: of all events each is told a possible history; those that stay end up with what exists; then it stops."""
    informer, dice = informer_of(client, resync_period=1.0), random.Random(14)
    live = dict[HandlerRegistration, Picture]()
    counts = dict.fromkeys(("added", "removed", "refused"), 0)

    async def work() -> None:
        mine: list[HandlerRegistration] = []
        while True:
            await asyncio.sleep(dice.uniform(0, 4))
            if mine:
                registration = mine.pop()
                informer.remove_event_handler(registration)
                live.pop(registration, None)
                assert registration.failed == 0
                counts["removed"] += 1
                continue
            handler = Picture()
            try:
                mine.append(informer.add_event_handler(handler, resync_period=1.0))
            except InformerStopped:
                counts["refused"] += 1
                return
            live[mine[-1]] = handler
            counts["added"] += 1

    events = scale(10_000, quick=500)

    async def write() -> None:
        exist: list[str] = []
        for number in range(events):
            what = dice.randrange(3) if exist else 0
            if what == 0:
                exist.append(f"c{number}")
                server.put("configmaps", exist[-1])
            elif what == 1:
                server.touch("configmaps", dice.choice(exist))
            else:
                server.delete("configmaps", exist.pop(dice.randrange(len(exist))))
            if number % (events // 100) == 0:
                await asyncio.sleep(0.1)

    workers = [asyncio.create_task(work()) for _ in range(100)]
    async with running(informer):
        await write()
        await followed(server, informer)
        await settle()
        expected = states_of(server)
        assert live
        for registration, handler in live.items():
            assert registration.failed == 0
            assert handler.objects == expected
    # It is stopped, and they go on until they notice.
    await asyncio.wait_for(asyncio.gather(*workers), LONG)
    assert counts["refused"] == 100
    assert counts["added"] > 200
    assert counts["removed"] > 100


# ---------------------------------------------------------------- stopping


async def test_si15_the_states_of_a_life(server: FakeApiServer, client: MemberClient, logs: list[EventDict]) -> None:
    """SI15: prepared, running, stopped; each once. A second run is refused with a warning, also after the stop."""
    server.put("configmaps", "one")
    informer, handler = informer_of(client, resync_period=1.0), RecordingHandler()
    registration = informer.add_event_handler(handler)

    def life() -> tuple[bool, bool, bool]:
        return informer.is_stopped, informer.has_synced(), registration.has_synced()

    assert life() == (False, False, False)
    assert len(server.requests) == 0
    async with running(informer):
        await registration.wait_synced()
        assert handler.take() == [("initial", "default/one", states_of(server)["one"])]
        assert life() == (False, True, True)
        await informer.run()
        assert life() == (False, True, True)
        assert informer.status().state is ReflectorState.WATCHING
    assert life() == (True, True, True)
    await informer.run()
    assert life() == (True, True, True)
    assert informer.status().state.value == ReflectorState.STOPPED.value
    refusals = [entry for entry in logs if "not running it again" in entry["event"]]
    assert [entry["log_level"] for entry in refusals] == ["warning", "warning"]
    assert len(server.requests.of("watch")) == 1


def _raise(key: str) -> None:
    raise ZeroDivisionError(key)


@pytest.mark.parametrize("where", ["dialling", "backing off", "listing", "watching", "handling", "pausing"])
async def test_si20_stopping_leaves_no_task_wherever_it_is(
    server: FakeApiServer, client: MemberClient, where: str
) -> None:
    """SI20: nor an open request, and it takes no time. The Indexer keeps what it has."""
    server.put("configmaps", "one")
    before = asyncio.all_tasks()
    stuck, broken = Blocking(), RecordingHandler(_raise)
    informer = informer_of(client)
    match where:
        case "dialling":
            server.go_dark()
        case "backing off":
            server.fail("*", "configmaps", faults.HttpError(500), times=None)
        case "listing":
            server.watch_list = "endless"
        case "handling":
            informer.add_event_handler(stuck)
        case "pausing":
            informer.add_event_handler(broken)
    run = asyncio.create_task(informer.run())
    await settle()
    informer.add_event_handler(RecordingHandler())
    await asyncio.sleep(0.3)
    assert len(asyncio.all_tasks() - before) > 3
    stopping = asyncio.get_running_loop().time()
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert asyncio.get_running_loop().time() == stopping
    named = {task.get_name() for task in asyncio.all_tasks() - before if "configmaps" in task.get_name()}
    assert named == set()
    await until(lambda: not any(request.live for request in server.requests))
    assert informer.is_stopped
    assert [stuck.started, stuck.cancelled] == [["one"] if where == "handling" else []] * 2
    synced = where not in {"dialling", "backing off", "listing"}
    assert "one" in states(informer.indexer.list()) or not synced


async def test_si20_one_that_never_ran_has_nothing_to_stop(client: MemberClient) -> None:
    """SI20: neither it nor its handlers have a task."""
    before = asyncio.all_tasks()
    informer = informer_of(client, resync_period=1.0)
    informer.add_event_handler(RecordingHandler())
    await settle()
    assert asyncio.all_tasks() == before
    assert not informer.is_stopped

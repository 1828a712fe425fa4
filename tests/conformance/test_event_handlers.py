"""What client-go's shared informer tests check of handlers that come, go, raise and are waited for, over HTTP."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from structlog.typing import EventDict

from federator.api.object import KubeObject
from federator.cache import HandlerRegistration, InformerStopped, SharedInformer
from federator.cache.processor import FAILURE_PAUSE
from federator.kube import MemberClient
from federator.testing import FakeApiServer
from tests.conformance.informer_rig import (
    Blocking,
    Picture,
    followed,
    handlers_of,
    informer_of,
    names,
    states,
    states_of,
    until,
)
from tests.conformance.rig import LONG, settle
from tests.unit.cache.doubles import RecordingHandler, running

pytestmark = pytest.mark.looptime


# ---------------------------------------------------------------- coming and going


async def test_si10_each_handler_is_removed_for_itself(server: FakeApiServer, client: MemberClient) -> None:
    """SI10: nothing more is told to it; the other is told on, until it is removed too."""
    informer, first, second = informer_of(client, resync_period=1.0), RecordingHandler(), RecordingHandler()
    of_first, of_second = informer.add_event_handler(first), informer.add_event_handler(second)
    assert list(handlers_of(informer)) == [of_first.name, of_second.name]
    async with running(informer):
        await informer.wait_synced()
        informer.remove_event_handler(of_second)
        assert list(handlers_of(informer)) == [of_first.name]
        server.put("configmaps", "one")
        await followed(server, informer)
        assert (names(first), names(second)) == (["one"], [])
        informer.remove_event_handler(of_first)
        assert not handlers_of(informer)
        server.put("configmaps", "two")
        await followed(server, informer)
        await asyncio.sleep(3.0)
        assert (first.events, second.events) == ([], [])


async def test_si11_a_foreign_registration_removes_nobody(server: FakeApiServer, client: MemberClient) -> None:
    """SI11: neither here nor there, and not the handler of the same number."""
    mine, other = informer_of(client), informer_of(client)
    ours, theirs = RecordingHandler(), RecordingHandler()
    of_ours, of_theirs = mine.add_event_handler(ours), other.add_event_handler(theirs)
    assert of_ours.name == of_theirs.name
    mine.remove_event_handler(of_theirs)
    other.remove_event_handler(of_ours)
    async with running(mine, other):
        server.put("configmaps", "one")
        await until(lambda: ours.events and theirs.events)
        mine.remove_event_handler(of_ours)
        server.put("configmaps", "two")
        await until(lambda: len(theirs.events) == 2)
        await followed(server, mine)
        assert names(ours) == ["one"]


async def test_si12_a_handler_may_be_registered_twice(server: FakeApiServer, client: MemberClient) -> None:
    """SI12: it is told twice, until one registration is removed; the other stands."""
    informer, handler = informer_of(client), RecordingHandler()
    first, second = informer.add_event_handler(handler), informer.add_event_handler(handler)
    assert len(handlers_of(informer)) == 2
    async with running(informer):
        server.put("configmaps", "one")
        await until(lambda: len(handler.events) == 2)
        informer.remove_event_handler(first)
        assert list(handlers_of(informer)) == [second.name]
        server.put("configmaps", "two")
        await followed(server, informer)
        assert [key for _, key, _ in handler.take()] == ["default/one", "default/one", "default/two"]
        informer.remove_event_handler(second)
        assert not handlers_of(informer)


async def test_si13_removing_again_does_nothing(server: FakeApiServer, client: MemberClient) -> None:
    """SI13: before it runs and while it does; another registration of the same handler is not taken for it."""
    informer, handler = informer_of(client), RecordingHandler()
    removed, stays = informer.add_event_handler(handler), informer.add_event_handler(handler)
    informer.remove_event_handler(removed)
    informer.remove_event_handler(removed)
    async with running(informer):
        await informer.wait_synced()
        informer.remove_event_handler(removed)
        server.put("configmaps", "one")
        await followed(server, informer)
        assert list(handlers_of(informer)) == [stays.name]
        assert len(handler.events) == 1


async def test_si16_a_stopped_informer_takes_no_handler_and_no_index(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI16: it would never be told anything; the error says so."""
    informer = informer_of(client, resync_period=1.0)
    async with running(informer):
        await informer.wait_synced()
    with pytest.raises(InformerStopped, match="configmaps has stopped"):
        informer.add_event_handler(RecordingHandler())
    with pytest.raises(InformerStopped):
        informer.add_indexers({"names": lambda obj: (obj.name,)})
    assert not handlers_of(informer)


async def test_si17_a_handler_may_be_removed_after_the_stop(server: FakeApiServer, client: MemberClient) -> None:
    """SI17: once and again."""
    informer, handler = informer_of(client, resync_period=1.0), RecordingHandler()
    registration = informer.add_event_handler(handler)
    async with running(informer):
        await registration.wait_synced()
    informer.remove_event_handler(registration)
    informer.remove_event_handler(registration)
    assert handler.events == []


async def test_si18_a_handler_removed_amid_changes_is_told_no_later_one(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI18: also where it removes itself, in the midst of what it is being told."""
    informer, other = informer_of(client), RecordingHandler()

    def remove_at_two(key: str) -> None:
        if key == "default/two":
            informer.remove_event_handler(registration)

    ending = RecordingHandler(remove_at_two)
    registration = informer.add_event_handler(ending)
    informer.add_event_handler(other)
    async with running(informer):
        await informer.wait_synced()
        for name in ("one", "two", "three"):
            server.put("configmaps", name)
        await followed(server, informer)
        assert names(other) == ["one", "three", "two"]
        assert [key for _, key, _ in ending.events] == ["default/one", "default/two"]
        assert registration.name not in handlers_of(informer)


async def test_si19_a_handler_added_amid_changes_is_told_of_all_and_syncs_on_its_own(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI19: initial adds of what is held, then what comes; false until the last of those has been handled."""
    informer = informer_of(client)
    early = informer.add_event_handler(Picture())
    assert not early.has_synced()
    server.put("configmaps", "one")
    server.put("configmaps", "two")
    async with running(informer):
        await early.wait_synced()
        held, slow, quick = states_of(server), Blocking(), Picture()
        of_slow, of_quick = informer.add_event_handler(slow), informer.add_event_handler(quick)
        assert [of.has_synced() for of in (early, of_slow, of_quick)] == [True, False, False]
        server.put("configmaps", "three")
        server.touch("configmaps", "one")
        await of_quick.wait_synced()
        await followed(server, informer)
        assert sorted(quick.events[:2]) == sorted(
            ("initial", f"default/{name}", version) for name, version in held.items()
        )
        now = states_of(server)
        assert sorted(quick.events[2:]) == [
            ("add", "default/three", now["three"]),
            ("update", "default/one", held["one"], now["one"]),
        ]
        # The slow one holds up nobody, and is not taken for synced before it is through.
        assert (len(slow.started), of_slow.has_synced(), early.has_synced()) == (1, False, True)
        slow.release()
        await of_slow.wait_synced()
        assert set(held) <= set(slow.finished)


# ---------------------------------------------------------------- raising


@pytest.mark.parametrize("broken", [1, 2], ids=["one", "many"])
async def test_si21_a_handler_that_raises_rests_a_second_each_time_and_still_syncs(
    server: FakeApiServer, client: MemberClient, logs: list[EventDict], broken: int
) -> None:
    """SI21: with client-go it never syncs. Others are not held up; each failure is counted, and logged by name."""
    for number in range(5):
        server.put("configmaps", f"c{number}")
    times: list[list[float]] = [[] for _ in range(broken)]

    class Raising(RecordingHandler):
        def __init__(self, number: int) -> None:
            super().__init__()
            self._times = times[number]

        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            self._times.append(asyncio.get_running_loop().time())
            raise ZeroDivisionError(obj.name)

    informer, fine = informer_of(client, resync_period=1.0), Picture()
    raising = [informer.add_event_handler(Raising(number), resync_period=0) for number in range(broken)]
    of_fine = informer.add_event_handler(fine, resync_period=0)
    started = asyncio.get_running_loop().time()
    async with running(informer):
        await of_fine.wait_synced()
        assert asyncio.get_running_loop().time() - started < FAILURE_PAUSE
        assert fine.objects == states_of(server)
        assert not any(registration.has_synced() for registration in raising)
        for registration in raising:
            await registration.wait_synced()
        assert asyncio.get_running_loop().time() - started >= 4 * FAILURE_PAUSE
        assert [registration.has_synced() for registration in raising] == [True] * broken
        await asyncio.sleep(10 * FAILURE_PAUSE)
    for of_one in times:
        assert [later - earlier for earlier, later in pairwise(of_one)] == [pytest.approx(FAILURE_PAUSE)] * 4
    assert [registration.failed for registration in (*raising, of_fine)] == [5] * broken + [0]
    failures = [entry for entry in logs if entry["event"] == "event handler failed"]
    assert sorted({entry["handler"] for entry in failures}) == [registration.name for registration in raising]
    assert len(failures) == 5 * broken


# ---------------------------------------------------------------- removing and waiting


async def blocked_in_a_handler(
    server: FakeApiServer, informer: SharedInformer, handler: Blocking
) -> HandlerRegistration:
    """Registers a handler and waits until it is being told of the first of two objects."""
    server.put("configmaps", "one")
    await until(lambda: informer.indexer.list())
    server.put("configmaps", "two")
    await followed(server, informer)
    registration = informer.add_event_handler(handler)
    await until(lambda: handler.started)
    return registration


async def test_si22_removing_does_not_wait_and_what_is_being_told_is_finished(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI22: an error it then raises is its own; what waited for it is dropped, where client-go may tell some of it."""
    closed: list[str] = []

    async def needs_what_is_closed_by_then() -> None:
        closed.append("seen closed")
        raise ValueError("closed")

    informer, handler = informer_of(client), Blocking(needs_what_is_closed_by_then)
    async with running(informer):
        registration = await blocked_in_a_handler(server, informer, handler)
        informer.remove_event_handler(registration)
        assert (handler.started, handler.finished, handler.cancelled) == (["one"], [], [])
        await settle()
        assert (closed, handler.cancelled) == ([], [])
        handler.release()
        await until(lambda: closed)
        assert registration.failed == 1
        await asyncio.sleep(5.0)
        assert handler.started == ["one"]


async def test_si23_shutting_down_waits_until_the_handler_has_finished(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI23: what it needs may be closed then; what waited for it is dropped."""
    informer, handler = informer_of(client), Blocking()
    async with running(informer):
        registration = await blocked_in_a_handler(server, informer, handler)
        shutting_down = asyncio.create_task(registration.shut_down())
        again = asyncio.create_task(registration.shut_down())
        await asyncio.sleep(100.0)
        assert (shutting_down.done(), again.done(), handler.finished) == (False, False, [])
        assert registration.name not in handlers_of(informer)
        handler.release()
        await shutting_down
        assert handler.finished == ["one"]
        await again
        server.touch("configmaps", "one")
        await followed(server, informer)
        assert (handler.started, handler.cancelled) == (["one"], [])
        await registration.shut_down()


async def test_si23_a_handler_that_was_removed_before_can_still_be_waited_for(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI23: the wait is for the handler, not for its removal."""
    informer, handler = informer_of(client), Blocking()
    async with running(informer):
        registration = await blocked_in_a_handler(server, informer, handler)
        informer.remove_event_handler(registration)
        shutting_down = asyncio.create_task(registration.shut_down())
        await asyncio.sleep(10.0)
        assert not shutting_down.done()
        handler.release()
        await shutting_down
        assert handler.finished == ["one"]


async def test_si23_who_gives_up_waiting_leaves_the_handler_to_finish(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI23: cancelled while it waits, the handler is removed all the same and not cancelled with it."""
    informer, handler = informer_of(client), Blocking()
    async with running(informer):
        registration = await blocked_in_a_handler(server, informer, handler)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await registration.shut_down()
        assert handler.cancelled == []
        assert registration.name not in handlers_of(informer)
        handler.release()
        await registration.shut_down()
        assert handler.finished == ["one"]


async def test_si23_a_handler_cannot_wait_for_itself(server: FakeApiServer, client: MemberClient) -> None:
    """SI23: it would never end; it is told so, and stays."""
    refusals: list[RuntimeError] = []

    class Waiting(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            super().on_add(obj, is_initial)
            try:
                await registration.shut_down()
            except RuntimeError as refusal:
                refusals.append(refusal)

    informer, handler = informer_of(client), Waiting()
    registration = informer.add_event_handler(handler)
    async with running(informer):
        server.put("configmaps", "one")
        server.put("configmaps", "two")
        await until(lambda: len(handler.events) == 2)
        assert len(refusals) == 2
        assert registration.failed == 0
        await registration.shut_down()
        server.put("configmaps", "three")
        await followed(server, informer)
        assert len(handler.events) == 2


async def test_si23_one_handler_may_wait_for_another(server: FakeApiServer, client: MemberClient) -> None:
    """SI23: one handler may shut another down."""
    ended: list[str] = []

    class Ending(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            await of_other.shut_down()
            ended.append(obj.name)

    informer, other = informer_of(client), Blocking()
    async with running(informer):
        of_other = await blocked_in_a_handler(server, informer, other)
        informer.add_event_handler(Ending())
        await asyncio.sleep(10.0)
        assert ended == []
        other.release()
        await until(lambda: len(ended) == 2)
        assert other.finished == ["one"]


@pytest.mark.parametrize("order", ["never run", "run, add", "add, run", "stopped"])
async def test_si24_shutting_down_returns_at_once_where_nothing_is_being_told(
    server: FakeApiServer, client: MemberClient, order: str
) -> None:
    """SI24: before the start, in either order, and after the stop."""
    server.put("configmaps", "one")
    informer, handler = informer_of(client), Picture()
    if order == "never run":
        await informer.add_event_handler(handler).shut_down()
        assert not handlers_of(informer)
        async with running(informer):
            await followed(server, informer)
        assert handler.events == []
        return
    registration = None if order == "run, add" else informer.add_event_handler(handler)
    async with running(informer):
        await informer.wait_synced()
        registration = registration or informer.add_event_handler(handler)
        await registration.wait_synced()
        if order != "stopped":
            await asyncio.wait_for(registration.shut_down(), LONG)
            server.put("configmaps", "two")
            await followed(server, informer)
            assert list(handler.objects) == ["one"]
            assert states(informer.indexer.list()) == states_of(server)
    await registration.shut_down()


async def test_si24_stopping_the_informer_ends_a_wait_for_a_handler(
    server: FakeApiServer, client: MemberClient
) -> None:
    """SI24: the handler is cancelled where it waits, and then it has finished."""
    informer, handler = informer_of(client), Blocking()
    async with running(informer):
        registration = await blocked_in_a_handler(server, informer, handler)
        shutting_down = asyncio.create_task(registration.shut_down())
        await settle()
        assert not shutting_down.done()
    await asyncio.wait_for(shutting_down, LONG)
    assert handler.cancelled == ["one"]

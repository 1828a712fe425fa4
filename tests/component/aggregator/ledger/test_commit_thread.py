from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from federator.aggregator.ledger import commit_thread
from federator.aggregator.ledger.commit_thread import CommitThread
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import Writer, writing
from federator.errors import InvalidInput, LedgerError
from tests.component.aggregator.ledger.company import Hurry


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[CommitThread]:
    tables = Tables(tmp_path)
    with writing(tables) as writer:
        writer.establish(1000)
    thread = CommitThread(tables)
    yield thread
    await thread.close()
    tables.close()


class Gate:
    """Work that holds the thread until it is opened, so that what follows piles up."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _: Writer) -> str:
        self.entered.set()
        assert self.opened.wait(10)
        return "gate"


async def hold(thread: CommitThread, gate: Gate, told: list[str]) -> asyncio.Task[str]:
    task = asyncio.create_task(thread.submit(gate, told.append, cost=1))
    await asyncio.to_thread(gate.entered.wait)
    return task


async def test_what_does_not_fit_into_the_queue_waits_in_its_order(
    thread: CommitThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "MAX_QUEUED_REQUESTS", 3)
    told: list[str] = []
    gate = Gate()
    holding = await hold(thread, gate, told)
    tasks = [
        asyncio.create_task(thread.submit(lambda _, name=str(number): name, told.append, cost=1))  # type: ignore[misc]
        for number in range(20)
    ]
    await asyncio.sleep(0)
    assert thread._queue.qsize() == 2, "the third is the gate, which is at work"
    assert thread.queued == 21
    gate.opened.set()
    await asyncio.gather(holding, *tasks)
    assert told == ["gate", *map(str, range(20))]
    assert thread.queued == 0


async def test_the_queue_is_bounded_in_bytes_and_a_small_one_does_not_overtake(
    thread: CommitThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "MAX_QUEUED_BYTES", 100)
    told: list[str] = []
    gate = Gate()
    holding = await hold(thread, gate, told)
    large = asyncio.create_task(thread.submit(lambda _: "large", told.append, cost=1_000_000))
    await asyncio.sleep(0)
    small = asyncio.create_task(thread.submit(lambda _: "small", told.append, cost=1))
    await asyncio.sleep(0)
    assert thread._queue.qsize() == 0
    gate.opened.set()
    await asyncio.gather(holding, large, small)
    assert told == ["gate", "large", "small"]


async def test_a_group_is_bounded(thread: CommitThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_thread, "MAX_GROUP_REQUESTS", 4)
    monkeypatch.setattr(commit_thread, "MAX_GROUP_BYTES", 100)
    gate = Gate()
    holding = await hold(thread, gate, [])
    costs = [1] * 8 + [60, 60, 60]
    tasks = [asyncio.create_task(thread.submit(lambda _: "", lambda _: None, cost=cost)) for cost in costs]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(holding, *tasks)
    assert thread.durations.count == 1 + 2 + 2, "the gate; two of four; 60+60 and 60"


async def test_closing_waits_for_what_was_submitted(thread: CommitThread) -> None:
    told: list[str] = []
    gate = Gate()
    holding = await hold(thread, gate, told)
    later = asyncio.create_task(thread.submit(lambda _: "later", told.append, cost=1))
    await asyncio.sleep(0)
    closing = asyncio.create_task(thread.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.opened.set()
    await closing
    assert told == ["gate", "later"]
    assert (await holding, await later) == ("gate", "later")
    assert not thread._thread.is_alive()


async def test_closing_can_be_cancelled_and_called_again(thread: CommitThread) -> None:
    gate = Gate()
    holding = await hold(thread, gate, [])
    closing = asyncio.create_task(thread.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    with pytest.raises(LedgerError, match="closed"):
        await thread.submit(lambda _: "", lambda _: None, cost=1)
    gate.opened.set()
    await thread.close()
    assert await holding == "gate"


async def test_a_refusal_reaches_its_own_caller_only(thread: CommitThread) -> None:
    def refuse(_: Writer) -> str:
        raise InvalidInput("this", 1, "that")

    results = await asyncio.gather(
        thread.submit(lambda _: "before", lambda _: None, cost=1),
        thread.submit(refuse, lambda _: None, cost=1),
        thread.submit(lambda _: "after", lambda _: None, cost=1),
        return_exceptions=True,
    )
    assert results[0] == "before"
    assert isinstance(results[1], InvalidInput)
    assert results[2] == "after"


async def test_a_caller_that_was_cancelled_is_not_needed(thread: CommitThread) -> None:
    def refuse(_: Writer) -> str:
        raise InvalidInput("this", 1, "that")

    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    told: list[str] = []
    gate = Gate()
    holding = await hold(thread, gate, told)
    cancelled = [asyncio.create_task(thread.submit(work, told.append, cost=1)) for work in (lambda _: "done", refuse)]
    await asyncio.sleep(0)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    gate.opened.set()
    await holding
    await thread.close()
    assert told == ["gate", "done"]
    assert reported == []


async def test_a_surprise_undoes_its_group_and_the_thread_goes_on(thread: CommitThread) -> None:
    told: list[str] = []

    def forget(writer: Writer) -> str:
        writer.forget(2000, 1)
        return "moved"

    def surprise(_: Writer) -> str:
        raise ZeroDivisionError

    gate = Gate()
    holding = await hold(thread, gate, told)
    group = [asyncio.create_task(thread.submit(work, told.append, cost=1)) for work in (forget, surprise)]
    await asyncio.sleep(0)
    gate.opened.set()
    results = await asyncio.gather(*group, return_exceptions=True)
    assert {type(result) for result in results} == {LedgerError}
    assert "ZeroDivisionError" in str(results[0])
    assert await holding == "gate"
    assert await thread.submit(lambda writer: writer.oldest_revision(), lambda _: None, cost=1) == 1000
    assert told == ["gate"]


async def test_a_listener_that_raises_is_reported_and_stops_nobody(thread: CommitThread) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def broken(_: str) -> None:
        raise ZeroDivisionError

    told: list[str] = []
    results = await asyncio.gather(
        thread.submit(lambda _: "one", broken, cost=1), thread.submit(lambda _: "two", told.append, cost=1)
    )
    assert list(results) == ["one", "two"]
    assert told == ["two"]
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_long_work_on_the_loop_gets_its_turn_between_two_groups(thread: CommitThread) -> None:
    await thread.turn()
    gate = Gate()
    holding = await hold(thread, gate, [])
    turn = asyncio.create_task(thread.turn())
    await asyncio.sleep(0.05)
    assert not turn.done(), "the thread is at work"
    gate.opened.set()
    async with asyncio.timeout(5):
        await turn
        await holding
        await thread.turn()


async def test_a_refused_piece_ends_the_threads_turn_too(thread: CommitThread) -> None:
    def refuse(_: Writer) -> None:
        raise InvalidInput("field", "value", "another")

    def break_off(_: Writer) -> None:
        raise RuntimeError("a defect")

    for work in (refuse, break_off):
        with pytest.raises((InvalidInput, LedgerError)):
            await thread.submit(work, lambda _: None, cost=1)
        async with asyncio.timeout(5):
            await thread.turn()


async def test_patient_work_waits_for_company_once_commits_follow_each_other(
    thread: CommitThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "APART", 3600.0)
    hurry = Hurry.of(thread)
    told: list[str] = []
    async with asyncio.timeout(10):
        await thread.submit(lambda _: "at rest", told.append, cost=1, is_patient=True)
        one = asyncio.create_task(thread.submit(lambda _: "one", told.append, cost=1, is_patient=True))
        await hurry.awaited()
        two = asyncio.create_task(thread.submit(lambda _: "two", told.append, cost=1, is_patient=True))
        await asyncio.sleep(0)
        await thread.submit(lambda _: "urgent", told.append, cost=1)
        await asyncio.gather(one, two)
    assert told == ["at rest", "one", "two", "urgent"]
    assert thread.durations.count == 2, "what is urgent takes along what waits"


async def test_patient_work_does_not_wait_longer_than_commits_are_apart(
    thread: CommitThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "APART", 0.05)
    async with asyncio.timeout(10):
        for _ in range(3):
            await thread.submit(lambda _: "", lambda _: None, cost=1, is_patient=True)
    assert thread.durations.count == 3


@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "while-it-waits"])
@pytest.mark.parametrize(("requests", "bytes_each"), [(4, 1), (2, 50)])
async def test_a_full_group_waits_for_nobody(
    thread: CommitThread, monkeypatch: pytest.MonkeyPatch, requests: int, bytes_each: int, *, waits: bool
) -> None:
    monkeypatch.setattr(commit_thread, "APART", 3600.0)
    monkeypatch.setattr(commit_thread, "MAX_GROUP_REQUESTS", 4)
    monkeypatch.setattr(commit_thread, "MAX_GROUP_BYTES", 100)

    hurry = Hurry.of(thread)

    async def submit() -> None:
        await thread.submit(lambda _: "", lambda _: None, cost=bytes_each, is_patient=True)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        await thread.submit(lambda _: "", lambda _: None, cost=1, is_patient=True)
        for number in range(requests):
            tasks.create_task(submit())
            if waits and number == 0:
                await hurry.awaited()
    assert thread.durations.count == 2


async def test_closing_ends_the_wait_for_company(thread: CommitThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_thread, "APART", 3600.0)
    hurry = Hurry.of(thread)
    told: list[str] = []
    async with asyncio.timeout(10):
        await thread.submit(lambda _: "at rest", told.append, cost=1, is_patient=True)
        waiting = asyncio.create_task(thread.submit(lambda _: "patient", told.append, cost=1, is_patient=True))
        await hurry.awaited()
        await thread.close()
        await waiting
    assert told == ["at rest", "patient"]

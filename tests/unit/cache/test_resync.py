from __future__ import annotations

import asyncio

import pytest

from federator.api.object import KubeObject
from federator.cache.resync import AdaptiveResync
from federator.cache.shared_informer import HandlerRegistration, SharedInformer
from federator.errors import InvalidInput
from tests.unit.cache.doubles import FakeSource, RecordingHandler, pod, running, settle

pytestmark = pytest.mark.looptime


class Timing(RecordingHandler):
    """Notes when it was told that nothing changed."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.fails = False

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        if old.resource_version == new.resource_version:
            self.times.append(asyncio.get_running_loop().time())
        if self.fails:
            raise ValueError("no")

    def periods(self) -> list[float]:
        """Seconds between them."""
        return [round(after - before) for before, after in zip(self.times, self.times[1:], strict=False)]


def informer_of(source: FakeSource, **options: object) -> SharedInformer:
    return SharedInformer(source, name="pods", **options)  # type: ignore[arg-type]


def test_bounds_are_checked() -> None:
    with pytest.raises(InvalidInput, match="minimum"):
        AdaptiveResync(0.5)
    with pytest.raises(InvalidInput, match="maximum"):
        AdaptiveResync(600, 599)


async def test_the_period_grows_while_nothing_is_amiss_up_to_its_bound() -> None:
    source, handler = FakeSource(pod("a", 1)), Timing()
    informer = informer_of(source, resync_period=AdaptiveResync(100, 300))
    informer.add_event_handler(handler)
    async with running(informer):
        await asyncio.sleep(2000)
    assert handler.periods() == [150, 225, *[300] * 5]


@pytest.mark.parametrize("how", ["raised", "reported"])
async def test_it_shrinks_at_once_when_something_was_amiss_and_grows_again(how: str) -> None:
    source, handler = FakeSource(pod("a", 1)), Timing()
    informer = informer_of(source, resync_period=AdaptiveResync(100, 800))
    registration = informer.add_event_handler(handler)
    async with running(informer):
        await asyncio.sleep(1620)  # 100, 250, 475, 812, 1319: the next would come 759 s after that
        assert informer.statistics()["handlers"][registration.name]["resync_period"] == pytest.approx(759, abs=1)  # type: ignore[index]
        handler.times.clear()
        if how == "raised":
            handler.fails = True
            source.put("a")
            await settle()
            handler.fails = False
        else:
            registration.report_drift()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(1000)
    assert round(handler.times[0] - began) == pytest.approx(380, abs=1)
    assert handler.periods() == [pytest.approx(380, abs=1)]  # not longer: the one before had been disturbed


async def test_who_asks_for_a_period_of_their_own_keeps_it() -> None:
    source, follows, fixed, never = FakeSource(pod("a", 1)), Timing(), Timing(), Timing()
    informer = informer_of(source, resync_period=AdaptiveResync(100, 300))
    informer.add_event_handler(follows)
    informer.add_event_handler(fixed, resync_period=120)
    informer.add_event_handler(never, resync_period=0)
    async with running(informer):
        await asyncio.sleep(1500)
    assert set(fixed.periods()) == {120}
    assert not never.times
    assert len(follows.periods()) > 2


async def test_each_informer_has_a_period_of_its_own() -> None:
    shared = AdaptiveResync(100, 300)
    first, second = (informer_of(FakeSource(pod("a", 1)), resync_period=shared) for _ in range(2))
    handlers = [Timing(), Timing()]
    registrations: list[HandlerRegistration] = []
    for informer, handler in zip((first, second), handlers, strict=True):
        registrations.append(informer.add_event_handler(handler))
    async with running(first), running(second):
        await asyncio.sleep(500)
        registrations[0].report_drift()
        await asyncio.sleep(1)
        periods = [
            informer.statistics()["handlers"][registration.name]["resync_period"]  # type: ignore[index]
            for informer, registration in zip((first, second), registrations, strict=True)
        ]
    assert periods[0] < periods[1]
    assert shared.period == 100

"""Admission: few at once, in turn, and nobody for ever."""

from __future__ import annotations

import asyncio
import random

import pytest

from federator.aggregator.ingest.admission import IDLE_SECONDS, Admission, Ticket
from federator.api.cluster import ClusterID

pytestmark = pytest.mark.looptime


class Crowd:
    """Clusters that ask for places; who is let in is written down.

    Attributes:
        holding: who has a place now.
        let_in: who was let in, in order.
    """

    def __init__(self, at_once: int = 4) -> None:
        self.admission = Admission(at_once)
        self.holding: list[str] = []
        self.let_in: list[str] = []
        self.tickets: dict[str, Ticket] = {}

    def ask(self, cluster: str, what: str = "") -> None:
        def admitted() -> None:
            self.holding.append(cluster + what)
            self.let_in.append(cluster + what)

        self.tickets[cluster + what] = self.admission.ask(ClusterID(cluster), admitted)

    def leave(self, who: str) -> None:
        if who in self.holding:
            self.holding.remove(who)
        self.tickets[who].release()

    def statistic(self, name: str) -> int | float:
        return self.admission.statistics()[f"snapshots_{name}"]


async def test_a_hundred_clusters_are_let_in_in_the_order_in_which_they_asked_and_four_at_once() -> None:
    crowd = Crowd()
    clusters = [f"c{number}" for number in range(100)]
    for cluster in clusters:
        crowd.ask(cluster)
    draw = random.Random(7)
    while crowd.holding:
        assert len(crowd.holding) <= 4
        assert crowd.statistic("holding") == len(crowd.holding)
        crowd.leave(draw.choice(crowd.holding))
    assert crowd.let_in == clusters
    assert (crowd.statistic("admitted"), crowd.statistic("waiting")) == (100, 0)


async def test_a_cluster_holds_one_place_and_its_next_listing_stands_behind_those_that_wait() -> None:
    crowd = Crowd(at_once=2)
    for who in ("a1", "a2", "a3", "b1", "c1"):
        crowd.ask(who[0], who[1])
    assert crowd.let_in == ["a1", "b1"]
    crowd.leave("a1")
    crowd.leave("a2")
    crowd.leave("b1")
    assert crowd.let_in == ["a1", "b1", "a2", "c1", "a3"]


async def test_nobody_starves_beside_a_cluster_that_asks_again_and_again() -> None:
    crowd = Crowd(at_once=1)
    for number in range(50):
        crowd.ask("greedy", str(number))
    crowd.ask("modest")
    for _ in range(2):
        crowd.ask("greedy", f"after{crowd.holding[0]}")
        crowd.leave(crowd.holding[0])
    assert "modest" in crowd.let_in


@pytest.mark.parametrize("who", ["a", "b"], ids=["holding", "waiting"])
async def test_whoever_leaves_gives_the_place_up_wherever_it_is(who: str) -> None:
    crowd = Crowd(at_once=1)
    for each in ("a", "b", "c"):
        crowd.ask(each)
    crowd.leave(who)
    crowd.leave(who)
    if who == "b":
        crowd.leave("a")
    assert crowd.let_in == (["a", "b"] if who == "a" else ["a", "c"])
    for each in ("a", "b", "c"):
        crowd.leave(each)
    assert (crowd.statistic("waiting"), crowd.statistic("holding")) == (0, 0)


async def test_one_that_stands_still_loses_its_place_to_whoever_waits() -> None:
    crowd = Crowd(at_once=1)
    crowd.ask("still")
    await asyncio.sleep(2 * IDLE_SECONDS)
    crowd.tickets["still"].moved()
    crowd.ask("waiting")
    await asyncio.sleep(IDLE_SECONDS - 1)
    assert crowd.let_in == ["still"]
    await asyncio.sleep(2)
    assert crowd.let_in == ["still", "waiting"]
    assert crowd.statistic("overdue") == 1
    assert crowd.statistic("waited_seconds") == pytest.approx(IDLE_SECONDS)
    crowd.leave("still")
    assert crowd.statistic("holding") == 1, "what lost its place has none to give up"


async def test_the_time_that_one_has_waited_does_not_count_as_standing_still() -> None:
    crowd = Crowd(at_once=1)
    for who in ("still", "second", "third"):
        crowd.ask(who)
    await asyncio.sleep(IDLE_SECONDS + 1)
    assert crowd.let_in == ["still", "second"]


async def test_a_listing_that_stands_still_does_not_keep_out_another_of_its_cluster() -> None:
    crowd = Crowd()
    crowd.ask("a", "still")
    crowd.ask("a", "waiting")
    await asyncio.sleep(IDLE_SECONDS + 1)
    assert crowd.let_in == ["astill", "awaiting"]


async def test_one_that_moves_keeps_its_place_however_long_it_takes() -> None:
    crowd = Crowd(at_once=1)
    crowd.ask("slow")
    crowd.ask("waiting")
    for _ in range(20):
        await asyncio.sleep(IDLE_SECONDS / 2)
        crowd.tickets["slow"].moved()
    assert crowd.let_in == ["slow"]
    assert crowd.statistic("overdue") == 0

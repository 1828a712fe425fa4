"""The seed alone decides what happens."""

from __future__ import annotations

import msgspec

from tests.robustness.plan import CLUSTERS, CONTROL_PLANE_ROLES, Kind, Role, draw


def test_a_seed_draws_the_same_plan_again_and_another_seed_another_one() -> None:
    assert list(draw(7, 20)) == list(draw(7, 20))
    assert list(draw(7, 20)) != [msgspec.structs.replace(one, seed=7) for one in draw(8, 20)]


def test_a_round_can_be_repeated_without_those_before_it() -> None:
    assert list(draw(7, 3, first=5)) == list(draw(7, 8))[5:]


def test_each_use_in_a_round_has_a_source_of_its_own_that_is_the_same_again() -> None:
    (plan,) = draw(7, 1)
    assert plan.randomness("traffic eu-1").random() == plan.randomness("traffic eu-1").random()
    assert plan.randomness("traffic eu-1").random() != plan.randomness("traffic us-1").random()


def test_a_hasty_plan_has_the_same_faults_sooner_and_only_in_the_clusters_there_are() -> None:
    for slow, fast in zip(draw(7, 40), draw(7, 40, haste=4), strict=True):
        whole, hasty = (
            {(fault.kind, fault.role, fault.cluster, fault.until_stale) for fault in plan.faults}
            for plan in (slow, fast)
        )
        assert whole == hasty
        assert fast.load_seconds == slow.load_seconds / 4
        assert fast.late_watch_at <= slow.late_watch_at
        assert fast.faults[0].at < slow.faults[0].at
    some = draw(7, 40, clusters=CLUSTERS[:2])
    assert {fault.cluster for plan in some for fault in plan.faults} == {"", *CLUSTERS[:2]}


def test_all_faults_on_all_processes_are_drawn_and_two_never_meet_in_one_process() -> None:
    rounds = list(draw(7, 400))
    faults = [fault for plan in rounds for fault in plan.faults]
    drawn = {(fault.kind, fault.role) for fault in faults}
    everywhere = {(kind, role) for kind in Kind if kind is not Kind.SUPERSEDE for role in Role}
    assert drawn == everywhere - {(Kind.RESTART, Role.ETCD)} | {(Kind.SUPERSEDE, Role.AGENT)}
    assert {fault.cluster for fault in faults} == {"", *CLUSTERS}
    assert all((fault.cluster == "") == (fault.role is Role.AGGREGATOR) for fault in faults)
    for plan in rounds:
        assert len({fault.group for fault in plan.faults}) == len(plan.faults) <= 2
    assert any(len({fault.at for fault in plan.faults}) < len(plan.faults) for plan in rounds), "two at once"


def test_only_what_can_be_told_soon_is_waited_for() -> None:
    waited = [fault for plan in draw(7, 400) for fault in plan.faults if fault.until_stale]
    assert waited
    for fault in waited:
        assert fault.role is not Role.AGGREGATOR
        assert not (fault.role in CONTROL_PLANE_ROLES and fault.kind is Kind.PAUSE)

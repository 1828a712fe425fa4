from __future__ import annotations

import pytest

from federator.api.cluster import ClusterID
from federator.client import aconnect
from tests.bench.figure import WrongResult
from tests.bench.watch_recorder import WatchRecorder


def recorder_of(*numbers: int) -> WatchRecorder:
    recorder = WatchRecorder(aconnect("127.0.0.1:1"))
    recorder.numbers[ClusterID("ap-1")] += numbers
    return recorder


def test_every_change_once_is_right() -> None:
    recorder_of(0, 1, 2).check({"ap-1": 3}, in_order=True)
    recorder_of(2, 0, 1).check({"ap-1": 3}, in_order=False)


@pytest.mark.parametrize("numbers", [(0, 1), (0, 1, 1), (0, 1, 2, 2), (0, 1, 3)])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_missing_or_repeated_change_is_wrong(numbers: tuple[int, ...], in_order: bool) -> None:
    with pytest.raises(WrongResult):
        recorder_of(*numbers).check({"ap-1": 3}, in_order=in_order)


def test_order_is_checked_where_it_is_promised() -> None:
    with pytest.raises(WrongResult):
        recorder_of(0, 2, 1).check({"ap-1": 3}, in_order=True)


def test_a_cluster_without_events_is_wrong() -> None:
    with pytest.raises(WrongResult):
        recorder_of(0).check({"ap-1": 1, "eu-1": 1}, in_order=True)

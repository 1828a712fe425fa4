"""Bug 38: elsewhere, a relist had the body, what was decoded from it and the former store in memory at once."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from federator.kube import MemberClient, ResourceListWatch
from tests.bench.informer_federator import FederatorInformer
from tests.bench.load_process import LoadProcess
from tests.robustness.many_members import FILLING, kubeconfig_of, numbered_type
from tests.scale import IS_LONG, scale, scaled

OBJECTS = scale(50_000, quick=5_000)

CHANGE_INTERVAL = 0.005
"""Seconds from one change to the next, at least, while the informer lists anew."""

MOST = 1.6 if IS_LONG else 1.8
"""Of what is allocated at rest. That is nothing but the store and what it needs, interpreter and libraries apart. A
list needs some 4 MB beside it, however long it is; the whole body, or a second store, would be as much as the first."""


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@scaled
@pytest.mark.parametrize("way", ["watch-list", "list"])
async def test_bug38_a_relist_under_updates_needs_little_more_than_the_store(
    way: str, tmp_path: Path, traced: None
) -> None:
    async with (
        LoadProcess("tests.robustness.many_members", str(tmp_path), "1", "1", str(OBJECTS)) as member,
        MemberClient.from_kubeconfig(path=kubeconfig_of(tmp_path, 0)) as client,
    ):
        list_watch = ResourceListWatch(client, numbered_type(0))
        informer = FederatorInformer(list_watch, use_watch_list=way == "watch-list", compress=False)
        try:
            await informer.sync()
            assert informer.told == OBJECTS
            steady = allocated()
            assert steady > OBJECTS * FILLING
            await member.ask(change=CHANGE_INTERVAL)
            tracemalloc.reset_peak()
            await informer.relist()
            _, peak = tracemalloc.get_traced_memory()
            written = (await member.ask(stop=True))["written"]
            assert written > 1
            assert peak / steady <= MOST
            assert allocated() / steady <= 1.3, "the former store is given back, but for what handlers still wait for"
        finally:
            await informer.stop()


def allocated() -> int:
    gc.collect()
    current, _ = tracemalloc.get_traced_memory()
    return current

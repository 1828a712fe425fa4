"""ST12 to ST14: when something has synced, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.api.delta import Tombstone
from federator.api.key import split_local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import (
    CacheNotSynced,
    HandlerRegistration,
    InformerStopped,
    ResourceEventHandlerFuncs,
    SharedInformer,
    SharedInformerFactory,
    Syncable,
    wait_for_cache_sync,
)
from federator.cache.processor import ProcessorListener, SharedProcessor
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.informer_rig import followed, informer_of, until
from tests.conformance.rig import CONFIG_MAPS, settle
from tests.unit.cache.doubles import RecordingHandler, pod, running

SECRETS = ResourceType(group="", version="v1", resource="secrets", kind="Secret", namespaced=True)
PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)


class Upstream:
    """Stands for the informer in front of a handler: it says that it has synced when a test says so."""

    def __init__(self) -> None:
        self._synced = asyncio.Event()

    def syncs(self) -> None:
        self._synced.set()

    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()


class Gate(RecordingHandler):
    """A handler that finishes an add when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = asyncio.Event()

    async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
        await self.opened.wait()
        super().on_add(obj, is_initial)


class Tracked:
    """One handler between an upstream and its gate."""

    def __init__(self, *, buffer_size: int = 10) -> None:
        self.upstream = Upstream()
        self.gate = Gate()
        self.processor = SharedProcessor(name="pods", resync_check_period=0, buffer_size=buffer_size)
        self.listener: ProcessorListener = self.processor.add_listener(self.gate, resync_period=0, cached=())
        self.registration = HandlerRegistration(cast("SharedInformer", self.upstream), self.listener)


@pytest.fixture
async def tracked() -> AsyncIterator[Tracked]:
    made = Tracked()
    async with made.processor.running():
        yield made


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("steps", "has_synced"),
    [
        ([], False),
        (["start"], False),
        (["start", "finish"], False),
        (["start", "upstream"], False),
        (["start", "finish", "upstream"], True),
        (["start", "upstream", "finish"], True),
        (["upstream"], True),
        (["upstream", "start"], False),
        (["start", "start", "upstream"], False),
        (["start", "start", "upstream", "finish"], True),
    ],
)
async def test_st12_synced_is_the_upstream_and_all_that_was_begun(
    tracked: Tracked, steps: Sequence[str], has_synced: bool
) -> None:
    """ST12: the truth table of client-go's trackers; the wait agrees with the question."""
    waiting = asyncio.create_task(tracked.registration.wait_synced())
    begun = 0
    for step in steps:
        if step == "start":
            begun += 1
            tracked.processor.distribute_add(f"default/{begun}", pod(f"{begun}", begun), is_initial=True)
        elif step == "finish":
            tracked.gate.opened.set()
        else:
            tracked.upstream.syncs()
        if step == "start":
            assert not tracked.registration.has_synced()
        if steps[-1] != "upstream" or step != "upstream":
            await settle()
    await settle()
    assert tracked.registration.has_synced() is has_synced
    if steps != ["upstream", "start"]:
        assert waiting.done() is has_synced
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


Change = tuple[str, str, bool]


@settings(deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["add", "update", "delete"]), st.sampled_from(["x/a", "x/b", "x/c"]), st.booleans()),
        max_size=40,
    ),
    buffer_size=st.integers(1, 4),
)
async def test_st12_in_single_file_synced_is_the_last_initial_add_whatever_was_merged(
    changes: Sequence[Change], buffer_size: int
) -> None:
    """ST12: it never counts one twice (client-go: a negative counter panics), nor says so while one is to come."""
    synced_at_initial: list[bool] = []

    def on_add(obj: KubeObject, is_initial: bool) -> None:
        if is_initial:
            synced_at_initial.append(listener.has_settled)

    processor = SharedProcessor(name="pods", resync_check_period=0, buffer_size=buffer_size)
    listener = processor.add_listener(ResourceEventHandlerFuncs(add=on_add), resync_period=0, cached=())
    present: dict[str, KubeObject] = {}
    begun = 0
    for version, (kind, key, flag) in enumerate(changes, 1):
        before = present.pop(key, None)
        if kind == "delete":
            if before is not None:
                processor.distribute_delete(key, Tombstone(key, before if flag else None))
            continue
        namespace, name = split_local_key(key)
        present[key] = pod(name, version, namespace=namespace)
        if before is not None:
            processor.distribute_update(key, before, present[key])
        else:
            begun += flag
            processor.distribute_add(key, present[key], is_initial=flag)
    settled_before = listener.has_settled
    pending = listener.statistics()["pending"]
    running = asyncio.create_task(listener.run())
    await asyncio.sleep(0)  # a plain handler is told of all that waits in one turn
    assert listener.statistics()["delivered"] == pending
    assert listener.has_settled
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert synced_at_initial == [False] * len(synced_at_initial)
    assert settled_before is not bool(synced_at_initial)
    assert len(synced_at_initial) <= begun


@pytest.mark.looptime
async def test_st12_an_informer_has_synced_when_its_list_is_in_the_store_its_handlers_when_they_are_through(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST12: over the whole of an informer; a handler that comes late is on its own."""
    server.put("configmaps", "a")
    informer = informer_of(client)
    gate, late = Gate(), Gate()
    early = informer.add_event_handler(gate)
    quick = informer.add_event_handler(RecordingHandler())
    assert not informer.has_synced()
    assert not early.has_synced()
    assert not quick.has_synced()
    async with running(informer):
        await followed(server, informer)
        assert informer.has_synced()
        assert quick.has_synced()
        assert not early.has_synced()
        gate.opened.set()
        await early.wait_synced()
        server.put("configmaps", "b")
        coming = informer.add_event_handler(late)
        assert not coming.has_synced()
        assert early.has_synced(), "once synced it stays so"
        late.opened.set()
        await coming.wait_synced()
        assert [event[0] for event in late.take()][:1] == ["initial"]


@pytest.mark.looptime
async def test_st13_waiting_for_informers_names_those_that_did_not_sync(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST13: empty, all, some in time, none; and ST14: the error names them, each once, in the order they were given."""
    await wait_for_cache_sync()
    async with SharedInformerFactory(partial(ResourceListWatch, client)) as factory:
        secrets, config_maps, pods = (factory.informer(each) for each in (SECRETS, CONFIG_MAPS, PODS))
        with pytest.raises(CacheNotSynced) as none:
            await wait_for_cache_sync(secrets, config_maps, pods, timeout=1)
        assert none.value.unsynced == (secrets.name, config_maps.name, pods.name)
        refusals = [
            server.fail(verb, resource, faults.HttpError(503), times=None)
            for verb in ("list", "watch")
            for resource in ("pods", "secrets")
        ]
        factory.start()
        await wait_for_cache_sync(config_maps, timeout=60)
        with pytest.raises(CacheNotSynced) as some:
            await wait_for_cache_sync(secrets, config_maps, pods, timeout=60)
        assert some.value.unsynced == (secrets.name, pods.name)
        assert str(some.value) == f"not synced: {secrets.name}, {pods.name}"
        waiting = asyncio.create_task(wait_for_cache_sync(secrets, config_maps, pods))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        for refusal in refusals:
            refusal.cancel()
        await wait_for_cache_sync(secrets, config_maps, pods, timeout=600)


@pytest.mark.looptime
async def test_st13_what_stops_is_named_and_not_waited_for(server: FakeApiServer, client: MemberClient) -> None:
    """ST13 cancelled: the informer ends, or a handler is removed, before it has synced."""
    server.put("configmaps", "a")
    for resource in ("secrets", "pods"):
        for verb in ("list", "watch"):
            server.fail(verb, resource, faults.HttpError(503), times=None)
    factory = SharedInformerFactory(partial(ResourceListWatch, client))
    secrets, config_maps = factory.informer(SECRETS), factory.informer(CONFIG_MAPS)
    gate = Gate()
    registration = config_maps.add_event_handler(gate)
    async with factory:
        await until(config_maps.has_synced)
        waiting = asyncio.create_task(wait_for_cache_sync(config_maps, registration))
        await settle()
        assert not waiting.done()
        config_maps.remove_event_handler(registration)
        await settle()
        with pytest.raises(CacheNotSynced) as removed:
            await waiting
        assert removed.value.unsynced == (registration.name,)
        waiting = asyncio.create_task(wait_for_cache_sync(config_maps, secrets))
        await settle()
    with pytest.raises(CacheNotSynced) as stopped:
        await waiting
    assert stopped.value.unsynced == (secrets.name,)
    with pytest.raises(InformerStopped):
        await secrets.wait_synced()


@pytest.mark.parametrize(
    ("unsynced", "text"),
    [(("a",), "not synced: a"), (("b", "a"), "not synced: b, a")],
)
def test_st14_the_error_lists_what_has_not_synced(unsynced: tuple[str, ...], text: str) -> None:
    """ST14; none of it is an error for nobody, see ST13."""
    error = CacheNotSynced(unsynced)
    assert isinstance(error, TimeoutError)
    assert (error.unsynced, str(error)) == (unsynced, text)


def _is_syncable(informer: SharedInformer, registration: HandlerRegistration) -> Sequence[Syncable]:
    """Checked by mypy alone."""
    return informer, registration

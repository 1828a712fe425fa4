"""Contender: `federator.cache.SharedInformer`.

python -m tests.bench.informer_federator KUBECONFIG pods|configmaps "watch-list|list|list, compressed"
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import ListWatch, SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.observability.logs import configure_logging
from tests.bench.informer_process import serve_informer

TYPES = {
    "pods": ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True),
    "configmaps": ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True),
}

_POLL = 0.01


class FederatorInformer:
    """An informer that keeps whole objects, and its handler."""

    def __init__(self, list_watch: ListWatch, *, use_watch_list: bool, compress: bool) -> None:
        self.told = 0
        self._informer = SharedInformer(list_watch, name="bench", use_watch_list=use_watch_list, compress=compress)
        self._registration = self._informer.add_event_handler(self)
        self._running: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        self._running = asyncio.create_task(self._informer.run(), name="informer")
        await self._registration.wait_synced()

    async def relist(self) -> None:
        before = self._relists()
        self._informer.request_relist()
        while True:
            await asyncio.sleep(_POLL)
            if self._relists() != before and not self._registration.statistics()["pending"]:
                return

    def _relists(self) -> object:
        return self._informer.statistics()["reflector"]["relists"]  # type: ignore[index]

    def held(self) -> Iterator[tuple[str, str]]:
        indexer = self._informer.indexer  # as it is kept: to look is not to change what is measured
        states = ((key, indexer.kept(key)) for key in indexer.list_keys())
        return ((key, state.resource_version) for key, state in states if state is not None)

    async def stop(self) -> None:
        """Ends the informer."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        self.told += 1

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        self.told += 1

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        self.told += 1


async def main(kubeconfig: str, resource: str, way: str) -> None:
    """Serves commands."""
    configure_logging("warning")  # to stderr: stdout belongs to the answers
    async with MemberClient.from_kubeconfig(path=kubeconfig) as client:
        informer = FederatorInformer(
            ResourceListWatch(client, TYPES[resource]),
            use_watch_list=way == "watch-list",
            compress=way == "list, compressed",
        )
        await serve_informer(informer)
        await informer.stop()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop that agents choose."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))

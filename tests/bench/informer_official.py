"""Contender: the informer of the official Python client, `kubernetes.informer`.

    python -m tests.bench.informer_official KUBECONFIG SECONDS

It makes a list every so many SECONDS after the one before; there is no other way to have it make one.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client, config
from kubernetes.informer import ADDED, DELETED, MODIFIED, SharedInformer

from tests.bench.informer_process import serve_informer


class OfficialInformer:
    """An informer of whatever a generated list function lists.

    It does not tell when it has synced. It has when its handlers, which it calls one after the other, were called for
    as many objects as the list had.
    """

    def __init__(self, list_func: Callable[..., Any], *, resync_period: float) -> None:
        """Prepares an informer; must be called on the loop that will wait for it."""
        self.told = 0
        self._loop = asyncio.get_running_loop()
        self._lists_begun = 0
        self._lists_told = 0
        self._list_was_told = asyncio.Event()
        self._untold = 0  # objects of the newest list
        self._informer = SharedInformer(self._noting_lists(list_func), resync_period=resync_period)
        self._informer.add_event_handler(ADDED, self._on_object)
        self._informer.add_event_handler(MODIFIED, self._on_object)
        self._informer.add_event_handler(DELETED, self._on_delete)

    async def sync(self) -> None:
        self._informer.start()
        await self._wait_told(1)

    async def relist(self) -> None:
        """Waits for the next list, which comes when it is due."""
        await self._wait_told(self._lists_begun + 1)

    def held(self) -> Iterator[tuple[str, str]]:
        for obj in self._informer.cache.list():
            yield f"{obj.metadata.namespace}/{obj.metadata.name}", obj.metadata.resource_version

    async def stop(self) -> None:
        """Ends the informer."""
        await asyncio.to_thread(self._informer.stop)

    def _noting_lists(self, list_func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(list_func)  # the informer reads the type of the objects from its documentation
        def noting(**options: Any) -> Any:
            if options.get("watch"):
                return list_func(**options)
            self._lists_begun += 1
            listed = list_func(**options)
            self._untold = len(listed.items)
            return listed

        return noting

    async def _wait_told(self, lists: int) -> None:
        while self._lists_told < lists:
            self._list_was_told.clear()
            await self._list_was_told.wait()

    # The rest runs on the informer's thread.

    def _on_object(self, _obj: object) -> None:
        self.told += 1
        if self._untold:
            self._untold -= 1
            if not self._untold:
                self._lists_told += 1
                self._loop.call_soon_threadsafe(self._list_was_told.set)

    def _on_delete(self, _obj: object) -> None:
        self.told += 1


async def main(kubeconfig: str, resync_period: str) -> None:
    """Serves commands."""
    api = client.CoreV1Api(config.new_client_from_config(kubeconfig))
    informer = OfficialInformer(api.list_pod_for_all_namespaces, resync_period=float(resync_period))
    await serve_informer(informer)  # not stopped: its thread ends with the process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Tells of pods that are not Ready for long, as soon as that is so, and of when it is over.

    python examples/event_driven.py --context eu-1 --namespace shop --longer-than 120

Most changes of a pod say nothing about its readiness: a predicate drops them. What is left only puts the pod's key into
a work queue; a worker then looks at what the pod is *now*, and has the key come again when its time is up. So nothing
is polled, and a pod that flaps a hundred times is one item. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
from datetime import UTC, datetime

from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import (
    Indexer,
    Notification,
    PredicateHandler,
    RateLimitingQueue,
    RequeueAfter,
    ResourceEventHandlerFuncs,
    SharedInformerFactory,
    UpdateNotification,
    run_workers,
)
from federator.kube import MemberClient, ResourceListWatch

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)


def not_ready_since(pod: KubeObject) -> datetime | None:
    """Since when a pod is not Ready; None where it is, or has done its work."""
    decoded = json.loads(pod.raw)
    status = decoded.get("status", {})
    ready: dict[str, str] = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
    if status.get("phase") == "Succeeded" or ready.get("status") == "True":
        return None
    return datetime.fromisoformat(ready.get("lastTransitionTime") or decoded["metadata"]["creationTimestamp"])


def readiness_changed(notification: Notification) -> bool:
    """Predicate: adds and deletes, and updates with another answer to `not_ready_since`."""
    if not isinstance(notification, UpdateNotification):
        return True
    return not_ready_since(notification.old) != not_ready_since(notification.new)


class Teller:
    """Looks at one pod after the other, and tells."""

    def __init__(self, pods: Indexer, longer_than: float) -> None:
        self._pods = pods
        self._longer_than = longer_than
        self._told: set[str] = set()

    async def reconcile(self, key: str) -> RequeueAfter | None:
        """Brings what was told in line with what the pod is now."""
        pod = self._pods.get_by_key(key)
        since = not_ready_since(pod) if pod is not None else None
        if since is None:
            if key in self._told:
                self._told.discard(key)
                print(f"{key} is {'gone' if pod is None else 'Ready'}", flush=True)
            return None
        seconds = (datetime.now(UTC) - since).total_seconds()
        if seconds < self._longer_than:
            return RequeueAfter(self._longer_than - seconds)
        if key not in self._told:
            self._told.add(key)
            print(f"{key} is not Ready since {since.isoformat()}, {seconds:.0f} s", flush=True)
        return None


async def main(context: str | None, namespace: str, longer_than: float) -> None:
    """Tells until cancelled."""
    queue = RateLimitingQueue[str](name="not-ready")
    enqueue = ResourceEventHandlerFuncs(
        add=lambda pod, is_initial: queue.add(pod.key),
        update=lambda old, new: queue.add(new.key),
        delete=lambda pod: queue.add(pod.key),
    )
    async with MemberClient.from_kubeconfig(context) as client:
        factory = SharedInformerFactory(functools.partial(ResourceListWatch, client))
        informer = factory.informer(PODS, namespace=namespace)
        informer.add_event_handler(PredicateHandler(enqueue, readiness_changed))
        async with factory:
            await factory.wait_for_cache_sync(timeout=60)
            print(f"watching {len(informer.indexer.list_keys())} pods", flush=True)
            await run_workers(queue, Teller(informer.indexer, longer_than).reconcile)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tells of pods that are not Ready for long.")
    parser.add_argument("--context", help="of the kubeconfig; without it the current one")
    parser.add_argument("--namespace", default="", help="only pods of this namespace")
    parser.add_argument("--longer-than", type=float, default=120.0, metavar="SECONDS", help="what is long")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(options.context, options.namespace, options.longer_than))

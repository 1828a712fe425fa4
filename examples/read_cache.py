"""Answers "which pods run on which node?" from the cache, again and again, without asking the apiserver.

    python examples/read_cache.py --context eu-1 --every 5

Prints a table once everything is known, and again after changes, at most every `--every` seconds. The one list and
watch behind it is all that the apiserver ever hears of it. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools

import msgspec

from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import Indexer, ResourceEventHandlerFuncs, SharedInformerFactory
from federator.kube import MemberClient, ResourceListWatch

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
BY_NODE = "node"


class Spec(msgspec.Struct):
    """The part of a pod's spec that is read here; the rest is skipped, not decoded."""

    node_name: str = msgspec.field(name="nodeName", default="")


class Pod(msgspec.Struct):
    """The part of a pod that is read here."""

    spec: Spec


def node_of(pod: KubeObject) -> list[str]:
    """Index function: the values under which a pod is found. None, where it has no node yet."""
    node = msgspec.json.decode(pod.raw, type=Pod).spec.node_name
    return [node] if node else []


def table(indexer: Indexer) -> str:
    """Reads the index; each line is a look into a dictionary."""
    lines = [f"{'NODE':<24} {'PODS':>5}  FIRST"]
    for node in sorted(indexer.list_index_func_values(BY_NODE)):
        keys = sorted(indexer.index_keys(BY_NODE, node))
        lines.append(f"{node:<24} {len(keys):>5}  {keys[0]}")
    return "\n".join(lines)


async def main(context: str | None, namespace: str, every: float) -> None:
    """Prints the table until cancelled."""
    changed = asyncio.Event()
    tell = ResourceEventHandlerFuncs(
        add=lambda pod, is_initial: changed.set(),
        update=lambda old, new: changed.set(),
        delete=lambda pod: changed.set(),
    )
    async with MemberClient.from_kubeconfig(context) as client:
        factory = SharedInformerFactory(functools.partial(ResourceListWatch, client))
        informer = factory.informer(PODS, namespace=namespace)
        informer.add_indexers({BY_NODE: node_of})
        informer.add_event_handler(tell)
        async with factory:
            await factory.wait_for_cache_sync(timeout=60)
            while True:
                # Cleared before the table is read: what changes after that is in the next one.
                changed.clear()
                print(f"{len(informer.indexer.list_keys())} pods\n{table(informer.indexer)}\n", flush=True)
                await changed.wait()
                await asyncio.sleep(every)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Which pods run on which node?")
    parser.add_argument("--context", help="of the kubeconfig; without it the current one")
    parser.add_argument("--namespace", default="", help="only pods of this namespace")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="at least so long between tables")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(options.context, options.namespace, options.every))

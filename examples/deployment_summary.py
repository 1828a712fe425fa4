"""A controller over several clusters: keeps a ConfigMap that says how many Deployments each of them has.

    python examples/deployment_summary.py --context eu-1 --context us-1 --target eu-1 --namespace default

The ConfigMap `deployment-summary` is written into the namespace of the target cluster, one line of JSON for each
cluster that is watched, whenever that changes. A cluster that cannot be reached keeps its line, and delays no other.
Ctrl-C ends it. To copy from:

- Handlers only say which cluster has changed. What there is to be written is read when it is written, from the
  informer, so any number of changes is one piece of work, and a failed one is simply done again.
- Nothing is remembered from one time to the next: a restart, a lost event or a ConfigMap that somebody has edited are
  all mended by looking at what is wanted and at what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import signal
from collections.abc import Callable

import msgspec
import structlog
from kubernetes.aio.client import ApiException, CoreV1Api, V1ConfigMap, V1ObjectMeta

from federator.api.cluster import assign_cluster_ids
from federator.api.resource import ResourceType
from federator.cache import (
    ClusterInformerFactories,
    RateLimitingQueue,
    RequeueAfter,
    ResourceEventHandlerFuncs,
    SharedInformer,
    retry_on_conflict,
    run_workers,
)
from federator.kube import KubeconfigCredentials, MemberClient, ResourceListWatch
from federator.observability.logs import configure_logging

DEPLOYMENTS = ResourceType(group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True)
CONFIG_MAP = "deployment-summary"
SETTLE = 0.2  # seconds that changes of one cluster are collected
NOT_SYNCED = 1.0  # seconds until a cluster is looked at again that is not known in full yet
LOOK_AGAIN = 60.0  # seconds until the ConfigMap is compared again, though nothing has happened in the clusters
REQUEST_TIMEOUT = 10.0  # seconds

log = structlog.get_logger(__name__)


class Spec(msgspec.Struct):
    """The part of a Deployment's spec that is read here; the rest is skipped, not decoded."""

    replicas: int = 1


class Status(msgspec.Struct):
    """The part of its status."""

    ready_replicas: int = msgspec.field(name="readyReplicas", default=0)


class Deployment(msgspec.Struct):
    """The part of a Deployment."""

    spec: Spec
    status: Status = msgspec.field(default_factory=Status)


def summary(informer: SharedInformer) -> str:
    """What the informer knows of its cluster, as the line of the ConfigMap."""
    deployments = [msgspec.json.decode(obj.raw, type=Deployment) for obj in informer.indexer.list()]
    figures = {
        "deployments": len(deployments),
        "wanted": sum(deployment.spec.replicas for deployment in deployments),
        "ready": sum(deployment.status.ready_replicas for deployment in deployments),
    }
    return msgspec.json.encode(figures).decode()


async def write(core: CoreV1Api, namespace: str, cluster: str, line: str) -> None:
    """One attempt to have the line in the ConfigMap; writes nothing where it is there already."""
    try:
        config_map = await core.read_namespaced_config_map(CONFIG_MAP, namespace, _request_timeout=REQUEST_TIMEOUT)
    except ApiException as error:
        if error.status != 404:
            raise
        config_map = V1ConfigMap(metadata=V1ObjectMeta(name=CONFIG_MAP), data={cluster: line})
        await core.create_namespaced_config_map(namespace, config_map, _request_timeout=REQUEST_TIMEOUT)
        return
    if (config_map.data or {}).get(cluster) != line:
        # With the resourceVersion that was read, so that what others have written since is a conflict and not lost.
        config_map.data = (config_map.data or {}) | {cluster: line}
        await core.replace_namespaced_config_map(CONFIG_MAP, namespace, config_map, _request_timeout=REQUEST_TIMEOUT)


def enqueue(queue: RateLimitingQueue[str], cluster: str) -> ResourceEventHandlerFuncs:
    """A handler that has the cluster looked at after any change.

    A deletion may come as a tombstone, where only the absence was seen; for what is done here the two are the same.
    """
    changed: Callable[[], None] = functools.partial(queue.add_after, cluster, SETTLE)
    return ResourceEventHandlerFuncs(
        add=lambda obj, is_initial: changed(), update=lambda old, new: changed(), delete=lambda obj: changed()
    )


async def main(options: argparse.Namespace) -> None:
    """Runs until it is interrupted."""
    queue = RateLimitingQueue[str](name="deployment-summary")
    for number in (signal.SIGINT, signal.SIGTERM):
        # The workers finish what waits and end, and with them all else, in the reverse order of its start.
        asyncio.get_running_loop().add_signal_handler(number, queue.shut_down)
    factories = ClusterInformerFactories()
    informers: dict[str, SharedInformer] = {}

    async with contextlib.AsyncExitStack() as stack:
        for context, cluster in assign_cluster_ids(options.context).items():
            client = await stack.enter_async_context(MemberClient.from_kubeconfig(context, path=options.kubeconfig))
            factory = factories.add(cluster, functools.partial(ResourceListWatch, client))
            informers[cluster] = factory.informer(DEPLOYMENTS, label_selector=options.selector)
            informers[cluster].add_event_handler(enqueue(queue, cluster))
            queue.add(cluster)  # one without any Deployment has no events
        target = await KubeconfigCredentials(options.target, options.kubeconfig).connect()
        core = CoreV1Api(await stack.enter_async_context(target))

        async def reconcile(cluster: str) -> RequeueAfter:
            if not informers[cluster].has_synced():
                if cause := informers[cluster].status().error:
                    log.warning("cluster cannot be read", cluster=cluster, cause=str(cause))
                return RequeueAfter(NOT_SYNCED)
            line = summary(informers[cluster])
            await retry_on_conflict(functools.partial(write, core, options.namespace, cluster, line))
            return RequeueAfter(LOOK_AGAIN)

        async with factories:
            await run_workers(queue, reconcile, workers=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Keeps a ConfigMap with the number of Deployments of each cluster.")
    parser.add_argument("--kubeconfig", help="its path; as kubectl finds it if not given")
    parser.add_argument("--context", action="append", required=True, help="a cluster to watch; may be repeated")
    parser.add_argument("--selector", default="", help="only Deployments with these labels")
    parser.add_argument("--target", required=True, help="context of the cluster to write to")
    parser.add_argument("--namespace", default="default", help="namespace to write to")
    configure_logging("warning")
    asyncio.run(main(parser.parse_args()))

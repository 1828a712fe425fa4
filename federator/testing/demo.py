"""The demo: three living clusters, an aggregator and three agents, and a view of the global watch.

    python -m federator.testing.demo [--seconds N]

On the way one cluster's apiserver is killed and brought back, so that staleness and recovery can be seen. At the end
the federation is compared with what each apiserver holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import structlog

from federator.api.cluster import ClusterState
from federator.errors import FederatorError, outcome
from federator.observability.logs import configure_logging
from federator.testing.demo_view import DemoView
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

NAMES = ("ap-1", "eu-1", "us-1")
VICTIM = "ap-1"
"""The cluster whose apiserver is killed on the way."""

TYPES = ("deployments", "replicasets", "pods", "services", "configmaps", "nodes")
"""What is watched and, in the end, compared."""

_DEFAULT_PORT = 9090
_APPLICATIONS = 12
_OPERATIONS_PER_SECOND = 2.0
_KILL_AFTER, _REVIVE_AFTER = 20.0, 35.0
"""Seconds into the demo; a shorter demo is scaled so that both happen in its first two thirds."""
_SETTLE_TIMEOUT = 45.0


async def run(seconds: float) -> int:
    """Runs the demo.

    Args:
        seconds: length once all clusters are LIVE; 0 until interrupted.

    Returns:
        0, or 1 where the federation did not equal the apiservers in the end.
    """
    began = time.monotonic()
    _say(f"starting three control planes with controllers, scheduler and fake nodes: {', '.join(NAMES)} ...")
    async with AsyncExitStack() as stack:
        bed = await stack.enter_async_context(Testbed(NAMES, living=True))
        workloads = [Workload(plane, seed=number) for number, plane in enumerate(bed)]
        _say("filling them with the same applications, in namespaces of the same names ...")
        await asyncio.gather(*(workload.fill(applications=_APPLICATIONS) for workload in workloads))
        _say("starting one aggregator and three agents ...")
        federation = await stack.enter_async_context(Federation(bed.kubeconfig, NAMES, port=_preferred_port()))
        _say(f"all clusters are LIVE, {time.monotonic() - began:.0f} s after the start. Try, in another terminal:")
        for words in ("clusters", "get pods -o wide", "get deployments -w"):
            _say(f"    .venv/bin/federator {words} --server {federation.address}")
        view = DemoView(federation.address, TYPES)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds or None), asyncio.TaskGroup() as tasks:
                tasks.create_task(view.run(), name="view")
                tasks.create_task(_kill_and_revive(bed, view, seconds), name="kill and revive")
                for workload in workloads:
                    tasks.create_task(workload.churn(rate=_OPERATIONS_PER_SECOND), name="churn")
        return await _summarise(bed, federation, view, workloads)


async def _kill_and_revive(bed: Testbed, view: DemoView, seconds: float) -> None:
    scale = min(1.0, seconds * 2 / 3 / _REVIVE_AFTER) if seconds else 1.0
    await asyncio.sleep(_KILL_AFTER * scale)
    view.note(f"killing the apiserver of {VICTIM}")
    bed[VICTIM].kill()
    await asyncio.sleep((_REVIVE_AFTER - _KILL_AFTER) * scale)
    view.note(f"starting the apiserver of {VICTIM} again")
    await bed[VICTIM].start()


async def _summarise(bed: Testbed, federation: Federation, view: DemoView, workloads: Sequence[Workload]) -> int:
    _say("the changes are stopped; comparing the federation with what each apiserver holds ...")
    if not bed[VICTIM].processes["kube-apiserver"].running:
        await bed[VICTIM].start()
    await federation.wait_state(ClusterState.LIVE)
    deadline = time.monotonic() + _SETTLE_TIMEOUT
    while True:
        held, listed = await _held(federation), await _listed(bed)
        if held == listed or time.monotonic() > deadline:
            break
        await asyncio.sleep(1)
    for line in view.summary():
        _say(line)
    _say(f"operations: {sum(sum(workload.statistics().values()) for workload in workloads)}")
    if held != listed:
        _say(f"DIFFERENT: {len(held - listed)} objects only in the federation, {len(listed - held)} only in a cluster")
        for only, objects in (("federation", held - listed), ("cluster", listed - held)):
            for key in sorted(objects)[:10]:
                _say(f"  only in the {only}: {'/'.join(key)}")
        return 1
    _say(f"equal: {len(held)} objects of {len(TYPES)} types in {len(NAMES)} clusters, each in its newest state")
    return 0


async def _held(federation: Federation) -> set[tuple[str, ...]]:
    async with federation.client() as fed:
        answer = await fed.list(TYPES, timeout=30)
    return {(item.cluster_id, item.resource, item.namespace, item.name, item.resource_version) for item in answer.items}


async def _listed(bed: Testbed) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for plane in bed:
        async with plane.client() as client:
            for resource in TYPES:
                root = "/apis/apps/v1" if resource in {"deployments", "replicasets"} else "/api/v1"
                for item in (await client.get(f"{root}/{resource}"))["items"]:
                    meta = item["metadata"]
                    key = (plane.name, resource, meta.get("namespace", ""), meta["name"], meta["resourceVersion"])
                    found.add(key)
    return found


def _preferred_port() -> int:
    """The port the `federator` command asks by default, where it is free."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", _DEFAULT_PORT))
        except OSError:
            return 0
        return _DEFAULT_PORT


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _until_signal(seconds: float) -> int:
    """Runs the demo; Ctrl-C and SIGTERM end it in order, with its summary left out."""
    loop = asyncio.get_running_loop()
    demo = asyncio.create_task(run(seconds), name="demo")
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, demo.cancel)
    try:
        return await demo
    except asyncio.CancelledError:
        _say("stopped; nothing is left running")
        return 0


def main() -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m federator.testing.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0, help="length; 0 (default) until Ctrl-C")
    options = parser.parse_args()
    configure_logging("warning")
    try:
        return asyncio.run(_until_signal(options.seconds))
    except FederatorError as error:
        structlog.get_logger(__name__).error("the demo failed", error=str(error))
        return outcome(error).exit


if __name__ == "__main__":
    sys.exit(main())

"""A process that spools until it is killed: `python -m tests.component.agent.spooling_process FOLDER ROUND`.

Each round puts a new state of every object, flushes, and then tells of it, one line each. Of every third object the
state before is acknowledged in between; every fifth is deleted in odd rounds.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from federator.agent.frame import Change
from federator.agent.spool import Spool, SpoolIdentity
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType

CLUSTER = ClusterID("eu-1")
IDENTITY = SpoolIdentity("uid-1", "signature")
PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
OBJECTS = 40


def state(number: int, round_: int) -> Change:
    name = f"pod-{number:02}"
    if number % 5 == 0 and round_ % 2:
        return Change("default", name, resource_version="", base=round_)
    return Change("default", name, f"uid-{number}", str(round_), round_ * 1000 + number, b'{"round":%d}' % round_ * 90)


def main(folder: Path, first: int) -> None:
    spool = Spool.open(folder, CLUSTER, IDENTITY, max_bytes=1 << 28)
    for round_ in count(first):
        for number in range(OBJECTS):
            if number % 3 == 0:
                spool.acknowledged(PODS.group_resource, [state(number, round_ - 1)])
            spool.put(PODS, state(number, round_), str(round_))
        spool.flush()
        print(round_, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""A process that owns a control plane until a test ends it.

`python -m tests.integration.testbed.owner FOLDER` keeps the control plane's data in FOLDER/data. It writes the process
IDs of its programs to FOLDER/launched once they run, and to FOLDER/ready once they answer and hold an object.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from federator.testing import ControlPlane


async def own(folder: Path) -> None:
    """Starts a control plane with an object in it, and waits to be ended."""
    plane = ControlPlane("first", folder=folder / "data")

    def tell(file: str) -> None:
        partial = folder / f"{file}.partial"
        partial.write_text(json.dumps([process.pid for process in plane.processes.values()]))
        partial.rename(folder / file)

    async def tell_of_launch() -> None:
        while len(plane.processes) < 2:  # noqa: ASYNC110 - a launch sets no event
            await asyncio.sleep(0.01)
        tell("launched")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tell_of_launch())
        async with plane:
            async with plane.client() as admin:
                await admin.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}})
            tell("ready")
            await asyncio.Event().wait()


if __name__ == "__main__":
    # As in a terminal: a test run in the background hands down that it ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(own(Path(sys.argv[1])))

"""A process that has etcd built from the tools that it is given."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from federator.testing.binaries import provide

if __name__ == "__main__":
    asyncio.run(provide(["etcd"], tools=Path(sys.argv[1])))

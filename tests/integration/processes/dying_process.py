"""A process that makes a scratch folder, says which, and is killed."""

from __future__ import annotations

import os
import signal
import sys

from federator.testing.scratch import ScratchFolder

if __name__ == "__main__":
    sys.stdout.write(f"{ScratchFolder().path}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)

"""What importing the package does not do."""

from __future__ import annotations

import subprocess
import sys


def test_importing_it_reads_no_metadata() -> None:
    program = "import sys, federator; sys.exit('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

"""Says which release it is that runs: the file of the command line, and the version."""

from __future__ import annotations

import sys

import federator
import federator.cli.main

if __name__ == "__main__":
    sys.stdout.write(f"{federator.cli.main.__file__} {federator.__version__}\n")

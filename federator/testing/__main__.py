"""`python -m federator.testing build`: builds the testbed's programs and prints the folder they are in."""

from __future__ import annotations

import argparse
import asyncio
import sys

from federator.errors import FederatorError, outcome
from federator.testing.binaries import provide


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m federator.testing", description="Real control planes for tests.")
    commands = parser.add_subparsers(required=True)
    commands.add_parser("build", help="build the missing programs and print their folder")
    parser.parse_args(arguments)
    try:
        binaries = asyncio.run(provide())
    except FederatorError as error:
        sys.stderr.write(f"{error}\n")
        return outcome(error).exit
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{binaries.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

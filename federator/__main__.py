"""`python -m federator`: the `federator` command."""

import sys

from federator.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

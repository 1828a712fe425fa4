"""Imported into a fork server, it puts the release before in place of this one: from then on `federator` is that.

The server itself goes on as it is, since it looks nothing up any more.
"""

from __future__ import annotations

import importlib
import sys

from federator.testing.fork_server import PRELOADED
from tests.integration.releases.previous_release import program

for name in [each for each in sys.modules if each.partition(".")[0] == "federator"]:
    del sys.modules[name]
sys.path.insert(0, str(program()))
for name in PRELOADED:
    importlib.import_module(name)

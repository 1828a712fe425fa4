"""The release before this one, as programs to run: its wheel is in `tests/releases`, and is imported from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "releases"


def wheel() -> Path:
    """The wheel of the release before.

    Raises:
        ValueError: there is not exactly one.
    """
    (found,) = FOLDER.glob("federator-*.whl")
    return found


def variables() -> Mapping[str, str]:
    """With these in its environment `python -m federator` is the release before.

    What it depends on comes from the present environment. The folder it is started in must not come first: that may be
    the checkout.
    """
    return {"PYTHONPATH": str(wheel()), "PYTHONSAFEPATH": "1"}

"""The release before this one, as programs to run: its wheel is in `tests/releases`."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "releases"
_UNPACKED = Path(__file__).parents[3] / "build" / "releases"


def wheel() -> Path:
    """The wheel of the release before.

    Raises:
        ValueError: there is not exactly one.
    """
    (found,) = FOLDER.glob("federator-*.whl")
    return found


@cache
def program() -> Path:
    """The folder that the wheel is unpacked into, once: what is imported from a wheel is compiled at every start.

    It is named after the wheel's content, so that another wheel has another one.
    """
    packed = wheel()
    folder = _UNPACKED / f"{packed.stem}-{hashlib.sha256(packed.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_UNPACKED) as scratch:
            unpacked = Path(scratch) / "wheel"
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(unpacked)
            with contextlib.suppress(OSError):  # another process was faster
                unpacked.rename(folder)
    return folder


def variables() -> Mapping[str, str]:
    """With these in its environment `python -m federator` is the release before.

    What it depends on comes from the present environment. The folder it is started in must not come first: that may be
    the checkout.
    """
    return {"PYTHONPATH": str(program()), "PYTHONSAFEPATH": "1"}

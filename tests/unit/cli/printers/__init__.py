"""Examples of printable objects, which the comparison with a real apiserver creates too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def examples() -> list[dict[str, Any]]:
    """The objects of examples.yaml, each as a copy of its own."""
    text = (Path(__file__).parent / "examples.yaml").read_text()
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))

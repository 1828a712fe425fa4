"""Reports of long runs, for whoever looks at them afterwards."""

from __future__ import annotations

from pathlib import Path

import msgspec


def write_report(report: object, file: Path) -> None:
    """Writes a report as JSON, in a folder that is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))

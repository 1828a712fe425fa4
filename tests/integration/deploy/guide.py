"""What docs/deploy.md tells an operator to write, as files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.integration.deploy.kubectl import DEPLOY, ROOT

GUIDE = ROOT / "docs" / "deploy.md"
_FILE = re.compile(r"^```yaml\n# (overlays/(\S+)/kustomization\.yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def overlay(name: str, folder: Path) -> Path:
    """Writes one of the guide's overlays beside the shipped bases, with stand-ins for the certificates it names."""
    (text,) = (text for _, named, text in _FILE.findall(GUIDE.read_text()) if named == name)
    shutil.copytree(DEPLOY, folder / "deploy")
    target = folder / "overlays" / name
    target.mkdir(parents=True)
    (target / "kustomization.yaml").write_text(text)
    for file in re.findall(r"ca\.crt=([\w.]+)", text):
        (target / file).write_text("a certificate")
    return target


def shell_blocks() -> list[str]:
    """The commands of the guide, block by block."""
    return re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)

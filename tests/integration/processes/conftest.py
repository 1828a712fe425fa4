"""A source tree with tools/ and a `go` on the PATH that compiles nothing; an inventory for commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.component.cli.conftest import inventory

__all__ = ["inventory"]

GO_MOD = """\
module example.com/tools

go 1.26.0

tool k8s.io/kubernetes/cmd/kubectl

require (
\tgo.etcd.io/etcd/server/v3 v3.7.3
\tk8s.io/kubernetes v1.37.2 // indirect
)

require sigs.k8s.io/kwok v0.8.0
"""

# Each build appends a line to $GO_CALLS, and ends after $GO_SECONDS, once $GO_WAITS_FOR is there.
FAKE_GO = """\
#!/bin/sh
echo "$@" >> "$GO_CALLS"
case "$1 $2" in
"env GOVERSION") echo "${GO_VERSION:-go1.26.8}" ;;
"mod download") ;;
"list -m") echo "$KWOK_SOURCE" ;;
build*)
    if [ -n "$GO_FAILS" ]; then echo "tools.go:1: undefined: everything"; exit 1; fi
    sleep "${GO_SECONDS:-0}"
    while [ -n "$GO_WAITS_FOR" ] && [ ! -e "$GO_WAITS_FOR" ]; do sleep 0.01; done
    while [ "$1" != "-o" ]; do shift; done
    echo "#!/bin/sh" > "$2"
    chmod +x "$2"
    ;;
*) exit 64 ;;
esac
"""


class FakeGo:
    """The fake compiler's settings and its diary."""

    def __init__(self, tools: Path, diary: Path) -> None:
        self.tools = tools
        self._diary = diary

    def calls(self, verb: str = "build") -> list[str]:
        """Command lines that began with this word."""
        lines = self._diary.read_text().splitlines() if self._diary.exists() else []
        return [line for line in lines if line.split()[0] == verb]

    def built(self) -> list[str]:
        """Packages that were built, in order."""
        return [line.split()[-1] for line in self.calls()]


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGo:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go.mod").write_text(GO_MOD)
    (tools / "go.sum").write_text("sums\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "go").write_text(FAKE_GO)
    (programs / "go").chmod(0o755)
    kwok = tmp_path / "kwok"
    for stage in ("node/fast", "node/heartbeat", "pod/general", "pod/chaos"):
        folder = kwok / "kustomize" / "stage" / stage
        folder.mkdir(parents=True)
        (folder / f"{stage.replace('/', '-')}.yaml").write_text("kind: Stage\n")
        (folder / "kustomization.yaml").write_text("kind: Kustomization\n")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("KWOK_SOURCE", str(kwok))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return FakeGo(tools, tmp_path / "calls")

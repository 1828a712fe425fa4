"""The scripts and commands that an operator copies. Needs openssl and bash, and no control plane."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from federator.wire.tls import TLSFiles, open_channel, server_credentials
from tests.integration.deploy.guide import GUIDE, shell_blocks
from tests.integration.deploy.kubectl import ROOT

KIND = ROOT / "kind-configs"
TOPOLOGIES = {"2": {"eu-1", "us-1"}, "3": {"ap-1", "eu-1", "us-1"}, "5": {"ap-1", "eu-1", "eu-2", "us-1", "us-2"}}

FAKE = """#!/bin/sh
printf '%s' "$(basename "$0")" >> "$CALLS"
printf ' %s' "$@" >> "$CALLS"
echo >> "$CALLS"
case "$*" in *dry-run=client*) echo '{}' ;; *-f\\ -*) cat > /dev/null ;; esac
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("script", ["deploy/certificates.sh", "kind-configs/kind.sh"])
def test_a_script_parses_and_may_be_run(script: str) -> None:
    assert run("bash", "-n", script, cwd=ROOT).stderr == ""
    assert os.access(ROOT / script, os.X_OK)


async def test_the_guides_certificates_are_what_the_program_asks_for(tmp_path: Path) -> None:
    (commands,) = (block for block in shell_blocks() if "certificates.sh tls authorities" in block)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    made = run("bash", "-euc", commands, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    tls = tmp_path / "tls"
    assert {path.stat().st_mode & 0o077 for path in tls.iterdir()} == {0}

    async def identity(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return b" ".join(context.auth_context().get("peer_spiffe_id", ()))

    for authority, shown, expected in (
        ("agents", "agent-eu-1", b"spiffe://federator/cluster/eu-1"),
        ("readers", "reader-alice", b""),
    ):
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(identity)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", {"AmI": method}),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(_files(tls, authority, "aggregator")))
        await server.start()
        pem = _files(tls, "aggregators", shown).read()
        async with open_channel(f"localhost:{port}", pem, ()) as typed_channel:
            channel: Any = typed_channel
            assert await channel.unary_unary("/test.Who/AmI")(b"", timeout=10) == expected
        await server.stop(None)


def _files(folder: Path, authority: str, name: str) -> TLSFiles:
    return TLSFiles(
        ca_file=folder / f"{authority}.crt",
        certificate_file=folder / f"{name}.crt",
        private_key_file=folder / f"{name}.key",
    )


def test_authorities_are_not_replaced_and_certificates_are(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "certificates.sh"
    for arguments in (["authorities"], ["agent", "eu-1"]):
        assert run(script, "tls", *arguments, cwd=tmp_path).returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    for arguments in (["authorities"], ["agent", "eu-1"]):
        assert run(script, "tls", *arguments, cwd=tmp_path).returncode == 0
    after = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"agent-eu-1.crt", "agent-eu-1.key"}
    for wrong in ([], ["tls"], ["tls", "agent"], ["tls", "aggregator"], ["tls", "unicorn", "x"]):
        assert run(script, *wrong, cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_topology_is_what_kind_takes(topology: str) -> None:
    files = sorted((KIND / topology).iterdir())
    clusters = {file.stem: yaml.safe_load(file.read_text()) for file in files}
    assert set(clusters) == TOPOLOGIES[topology]
    host_ports = []
    for name, cluster in clusters.items():
        assert (cluster["apiVersion"], cluster["kind"]) == ("kind.x-k8s.io/v1alpha4", "Cluster")
        assert cluster["name"] == f"federator-{name}"
        assert set(cluster) == {"apiVersion", "kind", "name", "nodes"}
        assert [node["role"] for node in cluster["nodes"]].count("control-plane") == 1
        for node in cluster["nodes"]:
            host_ports += [mapping["hostPort"] for mapping in node.get("extraPortMappings", ())]
    assert host_ports == [9090]


def test_there_is_a_topology_for_each_folder() -> None:
    assert {path.name for path in KIND.iterdir() if path.is_dir()} == set(TOPOLOGIES)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A PATH on which docker, kind and kubectl only note what they were told."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("docker", "kind", "kubectl"):
        (tools / name).write_text(FAKE)
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "KIND_FOLDER": str(tmp_path / "made"),
    }


@pytest.mark.testbed
def test_kind_up_makes_clusters_certificates_and_overlays_that_build(
    machine: dict[str, str], tmp_path: Path, kubectl_program: Path
) -> None:
    done = run(KIND / "kind.sh", "up", "3", cwd=tmp_path, **machine)
    assert done.returncode == 0, done.stderr
    assert "make kind-down TOPOLOGY=3" in done.stdout
    calls = Path(machine["CALLS"]).read_text().splitlines()
    assert [call for call in calls if call.startswith("kind create")] == [
        f"kind create cluster --config {KIND}/3/{name}.yaml" for name in ("ap-1", "eu-1", "us-1")
    ]
    assert sum(call.startswith("kind load docker-image federator:0.2.0") for call in calls) == 3
    applied = [call.split(" -k ") for call in calls if " -k " in call]
    assert [Path(folder).name for _, folder in applied] == ["hub", "agent-ap-1", "agent-eu-1", "agent-us-1"]
    for context, folder in applied:
        built = run(kubectl_program, "kustomize", folder, cwd=tmp_path)
        assert (built.returncode, built.stderr) == (0, "")
        objects = list(yaml.safe_load_all(built.stdout))
        (workload,) = (each for each in objects if each["kind"] in {"Deployment", "StatefulSet"})
        secrets = {v["secret"]["secretName"] for v in workload["spec"]["template"]["spec"]["volumes"] if "secret" in v}
        for name in secrets:
            assert any(f"create secret tls {name}" in call and context.split()[2] in call for call in calls)
        if Path(folder).name != "hub":
            (settings,) = (data for each in objects if "FEDERATOR_CLUSTER_ID" in (data := each.get("data", {})))
            assert settings["FEDERATOR_CLUSTER_ID"] == Path(folder).name.removeprefix("agent-")
            assert settings["FEDERATOR_AGGREGATOR"] == "federator-eu-1-control-plane:30443"
        else:
            ports = {each["spec"]["ports"][0].get("nodePort") for each in objects if each["kind"] == "Service"}
            assert ports == {30090, 30443, None}
    shown = {line.partition("=")[2] for line in done.stdout.splitlines() if "_FILE=" in line}
    assert len(shown) == 3
    assert all(Path(path).exists() for path in shown)
    down = run(KIND / "kind.sh", "down", "3", cwd=tmp_path, **machine)
    assert down.returncode == 0, down.stderr
    assert Path(machine["CALLS"]).read_text().count("kind delete cluster --name federator-") == 3
    assert list(Path(machine["KIND_FOLDER"]).iterdir()) == []


@pytest.mark.parametrize("missing", ["docker", "kind", "kubectl"])
def test_a_tool_that_is_missing_is_named(machine: dict[str, str], tmp_path: Path, missing: str) -> None:
    tools = tmp_path / "bin"
    (tools / missing).unlink()
    for needed in ("bash", "dirname", "env", "tr", "basename", "cat"):
        (tools / needed).symlink_to(str(shutil.which(needed)))
    done = run(KIND / "kind.sh", "up", "2", cwd=tmp_path, **(machine | {"PATH": str(tools)}))
    assert done.returncode == 1
    assert f"{missing} is missing" in done.stderr


def test_a_daemon_that_does_not_answer_is_told_and_an_unknown_topology_too(
    machine: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    done = run(KIND / "kind.sh", "up", "2", cwd=tmp_path, **machine)
    assert done.returncode == 1
    assert "daemon does not answer" in done.stderr
    for arguments in (["up"], ["up", "4"], ["up", "../deploy"], ["sideways", "2"], []):
        assert run(KIND / "kind.sh", *arguments, cwd=tmp_path, **machine).returncode == 2


def test_the_guide_speaks_of_files_that_are_there() -> None:
    text = GUIDE.read_text()
    for path in ("deploy/agent", "deploy/aggregator", "deploy/agent-secrets", "deploy/certificates.sh", "kind-configs"):
        assert path in text
        assert (ROOT / path).exists()

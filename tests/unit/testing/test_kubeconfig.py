from __future__ import annotations

import stat
from pathlib import Path

import yaml
from kubernetes.aio import config

from federator.testing.certificates import CertificateAuthority
from federator.testing.kubeconfig import Access, write_kubeconfig


def access(name: str, port: int) -> Access:
    authority = CertificateAuthority(name)
    return Access(name, f"https://127.0.0.1:{port}", authority.certificate, authority.client("admin"))


def test_a_context_for_each_and_the_first_is_current(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", [access("eu-1", 1), access("us-1", 2)])
    loaded = yaml.safe_load(path.read_text())
    assert loaded["current-context"] == "eu-1"
    contexts, active = config.list_kube_config_contexts(str(path))
    assert [context["name"] for context in contexts] == ["eu-1", "us-1"]
    assert active["name"] == "eu-1"


async def test_the_official_client_loads_it(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", [access("eu-1", 1), access("us-1", 2)])
    async with await config.new_client_from_config(str(path), context="us-1") as client:
        assert client.configuration.host == "https://127.0.0.1:2"
        assert client.configuration.verify_ssl


def test_only_its_owner_can_read_it_even_if_everybody_could_before(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("old")
    path.chmod(0o644)
    write_kubeconfig(path, [access("eu-1", 1)])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["kubeconfig"]

"""What is shipped fits together, and fits the program: flags, ports, users, volumes. Needs no control plane."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import PurePosixPath
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement

import federator
from federator.cli.main import app
from tests.integration.deploy.kubectl import DEPLOY, ROOT, Manifest

WORKLOADS = ("agent", "aggregator")


def shipped(base: str) -> list[Manifest]:
    """The objects of a base, in the order of its kustomization."""
    folder = DEPLOY / base
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [obj for file in files for obj in yaml.safe_load_all((folder / file).read_text())]


def workload(base: str) -> Manifest:
    (found,) = (each for each in shipped(base) if each["kind"] in {"Deployment", "StatefulSet"})
    return found


def pod(base: str) -> Manifest:
    template: Manifest = workload(base)["spec"]["template"]
    spec: Manifest = template["spec"]
    return spec


def container(base: str) -> Manifest:
    (only,) = pod(base)["containers"]
    found: Manifest = only
    return found


def command(base: str) -> Any:
    """The command that a container runs, as the command line has it."""
    group: Any = typer.main.get_command(app)
    return group.get_command(None, container(base)["args"][0])


def options(base: str) -> dict[str, Any]:
    """The container's options as the command's own parser reads them; a flag that it does not know fails."""
    _, *arguments = container(base)["args"]
    parsed: dict[str, Any] = command(base).make_context(base, list(arguments)).params
    return parsed


def docker(instruction: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, in order."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"{instruction} ")]


@pytest.mark.parametrize("base", WORKLOADS)
def test_the_command_takes_its_flags_and_finds_its_files_on_volumes(base: str) -> None:
    given = options(base)
    assert given["log_format"] == "json"
    volumes = {volume["name"]: volume for volume in pod(base)["volumes"]}
    for claim in workload(base)["spec"].get("volumeClaimTemplates", ()):
        volumes[claim["metadata"]["name"]] = claim
    mounts = {PurePosixPath(mount["mountPath"]): mount for mount in container(base)["volumeMounts"]}
    for name, value in given.items():
        if name.endswith("_file") and value is not None and "kubeconfig" not in name and "secrets" not in name:
            mount = mounts[PurePosixPath(value).parent]
            assert mount["readOnly"]
            source = volumes[mount["name"]]
            assert ("secret" in source) == (PurePosixPath(value).name in {"tls.crt", "tls.key"})
            assert ("configMap" in source) == (PurePosixPath(value).name == "ca.crt")
    if base == "aggregator":
        (state,) = (mount for path, mount in mounts.items() if path in given["state_directory"].parents)
        assert volumes[state["name"]]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert {mount["name"] for mount in mounts.values()} == set(volumes), "every volume is used"
    assert mounts[PurePosixPath("/tmp")]["name"] == "tmp"


def test_the_aggregator_has_tls_on_both_sides_and_the_agent_too() -> None:
    from federator.aggregator.aggregator import Aggregator
    from federator.aggregator.settings import AggregatorSettings
    from federator.wire.tls import all_or_none

    given = options("aggregator")
    files = ("tls_cert_file", "tls_private_key_file", "agent_ca_file", "client_ca_file")
    settings = AggregatorSettings(
        listen=given["listen"],
        ingest_listen=given["ingest_listen"],
        http_listen=given["http_listen"],
        **{name: given[name] for name in files},
    )
    assert settings.reading_tls() is not None
    assert settings.ingest_tls() is not None
    Aggregator(settings)
    agent = options("agent")
    assert all_or_none(agent["aggregator_ca_file"], agent["tls_cert_file"], agent["tls_private_key_file"])
    assert agent["in_cluster"]


def test_the_agent_is_configured_by_variables_that_it_reads() -> None:
    read = {option.envvar for option in command("agent").params}
    assert {"FEDERATOR_CLUSTER_ID", "FEDERATOR_AGGREGATOR"} <= read
    guide = (ROOT / "docs" / "deploy.md").read_text()
    told = set(re.findall(r"\bFEDERATOR_[A-Z_]+", guide))
    readers = {
        option.envvar
        for name in ("agent", "aggregator", "get", "clusters")
        for option in typer.main.get_command(app).get_command(None, name).params  # type: ignore[attr-defined]
    }
    assert told <= readers


@pytest.mark.parametrize("base", WORKLOADS)
def test_ports_are_those_listened_on_and_everybody_names_them_alike(base: str) -> None:
    given = options(base)
    ports = {port["name"]: port["containerPort"] for port in container(base)["ports"]}
    listened = {name: value for name, value in given.items() if name.endswith("listen") and value}
    assert sorted(int(value.rpartition(":")[2]) for value in listened.values()) == sorted(ports.values())
    assert int(given["http_listen"].rpartition(":")[2]) == ports["metrics"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if asked := container(base).get(probe):
            assert asked["httpGet"]["port"] == "metrics"
            assert asked["httpGet"]["path"] == ("/readyz" if probe == "readinessProbe" else "/livez")
    for service in (each for each in shipped(base) if each["kind"] == "Service"):
        labels = workload(base)["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    exposed = {int(port) for line in docker("EXPOSE") for port in line.split()}
    assert set(ports.values()) <= exposed


@pytest.mark.parametrize("base", WORKLOADS)
def test_the_pod_runs_as_the_images_user_with_nothing_more_than_it_needs(base: str) -> None:
    (user,) = docker("USER")
    security = pod(base)["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsUser"] == security["fsGroup"] != 0
    assert security["runAsNonRoot"] is True
    assert container(base)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(base)["enableServiceLinks"] is False, "FEDERATOR_… is for settings"
    assert container(base)["image"] == f"federator:{federator.__version__}"
    (account,) = (each for each in shipped(base) if each["kind"] == "ServiceAccount")
    assert pod(base)["serviceAccountName"] == account["metadata"]["name"]


def test_the_spools_component_fits_the_agent() -> None:
    folder = DEPLOY / "agent-spool"
    patch = yaml.safe_load((folder / "deployment.yaml").read_text())
    claim = yaml.safe_load((folder / "claim.yaml").read_text())
    deployment = workload("agent")
    assert patch["kind"] == deployment["kind"]
    assert {patch["metadata"][name] for name in ("name", "namespace")} == {
        deployment["metadata"][name] for name in ("name", "namespace")
    }
    added = patch["spec"]["template"]["spec"]
    (changed,) = added["containers"]
    assert changed["name"] == container("agent")["name"]
    (variable,) = changed["env"]
    assert variable["name"] in {option.envvar for option in command("agent").params}
    (mount,), (volume,) = changed["volumeMounts"], added["volumes"]
    assert PurePosixPath(variable["value"]).parent == PurePosixPath(mount["mountPath"])
    assert volume["name"] == mount["name"] not in {each["name"] for each in pod("agent")["volumes"]}
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "its lock is one of a file system"


def test_only_the_agent_has_a_token() -> None:
    (account,) = (each for each in shipped("aggregator") if each["kind"] == "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert pod("aggregator")["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod("agent")
    assert not [each for each in shipped("aggregator") if each["kind"].endswith(("Role", "Binding"))]


def test_a_rollout_never_waits_for_a_second_process() -> None:
    """A second agent is a standby, which is not ready; a second aggregator finds the ledger locked."""
    assert workload("agent")["spec"]["strategy"] == {"type": "Recreate"}
    assert workload("agent")["spec"]["replicas"] == workload("aggregator")["spec"]["replicas"] == 1


def test_the_shipped_roles_read_and_nothing_else() -> None:
    roles = [obj for base in ("agent", "agent-secrets") for obj in shipped(base) if obj["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role.get("rules", ())]
    assert rules
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not [rule for rule in rules if "*" in rule["apiGroups"]]
    core = {
        resource
        for obj in shipped("agent")
        for rule in obj.get("rules", ())
        if "" in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert core
    assert not core & {"*", "secrets"}


def test_the_image_runs_the_installed_command_from_a_pinned_base() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (entrypoint,) = docker("ENTRYPOINT")
    assert json.loads(entrypoint) == ["federator"]
    assert "federator" in project["scripts"]
    build, final = docker("FROM")
    assert build.removesuffix(" AS build") == final
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", final), "a tag that says exactly what it is"
    last_stage = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "COPY --from=build /opt/federator /opt/federator\n" in last_stage
    assert "install" not in last_stage.replace("uninstall", "").replace("installer", "")


def test_the_build_is_given_all_that_it_copies_and_nothing_else() -> None:
    copied = {word for line in docker("COPY") if not line.startswith("--from") for word in line.split()[:-1]}
    first, *rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert first == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_what_the_project_needs_in_versions_that_were_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned, tested = (_pinned(name) for name in ("requirements.lock", "requirements-dev.lock"))
    assert pinned.items() <= tested.items()
    for text in (*project["dependencies"], *project["optional-dependencies"]["uvloop"]):
        needed = Requirement(text)
        assert needed.specifier.contains(pinned[needed.name.lower()]), text
    assert "pytest" not in pinned


def _pinned(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / lock).read_text(), re.MULTILINE))

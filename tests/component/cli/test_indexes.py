"""`federator indexes`, `indexes add` and `indexes drop`, and the option that declares indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.settings import AggregatorSettings
from federator.cli.main import main
from federator.errors import FederatorError, IndexFromSettings, IndexNotFound, InvalidInput, LimitReached
from federator.v1 import admin_pb2, inventory_pb2
from tests.component.cli.conftest import Federator
from tests.component.cli.kubeconfigs import SERVER, commands, write_kubeconfig
from tests.component.cli.scripted_admin import ScriptedAdmin
from tests.component.client.scripted_inventory import ScriptedInventory

ANSWER = inventory_pb2.ListFieldIndexesResponse(
    indexes=[
        inventory_pb2.FieldIndex(
            path="spec.replicas",
            resources=["deployments.apps", "statefulsets.apps"],
            state=inventory_pb2.FIELD_INDEX_STATE_READY,
            objects=200,
            values=7,
            entries=198,
            bytes=4096,
            quarantined=12,
            quarantined_keys=["eu-1/apps/deployments/shop/web", "eu-1/apps/deployments/shop/db"],
            is_from_settings=True,
        ),
        inventory_pb2.FieldIndex(path="status.phase", state=inventory_pb2.FIELD_INDEX_STATE_BUILDING, objects=64),
    ]
)


async def test_the_table_and_who_is_left_out(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.field_indexes = ANSWER
    code, out, err = await federator("indexes")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["PATH", "TYPES", "STATE", "OBJECTS", "VALUES", "ENTRIES", "BYTES", "QUARANTINED", "SOURCE"],
        ["spec.replicas", "deployments.apps,statefulsets.apps", "READY", "200", "7", "198", "4096", "12", "settings"],
        ["status.phase", "<all>", "BUILDING", "64", "0", "0", "0", "0", "run", "time"],
    ]
    assert err == (
        "Warning: spec.replicas leaves out 12 objects that cannot be read: eu-1/apps/deployments/shop/web, "
        "eu-1/apps/deployments/shop/db and 10 more\n"
    )


async def test_without_any(federator: Federator, inventory: ScriptedInventory) -> None:
    assert await federator("indexes", "--no-headers") == (0, "", "No field indexes.\n")


async def test_json(federator: Federator, inventory: ScriptedInventory) -> None:
    inventory.field_indexes = ANSWER
    first, second = json.loads((await federator("indexes", "-o=json")).out)["indexes"]
    assert first == {
        "path": "spec.replicas",
        "resources": ["deployments.apps", "statefulsets.apps"],
        "state": "READY",
        "objects": 200,
        "values": 7,
        "entries": 198,
        "bytes": 4096,
        "quarantined": 12,
        "quarantinedKeys": ["eu-1/apps/deployments/shop/web", "eu-1/apps/deployments/shop/db"],
        "isFromSettings": True,
    }
    assert (second["resources"], second["state"], second["isFromSettings"]) == ([], "BUILDING", False)
    assert (await federator("indexes", "-o", "wide")).code == 2


async def test_one_is_added(federator: Federator, admin: ScriptedAdmin) -> None:
    done = await federator("indexes", "add", "spec.replicas", "--type", "deploy", "--type", "sts")
    assert done == (0, "spec.replicas: is being built\n", "")
    admin.is_new = False
    assert await federator("indexes", "add", "status.phase") == (0, "status.phase: is indexed already\n", "")
    assert admin.requests == [
        admin_pb2.AddFieldIndexRequest(path="spec.replicas", resources=["deploy", "sts"]),
        admin_pb2.AddFieldIndexRequest(path="status.phase"),
    ]


async def test_one_is_dropped(federator: Federator, admin: ScriptedAdmin) -> None:
    assert await federator("indexes", "drop", "status.phase") == (0, "status.phase: dropped\n", "")
    assert admin.requests == [admin_pb2.DropFieldIndexRequest(path="status.phase")]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("path", "a..b", "a dotted path"), 2),
        (IndexNotFound("a.b", ("c.d",)), 1),
        (IndexFromSettings("a.b"), 1),
        (LimitReached("field indexes", 32), 1),
    ],
)
async def test_a_refusal_is_said(federator: Federator, admin: ScriptedAdmin, error: FederatorError, code: int) -> None:
    admin.error = error
    for command in ("add", "drop"):
        assert await federator("indexes", command, "a.b") == (code, "", f"Error: {error}\n")


async def test_it_looks_for_the_socket_where_removing_does(
    federator: Federator, admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDERATOR_STATE_DIRECTORY")
    config = tmp_path / "config.yaml"
    config.write_text(f"state-directory: {tmp_path / 'state'}\n")
    for where in (("--config", str(config)), ("--admin", f"unix:{tmp_path / 'state' / 'admin.sock'}")):
        assert (await federator("indexes", "add", "a.b", *where)).code == 0
        assert (await federator("indexes", "drop", "a.b", *where)).code == 0
    nowhere = await federator("indexes", "add", "a.b", "--state-directory", str(tmp_path))
    assert nowhere.code == 1
    assert "there is no such socket" in nowhere.err


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[AggregatorSettings]:
    """Settings of the aggregators that commands make; they are stopped right there."""
    seen: list[AggregatorSettings] = []

    def init(self: Aggregator, settings: AggregatorSettings, **_: object) -> None:
        seen.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(Aggregator, "__init__", init)
    return seen


@pytest.mark.parametrize("command", ["aggregator", "run"])
def test_the_option_of_those_that_run_an_aggregator(
    command: str,
    made: list[AggregatorSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"berlin": SERVER})))
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path))
    config = tmp_path / "config.yaml"
    config.write_text("field-index:\n- spec.a\n- spec.b@pods\n")
    with commands(monkeypatch, capsys) as federator:
        federator(command, "--field-index", "spec.a", "--field-index=spec.b@pods")
        federator(command, "--config", config)
        monkeypatch.setenv("FEDERATOR_FIELD_INDEX", "spec.a spec.b@pods")
        federator(command)
    assert [settings.field_indexes for settings in made] == [("spec.a", "spec.b@pods")] * 3


@pytest.mark.parametrize("command", ["aggregator", "run"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["spec..a"], "'spec..a' is not allowed; allowed: a dotted path"),
        (["spec.a@"], "'spec.a@' is not allowed; allowed: PATH or PATH@TYPE+TYPE"),
        (["spec.a@Deployment"], "allowed: PATH or PATH@TYPE+TYPE"),
        (["spec.nodeName"], "'spec.nodeName' is not allowed; allowed: another field: "),
        (["spec.a", ".spec.a@pods"], "'spec.a' is not allowed; allowed: each path once"),
        (["spec." + 300 * "a"], "allowed: a path of at most 256 characters"),
    ],
)
def test_what_cannot_be_indexed_is_refused_by_the_name_of_the_option(
    command: str,
    given: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"berlin": SERVER})))
    monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path / "state"))
    with commands(monkeypatch, capsys) as federator:
        refused = federator(command, *(word for path in given for word in ("--field-index", path)))
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("Error: --field-index: ")
    assert said in refused.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:9090", "/run/admin.sock"])
def test_it_talks_to_nothing_but_a_unix_socket(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert main(["indexes", "drop", "a.b", "--admin", address]) == 2
    assert capsys.readouterr().err.startswith(f"Error: --admin: '{address}' is not allowed; allowed: unix:/path")

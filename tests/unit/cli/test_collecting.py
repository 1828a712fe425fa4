"""What is collected, as the commands are told it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from federator.agent.settings import AgentSettings, SecretMode
from federator.api.cluster import ClusterID
from federator.cli.collecting import (
    DEFAULT_AUDIT_INTERVAL,
    Collecting,
    audit_seconds,
    cluster_labels,
    fleet_labels,
    resource_names,
    secret_mode,
)
from federator.errors import InvalidInput
from federator.wire.tls import TLSFiles


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ()),
        ([], ()),
        (["pods"], ("pods",)),
        (["pods,deploy"], ("pods", "deploy")),
        (["pods", "deploy,nodes"], ("pods", "deploy", "nodes")),
        (["pods,"], ("pods", "")),
    ],
)
def test_names_may_be_repeated_or_a_list_and_an_empty_one_is_kept_to_be_refused(
    given: list[str] | None, names: tuple[str, ...]
) -> None:
    assert resource_names(given) == names


@pytest.mark.parametrize("mode", SecretMode)
def test_every_mode_is_read(mode: SecretMode) -> None:
    assert secret_mode(str(mode)) is mode


@pytest.mark.parametrize("text", ["", "on", "OFF", "Metadata"])
def test_another_mode_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        secret_mode(text)
    assert (refused.value.field, refused.value.given) == ("--secrets", text)
    assert refused.value.allowed == "off, metadata, fingerprint"


def test_the_options_defaults_are_those_of_the_settings() -> None:
    given = Collecting(None, "", "", "off", None, False, DEFAULT_AUDIT_INTERVAL, None)
    settings = given.settings(ClusterID("eu-1"), "unix:/a", display_name="", source="kubeconfig", cluster_labels={})
    assert settings == AgentSettings(cluster_id=ClusterID("eu-1"), aggregator="unix:/a")


def test_every_option_reaches_the_settings() -> None:
    tls = TLSFiles(ca_file=Path("ca"), certificate_file=Path("crt"), private_key_file=Path("key"))
    given = Collecting(["pods,nodes"], "shop", "app=web", "metadata", Path("key"), True, "90m", Path("spool"))
    settings = given.settings(
        ClusterID("eu-1"), "a:1", display_name="EU", source="in-cluster", cluster_labels={"env": "prod"}, tls=tls
    )
    assert settings == AgentSettings(
        cluster_id=ClusterID("eu-1"),
        aggregator="a:1",
        tls=tls,
        display_name="EU",
        source="in-cluster",
        cluster_labels={"env": "prod"},
        replace=True,
        resources=("pods", "nodes"),
        namespace="shop",
        label_selector="app=web",
        secrets=SecretMode.METADATA,
        secrets_key_file=Path("key"),
        audit_interval=5400.0,
        spool_directory=Path("spool"),
    )
    assert len(given) + 6 == sum(
        value != default
        for value, default in zip(
            msgspec.structs.astuple(settings),
            msgspec.structs.astuple(AgentSettings(cluster_id=ClusterID("x"), aggregator="")),
            strict=True,
        )
    )


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0s", 0.0), ("1m", 60.0), ("1h", 3600.0), ("2d", 172800.0)])
def test_intervals_of_the_audit(text: str, seconds: float) -> None:
    assert audit_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "59s", "-1h", "often", "0.0"])
def test_another_interval_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput, match="0 for never, or a duration of at least 1m") as refused:
        audit_seconds(text)
    assert (refused.value.field, refused.value.given) == ("--audit-interval", text)


@pytest.mark.parametrize("seconds", [59.0, -1.0, float("nan")])
def test_settings_refuse_it_too(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="0 for never, or 60 seconds or more"):
        AgentSettings(cluster_id=ClusterID("x"), aggregator="", audit_interval=seconds)


EU_1, EU_2, US_1 = ClusterID("eu-1"), ClusterID("eu-2"), ClusterID("us-1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        (["env=prod"], {EU_1: {"env": "prod"}, EU_2: {"env": "prod"}, US_1: {"env": "prod"}}),
        (["us-1:env=prod"], {US_1: {"env": "prod"}}),
        (["eu-*:region=eu", "eu-1:tier="], {EU_1: {"region": "eu", "tier": ""}, EU_2: {"region": "eu"}}),
        (["eu-1,us-1:a.b/c=d"], {EU_1: {"a.b/c": "d"}, US_1: {"a.b/c": "d"}}),
        (["!eu-*:env=test"], {US_1: {"env": "test"}}),
        (["env=prod", "eu-2:env=test"], {EU_1: {"env": "prod"}, EU_2: {"env": "test"}, US_1: {"env": "prod"}}),
        (["eu-2:env=test", "env=prod"], {EU_1: {"env": "prod"}, EU_2: {"env": "prod"}, US_1: {"env": "prod"}}),
        (["ap-*:env=prod"], {}),
    ],
)
def test_labels_are_of_all_clusters_or_of_those_that_are_named(
    given: list[str] | None, expected: dict[ClusterID, dict[str, str]]
) -> None:
    found = fleet_labels(given, [EU_1, EU_2, US_1])
    assert found == {EU_1: {}, EU_2: {}, US_1: {}} | expected


@pytest.mark.parametrize(
    "text", ["env", "eu-1:env", "eu-9:env=prod", ":env=prod", "EU:env=prod", "a:b:env=prod", "eu-1:=x"]
)
def test_what_is_no_label_of_a_cluster_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        fleet_labels(["env=prod", text], [EU_1, EU_2])
    assert refused.value.field == "--cluster-label"


def test_labels_of_one_cluster_are_read_and_bounded() -> None:
    assert cluster_labels(["env=prod", "tier="]) == {"env": "prod", "tier": ""}
    assert cluster_labels(None) == {}
    with pytest.raises(InvalidInput, match="KEY=VALUE"):
        cluster_labels(["eu-1:env=prod"])
    with pytest.raises(InvalidInput, match="at most 64"):
        AgentSettings(cluster_id=EU_1, aggregator="unix:/a", cluster_labels={f"k{number}": "" for number in range(65)})

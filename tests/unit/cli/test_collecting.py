"""What is collected, as the commands are told it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from federator.agent.settings import AgentSettings, SecretMode
from federator.api.cluster import ClusterID
from federator.cli.collecting import DEFAULT_AUDIT_INTERVAL, Collecting, audit_seconds, resource_names, secret_mode
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
    settings = given.settings(ClusterID("eu-1"), "unix:/a", display_name="", source="kubeconfig")
    assert settings == AgentSettings(cluster_id=ClusterID("eu-1"), aggregator="unix:/a")


def test_every_option_reaches_the_settings() -> None:
    tls = TLSFiles(ca_file=Path("ca"), certificate_file=Path("crt"), private_key_file=Path("key"))
    given = Collecting(["pods,nodes"], "shop", "app=web", "metadata", Path("key"), True, "90m", Path("spool"))
    settings = given.settings(ClusterID("eu-1"), "a:1", display_name="EU", source="in-cluster", tls=tls)
    assert settings == AgentSettings(
        cluster_id=ClusterID("eu-1"),
        aggregator="a:1",
        tls=tls,
        display_name="EU",
        source="in-cluster",
        replace=True,
        resources=("pods", "nodes"),
        namespace="shop",
        label_selector="app=web",
        secrets=SecretMode.METADATA,
        secrets_key_file=Path("key"),
        audit_interval=5400.0,
        spool_directory=Path("spool"),
    )
    assert len(given) + 5 == sum(
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

"""AggregatorSettings: where TLS is asked for, and what of it has to be given together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from federator.aggregator.settings import AggregatorSettings
from federator.errors import InvalidInput
from federator.wire.tls import TLSFiles

SERVER: dict[str, Any] = {"tls_cert_file": Path("c"), "tls_private_key_file": Path("k")}
AGENTS, CLIENTS = Path("agents"), Path("clients")
ELSEWHERE = ("0.0.0.0:1", "[::]:1", "federator.example.com:1", "10.0.0.1:1")


def settings(**changes: Any) -> AggregatorSettings:
    return AggregatorSettings(**changes)


def files(ca_file: Path, ca_field: str) -> TLSFiles:
    return TLSFiles(ca_file=ca_file, certificate_file=Path("c"), private_key_file=Path("k"), ca_field=ca_field)


def refused(changes: dict[str, Any]) -> InvalidInput:
    given = settings(**changes)
    with pytest.raises(InvalidInput) as caught:
        given.reading_tls()
        given.ingest_tls()
    return caught.value


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x.sock"])
def test_at_home_no_side_needs_tls(address: str) -> None:
    given = settings(listen=address, ingest_listen=address)
    assert given.reading_tls() is given.ingest_tls() is None


@pytest.mark.parametrize("address", [*ELSEWHERE, "127.0.0.1:1"])
def test_each_side_has_its_own_authority(address: str) -> None:
    given = settings(listen=address, ingest_listen=address, agent_ca_file=AGENTS, client_ca_file=CLIENTS, **SERVER)
    assert given.reading_tls() == files(CLIENTS, "client-ca-file")
    assert given.ingest_tls() == files(AGENTS, "agent-ca-file")


def test_one_side_may_stay_at_home_without() -> None:
    given = settings(ingest_listen="0.0.0.0:1", agent_ca_file=AGENTS, **SERVER)
    assert given.reading_tls() is None
    assert given.ingest_tls() is not None
    given = settings(ingest_listen="unix:/run/x.sock", listen="0.0.0.0:1", client_ca_file=CLIENTS, **SERVER)
    assert given.reading_tls() is not None
    assert given.ingest_tls() is None


@pytest.mark.parametrize("address", ELSEWHERE)
@pytest.mark.parametrize(
    ("field", "needed", "other"), [("listen", "client", "agent"), ("ingest_listen", "agent", "client")]
)
def test_what_others_reach_needs_it(address: str, field: str, needed: str, other: str) -> None:
    for given in ({}, SERVER | {f"{other}_ca_file": AGENTS}):
        error = refused({field: address, **given})
        assert (error.field, error.given) == (field.replace("_", "-"), address)
        assert f"{needed}-ca-file" in error.allowed


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"agent_ca_file": AGENTS}, "tls-cert-file"),
        ({"client_ca_file": CLIENTS}, "tls-cert-file"),
        ({"client_ca_file": CLIENTS, "tls_cert_file": Path("c")}, "tls-private-key-file"),
        ({"client_ca_file": CLIENTS, "tls_private_key_file": Path("k")}, "tls-cert-file"),
        (SERVER, "client-ca-file"),
        ({"tls_private_key_file": Path("k")}, "client-ca-file"),
        (SERVER | {"agent_ca_file": AGENTS, "ingest_listen": "unix:/run/x.sock"}, "agent-ca-file"),
        (SERVER | {"client_ca_file": CLIENTS, "listen": "unix:/run/x.sock"}, "client-ca-file"),
        ({"listen": "nonsense"}, "listen"),
        ({"ingest_listen": "nonsense"}, "ingest-listen"),
    ],
)
def test_what_does_not_fit_together_is_named(changes: dict[str, Any], field: str) -> None:
    assert refused(changes).field == field


def test_the_administrating_side_is_a_socket_in_the_state_directory_unless_told_otherwise(tmp_path: Path) -> None:
    assert settings().admin_address() is None
    assert settings(state_directory=tmp_path).admin_address() == f"unix:{tmp_path}/admin.sock"
    assert settings(state_directory=Path("state")).admin_address() == f"unix:{Path.cwd()}/state/admin.sock"
    assert settings(state_directory=tmp_path, admin_listen="unix:/run/a.sock").admin_address() == "unix:/run/a.sock"
    assert settings(admin_listen="unix:/run/a.sock").admin_address() == "unix:/run/a.sock"
    assert settings(state_directory=tmp_path, admin_listen="").admin_address() is None


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:1", "0.0.0.0:1", "/run/a.sock"])
def test_the_administrating_side_is_never_anything_else(address: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        settings(admin_listen=address).admin_address()
    assert (refused.value.field, refused.value.given) == ("admin-listen", address)

"""Kubeconfig files: merged as kubectl does, faults kept to what they concern."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from federator.errors import CredentialsError
from federator.kube.kubeconfig import ContextEntry, Kubeconfig, kubeconfig_contexts


def write(path: Path, *, contexts: Any = (), clusters: Any = (), users: Any = (), **more: Any) -> Path:
    content = {
        "contexts": [{"name": name, "context": value} for name, value in dict(contexts).items()],
        "clusters": [{"name": name, "cluster": value} for name, value in dict(clusters).items()],
        "users": [{"name": name, "user": value} for name, value in dict(users).items()],
        **more,
    }
    path.write_text(json.dumps(content))
    return path


SERVER = {"server": "https://a:6443"}


def one(path: Path, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> str | None:
    """What is wrong with a context of this cluster and user."""
    joined = {"cluster": "c", "user": "u"}
    (entry,) = kubeconfig_contexts(
        write(path, contexts={"x": joined}, clusters={"c": cluster}, users={"u": user or {}})
    )
    return entry.error


def test_contexts_in_file_order(tmp_path: Path) -> None:
    path = write(tmp_path / "k", contexts={"b": {"cluster": "c"}, "a": {"cluster": "c"}}, clusters={"c": SERVER})
    assert kubeconfig_contexts(path) == [ContextEntry("b"), ContextEntry("a")]
    assert kubeconfig_contexts(str(path)) == [ContextEntry("b"), ContextEntry("a")]


def test_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(
        tmp_path / "first", contexts={"x": {"cluster": "c", "user": "u"}}, clusters={"c": SERVER}, users={"u": {}}
    )
    (tmp_path / "sub").mkdir()
    second = write(
        tmp_path / "sub" / "second",
        contexts={"x": {"cluster": "other"}, "y": {"cluster": "c", "user": "v"}},
        users={"v": {"tokenFile": "token"}},
        **{"current-context": "y"},
    )
    third = write(tmp_path / "third", **{"current-context": "x"})
    (tmp_path / "sub" / "token").write_text("t")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [first, tmp_path / "missing", second, third])))
    assert kubeconfig_contexts() == [ContextEntry("x"), ContextEntry("y")]
    context = Kubeconfig.load().context(None)
    assert (context.name, context.cluster) == ("y", SERVER)
    assert context.user == {"tokenFile": str(tmp_path / "sub" / "token")}


def test_a_broken_file_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = write(tmp_path / "good", contexts={"x": {"cluster": "c"}}, clusters={"c": SERVER})
    broken, number, binary = tmp_path / "broken", tmp_path / "number", tmp_path / "binary"
    broken.write_text("users: [{token: hunter2")
    number.write_text("clusters: text")
    binary.write_bytes(b"\xff\x00")
    (tmp_path / "empty").write_text("")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [broken, number, binary, tmp_path / "empty", good])))
    entries = kubeconfig_contexts()
    assert entries[0] == ContextEntry("x")
    assert {entry.name: entry.error for entry in entries[1:]} == {
        str(file): "is not a kubeconfig" for file in (broken, number, binary)
    }


def test_no_kubeconfig_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubeconfig_contexts() == []
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", contexts={"home": {"cluster": "c"}}, clusters={"c": SERVER})
    assert kubeconfig_contexts() == [ContextEntry("home")]


def test_a_missing_file_that_was_named(tmp_path: Path) -> None:
    assert kubeconfig_contexts(tmp_path / "no") == [
        ContextEntry(str(tmp_path / "no"), "cannot be read: No such file or directory")
    ]
    with pytest.raises(CredentialsError, match=r"no such context; known: none; .*cannot be read"):
        Kubeconfig.load(tmp_path / "no").context("x")


def test_entries_without_a_name_are_named_by_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "k", contexts={"x": {"cluster": "c"}}, clusters={"c": SERVER})
    content = json.loads(path.read_text())
    content["contexts"] += [{"context": {}}, {"name": "half"}, "text"]
    content["users"] = [{"name": "u"}]
    path.write_text(json.dumps(content))
    assert [entry.name for entry in kubeconfig_contexts(path)] == [
        "x",
        f"{path}: contexts[1]",
        "half",
        f"{path}: contexts[3]",
        f"{path}: users[0]",
    ]


@pytest.mark.parametrize(
    ("joined", "error"),
    [
        ({"cluster": "gone"}, "names cluster 'gone', which does not exist"),
        ({}, "names cluster None, which does not exist"),
        ({"cluster": "c", "user": "gone"}, "names user 'gone', which does not exist"),
        ({"cluster": "c", "user": ["x"]}, "names user ['x'], which does not exist"),
        ({"cluster": "c", "user": ""}, None),
    ],
)
def test_what_a_context_joins(tmp_path: Path, joined: dict[str, Any], error: str | None) -> None:
    path = write(tmp_path / "k", contexts={"x": joined}, clusters={"c": SERVER})
    assert kubeconfig_contexts(path) == [ContextEntry("x", error)]


@pytest.mark.parametrize(
    "server", [None, 5, "", "a:6443", "ftp://a", "https://", "https://a:port", "https://[::1", "https://a:0"]
)
def test_a_server_that_is_no_url(tmp_path: Path, server: Any) -> None:
    assert one(tmp_path / "k", {"server": server}) == "its cluster has no server with an http or https URL"


@pytest.mark.parametrize(
    ("cluster", "user", "error"),
    [
        ({"server": "https://me:hunter2@a"}, {}, "carries credentials"),
        ({"proxy-url": "socks5://p"}, {}, "SOCKS"),
        ({"certificate-authority": "ca.crt"}, {}, "its certificate-authority names .*/ca.crt, which does not exist"),
        ({"certificate-authority-data": "ä"}, {}, "its certificate-authority-data is not base64"),
        ({}, {"client-certificate": "crt"}, "its client-certificate names .*/crt"),
        ({}, {"client-key-data": "abc"}, "its client-key-data is not base64"),
        ({}, {"tokenFile": "/no/token"}, "its tokenFile names /no/token"),
        ({}, {"as": "admin", "token": "hunter2"}, "impersonates"),
        ({}, {"exec": {"command": "x"}}, "exec plugin without command or apiVersion"),
        ({}, {"exec": "x"}, "exec plugin without"),
    ],
)
def test_faults_of_cluster_and_user(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], error: str) -> None:
    fault = one(tmp_path / "k", {**SERVER, **cluster}, user)
    assert fault is not None
    with pytest.raises(CredentialsError, match=error):
        Kubeconfig.load(tmp_path / "k").context("x")
    assert "hunter2" not in fault


def test_folded_base64_is_accepted(tmp_path: Path) -> None:
    assert one(tmp_path / "k", {**SERVER, "certificate-authority-data": "YWJj\nYWJj\n"}) is None


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("")
    user = {"exec": {"command": "./plugin", "apiVersion": "v1"}}
    assert one(tmp_path / "k", {**SERVER, "certificate-authority": "ca.crt"}, user) is None
    context = Kubeconfig.load(tmp_path / "k").context("x")
    assert context.cluster["certificate-authority"] == str(tmp_path / "ca.crt")
    assert context.user["exec"]["command"] == str(tmp_path / "plugin")


def test_unknown_context_names_the_known(tmp_path: Path) -> None:
    path = write(tmp_path / "k", contexts={"x": {"cluster": "c"}}, clusters={"c": SERVER})
    with pytest.raises(CredentialsError, match="'y': no such context; known: x"):
        Kubeconfig.load(path).context("y")
    with pytest.raises(CredentialsError, match="current context"):
        Kubeconfig.load(path).context(None)

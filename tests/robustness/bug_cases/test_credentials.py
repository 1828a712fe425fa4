"""Credentials that expire while informers run; real plugins, so the clock is the real one here and nothing waits."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.typing import EventDict

from federator.errors import CredentialsError
from federator.kube import CredentialsSource, InClusterCredentials, KubeconfigCredentials, MemberClient
from federator.kube.member_client import REFRESH_PAUSE
from federator.testing import FakeApiServer
from tests.robustness.bug_cases.follower import Follower, assert_polite, truth, until

CONFIG_MAPS = "/api/v1/configmaps"
VERSION = "client.authentication.k8s.io/v1"
SECRET = "hunter2"
"""In every token; never to be seen in a log or an error."""


class Rotated(NamedTuple):
    """Credentials that can be rotated; the old ones are no longer accepted then.

    Attributes:
        source: where a client gets them from.
        rotate: makes the next ones.
        runs: how often a plugin has run; None where there is none.
    """

    source: CredentialsSource
    rotate: Callable[[], None]
    runs: Callable[[], int] | None = None


def by_token_file(server: FakeApiServer, tmp_path: Path, _: pytest.MonkeyPatch) -> Rotated:
    token = tmp_path / "token"
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", token_file=token)
    numbers = iter(range(100))

    def rotate() -> None:
        new = f"{SECRET}-{next(numbers)}"
        token.write_text(f"{new}\n")
        server.require_token(new)

    return Rotated(KubeconfigCredentials(path=kubeconfig), rotate)


def by_projected_token(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rotated:
    """The kubelet's way: a directory of its own for each rotation, to which a link is swapped."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    ca, link, numbers = tmp_path / "ca.crt", tmp_path / "..data", iter(range(100))
    ca.write_bytes(server.authority or b"")

    def rotate() -> None:
        folder = tmp_path / f"..{next(numbers)}"
        folder.mkdir()
        token = f"{SECRET}{folder.name}"
        (folder / "token").write_text(token)
        new = tmp_path / "..data_tmp"
        new.symlink_to(folder)
        new.replace(link)
        server.require_token(token)

    return Rotated(InClusterCredentials(token_file=link / "token", ca_file=ca), rotate)


def by_client_certificate(server: FakeApiServer, tmp_path: Path, _: pytest.MonkeyPatch) -> Rotated:
    kubeconfig = tmp_path / "kubeconfig"

    def rotate() -> None:
        pair = server.client_certificate()
        server.kubeconfig(kubeconfig, client_certificate=pair)
        server.require_client_certificate(pair)

    return Rotated(KubeconfigCredentials(path=kubeconfig), rotate)


PLUGIN = """\
cd "$1"
echo run >> runs
if [ -e slow ]; then cat slow > /dev/null; fi
cat credential
if [ -e fail ]; then
    rm fail
    echo the login server is away >&2
    exit 1
fi
"""
"""Gives the file `credential`; waits for a writer of the pipe `slow`; fails once where there is a file `fail`."""


def plugin(server: FakeApiServer, tmp_path: Path) -> tuple[KubeconfigCredentials, Callable[[], int]]:
    script = tmp_path / "plugin.sh"
    script.write_text(PLUGIN)
    command = {"apiVersion": VERSION, "command": "/bin/sh", "args": [str(script), str(tmp_path)]}
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", exec=command)
    return KubeconfigCredentials(path=kubeconfig), lambda: len((tmp_path / "runs").read_text().splitlines())


def write_credential(tmp_path: Path, **status: str) -> None:
    credential = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    (tmp_path / "credential").write_text(json.dumps(credential))


def by_plugin(server: FakeApiServer, tmp_path: Path, _: pytest.MonkeyPatch) -> Rotated:
    source, runs = plugin(server, tmp_path)
    numbers = iter(range(100))

    def rotate() -> None:
        token = f"{SECRET}-{next(numbers)}"
        write_credential(tmp_path, token=token)
        server.require_token(token)

    return Rotated(source, rotate, runs)


def by_plugin_with_certificate(server: FakeApiServer, tmp_path: Path, _: pytest.MonkeyPatch) -> Rotated:
    source, runs = plugin(server, tmp_path)

    def rotate() -> None:
        pair = server.client_certificate()
        write_credential(tmp_path, clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())
        server.require_client_certificate(pair)

    return Rotated(source, rotate, runs)


WAYS = [by_token_file, by_projected_token, by_client_certificate, by_plugin, by_plugin_with_certificate]

FOLLOWERS = 3


@asynccontextmanager
async def following(client: MemberClient) -> AsyncIterator[Sequence[Follower]]:
    async with AsyncExitStack() as stack:
        followers = [await stack.enter_async_context(Follower(client, name=f"f{n}")) for n in range(FOLLOWERS)]
        for follower in followers:
            await follower.synced()
        yield followers


async def all_hold_the_truth(server: FakeApiServer, followers: Sequence[Follower]) -> None:
    await until(lambda: all(follower.held == truth(server) for follower in followers), timeout=30, step=0.005)


@pytest.mark.parametrize("way", WAYS)
async def test_bug40_rotation_costs_one_refused_request_and_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict], way: Callable[..., Rotated]
) -> None:
    async with FakeApiServer(tls=True, too_large_wait=0) as server:
        rotated = way(server, tmp_path, monkeypatch)
        rotated.rotate()
        async with MemberClient(rotated.source) as client, following(client) as followers:
            opened = server.requests.of("watch")
            assert len(opened) == FOLLOWERS
            for number in range(1, 4):
                rotated.rotate()
                server.put("configmaps", f"m-{number}")
                await all_hold_the_truth(server, followers)
                begin = server.requests.total
                await client.get(CONFIG_MAPS)
                await client.get(CONFIG_MAPS)
                assert [each.status for each in server.requests.of(since=begin)] == [401, 200, 200]
                assert client.statistics()["credential_refreshes"] == number
            assert server.requests.of("watch") == opened, "watches go on with what they were opened with"
            assert all(each.live for each in opened)

            # Many are refused at once, and one fetches new credentials for all.
            rotated.rotate()
            begin = server.requests.total
            await asyncio.gather(*(client.get(CONFIG_MAPS) for _ in range(20)))
            assert client.statistics()["credential_refreshes"] == 4
            answers = Counter(each.status for each in server.requests.of(since=begin))
            assert (answers[200], answers[401] <= 20) == (20, True)

            # Watches that end after a rotation are refused once each, and resumed.
            rotated.rotate()
            begin, version = server.requests.total, server.resource_version
            server.end_watches()
            server.put("configmaps", "last")
            await all_hold_the_truth(server, followers)
            since = server.requests.of(since=begin)
            assert {(each.verb, each.query["resourceVersion"]) for each in since} == {("watch", version)}
            assert Counter(each.status for each in since)[401] <= FOLLOWERS
            assert client.statistics()["credential_refreshes"] == 5
            assert [follower.failures for follower in followers] == [[]] * FOLLOWERS
            if rotated.runs is not None:
                assert rotated.runs() == 1 + 5
        assert_polite(server)
    assert_no_secret(logs)


async def test_bug40_a_slow_plugin_runs_once_for_all_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    async with FakeApiServer(tls=True, too_large_wait=0) as server:
        rotated = by_plugin(server, tmp_path, monkeypatch)
        assert rotated.runs is not None
        rotated.rotate()
        async with MemberClient(rotated.source) as client, following(client) as followers:
            os.mkfifo(tmp_path / "slow")
            rotated.rotate()
            begin = server.requests.total
            requests = [asyncio.create_task(client.get(CONFIG_MAPS)) for _ in range(20)]
            await server.wait_for(lambda: Counter(each.status for each in server.requests.of(since=begin))[401] == 20)
            server.put("configmaps", "a")
            await all_hold_the_truth(server, followers)
            requests[0].cancel()  # the one who leaves must not take the others' credentials along
            assert not any(request.done() for request in requests[1:])
            await asyncio.to_thread((tmp_path / "slow").write_text, "go on")
            await asyncio.gather(*requests[1:])
            assert rotated.runs() == 2
            assert requests[0].cancelled()
    assert_no_secret(logs)


async def test_bug40_a_plugin_that_fails_once_is_asked_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    clock = 0.0
    async with FakeApiServer(tls=True, too_large_wait=0) as server:
        rotated = by_plugin(server, tmp_path, monkeypatch)
        assert rotated.runs is not None
        rotated.rotate()
        async with MemberClient(rotated.source, clock=lambda: clock) as client, following(client) as followers:
            (tmp_path / "fail").touch()
            rotated.rotate()
            for _ in range(3):
                outcomes: list[Any] = await asyncio.gather(
                    *(client.get(CONFIG_MAPS) for _ in range(20)), return_exceptions=True
                )
                assert {type(outcome) for outcome in outcomes} == {CredentialsError}
                assert SECRET not in str(outcomes)
            assert rotated.runs() == 2, "once in the pause, however many ask"
            server.put("configmaps", "a")
            await all_hold_the_truth(server, followers)
            assert [follower.failures for follower in followers] == [[]] * FOLLOWERS

            clock += REFRESH_PAUSE
            await asyncio.gather(*(client.get(CONFIG_MAPS) for _ in range(20)))
            assert rotated.runs() == 3
    assert_no_secret(logs)


async def test_bug40_credentials_that_are_never_accepted_do_not_run_the_plugin_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    clock = 0.0
    async with FakeApiServer(tls=True, too_large_wait=0) as server:
        rotated = by_plugin(server, tmp_path, monkeypatch)
        assert rotated.runs is not None
        rotated.rotate()
        async with MemberClient(rotated.source, clock=lambda: clock) as client:
            server.require_token("another")
            for runs in (2, 3):
                for _ in range(5):
                    with pytest.raises(CredentialsError, match="does not accept them") as caught:
                        await client.get(CONFIG_MAPS)
                    assert SECRET not in str(caught.value)
                assert rotated.runs() == runs
                clock += REFRESH_PAUSE
    assert_no_secret(logs)


def assert_no_secret(logs: list[EventDict]) -> None:
    assert SECRET not in json.dumps(logs, default=repr)

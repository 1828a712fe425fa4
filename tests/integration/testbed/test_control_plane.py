from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from kubernetes.aio import config

from federator.errors import KubeStatusError, MemberUnreachable, TestbedError
from federator.testing import AdminClient, ControlPlane, Testbed, programs
from federator.testing.binaries import CONTROL_PLANE
from federator.testing.certificates import CertificateAuthority, KeyPair
from federator.testing.process_group import Process, ProcessGroup

pytestmark = pytest.mark.testbed

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.02)


async def names(plane: ControlPlane) -> set[str]:
    async with plane.client() as admin:
        found = await admin.get(CONFIG_MAPS)
    return {item["metadata"]["name"] for item in found["items"]}


async def create(plane: ControlPlane, name: str) -> None:
    async with plane.client() as admin:
        await admin.create(CONFIG_MAPS, {"metadata": {"name": name}})


async def test_it_is_ready_and_is_the_pinned_version(three_clusters: Testbed) -> None:
    for plane in three_clusters:
        async with plane.client() as admin:
            assert await admin.text("/readyz") == "ok"
            assert (await admin.get("/version"))["gitVersion"] == "v1.37.2"


async def test_one_kubeconfig_reaches_each_by_its_context(three_clusters: Testbed, shared_namespace: str) -> None:
    uids = set()
    for name in ("eu-1", "us-1", "ap-1"):
        async with await config.new_client_from_config(str(three_clusters.kubeconfig), context=name) as api:
            assert api.configuration.host == three_clusters[name].url
            # Not by the client's classes: to import them takes longer than to start a control plane.
            answer = await api.call_api("GET", f"{api.configuration.host}/api/v1/namespaces/{shared_namespace}")
            uids.add(json.loads(await answer.read())["metadata"]["uid"])
    assert len(uids) == 3


async def test_rbac_is_on(three_clusters: Testbed, tmp_path: Path) -> None:
    plane = three_clusters["eu-1"]
    trusting = ssl.create_default_context(cadata=plane.access.authority.decode())
    async with AdminClient(plane.url, trusting) as anonymous:
        with pytest.raises(KubeStatusError) as refused:
            await anonymous.get("/api/v1/pods")
        assert refused.value.code == 403

    identify(trusting, plane.user_credentials("alice"), tmp_path)
    async with AdminClient(plane.url, trusting) as alice:
        with pytest.raises(KubeStatusError, match='User "alice" cannot list resource "pods"'):
            await alice.get("/api/v1/pods")


def identify(context: ssl.SSLContext, pair: KeyPair, folder: Path) -> None:
    (folder / "pair.pem").write_bytes(pair.key + pair.certificate)
    context.load_cert_chain(folder / "pair.pem")


async def test_the_server_is_verified_and_so_is_the_client(three_clusters: Testbed, tmp_path: Path) -> None:
    eu, us = three_clusters["eu-1"], three_clusters["us-1"]
    trusting_another = ssl.create_default_context(cadata=us.access.authority.decode())
    async with AdminClient(eu.url, trusting_another) as admin:
        with pytest.raises(MemberUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await admin.get("/version")

    # An administrator's certificate, but signed by somebody else.
    trusting = ssl.create_default_context(cadata=eu.access.authority.decode())
    identify(trusting, CertificateAuthority("else").client("admin", groups=("system:masters",)), tmp_path)
    async with AdminClient(eu.url, trusting) as admin:
        with pytest.raises(KubeStatusError) as refused:
            await admin.get("/api/v1/pods")
        assert refused.value.code == 401


async def test_a_watch_gets_bookmarks(three_clusters: Testbed) -> None:
    """The watch cache is on: a streamed list ends with a bookmark."""
    plane = three_clusters["ap-1"]
    tls = ssl.create_default_context(cadata=plane.access.authority.decode())
    tls.load_cert_chain(plane.folder / "admin.crt", plane.folder / "admin.key")
    query = (
        "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    )
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        session.get(f"{plane.url}/api/v1/namespaces{query}") as response,
        asyncio.timeout(10),
    ):
        # To its end: a connection that is left in the midst is closed only after the test, if its loop is still there.
        bookmarks = [line async for line in response.content if b'"type":"BOOKMARK"' in line]
    assert b"k8s.io/initial-events-end" in bookmarks[0]


async def test_data_and_port_outlive_a_kill_of_both(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    url = plane.url
    await create(plane, "before-the-kill-of-both")
    old = {process.pid for process in plane.processes.values()}
    plane.kill("kube-apiserver", "etcd")
    assert not any(map(alive, old))
    with pytest.raises(MemberUnreachable):
        await names(plane)

    await plane.start()
    assert plane.url == url
    assert "before-the-kill-of-both" in await names(plane)
    assert not old & {process.pid for process in plane.processes.values()}


async def test_a_killed_apiserver_comes_back_to_the_same_etcd(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    etcd = plane.processes["etcd"].pid
    plane.kill()
    await plane.start()
    assert plane.processes["etcd"].pid == etcd
    assert set(plane.statistics()) == {"etcd", "kube-apiserver"}


async def test_paused_it_does_not_answer_and_resumed_it_does(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    plane.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await names(plane)
    plane.resume()
    await create(plane, "after-the-pause")
    assert "after-the-pause" in await names(plane)

    plane.pause("etcd")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await create(plane, "never")
    plane.resume("etcd")
    await create(plane, "later")


async def test_a_stop_with_open_watches_is_graceful_and_a_restart_keeps_data(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    await create(plane, "before-the-restart")
    etcd, apiserver = plane.processes["etcd"], plane.processes["kube-apiserver"]
    async with plane.client() as admin, admin.stream("/api/v1/configmaps?watch=1") as lines:
        await anext(lines)
        await plane.restart()
        # The apiserver ended the watch itself: the stream is at its end, and not broken.
        assert [line async for line in lines if b'"type":"ERROR"' in line] == []
    assert apiserver.exit_code == 0
    assert plane.processes["etcd"].pid != etcd.pid
    assert "before-the-restart" in await names(plane)


async def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    plane = ControlPlane(apiserver_arguments=["--no-such-flag"])
    with pytest.raises(TestbedError, match=r"kube-apiserver of testbed ended with exit code 1(?s:.*)unknown flag"):
        async with plane:
            pass
    assert plane.processes == {}


async def test_a_program_that_cannot_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one for another platform."""
    for name in CONTROL_PLANE:
        (tmp_path / name).write_bytes(b"\x7fELF of something else")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(TestbedError, match=f"etcd of testbed cannot be run: {tmp_path}/etcd: Exec format error"):
        async with ControlPlane():
            pass


def test_how_often_garbage_is_collected_is_for_the_environment_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOGC", raising=False)
    assert programs.environment()["GOGC"] == "400"
    monkeypatch.setenv("GOGC", "50")
    assert programs.environment()["GOGC"] == "50"


async def test_a_cancelled_start_leaves_nothing_and_a_temporary_folder_goes() -> None:
    plane = ControlPlane()
    starting = asyncio.create_task(plane.start())
    await until(lambda: "kube-apiserver" in plane.processes)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(process.running for process in plane.processes.values())
    folder = plane.folder
    assert folder.exists()
    await plane.close()
    assert not folder.exists()


async def test_one_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    (tmp_path / "us-1").mkdir()
    (tmp_path / "us-1" / "etcd").write_text("not a folder")
    bed = Testbed(("eu-1", "us-1"), folder=tmp_path)
    with pytest.raises(TestbedError, match="etcd of us-1 ended"):
        await bed.start()
    assert not any(process.running for plane in bed for process in plane.processes.values())
    await bed.close()


@asynccontextmanager
async def owner(folder: Path, *, until_it_is: str) -> AsyncIterator[tuple[Process, list[int]]]:
    """A process with a control plane that is "launched" or "ready", and the PIDs of the programs of that."""
    group = ProcessGroup()
    try:
        module = "tests.integration.testbed.owner"
        process = group.launch_module("owner", module, [str(folder)], log=folder / "owner.log", folder=Path.cwd())
        async with asyncio.timeout(60):
            while not (folder / until_it_is).exists():
                assert process.running, process.log_tail()
                await asyncio.sleep(0.05)
        pids = json.loads((folder / until_it_is).read_text())
        assert len(pids) == 2
        assert all(map(alive, pids))
        yield process, pids
    finally:
        group.close()


async def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    async with owner(tmp_path, until_it_is="launched") as (process, pids):
        process.kill()
        await until(lambda: not any(map(alive, pids)))


async def test_nothing_outlives_an_interrupted_owner_but_a_given_folder_which_is_taken_up_again(tmp_path: Path) -> None:
    async with owner(tmp_path, until_it_is="ready") as (process, pids):
        os.kill(process.pid, signal.SIGINT)
        await until(lambda: not process.running)
        assert not any(map(alive, pids))
    async with ControlPlane("second", folder=tmp_path / "data") as plane:
        assert "kept" in await names(plane)
        pids = [process.pid for process in plane.processes.values()]
        # Paused is not dead: it can be closed like this.
        plane.pause("etcd")
    assert not any(map(alive, pids))
    assert (tmp_path / "data" / "etcd").is_dir()
    with pytest.raises(TestbedError, match="closed"):
        _ = plane.url

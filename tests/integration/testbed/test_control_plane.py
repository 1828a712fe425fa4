from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from kubernetes.aio import client, config

from federator.errors import KubeStatusError, MemberUnreachable, TestbedError
from federator.testing import AdminClient, ControlPlane, Testbed
from federator.testing.certificates import CertificateAuthority, KeyPair
from federator.testing.pytest_plugin import ControlPlaneFactory

pytestmark = pytest.mark.testbed

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
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
            namespace = await client.CoreV1Api(api).read_namespace(shared_namespace)
            assert namespace.metadata is not None
            uids.add(namespace.metadata.uid)
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
    query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session,
        session.get(f"{plane.url}/api/v1/namespaces{query}") as response,
        asyncio.timeout(10),
    ):
        async for line in response.content:
            if b'"type":"BOOKMARK"' in line:
                assert b"k8s.io/initial-events-end" in line
                break


async def test_data_and_port_outlive_a_kill_of_both(control_plane_factory: ControlPlaneFactory) -> None:
    plane = await control_plane_factory()
    url = plane.url
    await create(plane, "before")
    old = {process.pid for process in plane.processes.values()}
    plane.kill("kube-apiserver", "etcd")
    assert not any(map(alive, old))
    with pytest.raises(MemberUnreachable):
        await names(plane)

    await plane.start()
    assert plane.url == url
    assert "before" in await names(plane)
    assert not old & {process.pid for process in plane.processes.values()}


async def test_a_killed_apiserver_comes_back_to_the_same_etcd(control_plane_factory: ControlPlaneFactory) -> None:
    plane = await control_plane_factory()
    etcd = plane.processes["etcd"].pid
    plane.kill()
    await plane.start()
    assert plane.processes["etcd"].pid == etcd

    await create(plane, "before")
    await plane.restart()
    assert "before" in await names(plane)
    assert plane.processes["etcd"].pid != etcd


async def test_paused_it_does_not_answer_and_resumed_it_does(control_plane_factory: ControlPlaneFactory) -> None:
    plane = await control_plane_factory()
    plane.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await names(plane)
    plane.resume()
    await create(plane, "after")
    assert "after" in await names(plane)

    plane.pause("etcd")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await create(plane, "never")
    plane.resume("etcd")
    await create(plane, "later")
    # Paused is not dead: it can be closed like this.
    plane.pause("etcd")


async def test_a_stop_with_open_watches_is_graceful(control_plane_factory: ControlPlaneFactory) -> None:
    plane = await control_plane_factory()
    async with plane.client() as admin, admin.stream("/api/v1/configmaps?watch=1") as lines:
        await anext(lines)
        await plane.stop()
        # The apiserver ended the watch itself: the stream is at its end, and not broken.
        assert [line async for line in lines if b'"type":"ERROR"' in line] == []
    assert plane.processes["kube-apiserver"].exit_code == 0


async def test_a_given_folder_is_taken_up_again(tmp_path: Path) -> None:
    async with ControlPlane("first", folder=tmp_path) as plane:
        await create(plane, "kept")
        await plane.stop()
    async with ControlPlane("second", folder=tmp_path) as plane:
        assert "kept" in await names(plane)
    assert (tmp_path / "etcd").is_dir()


async def test_a_temporary_folder_goes_and_nothing_is_left() -> None:
    async with ControlPlane() as plane:
        folder = plane.folder
        pids = [process.pid for process in plane.processes.values()]
        assert set(plane.statistics()) == {"etcd", "kube-apiserver"}
    assert not folder.exists()
    assert not any(map(alive, pids))
    with pytest.raises(TestbedError, match="closed"):
        _ = plane.url


async def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    plane = ControlPlane(apiserver_arguments=["--no-such-flag"])
    with pytest.raises(TestbedError, match=r"kube-apiserver of testbed ended with exit code 1(?s:.*)unknown flag"):
        async with plane:
            pass
    assert plane.processes == {}


async def test_a_cancelled_start_leaves_nothing() -> None:
    plane = ControlPlane()
    starting = asyncio.create_task(plane.start())
    await until(lambda: "kube-apiserver" in plane.processes)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(process.running for process in plane.processes.values())
    await plane.close()


async def test_one_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    (tmp_path / "us-1").mkdir()
    (tmp_path / "us-1" / "etcd").write_text("not a folder")
    bed = Testbed(("eu-1", "us-1"), folder=tmp_path)
    with pytest.raises(TestbedError, match="etcd of us-1 ended"):
        await bed.start()
    assert not any(process.running for plane in bed for process in plane.processes.values())
    await bed.close()


_OWNER = """
import asyncio, pathlib, signal, sys
from federator.testing import ControlPlane

# As in a terminal: a test run in the background hands down that it ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with ControlPlane() as plane:
        pids = pathlib.Path(sys.argv[1])
        pids.with_suffix(".partial").write_text(" ".join(str(p.pid) for p in plane.processes.values()))
        pids.with_suffix(".partial").rename(pids)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
async def test_nothing_outlives_the_process_that_started_it(tmp_path: Path, end: signal.Signals) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(tmp_path / "pids"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            while not (tmp_path / "pids").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        os.kill(owner.pid, end)
        await owner.wait()
        await until(lambda: not any(map(alive, pids)))
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()

"""No value of a Secret leaves its cluster, in any mode and whatever happens; the same scan finds a ConfigMap's."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import zstandard

from federator.api.cluster import TypeState
from federator.client import InventoryClient
from federator.errors import AggregatorUnreachable, NotFound
from federator.testing.admin_client import AdminClient
from federator.testing.etcd_store import store_objects
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.pytest_plugin import ControlPlaneFactory
from federator.v1 import inventory_pb2
from tests.integration.federation.canary import PIECE, files, found, http2_messages
from tests.integration.federation.commands import federator

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(600)]

SECRETS = "/api/v1/namespaces/default/secrets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LETTERS = 'aäß€中ж𝄞"\\<&>/+%'


class TestScan:
    """The scan itself: what it would not find, it could not miss."""

    VALUE = bytes(range(120, 120 + 3 * PIECE))

    @pytest.mark.parametrize("prefix", [b"", b"x", b"xy", b"xyz"])
    def test_it_finds_every_spelling(self, prefix: bytes) -> None:
        value, around = self.VALUE, prefix + self.VALUE + b"behind"
        compressed = zstandard.compress(b"before" * 50 + value)
        spelled = {
            "raw": around,
            "hex": value.hex().encode(),
            "HEX": value.hex().upper().encode(),
            "base64": base64.b64encode(around),
            "urlsafe": base64.urlsafe_b64encode(around),
            "twice": base64.b64encode(prefix + base64.b64encode(around)),
            "repr": repr(around).encode(),
            "percent": b"".join(b"%%%02x" % byte for byte in around),
            "zstd": b"junk" + compressed + b"junk",
            "cut zstd": b"junk" + compressed[:-1],
            "cut": around[: len(prefix) + PIECE],
        }
        assert found(spelled, {"value": value}) == {(name, "value") for name in spelled}

    def test_it_finds_text_in_json(self) -> None:
        # Twelve bytes, so that no piece ends inside of a letter.
        text = "".join(letter for _ in range(3) for letter in secrets.SystemRandom().sample("ä€中𝄞", 4))
        value = text.encode()
        surfaces = {"escaped": json.dumps(text).encode(), "plain": json.dumps(text, ensure_ascii=False).encode()}
        assert found(surfaces, {"value": value}) == {("escaped", "value"), ("plain", "value")}

    def test_it_finds_nothing_where_nothing_is(self) -> None:
        noise = secrets.token_bytes(200_000)
        assert not found({"noise": noise, "base64": base64.b64encode(noise)}, {"value": self.VALUE})


class Canaries:
    """Values that stand nowhere else in the world."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def data(self, name: str) -> str:
        """Random bytes, as base64 for `data`."""
        self.values[name] = secrets.token_bytes(4 * PIECE)
        return base64.b64encode(self.values[name]).decode()

    def text(self, name: str) -> str:
        """Random text, with what JSON, URLs and shells escape."""
        # Letters of one byte keep pieces from ending inside of a letter.
        text = (
            secrets.token_urlsafe(PIECE) + "".join(secrets.choice('"\\<&>/+%') for _ in range(4)) + secrets.token_hex()
        )
        self.values[name] = text.encode()
        return text

    def secret(self, name: str, mode: str) -> dict[str, Any]:
        """A Secret that has one in each place where one can be."""
        data, applied = self.data(f"{mode} data"), self.data(f"{mode} applied")
        return {
            "metadata": {
                "name": name,
                "annotations": {
                    LAST_APPLIED: json.dumps({"kind": "Secret", "data": {"x": data, "y": applied}}),
                    "other.example/last-applied": self.text(f"{mode} annotation") + "{malformed",
                    "other.example/twice": base64.b64encode(data.encode()).decode(),
                },
            },
            "data": {"x": data, "twice": base64.b64encode(data.encode()).decode()},
            "stringData": {"password": self.text(f"{mode} text")},
            "type": "Opaque",
        }


class Tap:
    """A relay between agents and the aggregator that keeps what agents send."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix:")
        self._sent: list[bytearray] = []
        self.address = ""

    @property
    def messages(self) -> bytes:
        """What was sent as gRPC messages, over all connections."""
        return b"\n".join(http2_messages(bytes(sent)) for sent in self._sent)

    @property
    def streams(self) -> bytes:
        """What was sent, as it was."""
        return b"\n".join(map(bytes, self._sent))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Tap]:
        async with asyncio.TaskGroup() as tasks:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    onward_reader, onward_writer = await asyncio.open_unix_connection(self._target)
                except OSError:
                    writer.transport.abort()
                    return
                sent = bytearray()
                self._sent.append(sent)
                carrying.add(tasks.create_task(_carry(reader, onward_writer, sent), name="tap"))
                carrying.add(tasks.create_task(_carry(onward_reader, writer, bytearray()), name="tap"))

            carrying: set[asyncio.Task[None]] = set()
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield self
            finally:
                server.close()
                for task in carrying:
                    task.cancel()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while chunk := await source.read(64 * 1024):
            kept += chunk
            sink.write(chunk)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.transport.abort()


class Surfaces:
    """Everything outside of the cluster that could hold a value, as it was when it was looked at."""

    def __init__(self, federation: Federation, tap: Tap) -> None:
        self._federation = federation
        self._tap = tap
        self._kept: dict[str, bytes] = {}

    def keep(self, name: str, content: bytes) -> None:
        self._kept[f"{name} #{len(self._kept)}"] = content

    async def look(self, fed: InventoryClient, agent_metrics: str) -> None:
        """Keeps what can be asked for now: replies, metrics, output of commands, the processes' own."""
        for process in self._federation.processes.values():
            self._keep_process(process)
        for url in (self._federation.metrics_url, agent_metrics):
            self.keep(url, await _metrics(url))
        types = [str(each.type.group_resource) for each in await fed.resource_types()]
        await asyncio.gather(
            self._replies(types),
            self._output("get", "secrets,configmaps", "-A", "-o", "yaml"),
            self._output("get", "secrets", "-A", "-o", "json"),
            self._output("get", "secrets", "-A", "-o", "wide", "--show-labels"),
            self._output("clusters", "-o", "json"),
        )

    def all(self) -> Mapping[str, bytes]:
        """What was kept, what agents sent, and every file: ledger and logs."""
        sent = {"pushed messages": self._tap.messages, "pushed bytes": self._tap.streams}
        return self._kept | sent | files(self._federation.folder)

    def _keep_process(self, process: Process) -> None:
        for file in ("cmdline", "environ"):
            self.keep(f"{process.name} {file}", Path(f"/proc/{process.pid}/{file}").read_bytes())

    async def _output(self, *arguments: str) -> None:
        output = await federator(*arguments, server=self._federation.address)
        assert output.code == 0, output
        self.keep(" ".join(arguments), (output.out + output.err).encode())

    async def _replies(self, types: list[str]) -> None:
        service = inventory_pb2.DESCRIPTOR.services_by_name["InventoryService"].full_name
        selection = inventory_pb2.Selection(resources=types)
        get = inventory_pb2.GetRequest(resource="secrets", namespace="default", name="canary")
        async with grpc.aio.insecure_channel(self._federation.address) as channel:

            async def ask(method: str, request: Any, *, is_enough: Callable[[bytes], bool] = lambda _: False) -> None:
                # A unary call answers as a stream of one does.
                asked = channel.unary_stream(
                    f"/{service}/{method}", request_serializer=bytes, response_deserializer=bytes
                )
                call = asked(request.SerializeToString(), timeout=20)
                replies = bytearray()
                try:
                    async for reply in call:
                        replies += reply
                        if is_enough(reply):
                            break
                except grpc.aio.AioRpcError as error:
                    replies += repr(error).encode()
                finally:
                    call.cancel()
                self.keep(method, bytes(replies))

            await asyncio.gather(
                ask("List", inventory_pb2.ListRequest(selection=selection)),
                ask(
                    "Watch",
                    inventory_pb2.WatchRequest(selection=selection, bookmark_interval_ms=1000),
                    is_enough=_has_bookmark,
                ),
                ask("Get", get),
                ask("ListClusters", inventory_pb2.ListClustersRequest()),
                ask("ListResourceTypes", inventory_pb2.ListResourceTypesRequest()),
            )


async def test_no_value_of_a_secret_leaves_its_cluster(
    control_plane_factory: ControlPlaneFactory, tmp_path: Path
) -> None:
    # A list of what cannot be read waits for the apiserver's cache, for as long as a request may take.
    plane = await control_plane_factory("eu-1", apiserver_arguments=("--request-timeout=8s",))
    canaries, control = Canaries(), Canaries()
    key = tmp_path / "key"
    key.write_text(canaries.text("key of the fingerprints"))
    port = _free_port()
    federation = Federation(
        plane.kubeconfig, ("eu-1",), folder=tmp_path / "federation", aggregator_arguments=["--log-level=debug"]
    )
    federation.folder.mkdir()
    tap = Tap(federation.ingest_address)
    surfaces = Surfaces(federation, tap)
    try:
        async with plane.client() as admin, tap.open(), federation.client() as fed:
            agent = (
                f"--aggregator={tap.address}",
                f"--http-listen=127.0.0.1:{port}",
                f"--spool={federation.folder / 'spool'}",
                "--log-level=debug",
            )
            await admin.create(CONFIG_MAPS, _config_map(control))
            federation.start_aggregator()
            for mode, arguments, is_seen in (
                ("off", ["--secrets=off"], None),
                ("metadata", ["--secrets=metadata"], lambda body: "data" not in body),
                ("lengths", ["--secrets=fingerprint"], lambda body: _fingerprints(body) == {"length=48"}),
                (
                    "hashes",
                    ["--secrets=fingerprint", f"--secrets-key-file={key}"],
                    lambda body: any(each.startswith("length=48 hmac-sha256=") for each in _fingerprints(body)),
                ),
            ):
                federation.start_agent("eu-1", *agent, *arguments)
                await _live_a_life(admin, canaries, mode)
                await _until_seen(fed, is_seen)
                federation.kill("agent-eu-1")
                federation.start_agent("eu-1", *agent, *arguments)
                step = {"metadata": {"labels": {"step": mode}}}
                await admin.patch(f"{SECRETS}/canary", step | {"data": {"x": canaries.data(f"{mode} later")}})
                await admin.patch(f"{CONFIG_MAPS}/control", step)
                if mode == "metadata":
                    federation.kill("aggregator")
                    federation.start_aggregator()
                await _until_state(fed, TypeState.NOT_COLLECTED if mode == "off" else TypeState.LIVE)
                await _until_seen(fed, is_seen, step=mode)
                await surfaces.look(fed, f"http://127.0.0.1:{port}/metrics")
                assert await federation.processes["agent-eu-1"].stop(20)
            await _fail_the_type(plane.etcd_socket, canaries)
            federation.start_agent("eu-1", *agent, "--secrets=fingerprint")
            await _until_state(fed, TypeState.STALE)
            await surfaces.look(fed, f"http://127.0.0.1:{port}/metrics")
            assert await federation.stop()
            scanned = surfaces.all()
    finally:
        federation.close()
    leaks = await asyncio.to_thread(found, scanned, canaries.values)
    assert not leaks
    # The same scan finds what is no secret, in the ledger and on the wire only inside of zstd frames.
    shown = await asyncio.to_thread(found, scanned, control.values)
    for value in control.values:
        assert {surface.split(" #")[0] for surface, name in shown if name == value} >= {
            "List",
            "Watch",
            "pushed messages",
            "get secrets,configmaps -A -o yaml",
            str(federation.folder / "state" / "ledger" / "data.mdb"),
        }
    assert any("agent-eu-1.log" in surface for surface in scanned)


async def _live_a_life(admin: AdminClient, canaries: Canaries, mode: str) -> None:
    """A Secret comes, changes, goes and comes again, each time with other values."""
    if mode != "off":
        await admin.delete(f"{SECRETS}/canary")
    await admin.create(SECRETS, canaries.secret("canary", f"{mode} first"))
    await admin.patch(f"{SECRETS}/canary", {"data": {"x": canaries.data(f"{mode} changed")}})
    await admin.delete(f"{SECRETS}/canary")
    await admin.create(SECRETS, canaries.secret("canary", f"{mode} second"))


async def _fail_the_type(etcd_socket: Path, canaries: Canaries) -> None:
    """A Secret that its apiserver cannot read: every list of Secrets fails, with a message that speaks of it."""
    broken = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "broken", "namespace": "default", "uid": "broken"},
        "data": {"x": "!" + canaries.text("broken data"), "y": [canaries.text("broken shape")]},
    }
    await store_objects(etcd_socket, [("secrets/default/broken", broken)])


async def _until_seen(
    fed: InventoryClient, is_seen: Callable[[dict[str, Any]], bool] | None, *, step: str = ""
) -> None:
    """Waits for the Secret in the form of its mode, if it is seen at all, and for a step, if one is named."""

    async def read(resource: str, name: str) -> dict[str, Any]:
        try:
            body = (await fed.get(resource, name, namespace="default")).object.to_dict()
        except (AggregatorUnreachable, NotFound):
            return {}
        return body if step in {"", body["metadata"].get("labels", {}).get("step")} else {}

    async with asyncio.timeout(90):
        while not (await read("configmaps", "control")):  # noqa: ASYNC110 - another process's state has no event
            await asyncio.sleep(0.1)
        while is_seen is not None and not ((body := await read("secrets", "canary")) and is_seen(body)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _until_state(fed: InventoryClient, state: TypeState) -> None:
    async with asyncio.timeout(90):
        while True:
            try:
                clusters = (await fed.clusters(timeout=5)).clusters
            except AggregatorUnreachable:
                clusters = ()
            types = {str(each.group_resource): each.state for cluster in clusters for each in cluster.types}
            if types.get("secrets") is state and types.get("configmaps") is TypeState.LIVE:
                return
            await asyncio.sleep(0.1)


def _has_bookmark(reply: bytes) -> bool:
    """Whether a watch has told all there is, also how fresh each cluster and type is."""
    events = inventory_pb2.WatchResponse.FromString(reply).events
    return any(event.type == inventory_pb2.WATCH_EVENT_TYPE_BOOKMARK for event in events)


async def _metrics(url: str) -> bytes:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    return await response.read()
            except aiohttp.ClientConnectionError:  # not listening yet
                await asyncio.sleep(0.1)


def _fingerprints(body: Mapping[str, Any]) -> set[str]:
    return {base64.b64decode(value).decode() for name, value in body.get("data", {}).items() if name == "x"}


def _config_map(control: Canaries) -> dict[str, Any]:
    return {
        "metadata": {"name": "control", "annotations": {"other.example/copy": control.text("annotation")}},
        "data": {"text": control.text("text"), "filler": "so that it is worth compressing " * 50},
        "binaryData": {"bytes": control.data("bytes")},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

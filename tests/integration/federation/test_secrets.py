"""No value of a Secret leaves its cluster, in any mode and whatever happens; the same scan finds a ConfigMap's."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest
import zstandard

from federator.api.cluster import TypeState
from federator.client import InventoryClient, TypeFreshness
from federator.errors import AggregatorUnreachable, NotFound
from federator.testing.admin_client import AdminClient
from federator.testing.etcd_store import store_objects
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.pytest_plugin import ControlPlaneFactory
from federator.v1 import inventory_pb2
from tests.integration.federation.canary import PIECE, files, found, http2_messages
from tests.integration.federation.commands import federator
from tests.robustness.federated_bed import HastyFederation

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
            "hex in base64": base64.b64encode(prefix + value.hex().encode()),
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

    def secret(self, name: str, step: str) -> dict[str, Any]:
        """A Secret that has one in each place where one can be."""
        data, applied = self.data(f"{step} data"), self.data(f"{step} applied")
        return {
            "metadata": {
                "name": name,
                "labels": {"step": step},
                "annotations": {
                    LAST_APPLIED: json.dumps({"kind": "Secret", "data": {"x": data, "y": applied}}),
                    "other.example/last-applied": self.text(f"{step} annotation") + "{malformed",
                    "other.example/twice": base64.b64encode(data.encode()).decode(),
                },
            },
            "data": {"x": data, "twice": base64.b64encode(data.encode()).decode()},
            "stringData": {"password": self.text(f"{step} text")},
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


class Mode(NamedTuple):
    """How an agent is told to treat Secrets.

    Attributes:
        arguments: of the agent.
        is_seen: whether the body of a Secret is what it shows then; None where it shows no Secrets.
    """

    arguments: tuple[str, ...]
    is_seen: Callable[[dict[str, Any]], bool] | None


class SecretFederation(HastyFederation):
    """One whose agent is started, not forked, where it is given a key: so its command line is its own."""

    def _launch(self, name: str, *arguments: str) -> None:
        if not any(each.startswith("--secrets-key-file") for each in arguments):
            super()._launch(name, *arguments)
            return
        self._processes[name] = self._group.launch(
            name,
            [sys.executable, "-m", self.agent_module, *arguments],
            log=self.folder / f"{name}.log",
            folder=self.folder,
            environment=self._environment(),
        )


class Place:
    """A federation of the one cluster, in one mode, and what can be seen of it."""

    def __init__(self, kubeconfig: Path, folder: Path, mode: Mode) -> None:
        folder.mkdir()
        self.mode = mode
        self.federation = SecretFederation(
            kubeconfig, ("eu-1",), folder=folder, aggregator_arguments=["--log-level=debug"]
        )
        self._tap = Tap(self.federation.ingest_address)
        self.surfaces = Surfaces(self.federation, self._tap)
        self._http_address = f"127.0.0.1:{_free_port()}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Place]:
        try:
            async with self._tap.open(), self.federation.client() as self._fed:
                yield self
        finally:
            self.federation.close()

    def start_agent(self) -> None:
        self.federation.start_agent(
            "eu-1",
            f"--aggregator={self._tap.address}",
            f"--http-listen={self._http_address}",
            f"--spool={self.federation.folder / 'spool'}",
            "--log-level=debug",
            *self.mode.arguments,
        )

    async def look(self) -> None:
        await self.surfaces.look(self._fed, f"http://{self._http_address}/metrics")

    async def until_seen(self, step: str) -> None:
        """Waits for what a step has left: a ConfigMap, and the Secret as the mode shows it, if it does."""

        async def read(resource: str, name: str) -> dict[str, Any]:
            try:
                body = (await self._fed.get(resource, name, namespace="default")).object.to_dict()
            except (AggregatorUnreachable, NotFound):
                return {}
            return body if body["metadata"]["labels"]["step"] == step else {}

        is_seen = self.mode.is_seen
        async with asyncio.timeout(90):
            while not await read("configmaps", "control"):  # noqa: ASYNC110 - another process's state has no event
                await asyncio.sleep(0.1)
            while is_seen is not None and not ((body := await read("secrets", "canary")) and is_seen(body)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def until_live(self) -> None:
        """Waits until Secrets are followed, or not collected, and ConfigMaps are followed."""
        secrets_are = TypeState.NOT_COLLECTED if self.mode.is_seen is None else TypeState.LIVE
        await self._until(
            lambda types: types["secrets"].state is secrets_are and types["configmaps"].state is TypeState.LIVE
        )

    async def until_broken(self) -> None:
        """Waits until Secrets are said to be STALE, and why, if they are collected at all."""
        if self.mode.is_seen is None:
            await self.until_live()
        else:
            await self._until(
                lambda types: types["secrets"].state is TypeState.STALE and "failed to read" in types["secrets"].reason
            )

    async def _until(self, told: Callable[[Mapping[str, TypeFreshness]], bool]) -> None:
        async with asyncio.timeout(90):
            while True:
                try:
                    clusters = (await self._fed.clusters(timeout=5)).clusters
                except AggregatorUnreachable:
                    clusters = ()
                types = {str(each.group_resource): each for cluster in clusters for each in cluster.types}
                if {"secrets", "configmaps"} <= types.keys() and told(types):
                    return
                await asyncio.sleep(0.1)


async def test_no_value_of_a_secret_leaves_its_cluster(
    control_plane_factory: ControlPlaneFactory, tmp_path: Path
) -> None:
    # Without a cache for Secrets a list of what cannot be read fails at once; else it waits for that cache.
    plane = await control_plane_factory("eu-1", apiserver_arguments=("--watch-cache-sizes=secrets#0",))
    canaries, control = Canaries(), Canaries()
    key = tmp_path / "key"
    key.write_text(canaries.text("key of the fingerprints"))
    async with plane.client() as admin, AsyncExitStack() as stack:
        places = [
            await stack.enter_async_context(Place(plane.kubeconfig, tmp_path / name, mode).open())
            for name, mode in _modes(key).items()
        ]

        async def in_all(*calls: Coroutine[Any, Any, None]) -> None:
            await asyncio.gather(*calls)

        await admin.create(CONFIG_MAPS, _config_map(control, "first"))
        await admin.create(SECRETS, canaries.secret("canary", "first"))
        for place in places:
            place.federation.start_aggregator()
            place.start_agent()
        await in_all(*(place.until_seen("first") for place in places))
        await _go_on(admin, canaries)
        await in_all(*(place.until_seen("second") for place in places))
        for place in places:
            place.federation.kill("agent-eu-1")
            place.start_agent()
        await admin.patch(f"{SECRETS}/canary", _step("later") | {"data": {"x": canaries.data("later")}})
        await admin.patch(f"{CONFIG_MAPS}/control", _step("later"))
        for place in places:
            place.federation.kill("aggregator")
            place.federation.start_aggregator()
        await in_all(*(place.until_live() for place in places))
        await in_all(*(place.until_seen("later") for place in places))
        await in_all(*(place.look() for place in places))
        assert all(await asyncio.gather(*(place.federation.stop() for place in places)))
        await _fail_the_type(plane.etcd_socket, canaries)
        for place in places:
            # One that knows nothing of the cluster: one that did would for a minute give it time to recover.
            place.federation.start_aggregator(f"--state-directory={place.federation.folder / 'new'}")
            place.start_agent()
        await in_all(*(place.until_broken() for place in places))
        await in_all(*(place.look() for place in places))
        assert all(await asyncio.gather(*(place.federation.stop() for place in places)))
        for place in places:
            scanned = place.surfaces.all()
            assert not await asyncio.to_thread(found, scanned, canaries.values)
            # The same scan finds what is no secret, in the ledger and on the wire only inside of zstd frames.
            shown = await asyncio.to_thread(found, scanned, control.values)
            for value in control.values:
                assert {surface.split(" #")[0] for surface, name in shown if name == value} >= {
                    "List",
                    "Watch",
                    "pushed messages",
                    "get secrets,configmaps -A -o yaml",
                    str(place.federation.folder / "state" / "ledger" / "data.mdb"),
                }
            assert any("agent-eu-1.log" in surface for surface in scanned)


def _modes(key: Path) -> dict[str, Mode]:
    def is_hashed(body: dict[str, Any]) -> bool:
        return any(each.startswith("length=48 hmac-sha256=") for each in _fingerprints(body))

    asked = "--resource=secrets,configmaps"
    return {
        "off": Mode(("--secrets=off",), None),  # of all types
        "metadata": Mode(("--secrets=metadata", asked), lambda body: "data" not in body),
        "lengths": Mode(("--secrets=fingerprint", asked), lambda body: _fingerprints(body) == {"length=48"}),
        "hashes": Mode(("--secrets=fingerprint", f"--secrets-key-file={key}", asked), is_hashed),
    }


async def _go_on(admin: AdminClient, canaries: Canaries) -> None:
    """A Secret that is there changes, goes and comes again, each time with other values."""
    await admin.patch(f"{SECRETS}/canary", {"data": {"x": canaries.data("changed")}})
    await admin.delete(f"{SECRETS}/canary")
    await admin.create(SECRETS, canaries.secret("canary", "second"))
    await admin.patch(f"{CONFIG_MAPS}/control", _step("second"))


async def _fail_the_type(etcd_socket: Path, canaries: Canaries) -> None:
    """A Secret that its apiserver cannot read: every list of Secrets fails, with a message that speaks of it."""
    broken = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "broken", "namespace": "default", "uid": "broken"},
        "data": {"x": "!" + canaries.text("broken data"), "y": [canaries.text("broken shape")]},
    }
    await store_objects(etcd_socket, [("secrets/default/broken", broken)])


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


def _step(step: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"step": step}}}


def _config_map(control: Canaries, step: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "control",
            "labels": {"step": step},
            "annotations": {"other.example/copy": control.text("annotation")},
        },
        "data": {"text": control.text("text"), "filler": "so that it is worth compressing " * 50},
        "binaryData": {"bytes": control.data("bytes")},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

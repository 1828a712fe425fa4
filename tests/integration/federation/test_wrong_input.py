"""Wrong input to real processes: told by its field, what was given and what is allowed, and no harm to anybody else."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.api.cluster import ClusterState
from federator.api.cursor import CursorCodec
from federator.client import InventoryClient, aconnect
from federator.errors import (
    AmbiguousName,
    CursorAhead,
    CursorExpired,
    CursorForeign,
    CursorForged,
    CursorMalformed,
    FederatorError,
    InvalidInput,
    MalformedSelector,
    ObjectNotFound,
    UnknownCluster,
    UnknownResourceType,
)
from federator.testing.federation import Federation
from federator.testing.process_group import Process, ProcessGroup
from federator.testing.testbed import Testbed
from federator.v1 import ingest_pb2, inventory_pb2, inventory_pb2_grpc, types_pb2
from federator.wire.body import content_hash, encode_body
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.status import from_rpc_error
from tests.integration.federation.commands import assert_refused, federator, launch, refused
from tests.integration.push.raw_agent import pushed, raw_agent

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

SERVED = ("eu-1", "us-1")
NOWHERE = "https://127.0.0.1:1"


@pytest.fixture(scope="module")
def cursors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CursorCodec, int]:
    """A state directory whose cursors this test can make as well, and its first revision."""
    folder = tmp_path_factory.mktemp("federation")

    async def establish() -> tuple[CursorCodec, int]:
        ledger = LmdbLedger.open(folder / "state")
        try:
            return ledger.cursors, ledger.oldest_revision
        finally:
            await ledger.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return folder, *runner.run(establish())


@pytest.fixture(scope="module")
def federation(living_bed: Testbed, cursors: tuple[Path, CursorCodec, int]) -> Iterator[Federation]:
    """Two clusters, for tests that change nothing."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        running = Federation(living_bed.kubeconfig, SERVED, folder=cursors[0])
        try:
            runner.run(running.start())
            yield running
            assert runner.run(running.stop())
        finally:
            running.close()


class TestReading:
    """Commands and calls that ask an aggregator."""

    async def test_commands(self, federation: Federation) -> None:
        await assert_refused(
            refused("get", "gadgets", code=1, said=["'gadgets'", "allowed: plural"]),
            refused("get", "pods,gadgets", code=1, said=["'gadgets'"]),
            refused("get", ",", said=["TYPE", "TYPE[,TYPE...]"]),
            refused("get", "a/b/c", said=["argument: 'a/b/c'", "TYPE/NAME"]),
            refused("get", "pods", "-l", "a in (b", said=["label_selector, at its end: 'a in (b'", "allowed: "]),
            refused("get", "pods", "-l", "a=b,,", said=["label_selector, character 4 (','): 'a=b,,'"]),
            refused("get", "pods", "--field-selector", "spec", said=["field_selector, at its end: 'spec'"]),
            refused("get", "pods", "-C", "!!", said=["clusters, character 0 ('!'): '!!'", "allowed: "]),
            refused("get", "pods", "-C", "mars-1", code=1, said=["'mars-1'", "known: eu-1, us-1"]),
            refused("clusters", "-C", "mars-1", code=1, said=["'mars-1'", "known: eu-1, us-1"]),
            refused("get", "mars-1//pods/default/a", code=1, said=["'mars-1'", "known: eu-1, us-1"]),
            refused("get", "pods", "-n", "a/b", said=["namespace: 'a/b'"]),
            refused("get", "pods", "nobody", code=1, said=["pods 'nobody' not found in any cluster"]),
            refused("get", "pods", "-o", "xml", said=["--output: 'xml'", "yaml"]),
            refused("get", "pods", "--limit", "-1", said=["--limit", "-1"]),
            refused("get", "pods", "--limit", "many", said=["--limit", "many"]),
            refused("get", "pods", "--limit", str(2**32), said=["--limit", str(2**32)]),
            refused("get", said=["WHAT"]),
            refused("get", "pods", "--no-such-option", said=["--no-such-option"]),
            refused("gte", "pods", said=["command: 'gte'", "get"]),
            refused("clusters", "--server", "127.0.0.1:1", code=1, said=["127.0.0.1:1", "refused"]),
            refused("clusters", "--server", "127.0.0.1:99999", said=["server: '127.0.0.1:99999'", "65535"]),
            refused("clusters", "--server", "", said=["server: ''", "host:port"]),
            refused("clusters", "--server", "nowhere", said=["server: 'nowhere'", "host:port"]),
            server=federation.address,
        )

    async def test_a_misspelt_variable(self, federation: Federation) -> None:
        output = await federator("clusters", server=federation.address, FEDERATOR_SERVR="x")
        assert (output.code, output.out) == (2, "")
        assert "'FEDERATOR_SERVR'" in output.err
        assert "did you mean FEDERATOR_SERVER?" in output.err

    @pytest.mark.parametrize(
        ("asked", "error", "field"),
        [
            ({}, InvalidInput, "selection.resources"),
            ({"resources": "gadgets"}, UnknownResourceType, ""),
            ({"resources": "pods", "labels": "a in"}, MalformedSelector, "selection.label_selector"),
            (
                {"resources": "pods", "labels": ",".join(["a=b"] * 10_000)},
                MalformedSelector,
                "selection.label_selector",
            ),
            ({"resources": "pods", "fields": "=a"}, MalformedSelector, "selection.field_selector"),
            ({"resources": "pods", "clusters": "!"}, MalformedSelector, "selection.clusters"),
            ({"resources": "pods", "clusters": "mars-1"}, UnknownCluster, ""),
            ({"resources": "pods", "namespace": "a\0b"}, InvalidInput, "selection.namespace"),
            ({"resources": "pods", "name": "a/b"}, InvalidInput, "selection.name"),
        ],
    )
    async def test_selections(
        self, federation: Federation, asked: dict[str, str], error: type[FederatorError], field: str
    ) -> None:
        asked = {"resources": ""} | asked
        async with federation.client() as fed:
            with pytest.raises(error) as listed:
                await fed.list(**asked, timeout=20)  # type: ignore[arg-type]
            with pytest.raises(error) as watched:
                await anext(fed.watch(**asked, timeout=20))  # type: ignore[arg-type]
        assert str(listed.value) == str(watched.value)
        if isinstance(listed.value, InvalidInput):
            assert listed.value.field == field
            assert listed.value.allowed

    async def test_a_glob_that_nothing_matches_is_no_error(self, federation: Federation) -> None:
        async with federation.client() as fed:
            assert (await fed.list("pods", clusters="mars-*")).items == ()

    async def test_one_object(self, federation: Federation) -> None:
        async with federation.client() as fed:
            with pytest.raises(InvalidInput, match="a namespace"):
                await fed.get("pods", "a")
            with pytest.raises(ObjectNotFound):
                await fed.get("pods", "nobody", namespace="default")
            with pytest.raises(AmbiguousName, match="eu-1, us-1"):
                await fed.get("namespaces", "default")
            with pytest.raises(UnknownCluster):
                await fed.get("namespaces", "default", cluster="mars-1")
            with pytest.raises(InvalidInput, match="cluster_id"):
                await fed.get("namespaces", "default", cluster="Not_An_ID")

    async def test_cursors(self, federation: Federation, cursors: tuple[Path, CursorCodec, int]) -> None:
        _, codec_, oldest = cursors
        async with federation.client() as fed:
            good = (await fed.list("nodes")).cursor
            assert codec_.decode(good) > oldest, "the cursors of this test are the aggregator's"
            foreign = CursorCodec(b"another!", codec_.secret).encode(oldest)
            for cursor, error in (
                (b"x", CursorMalformed),
                (b"\xff\x00", CursorMalformed),
                (good[:-4], CursorMalformed),
                (good + b"AAAA", CursorMalformed),
                (b"A" * 100_000, CursorMalformed),
                (_changed(good, byte=-1), CursorForged),
                (_changed(good, byte=12), CursorForged),
                (CursorCodec(codec_.ledger_id, b"guessed").encode(oldest), CursorForged),
                (_changed(good, byte=3), CursorForeign),
                (foreign, CursorForeign),
                (codec_.encode(2**53), CursorAhead),
                (codec_.encode(oldest - 1), CursorExpired),
                (codec_.encode(0), CursorExpired),
            ):
                with pytest.raises(error):
                    await anext(fed.watch("nodes", cursor=cursor, timeout=20))
            with pytest.raises(CursorExpired) as expired:
                await anext(fed.watch("nodes", cursor=codec_.encode(oldest - 1), timeout=20))
            assert (expired.value.revision, expired.value.oldest) == (oldest - 1, oldest)


class TestRawCalls:
    """What no client of ours would send."""

    async def test_empty_requests(self, federation: Federation) -> None:
        async with _channel(federation.address) as channel:
            stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
            for call in (
                stub.Get(inventory_pb2.GetRequest()),
                stub.List(inventory_pb2.ListRequest()),
                stub.Watch(inventory_pb2.WatchRequest()),
            ):
                error = from_rpc_error(await _failure(call), federation.address)
                assert isinstance(error, InvalidInput), error
                assert error.field in {"resource", "selection.resources"}
            assert len((await stub.ListClusters(inventory_pb2.ListClustersRequest())).clusters) == len(SERVED)

    @pytest.mark.parametrize("method", ["Get", "List", "Watch", "ListClusters", "ListResourceTypes"])
    async def test_what_is_no_message(self, federation: Federation, method: str) -> None:
        async with _channel(federation.address) as channel:
            for garbage in (b"\xff\xff\xff\xff", b"\x0a\x7f"):
                error = from_rpc_error(await _failure(_raw(channel, method, garbage)), federation.address)
                assert isinstance(error, InvalidInput), error
                assert (error.field, error.given) == ("request", f"{len(garbage)} bytes")
        await _assert_serving(federation)

    async def test_text_that_is_none(self, federation: Federation) -> None:
        async with _channel(federation.address) as channel:
            failure = await _failure(_raw(channel, "Get", b"\x0a\x02\xff\xfe"))
            assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def test_a_message_that_is_too_large(self, federation: Federation) -> None:
        async with _channel(federation.address) as channel:
            large = inventory_pb2.ListRequest(
                selection=inventory_pb2.Selection(resources=["x" * (MAX_MESSAGE_BYTES + 1)])
            ).SerializeToString()
            assert (await _failure(_raw(channel, "List", large))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            just_fits = inventory_pb2.ListRequest(
                selection=inventory_pb2.Selection(resources=["x" * (MAX_MESSAGE_BYTES - 100)])
            ).SerializeToString()
            error = from_rpc_error(await _failure(_raw(channel, "List", just_fits)), federation.address)
            assert isinstance(error, UnknownResourceType | InvalidInput)
        await _assert_serving(federation)

    async def test_absurd_numbers(self, federation: Federation) -> None:
        async with _channel(federation.address) as channel:
            stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
            nodes = inventory_pb2.Selection(resources=["nodes"])
            minus_one = inventory_pb2.ListRequest(selection=nodes).SerializeToString() + b"\x10" + b"\xff" * 9 + b"\x01"
            assert len(inventory_pb2.ListRequest.FromString(minus_one).selection.resources) == 1
            responses = [response async for response in _raw(channel, "List", minus_one)]
            assert responses, "a negative limit is, to protobuf, the largest there is"
            watch = stub.Watch(inventory_pb2.WatchRequest(selection=nodes, bookmark_interval_ms=2**64 - 1), timeout=20)
            assert (await watch.read()).events
            watch.cancel()

    async def test_an_unknown_method(self, federation: Federation) -> None:
        async with _channel(federation.address) as channel:
            assert (await _failure(_raw(channel, "Delete", b""))).code() is grpc.StatusCode.UNIMPLEMENTED


class TestRawAgents:
    """Push streams that are not what they have to be."""

    @pytest.mark.parametrize(
        ("hello", "field"),
        [
            ({"cluster_id": "Not_An_ID"}, "cluster_id"),
            ({"cluster_id": ""}, "cluster_id"),
            ({"cluster_id": "c" * 64}, "cluster_id"),
            ({"cluster_uid": ""}, "cluster_uid"),
            ({"instance": ""}, "agent_instance"),
        ],
    )
    async def test_hello(self, federation: Federation, hello: dict[str, str], field: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async with raw_agent(federation.ingest_address, **({"cluster_id": "raw-1"} | hello)):  # type: ignore[arg-type]
                pass
        error = from_rpc_error(failed.value, federation.ingest_address)
        assert isinstance(error, InvalidInput), error
        assert error.field == field
        assert error.allowed

    async def test_frames(self, federation: Federation) -> None:
        async def told(**frame: Any) -> FederatorError:
            async with raw_agent(federation.ingest_address, cluster_id="raw-2", cluster_uid="uid-raw-2") as agent:
                await agent.send(agent.welcome.durable_sequence + 1, **frame)
                return from_rpc_error(await agent.failure(), federation.ingest_address)

        nothing = types_pb2.ResourceType()
        for frame in (
            {},
            {"hello": ingest_pb2.Hello()},
            {"snapshot_begin": ingest_pb2.SnapshotBegin()},
            {"snapshot_begin": ingest_pb2.SnapshotBegin(type=nothing)},
            {"type_status": ingest_pb2.TypeStatus(type=_pods(), state=99)},  # type: ignore[arg-type]
            {"bookmark": ingest_pb2.Bookmark(type=_pods(), resource_version="\n")},
        ):
            error = await told(**frame)
            assert isinstance(error, InvalidInput), (frame, error)
        await _assert_serving(federation)

    async def test_items(self, federation: Federation) -> None:
        async with raw_agent(federation.ingest_address, cluster_id="raw-3", cluster_uid="uid-raw-3") as agent:
            sequence = await agent.snapshot(agent.welcome.durable_sequence + 1)
            deep = b'{"metadata":' * 50_000 + b"{}" + b"}" * 50_000
            await agent.send(
                sequence,
                deltas=ingest_pb2.Deltas(
                    type=_pods(),
                    deltas=[
                        ingest_pb2.Delta(operation=99, object=pushed("a")),  # type: ignore[arg-type]
                        ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("b", body=b"{")),
                        ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("../c")),
                        ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=_with_body("d", deep)),
                        ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("sound")),
                    ],
                ),
            )
            await agent.acknowledged(sequence)
            assert {nack.name for nack in agent.nacks} == {"a", "b", "../c", "d"}, "the sound one is taken"


class TestServices:
    """Commands that run until they are stopped, and have to refuse to start."""

    async def test_addresses(self, federation: Federation, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            aggregator = ("aggregator", "--memory", "--http-listen=", "--listen=127.0.0.1:0")
            await assert_refused(
                refused(*aggregator, "--listen=nonsense", said=["listen: 'nonsense'", "host:port"]),
                refused(*aggregator, "--listen=127.0.0.1:99999", said=["listen: '127.0.0.1:99999'", "65535"]),
                refused(*aggregator, "--listen=0.0.0.0:9090", said=["listen: '0.0.0.0:9090'", "loopback"]),
                refused(*aggregator, f"--listen=unix:{tmp_path}", said=[f"listen: 'unix:{tmp_path}'", "free"]),
                refused(*aggregator, f"--listen=unix:/{'x' * 200}", said=["listen: 'unix:/xxx", "100 bytes"]),
                refused(*aggregator, f"--listen=unix:{tmp_path}/no/where", said=["/no/where'", "allowed: "]),
                refused(*aggregator, f"--listen={federation.address}", said=[federation.address, "free"]),
                refused(
                    *aggregator,
                    f"--ingest-listen={federation.ingest_address}",
                    said=[f"ingest-listen: '{federation.ingest_address}'", "free"],
                ),
                refused(
                    *aggregator,
                    "--ingest-listen=127.0.0.1:0",
                    f"--http-listen=127.0.0.1:{port}",
                    said=[f"http-listen: '127.0.0.1:{port}'", "free"],
                ),
                refused(*aggregator, "--http-listen=nonsense", said=["http-listen: 'nonsense'", "host:port"]),
                refused("agent", "--aggregator=nonsense", "--kubeconfig", tmp_path, code=1, said=["current context"]),
            )

    async def test_state_directories(
        self, federation: Federation, living_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "file"
        file.touch()
        other = tmp_path / "other"
        with monkeypatch.context() as patch:
            patch.setattr(codec, "SCHEMA_VERSION", 99)
            await LmdbLedger.open(other).close()
        held = federation.folder / "state"
        listen = ("--listen=127.0.0.1:0", "--http-listen=")
        aggregator = ("aggregator", *listen, "--ingest-listen=127.0.0.1:0")
        run = ("run", *listen, f"--kubeconfig={living_bed.kubeconfig}", "eu-1")
        await assert_refused(
            *(
                refused(*command, f"--state-directory={directory}", code=1, said=said)
                for command in (aggregator, run)
                for directory, said in (
                    (held, ["another process", str(held)]),
                    (file / "x", [str(file / "x"), "Not a directory"]),
                    ("/proc/nobody", ["/proc/nobody", "No such file"]),
                    (other, [str(other), "schema 99", "reads 1 to"]),
                )
            )
        )

    async def test_durations_and_names(self, living_bed: Testbed, tmp_path: Path) -> None:
        aggregator = ("aggregator", "--memory", "--http-listen=", "--listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0")
        agent = ("agent", f"--kubeconfig={living_bed.kubeconfig}", "--context=eu-1", f"--aggregator=unix:{tmp_path}/no")
        short = tmp_path / "short"
        short.write_text("short")
        await assert_refused(
            *(
                refused(*aggregator, f"--history={text}", said=[f"--history: '{text}'", "7d"])
                for text in ("soon", "0", "-1d36h", "9999999999d")
            ),
            refused(*aggregator, "--log-level=loud", said=["log level: 'loud'", "debug"]),
            refused(*aggregator, "--log-format=xml", said=["log format: 'xml'", "json"]),
            refused(*agent, "--cluster-id=Not_An_ID", said=["--cluster-id: 'Not_An_ID'", "63"]),
            refused(*agent, "--resource=", said=["resources: ''", "names of types"]),
            refused(*agent, "--resource=pods/log", said=["resources: 'pods/log'", "names of types"]),
            refused(*agent, "--resource=gadgets", code=1, said=["'gadgets'", "allowed: plural"]),
            refused(*agent, "--resource=secrets", said=["resources: 'secrets'", "secrets=metadata"]),
            refused(*agent, "--secrets=all", said=["--secrets: 'all'", "fingerprint"]),
            refused(*agent, "--secrets-key-file=/nowhere", said=["'/nowhere'", "No such file"]),
            refused(*agent, f"--secrets-key-file={short}", said=[f"'{short}'", "16 bytes"]),
            refused(*agent, "--selector=a in (b", said=["'a in (b'", "allowed: "]),
            refused(*agent, "--namespace=a/b", said=["namespace: 'a/b'"]),
            refused("agent", "--in-cluster", said=["--cluster-id: ''", "a ClusterID"]),
        )

    async def test_configuration_files(self, tmp_path: Path) -> None:
        def config(name: str, text: str) -> str:
            file = tmp_path / name
            file.write_text(text)
            return f"--config={file}"

        await assert_refused(
            refused("aggregator", config("a", "listne: x"), said=["a: key: 'listne'", "did you mean listen?"]),
            refused("aggregator", config("b", "listen: [x]"), said=["b: listen: 'a list'", "one value"]),
            refused("aggregator", config("c", "listen: ["), said=["c'", "YAML"]),
            refused("aggregator", config("d", "history: soon"), said=["--history: 'soon'", "7d"]),
            refused("aggregator", config("e", "memory: perhaps"), said=["e: memory: 'perhaps'", "true or false"]),
            refused("agent", config("f", "ingest-listen: x"), said=["f: key: 'ingest-listen'"]),
            refused("run", "--config=/nowhere", said=["--config: '/nowhere'", "No such file"]),
        )

    async def test_contexts(self, living_bed: Testbed, tmp_path: Path) -> None:
        colliding = _contexts(living_bed, tmp_path / "colliding", {"EU-1": {}})
        run = ("run", "--listen=127.0.0.1:0", "--http-listen=", f"--state-directory={tmp_path / 'state'}")
        garbage = tmp_path / "garbage"
        garbage.write_text("token: {hush-hush")
        broken = _contexts(living_bed, tmp_path / "broken", {"no-ca": {"certificate-authority": "/nowhere/ca.crt"}})
        await assert_refused(
            refused(*run, f"--kubeconfig={colliding}", said=["'EU-1,eu-1'", "these share 'eu-1'"]),
            refused(*run, f"--kubeconfig={living_bed.kubeconfig}", "mars-1", said=["context: 'mars-1'", "eu-1"]),
            refused(*run, "--kubeconfig=/nowhere", said=["kubeconfig", "at least one"]),
            refused(*run, f"--kubeconfig={garbage}", said=["kubeconfig", "at least one"]),
            refused(*run, f"--kubeconfig={broken}", "no-ca", code=1, said=["'no-ca'", "/nowhere/ca.crt"]),
            refused("agent", "--kubeconfig=/nowhere", code=1, said=["/nowhere cannot be read: No such file"]),
            refused("agent", f"--kubeconfig={garbage}", code=1, said=[f"{garbage} is not a kubeconfig"]),
            refused(
                "agent", f"--kubeconfig={broken}", "--context=mars-1", code=1, said=["'mars-1'", "known: ", "eu-1"]
            ),
            refused("agent", f"--kubeconfig={broken}", "--context=no-ca", code=1, said=["'no-ca'", "/nowhere/ca.crt"]),
        )


async def test_bad_clusters_never_stop_the_others(living_bed: Testbed, tmp_path: Path) -> None:
    """Of one `federator run`: the sound contexts become LIVE, each bad one is named with its cause.

    The bad ones come first in the file; the one whose plugin hangs is given up after a minute, which nobody waits for.
    """
    hang = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["1000"]}}
    missing = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nowhere/login"}}
    kubeconfig = _contexts(
        living_bed,
        tmp_path / "kubeconfig",
        {
            "a-unreachable": {"server": NOWHERE},
            "a-no-ca": {"certificate-authority": "/nowhere/ca.crt"},
            "a-wrong-token": {"user": {"token": "wrong"}},
            "a-no-plugin": {"user": missing},
            "a-hanging-plugin": {"server": "https://127.0.0.1:2", "user": hang},
            "a-wrong-ca": {"certificate-authority-data": _authority(living_bed, "us-1")},
        },
    )
    async with _running(kubeconfig, tmp_path) as (process, fed):
        async with asyncio.timeout(120):
            while not set(SERVED) <= await _live(fed):  # noqa: ASYNC110 - another process's state has no event
                await asyncio.sleep(0.2)
            causes = {
                "a-unreachable": "refused",
                "a-no-ca": "/nowhere/ca.crt",
                "a-wrong-token": "does not accept",
                "a-no-plugin": "cannot be started",
                "a-wrong-ca": "certificate",
            }
            while not all(_is_told(process.log, *named) for named in causes.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert process.running
        assert set(SERVED) <= await _live(fed)
        assert not [line for line in process.log.read_text().splitlines() if "Traceback" in line]
        assert await process.stop(30), process.log_tail()
        assert process.exit_code == 0


def _is_told(log: Path, context: str, cause: str) -> bool:
    return any(context in line and cause in line for line in log.read_text().splitlines())


async def _live(fed: InventoryClient) -> set[str]:
    try:
        clusters = (await fed.clusters(timeout=5)).clusters
    except FederatorError:  # not listening yet
        return set()
    return {cluster.cluster_id for cluster in clusters if cluster.state is ClusterState.LIVE}


@asynccontextmanager
async def _running(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[Process, InventoryClient]]:
    address = f"unix:{folder / 'read.sock'}"
    group = ProcessGroup()
    try:
        process = launch(
            group,
            folder,
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--state-directory={folder / 'state'}",
            f"--listen={address}",
            "--http-listen=",
        )
        async with aconnect(address) as fed:
            yield process, fed
    finally:
        group.close()


def _contexts(bed: Testbed, target: Path, added: dict[str, dict[str, Any]]) -> Path:
    """The kubeconfig of the served clusters with contexts more: eu-1's cluster with other settings, or another user."""
    config = yaml.safe_load(bed.kubeconfig.read_text())
    for section in ("contexts", "clusters", "users"):
        config[section] = [entry for entry in config[section] if entry["name"] in SERVED]
    cluster = next(entry["cluster"] for entry in config["clusters"] if entry["name"] == "eu-1")
    for name, settings in added.items():
        user = settings.pop("user", None)
        changed = dict(cluster) | settings
        if "certificate-authority" in settings:
            del changed["certificate-authority-data"]
        context = {"name": name, "context": {"cluster": name, "user": name if user else "eu-1"}}
        config["contexts"].insert(len(config["contexts"]) - len(SERVED), context)
        config["clusters"].append({"name": name, "cluster": changed})
        if user:
            config["users"].append({"name": name, "user": user})
    target.write_text(yaml.safe_dump(config))
    return target


def _authority(bed: Testbed, name: str) -> str:
    return base64.b64encode(bed[name].access.authority).decode()


def _changed(cursor: bytes, *, byte: int) -> bytes:
    decoded = bytearray(base64.urlsafe_b64decode(cursor))
    decoded[byte] ^= 1
    return base64.urlsafe_b64encode(decoded)


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


def _raw(channel: grpc.aio.Channel, method: str, message: bytes) -> Any:
    """A call with a message as bytes; what comes back is bytes too."""
    path = f"/{inventory_pb2.DESCRIPTOR.services_by_name['InventoryService'].full_name}/{method}"
    make = channel.unary_stream if method in {"List", "Watch"} else channel.unary_unary
    return make(path, request_serializer=bytes, response_deserializer=bytes)(message, timeout=20)


async def _failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return failed.value


async def _assert_serving(federation: Federation) -> None:
    async with federation.client() as fed:
        assert (await fed.list("nodes", clusters=",".join(SERVED), timeout=20)).complete


def _pods() -> types_pb2.ResourceType:
    return types_pb2.ResourceType(version="v1", resource="pods", kind="Pod", namespaced=True)


def _with_body(name: str, body: bytes) -> ingest_pb2.PushedObject:
    return pushed(name, body=encode_body(body), content_hash=content_hash(body))

"""What the admin socket does to field indexes, and what the reading side tells of them, on a whole aggregator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.merge.field_indexes import FieldIndexes
from federator.client import FieldIndex, FieldIndexState, aconnect
from federator.errors import (
    FederatorError,
    IndexFromSettings,
    IndexNotFound,
    InvalidInput,
    LimitReached,
    UnknownResourceType,
)
from federator.v1 import admin_pb2, admin_pb2_grpc, inventory_pb2
from federator.wire.status import from_rpc_error
from tests.component.aggregator.running import running, scrape, settings
from tests.component.aggregator.test_aggregator import pushing
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster
from tests.unit.aggregator.federation import Federation, eventually, put, raw_put


class Asked:
    """An aggregator, asked over its sockets."""

    def __init__(self, aggregator: Aggregator, admin: admin_pb2_grpc.AdminServiceAsyncStub) -> None:
        self.aggregator = aggregator
        self._admin = admin

    async def add(self, path: str, *resources: str) -> bool:
        request = admin_pb2.AddFieldIndexRequest(path=path, resources=resources)
        return bool((await self._ask(self._admin.AddFieldIndex, request)).is_new)

    async def drop(self, path: str) -> None:
        await self._ask(self._admin.DropFieldIndex, admin_pb2.DropFieldIndexRequest(path=path))

    async def indexes(self) -> tuple[FieldIndex, ...]:
        async with aconnect(self.aggregator.address) as client:
            return await client.field_indexes()

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "the admin socket") from error


@asynccontextmanager
async def serving(folder: Path, *field_indexes: str) -> AsyncIterator[Asked]:
    aggregator = Aggregator(settings(folder, state_directory=folder / "state", field_indexes=field_indexes))
    async with running(aggregator):
        assert aggregator.admin_address is not None
        async with grpc.aio.insecure_channel(aggregator.admin_address) as channel:
            yield Asked(aggregator, admin_pb2_grpc.AdminServiceStub(channel))


async def test_an_index_is_added_told_kept_over_a_restart_and_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path, "spec.a@pods") as asked:
        assert await asked.add(".spec.containers.*.image")
        assert not await asked.add("spec.containers.*.image")
        assert [index.path for index in await asked.indexes()] == ["spec.a", "spec.containers.*.image"]
    async with serving(tmp_path, "spec.a@pods") as asked:
        first, second = await asked.indexes()
        assert (first.path, first.resources, first.is_from_settings) == ("spec.a", ("pods",), True)
        assert (second.path, second.resources, second.is_from_settings) == ("spec.containers.*.image", (), False)
        await asked.drop("spec.containers.*.image")
        assert [index.path for index in await asked.indexes()] == ["spec.a"]
    async with serving(tmp_path) as asked:
        assert await asked.indexes() == ()


async def test_refusals(tmp_path: Path) -> None:
    async with serving(tmp_path, "spec.a") as asked:
        refusals: list[tuple[Any, type[FederatorError], str]] = [
            (asked.add("a..b"), InvalidInput, "path: 'a..b' is not allowed; allowed: a dotted path"),
            (asked.add("metadata.name"), InvalidInput, "another field: metadata.name"),
            (asked.add("spec." + 300 * "a"), InvalidInput, "at most 256 characters"),
            (asked.add("spec.b", "unheard"), UnknownResourceType, "unheard"),
            (asked.add("spec.b", ""), InvalidInput, "resources"),
            (asked.add("spec.a", "pods"), UnknownResourceType, "pods"),
            (asked.drop("a..b"), InvalidInput, "path"),
            (asked.drop("spec.a"), IndexFromSettings, "spec.a"),
            (asked.drop("spec.b"), IndexNotFound, "spec.a"),
        ]
        for call, error, said in refusals:
            with pytest.raises(error) as refused:
                await call
            assert said in str(refused.value)
        for number in range(31):
            assert await asked.add(f"spec.f{number}")
        with pytest.raises(LimitReached, match="field indexes"):
            await asked.add("spec.b")


async def test_it_is_built_of_what_agents_have_pushed_told_as_metrics_and_answers(tmp_path: Path) -> None:
    cluster = ScriptedCluster(PODS)
    cluster.put(PODS, "web", replicas=3)
    cluster.put(PODS, "db", replicas=5)
    async with serving(tmp_path) as asked:
        task = asyncio.create_task(pushing(cluster, asked.aggregator).run())
        await eventually(lambda: asked.aggregator.statistics()["merge"]["objects"] == 2)
        assert await asked.add("spec.replicas", "Pod")
        async with asyncio.timeout(30):
            while (told := await asked.indexes())[0].state is not FieldIndexState.READY:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        cluster.put(PODS, "cache", replicas=3)
        await eventually(lambda: asked.aggregator.statistics()["merge"]["objects"] == 3)
        families = await scrape(asked.aggregator.http_port)
        (after,) = await asked.indexes()
        async with aconnect(asked.aggregator.address) as client:
            pods = await client.list("pods", fields="spec.replicas=3", order_by="spec.replicas,name")
        task.cancel()
        await asyncio.wait([task])
    assert (told[0].resources, told[0].objects) == (("pods",), 2)
    assert (after.entries, after.values, after.quarantined) == (3, 2, 0)
    assert after.bytes > 0
    assert [item.name for item in pods.items] == ["cache", "web"]
    assert pods.scan is None, "no object was read"
    for family, value in (("entries", 3), ("bytes", after.bytes)):
        shown = {sample.labels["index"]: sample.value for sample in families[f"federator_index_{family}"].samples}
        assert shown["field:spec.replicas"] == value


async def test_what_an_index_leaves_out_and_that_it_was_given_up_is_told() -> None:
    federation = Federation()
    await federation.join("eu")
    fields = federation.view.indexer.fields = FieldIndexes(max_bytes=20_000)
    fields.add(("data", "text"), frozenset({PODS.group_resource}))
    fields.add(("status", "phase"))
    async with federation.serving() as stub:

        async def told() -> list[tuple[str, str, int, int, list[str]]]:
            return [
                (
                    index.path,
                    inventory_pb2.FieldIndexState.Name(index.state),
                    index.entries,
                    index.quarantined,
                    list(index.quarantined_keys),
                )
                for index in (await stub.ListFieldIndexes(inventory_pb2.ListFieldIndexesRequest())).indexes
            ]

        building, ready, too_large = (f"FIELD_INDEX_STATE_{state}" for state in ("BUILDING", "READY", "TOO_LARGE"))
        assert await told() == [("data.text", building, 0, 0, []), ("status.phase", building, 0, 0, [])]
        for _ in federation.view.indexer.building_fields():
            pass
        await federation.commit("eu", put("up", status={"phase": "R"}), raw_put("bad", b"\x00"))
        bad = ["eu//pods/shop/bad"]
        assert await told() == [("data.text", ready, 0, 1, bad), ("status.phase", ready, 1, 1, bad)]
        await federation.commit("eu", put("long", data={"text": "x" * 30_000}))
        assert (await told())[0] == ("data.text", too_large, 0, 0, [])

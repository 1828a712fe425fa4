"""The audit, with real informers on a fake apiserver that loses events, forgets and refuses; time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from federator.agent import audit as audit_module
from federator.agent.audit import Audit, AuditedType, AuditOutcome, AuditResult
from federator.api.list_watch import Known, ListOptions, ListPage, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.shared_informer import SharedInformer
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch
from federator.testing import FakeApiServer, faults
from federator.testing.fake_api_server import Request
from tests.component.kube.no_credentials import NoCredentials
from tests.fixtures import no_system_authorities
from tests.unit.agent.scripted_cluster import PODS

__all__ = ["no_system_authorities"]

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)
LONG = 3600.0

pytestmark = [pytest.mark.looptime, pytest.mark.usefixtures("no_system_authorities")]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(too_large_wait=0.0) as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[MemberClient]:
    async with MemberClient(NoCredentials(server.url)) as client:
        yield client


@asynccontextmanager
async def followed(
    server: FakeApiServer, client: MemberClient, resource_type: ResourceType = CONFIG_MAPS, **options: Any
) -> AsyncIterator[AuditedType]:
    """A type with an informer that has synced and watches."""
    informer = SharedInformer(
        ResourceListWatch(client, resource_type),
        name=resource_type.resource,
        retain=KubeObject.without_raw,
        use_watch_list=False,
        **options,
    )
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    await server.wait_for_watch(resource_type.resource, timeout=LONG)
    yield AuditedType(resource_type, informer, ResourceListWatch(client, resource_type, metadata_only=True))
    running.cancel()
    await asyncio.wait([running])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():  # noqa: ASYNC110 - no event tells; under looptime it takes no time
            await asyncio.sleep(0.01)


async def caught_up(server: FakeApiServer, *audited: AuditedType) -> None:
    """Waits until informers have seen the newest version, which watches are told by bookmarks."""
    server.bookmark()
    await until(lambda: all(each.informer.indexer.last_resource_version == server.resource_version for each in audited))


def auditing(*audited: AuditedType, interval: float = 3600.0) -> Audit:
    return Audit(lambda: audited, interval=interval, name="eu-1", uniform=lambda low, high: (low + high) / 2)


def exact_lists(server: FakeApiServer) -> list[Request]:
    return [request for request in server.requests.of("list") if is_audit(request)]


def is_audit(request: Request) -> bool:
    return "PartialObjectMetadata" in request.headers["accept"]


async def test_what_agrees_is_equal_and_costs_one_list_of_metadata(server: FakeApiServer, client: MemberClient) -> None:
    for name in "abc":
        server.put("configmaps", name, data={"a": "b" * 1000})
    async with followed(server, client) as audited:
        audit = auditing(audited)
        assert await audit.check(audited) == AuditResult(CONFIG_MAPS, AuditOutcome.EQUAL, 3)
        (request,) = exact_lists(server)
        assert request.query == {
            "resourceVersion": server.resource_version,
            "resourceVersionMatch": "Exact",
            "limit": "500",
        }
        statistics = audit.statistics()
    assert statistics["outcomes"] == dict.fromkeys(AuditOutcome, 0) | {"EQUAL": 1}
    assert statistics["differences"] == {"missing": 0, "extra": 0, "differs": 0}
    assert statistics["relists"] == 0
    assert statistics["ages"] == {"configmaps": pytest.approx(0, abs=1)}
    assert len(server.requests.of("list")) == 2, "the informer's own and this"


async def test_lost_events_are_found_named_and_mended(server: FakeApiServer, client: MemberClient) -> None:
    for name in ("changed", "gone", "kept", "recreated"):
        server.put("configmaps", name)
    async with followed(server, client) as audited:
        with server.losing_events():
            server.put("configmaps", "new")
            server.touch("configmaps", "changed")
            server.delete("configmaps", "gone")
            server.delete("configmaps", "recreated")
            server.put("configmaps", "recreated")
        await caught_up(server, audited)
        audit = auditing(audited)
        with capture_logs() as logs:
            result = await audit.check(audited)
        assert (result.outcome, result.objects) == (AuditOutcome.DIFFERENT, 4)
        assert (result.missing, result.extra, result.differs) == (1, 1, 2)
        assert set(result.keys) == {
            "missing default/new",
            "extra default/gone",
            "differs default/changed",
            "differs default/recreated",
        }
        assert list(audit.results()) == [result]
        (told,) = logs
        assert (told["log_level"], told["event"]) == ("warning", "audit found differences")
        assert (told["cluster"], told["resource"], told["keys"]) == ("eu-1", "configmaps", result.keys)
        statistics = audit.statistics()
        assert statistics["differences"] == {"missing": 1, "extra": 1, "differs": 2}
        assert statistics["relists"] == 1
        # The list that was asked for mends it.
        mended = {"changed", "kept", "new", "recreated"}
        await until(lambda: {obj.name for obj in audited.informer.indexer.list()} == mended)
        assert (await audit.check(audited)).outcome is AuditOutcome.EQUAL


async def test_not_more_than_twenty_keys_are_named(server: FakeApiServer, client: MemberClient) -> None:
    async with followed(server, client) as audited:
        with server.losing_events():
            for number in range(30):
                server.put("configmaps", f"new-{number:02}")
        await caught_up(server, audited)
        result = await auditing(audited).check(audited)
    assert result.missing == 30
    assert result.keys == tuple(f"missing default/new-{number:02}" for number in range(20))


async def test_a_difference_that_a_list_did_not_mend_is_told_again_but_not_listed_again(
    server: FakeApiServer, client: MemberClient
) -> None:
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    async with followed(server, client) as audited:
        audit = auditing(audited)
        for expected in (1, 1):
            audited.informer.indexer.remove("default/a")
            with capture_logs() as logs:
                assert (await audit.check(audited)).keys == ("missing default/a",)
            assert audit.statistics()["relists"] == expected
            if not logs[0]["event"].endswith("mend"):
                await until(lambda: audited.informer.indexer.get_by_key("default/a") is not None)
        assert logs[0]["event"] == "audit found differences that a list did not mend"
        # Without a list it is still missing; something else is, too, and that is listed for.
        audited.informer.indexer.remove("default/b")
        await audit.check(audited)
        assert audit.statistics()["relists"] == 2


async def test_what_a_transform_withholds_is_not_missing(server: FakeApiServer, client: MemberClient) -> None:
    def refuse_bad(obj: KubeObject) -> KubeObject:
        if obj.name == "bad":
            raise ValueError("cannot be sent")
        return obj

    server.put("configmaps", "bad")
    server.put("configmaps", "good")
    async with followed(server, client, transform=refuse_bad) as audited:
        assert (await auditing(audited).check(audited)).keys == ("missing default/bad",)
        excused = audited._replace(withheld=lambda: ["default/bad"])
        assert (await auditing(excused).check(excused)).outcome is AuditOutcome.EQUAL


class Interrupted:
    """Lists metadata, and lets something happen before each page."""

    def __init__(self, audited: AuditedType, happens: Callable[[int], Awaitable[None]]) -> None:
        self._objects = audited.objects
        self._happens = happens
        self._pages = 0
        self.watch = audited.objects.watch

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self._pages += 1
        await self._happens(self._pages)
        return await self._objects.list(options, known=known)


async def test_what_happens_meanwhile_is_no_difference(
    server: FakeApiServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "PAGE_SIZE", 3)
    for number in range(12):
        server.put("configmaps", f"map-{number:02}")
    pages = []
    async with followed(server, client) as audited:

        async def churn(page: int) -> None:
            pages.append(page)
            for number in range(12):
                name = f"map-{number:02}"
                match (number + page) % 4:
                    case 0 if name in names():
                        server.delete("configmaps", name)
                    case 1:
                        server.put("configmaps", name)
                    case 2:
                        server.put("configmaps", f"new-{page}-{number}")
            await caught_up(server, audited)

        def names() -> set[str]:
            return {each["metadata"]["name"] for each in server.list("configmaps")}

        interrupted = audited._replace(objects=Interrupted(audited, churn))
        result = await auditing(interrupted).check(interrupted)
    assert result == AuditResult(CONFIG_MAPS, AuditOutcome.EQUAL, 12)
    assert pages == [1, 2, 3, 4]


async def test_a_difference_is_found_among_changes(server: FakeApiServer, client: MemberClient) -> None:
    for name in "abc":
        server.put("configmaps", name)
    async with followed(server, client) as audited:
        with server.losing_events():
            server.touch("configmaps", "b")
        await caught_up(server, audited)

        async def churn(_: int) -> None:
            server.touch("configmaps", "a")
            server.delete("configmaps", "c")
            await caught_up(server, audited)

        interrupted = audited._replace(objects=Interrupted(audited, churn))
        assert (await auditing(interrupted).check(interrupted)).keys == ("differs default/b",)


async def test_what_was_wrong_and_has_changed_meanwhile_is_not_judged(
    server: FakeApiServer, client: MemberClient
) -> None:
    for name in ("changed", "gone"):
        server.put("configmaps", name)
    async with followed(server, client) as audited:
        with server.losing_events():
            server.put("configmaps", "new")
            server.touch("configmaps", "changed")
            server.delete("configmaps", "gone")
        await caught_up(server, audited)

        async def heal(_: int) -> None:
            server.touch("configmaps", "new")
            server.touch("configmaps", "changed")
            server.put("configmaps", "gone")
            await caught_up(server, audited)

        interrupted = audited._replace(objects=Interrupted(audited, heal))
        assert (await auditing(interrupted).check(interrupted)).outcome is AuditOutcome.EQUAL


async def test_an_informer_that_is_behind_what_it_read_is_waited_for(
    server: FakeApiServer, client: MemberClient
) -> None:
    """Objects may be newer than the low water while something queues: they would differ from a list of then."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    async with followed(server, client) as audited:
        indexer = audited.informer.indexer
        settled_at = indexer.last_resource_version
        indexer.bookmark("1")
        assert (await auditing(audited).check(audited)).outcome is AuditOutcome.UNSETTLED
        assert exact_lists(server) == []
        asyncio.get_running_loop().call_later(5, indexer.bookmark, settled_at)
        assert (await auditing(audited).check(audited)).outcome is AuditOutcome.EQUAL


async def test_an_informer_that_has_not_synced_is_left_alone(server: FakeApiServer, client: MemberClient) -> None:
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="idle")
    audited = AuditedType(CONFIG_MAPS, informer, ResourceListWatch(client, CONFIG_MAPS, metadata_only=True))
    audit = auditing(audited)
    assert (await audit.check(audited)).outcome is AuditOutcome.UNSETTLED
    assert audit.statistics()["ages"] == {}


async def test_a_forgotten_state_is_tried_once_more_with_a_newer_one(
    server: FakeApiServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "PAGE_SIZE", 2)
    for name in "abcde":
        server.put("configmaps", name)
    async with followed(server, client) as audited:

        async def forget(page: int) -> None:
            if page == 2:
                server.touch("configmaps", "a")
                await caught_up(server, audited)
                server.compact()

        interrupted = audited._replace(objects=Interrupted(audited, forget))
        result = await auditing(interrupted).check(interrupted)
        assert (result.outcome, result.objects) == (AuditOutcome.EQUAL, 5)
        assert [request.status for request in exact_lists(server)] == [200, 410, 200, 200, 200]


async def test_what_stays_forgotten_is_skipped_and_counted(server: FakeApiServer, client: MemberClient) -> None:
    server.put("configmaps", "a")
    async with followed(server, client) as audited:
        server.fail("list", "configmaps", faults.HttpError(410), times=None, where=is_audit)
        audit = auditing(audited)
        assert (await audit.check(audited)).outcome is AuditOutcome.EXPIRED
        assert len(exact_lists(server)) == 1, "nothing newer is known"

        async def touch(_: int) -> None:
            server.touch("configmaps", "a")
            await caught_up(server, audited)

        interrupted = audited._replace(objects=Interrupted(audited, touch))
        assert (await audit.check(interrupted)).outcome is AuditOutcome.EXPIRED
        assert len(exact_lists(server)) == 3
    assert audit.statistics()["outcomes"] == dict.fromkeys(AuditOutcome, 0) | {"EXPIRED": 2}
    assert audit.statistics()["ages"] == {}


def newest_instead(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": "999"}}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.HttpError(400, message="resourceVersionMatch is not known"), "resourceVersionMatch is not known"),
        (faults.Rewrite(newest_instead), "it lists 999"),
    ],
)
async def test_a_server_that_cannot_list_exactly_a_version_is_named_once(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault, reason: str
) -> None:
    server.put("configmaps", "a")
    async with followed(server, client) as audited:
        server.fail("list", "configmaps", fault, times=None, where=is_audit)
        audit = auditing(audited)
        with capture_logs() as logs:
            for _ in range(2):
                result = await audit.check(audited)
                assert result.outcome is AuditOutcome.UNSUPPORTED
                assert reason in result.reason
    assert [(each["log_level"], each["event"]) for each in logs] == [("info", "type not audited")]


async def test_versions_that_are_no_numbers_cannot_be_asked_for(server: FakeApiServer, client: MemberClient) -> None:
    server.fail(
        "list",
        "configmaps",
        faults.Rewrite(lambda body: {**body, "metadata": {"resourceVersion": "opaque"}}),
    )
    server.fail("watch", "configmaps", faults.BlackHole(after_bytes=0), times=None)
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="opaque", use_watch_list=False)
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    audited = AuditedType(CONFIG_MAPS, informer, ResourceListWatch(client, CONFIG_MAPS, metadata_only=True))
    result = await auditing(audited).check(audited)
    running.cancel()
    await asyncio.wait([running])
    assert (result.outcome, result.reason) == (AuditOutcome.UNSUPPORTED, "its resourceVersions are no numbers")
    assert exact_lists(server) == []


@pytest.mark.parametrize("fault", [faults.HttpError(403), faults.HttpError(500), faults.Reset()])
async def test_an_apiserver_that_refuses_or_breaks_off_is_no_difference(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault
) -> None:
    server.put("configmaps", "a")
    async with followed(server, client) as audited:
        audit = auditing(audited)
        assert (await audit.check(audited)).outcome is AuditOutcome.EQUAL
        await asyncio.sleep(100)
        server.fail("list", "configmaps", fault, times=None, where=is_audit)
        result = await audit.check(audited)
        assert (result.outcome, bool(result.reason)) == (AuditOutcome.FAILED, True)
        assert audit.statistics()["ages"] == {"configmaps": pytest.approx(100, abs=5)}, "since the last that was whole"


async def test_what_a_list_cannot_name_makes_nothing_extra(server: FakeApiServer, client: MemberClient) -> None:
    server.put("configmaps", "a")
    async with followed(server, client) as audited:
        audited.informer.indexer.put("default/bad", KubeObject("default", "bad", "uid", "1"))
        server.fail("list", "configmaps", faults.BadObject("no-name"), where=is_audit)
        assert (await auditing(audited).check(audited)).outcome is AuditOutcome.EQUAL
        assert (await auditing(audited).check(audited)).keys == ("extra default/bad",)


async def test_pages_grow_with_the_type_and_requests_are_half_a_second_apart(
    server: FakeApiServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "PAGE_SIZE", 2)
    monkeypatch.setattr(audit_module, "MAX_PAGES", 4)
    for number in range(18):
        server.put("configmaps", f"map-{number:02}")
    async with followed(server, client) as audited:
        assert (await auditing(audited).check(audited)).objects == 18
    requests = exact_lists(server)
    assert [request.query["limit"] for request in requests] == ["5"] * 4
    assert all(later.started - earlier.started >= 0.45 for earlier, later in pairwise(requests))


async def test_types_take_turns_over_the_interval(server: FakeApiServer, client: MemberClient) -> None:
    server.put("configmaps", "a")
    server.put("pods", "a")
    async with followed(server, client) as maps, followed(server, client, PODS) as pods:
        present = [maps, pods]
        audit = Audit(lambda: present, interval=600, name="eu-1", uniform=lambda low, high: (low + high) / 2)
        running = asyncio.create_task(audit.run())
        await asyncio.sleep(2450)
        asked = [(request.resource, request.started) for request in exact_lists(server)]
        assert [resource for resource, _ in asked] == ["configmaps", "pods"] * 4
        assert all(295 < later - earlier < 305 for (_, earlier), (_, later) in pairwise(asked))
        assert {result.type for result in audit.results()} == {CONFIG_MAPS, PODS}
        present.remove(maps)
        await asyncio.sleep(700)
        assert {result.type for result in audit.results()} == {PODS}
        assert set(audit.statistics()["ages"]) == {"pods"}  # type: ignore[call-overload]
        running.cancel()
        await asyncio.wait([running])


async def test_with_nothing_to_audit_it_waits(server: FakeApiServer) -> None:
    running = asyncio.create_task(auditing().run())
    await asyncio.sleep(10_000)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])

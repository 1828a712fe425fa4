"""The fake apiserver answers as the real one: one table of requests, sent to both, and the replies compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import aiohttp
import pytest

from federator.api.resource import ResourceType
from federator.testing import ControlPlane, Testbed
from federator.testing.admin_client import Json
from federator.testing.fake_api_server import FakeApiServer

pytestmark = pytest.mark.testbed

SPACE = "compared"
CONFIG_MAPS = f"/api/v1/namespaces/{SPACE}/configmaps"
WIDGETS = f"/apis/example.com/v1/namespaces/{SPACE}/widgets"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SPACE}/deployments"

WIDGET = ResourceType(
    group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True, singular="widget"
)
WIDGET_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}

JSON = "application/json"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
MERGE = "application/merge-patch+json"


class Row(NamedTuple):
    """One request. `{now}` and the like in its query stand for resourceVersions of the server it is sent to.

    `own_words`: the message quotes Go's parsers or types, so that only the rest is compared.
    """

    path: str
    query: str = ""
    method: str = "GET"
    body: Any = None
    accept: str = JSON
    content_type: str = JSON
    own_words: bool = False

    @property
    def title(self) -> str:
        accept = "" if self.accept == JSON else f" [{self.accept.split(',')[0]}]"
        body = "" if self.body is None else f" {json.dumps(self.body)}"
        return f"{self.method} {self.path}?{self.query}{accept}{body}"


class Reply(NamedTuple):
    code: int
    headers: dict[str, str]
    body: str


# --------------------------------------------------------------------------------------------------------- the table

LIST_QUERIES = [
    f"{version}{match}{limit}{following}"
    for version in ("", "&resourceVersion=0", "&resourceVersion={middle}", "&resourceVersion={now}")
    for match in ("", "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan", "&resourceVersionMatch=Odd")
    for limit in ("", "&limit=2")
    for following in ("", "&continue={token}")
]
FUTURE_QUERIES = [
    f"&resourceVersion={{future}}{match}{limit}"
    for match in ("", "&resourceVersionMatch=Exact", "&resourceVersionMatch=NotOlderThan")
    for limit in ("", "&limit=2")
]
WATCH_QUERIES = [
    f"{version}{match}{initial}{bookmarks}"
    for version in ("", "&resourceVersion=0", "&resourceVersion={middle}", "&resourceVersion={future}")
    for match in ("", "&resourceVersionMatch=NotOlderThan", "&resourceVersionMatch=Exact")
    for initial in ("", "&sendInitialEvents=true", "&sendInitialEvents=false")
    for bookmarks in ("", "&allowWatchBookmarks=true")
]
WATCH_LIST = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
SELECTORS = [
    "&labelSelector=n=1",
    "&labelSelector=n+in+(0,3)",
    "&labelSelector=!n",
    "&labelSelector=n!=1&limit=1",
    "&fieldSelector=metadata.name=c1",
    "&fieldSelector=metadata.name!=c1&limit=1",
    f"&fieldSelector=metadata.namespace={SPACE}&limit=1",
    "&fieldSelector=metadata.namespace=elsewhere",
    "&fieldSelector=spec.unknown=a",
]

READS = [
    *(Row(path, query) for path in (CONFIG_MAPS, WIDGETS) for query in LIST_QUERIES),
    *(Row(CONFIG_MAPS, query) for query in FUTURE_QUERIES),
    *(Row(path, f"watch=1&timeoutSeconds=6{query}") for path in (CONFIG_MAPS, WIDGETS) for query in WATCH_QUERIES),
    *(Row(CONFIG_MAPS, query) for query in SELECTORS),
    *(Row(CONFIG_MAPS, f"watch=1&timeoutSeconds=6&resourceVersion={{first}}{query}") for query in SELECTORS),
    Row(WIDGETS, "fieldSelector=spec.unknown=a"),
    Row(PODS, "fieldSelector=spec.unknown=a"),
    Row(PODS, "fieldSelector=spec.nodeName=n1,status.phase=Pending"),
    Row(PODS, "fieldSelector=spec.nodeName!=n1"),
    Row("/api/v1/nodes", "fieldSelector=spec.unknown=a"),
    Row("/api/v1/namespaces", f"fieldSelector=metadata.name={SPACE},status.phase=Active"),
    Row(CONFIG_MAPS, "labelSelector=a===b", own_words=True),
    Row(CONFIG_MAPS, "fieldSelector=nothing"),
    *(Row(CONFIG_MAPS, f"resourceVersion={text}") for text in ("None", "null", "abc", "-1", "1.5", "01")),
    *(Row(CONFIG_MAPS, f"watch=1&timeoutSeconds=6&resourceVersion={text}") for text in ("None", "abc", "-1", "01")),
    Row(CONFIG_MAPS, f"resourceVersion={10**30}"),
    *(Row(CONFIG_MAPS, query) for query in ("limit=abc", "limit=-1", "limit=0", "timeoutSeconds=abc", "watch=false")),
    *(Row(CONFIG_MAPS, f"sendInitialEvents={text}&limit=1") for text in ("true", "false")),
    Row(CONFIG_MAPS, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
    Row(CONFIG_MAPS, "continue=xxx", own_words=True),
    Row(CONFIG_MAPS, "watch=1&timeoutSeconds=6&continue=abc"),
    Row(CONFIG_MAPS, "watch=1&timeoutSeconds=6&limit=1"),
    Row(CONFIG_MAPS, "watch=yes&timeoutSeconds=6"),
    # The stub that bookmarks carry, for types of several shapes.
    Row(PODS, f"watch=1&timeoutSeconds=6&labelSelector=none=1{WATCH_LIST}"),
    Row(DEPLOYMENTS, f"watch=1&timeoutSeconds=6{WATCH_LIST}"),
    Row("/api/v1/nodes", f"watch=1&timeoutSeconds=6&labelSelector=none=1{WATCH_LIST}"),
    Row("/api/v1/namespaces", f"watch=1&timeoutSeconds=6&labelSelector=none=1{WATCH_LIST}"),
    Row(f"/api/v1/namespaces/{SPACE}/secrets", f"watch=1&timeoutSeconds=6{WATCH_LIST}"),
    *(
        Row(path, query, accept=accept)
        for path in (CONFIG_MAPS, WIDGETS)
        for query, accept in (
            ("", PARTIAL_LIST),
            ("limit=1", PARTIAL_LIST),
            (f"watch=1&timeoutSeconds=6{WATCH_LIST}", PARTIAL),
            ("watch=1&timeoutSeconds=6&resourceVersion={first}", PARTIAL),
        )
    ),
    Row(f"{CONFIG_MAPS}/c1", accept=PARTIAL),
    Row(CONFIG_MAPS, accept="text/html", own_words=True),
    Row(CONFIG_MAPS, accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v9", own_words=True),
    Row(f"{CONFIG_MAPS}/c1"),
    *(Row(f"{CONFIG_MAPS}/c1", f"resourceVersion={text}") for text in ("0", "{first}", "{now}", "{future}", "abc")),
    Row(f"{CONFIG_MAPS}/c2", "resourceVersion=0"),
    Row(f"{CONFIG_MAPS}/absent"),
    Row(f"{WIDGETS}/absent"),
    Row(f"{DEPLOYMENTS}/absent"),
    Row("/api/v1/namespaces/absent/configmaps"),
    Row("/api/v1/absent"),
    Row("/apis/absent.example.com/v1/things"),
    Row("/absent"),
    Row("/apis/example.com/v1"),
    Row("/apis/example.com"),
    Row("/readyz"),
]
"""Requests that change nothing, sent at the same time."""

WRITES = [
    Row(CONFIG_MAPS, method="POST", body={"metadata": {"name": "new", "labels": {"a": "b"}}, "data": {"a": "1"}}),
    Row(CONFIG_MAPS, method="POST", body={"metadata": {"name": "c1"}}),
    Row(CONFIG_MAPS, method="POST", body={"metadata": {"name": "C!"}}),
    Row(CONFIG_MAPS, method="POST", body={"metadata": {}}),
    Row(CONFIG_MAPS, method="POST", body={"metadata": {"name": "x", "namespace": "elsewhere"}}),
    Row(CONFIG_MAPS, method="POST", body={"metadata": {"name": "x", "resourceVersion": "5"}}),
    Row(CONFIG_MAPS, method="POST", body={"kind": "Secret", "apiVersion": "v1", "metadata": {}}, own_words=True),
    Row(CONFIG_MAPS, method="POST", body="{bad", own_words=True),
    Row("/api/v1/namespaces/absent/configmaps", method="POST", body={"metadata": {"name": "x"}}),
    Row(f"{CONFIG_MAPS}/c1", method="POST", body={"metadata": {"name": "x"}}),
    Row(WIDGETS, method="POST", body={"metadata": {"name": "x"}}, own_words=True),
    Row(f"{CONFIG_MAPS}/new", method="PUT", body={"metadata": {"name": "new", "resourceVersion": "1"}}),
    Row(f"{CONFIG_MAPS}/new", method="PUT", body={"metadata": {"name": "other"}}),
    Row(f"{CONFIG_MAPS}/absent", method="PUT", body={"metadata": {"name": "absent", "resourceVersion": "1"}}),
    Row(f"{CONFIG_MAPS}/absent", method="PUT", body={"metadata": {"name": "absent"}}),
    Row(f"{CONFIG_MAPS}/new", method="PUT", body={"metadata": {"name": "new", "uid": "0000"}}),
    Row(f"{CONFIG_MAPS}/new", method="PUT", body={"metadata": {"name": "new"}, "data": {"a": "2"}}),
    Row(CONFIG_MAPS, method="PUT", body={"metadata": {"name": "new"}}),
    Row(
        f"{WIDGETS}/w1",
        method="PUT",
        body={"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": "w1"}},
    ),
    Row(f"{CONFIG_MAPS}/new", method="PATCH", body={"data": {"a": None, "b": "3"}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/new", method="PATCH", body={"data": {"b": "3"}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/new", method="PATCH", body={"metadata": {"resourceVersion": "1"}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/absent", method="PATCH", body={"data": {}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/new", method="PATCH", body="{bad", content_type=MERGE),
    Row(f"{CONFIG_MAPS}/new", method="PATCH", body={"data": {}}, content_type=JSON),
    Row(f"{WIDGETS}/w1", method="PATCH", body={"spec": {"size": 2}}, content_type=MERGE),
    Row(f"{WIDGETS}/w1", method="PATCH", body={"metadata": {"labels": {"a": "b"}}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/new", method="DELETE", body={"preconditions": {"uid": "0000"}}),
    Row(f"{CONFIG_MAPS}/new", method="DELETE", body={"preconditions": {"resourceVersion": "1"}}),
    Row(f"{CONFIG_MAPS}/new", method="DELETE"),
    Row(f"{CONFIG_MAPS}/new", method="DELETE"),
    Row(f"{WIDGETS}/w2", method="DELETE"),
    Row("/api/v1/nodes/absent", method="DELETE"),
    Row(CONFIG_MAPS, "labelSelector=n=3", method="DELETE"),
    Row(f"{CONFIG_MAPS}/c1", method="PATCH", body={"metadata": {"finalizers": ["example.com/f"]}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/c1", method="DELETE"),
    Row(f"{CONFIG_MAPS}/c1", method="PATCH", body={"metadata": {"finalizers": []}}, content_type=MERGE),
    Row(f"{CONFIG_MAPS}/c1"),
]
"""Requests that change something or see what others changed, sent one after the other, after the reads."""

WATCHES_OF_WRITES = [
    Row(CONFIG_MAPS, "watch=1&timeoutSeconds=2&resourceVersion={now}"),
    Row(WIDGETS, "watch=1&timeoutSeconds=2&resourceVersion={now}"),
]
"""What the writes have done, sent at the same time, after them."""

END = Row(f"/api/v1/namespaces/{SPACE}", method="DELETE")
"""The last request."""

AFTER_COMPACTION = [
    Row(CONFIG_MAPS, "limit=1&continue={token}"),
    Row(CONFIG_MAPS, "resourceVersion={middle}&resourceVersionMatch=Exact"),
    Row(CONFIG_MAPS, "resourceVersion={middle}&limit=1"),
    Row(CONFIG_MAPS, "resourceVersion={middle}"),
    Row(CONFIG_MAPS, "resourceVersion={middle}&resourceVersionMatch=NotOlderThan"),
    Row(CONFIG_MAPS, "watch=1&timeoutSeconds=2&resourceVersion={middle}"),
    Row(CONFIG_MAPS, f"watch=1&timeoutSeconds=2&resourceVersion={{middle}}{WATCH_LIST}"),
]
"""A watch from the compacted version itself is left out: whether a watch cache that starts anew still has it depends on
what the apiserver has written by then.
"""


# --------------------------------------------------------------------------------------------------------- comparison


class Server:
    """Either server, and the resourceVersions it gave to the same writes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.versions: list[int] = []
        self.named: dict[str, str] = {}

    async def send(self, row: Row) -> Reply:
        query = row.query.format(**self.named).lstrip("&") if row.query else ""
        body = row.body if row.body is None or isinstance(row.body, str) else json.dumps(row.body)
        headers = {"Accept": row.accept} | ({} if body is None else {"Content-Type": row.content_type})
        async with self.session.request(row.method, f"{row.path}?{query}", data=body, headers=headers) as response:
            text = await response.text()
        told = {name: response.headers.get(name, "") for name in ("Content-Type", "Retry-After")}
        return Reply(response.status, told, self.normal(text, row))

    async def write(self, method: str, path: str, body: Json | None = None) -> int:
        """A write of the preparation; notes the resourceVersion it made."""
        headers = {"Content-Type": MERGE if method == "PATCH" else JSON}
        async with self.session.request(method, path, json=body, headers=headers) as response:
            assert response.status < 300, await response.text()
        version = await self.newest(path.split("?")[0])
        self.versions.append(version)
        return version

    async def newest(self, path: str) -> int:
        """The list's resourceVersion; for the path of an object that of its collection."""
        collection = next(each for each in (CONFIG_MAPS, WIDGETS, PODS, "/api/v1/namespaces") if path.startswith(each))
        async with self.session.get(collection) as response:
            return int((await response.json())["metadata"]["resourceVersion"])

    async def catch_up(self) -> None:
        """Has the watch caches take in what was written; on a busy machine a list at version 0 is behind else."""
        for collection in (CONFIG_MAPS, WIDGETS, PODS, "/api/v1/namespaces"):
            query = {"resourceVersion": str(await self.newest(collection)), "resourceVersionMatch": "NotOlderThan"}
            async with asyncio.timeout(60):
                while True:
                    async with self.session.get(collection, params=query) as response:
                        if response.status == 200:
                            break
                        assert response.status == 504, await response.text()

    def normal(self, text: str, row: Row) -> str:
        """A reply without what has to differ. Key order counts."""
        try:
            watch = "watch=" in row.query and "watch=false" not in row.query
            decoded = [json.loads(line) for line in text.splitlines()] if watch else json.loads(text)
        except ValueError:
            try:
                decoded = json.loads(text)  # a failure that was written for people
            except ValueError:
                return text
        if isinstance(decoded, list):
            decoded = self._unordered_prefix(self._without_bookmarks(decoded), row)
        return json.dumps(self._normal(decoded, row), indent=1)

    def _normal(self, value: Any, row: Row, name: str = "") -> Any:
        """The whole list of what is made alike."""
        match name, value:
            case "resourceVersion", str() if value.isdigit():
                return f"after write {sum(version <= int(value) for version in self.versions)}"
            case "uid" | "creationTimestamp" | "deletionTimestamp" | "storageVersionHash", _:
                return f"a {name}"
            case "continue", str() if value:
                return "a token"
            case "message", str() if row.own_words:
                return "a message"
            case "message", str():
                # UIDs and resourceVersions that it quotes.
                return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=[ (])[0-9]+(?=[), .]|$)", "#", value)
            case _, dict() if value.get("kind") == "Pod" and "containers" in (value.get("spec") or {}):
                return self._normal({"metadata": value["metadata"]}, row)  # the real one fills in its defaults
            case "items", [{"spec": {"containers": _}}, *_]:
                return [item["metadata"]["name"] for item in value]
            case "verbs", list():
                return sorted(value)
            case _, dict():
                # `deletionGracePeriodSeconds`: the real server begins a graceful deletion of 0 seconds.
                left_out = {"managedFields", "storageVersionHash", "deletionGracePeriodSeconds"}
                return {key: self._normal(each, row, key) for key, each in value.items() if key not in left_out}
            case _, list():
                return [self._normal(each, row) for each in value]
            case _:
                return value

    @staticmethod
    def _without_bookmarks(frames: Sequence[Json]) -> list[Json]:
        """Bookmarks are never promised, except for the one that ends the initial events."""
        return [
            frame for frame in frames if frame.get("type") != "BOOKMARK" or "annotations" in frame["object"]["metadata"]
        ]

    @staticmethod
    def _unordered_prefix(frames: Sequence[Json], row: Row) -> list[Json]:
        """Synthetic ADDED events promise no order, so they are sorted."""
        if "resourceVersion={" in row.query and "sendInitialEvents=true" not in row.query:
            return list(frames)
        end = next((at for at, frame in enumerate(frames) if frame.get("type") != "ADDED"), len(frames))
        return [*sorted(frames[:end], key=lambda frame: str(frame["object"]["metadata"]["name"])), *frames[end:]]


async def prepare(server: Server, *, needs_service_account: bool = False) -> None:
    """The same history on both: creations, changes, deletions."""
    await server.write("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    if needs_service_account:
        await add_service_account(server.session)
    server.named["first"] = str(await server.write("POST", CONFIG_MAPS, {"metadata": {"name": "c0"}}))
    for number in range(1, 4):
        labelled = {"name": f"c{number}", "labels": {"n": str(number)}}
        await server.write("POST", CONFIG_MAPS, {"metadata": labelled, "data": {"k": "v"}})
    async with server.session.get(CONFIG_MAPS, params={"limit": "1"}) as response:
        server.named["token"] = (await response.json())["metadata"]["continue"]
    await server.write("PATCH", f"{CONFIG_MAPS}/c1", {"metadata": {"labels": {"n": "2"}}})
    server.named["middle"] = str(await server.write("PATCH", f"{CONFIG_MAPS}/c1", {"data": {"k": "ä€𝄞"}}))
    await server.write("PATCH", f"{CONFIG_MAPS}/c1", {"metadata": {"labels": {"n": "1"}}})
    await server.write("DELETE", f"{CONFIG_MAPS}/c2")
    for number in range(1, 4):
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": f"w{number}"}, "spec": {}}
        await server.write("POST", WIDGETS, widget)
    pod = {"metadata": {"name": "p1"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}
    await server.write("POST", PODS, pod)
    server.named["now"] = str(await server.write("DELETE", f"{WIDGETS}/w3"))
    server.named["future"] = str(int(server.named["now"]) + 1_000_000)


@contextlib.asynccontextmanager
async def session(plane: ControlPlane) -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context(cadata=plane.access.authority.decode())
    folder = plane.folder
    tls.load_cert_chain(*plane.access.user.write(folder, "compared"))
    async with aiohttp.ClientSession(plane.url, connector=aiohttp.TCPConnector(ssl=tls, limit=400)) as opened:
        yield opened


async def define_widgets(real: aiohttp.ClientSession) -> None:
    """Makes the real server serve widgets."""
    async with real.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=WIDGET_DEFINITION) as response:
        assert response.status in {201, 409}
    async with asyncio.timeout(20):
        while True:  # until it serves them
            async with real.get("/apis/example.com/v1/widgets") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def add_service_account(real: aiohttp.ClientSession) -> None:
    """What a controller would add, and the real server wants before it takes pods."""
    async with real.post(
        f"/api/v1/namespaces/{SPACE}/serviceaccounts", json={"metadata": {"name": "default"}}
    ) as response:
        assert response.status == 201


@contextlib.asynccontextmanager
async def prepared(plane: ControlPlane) -> AsyncIterator[tuple[Server, Server, FakeApiServer]]:
    async with session(plane) as real_session, FakeApiServer(too_large_wait=0.0) as fake:
        await define_widgets(real_session)
        fake.add_resource(WIDGET)
        connector = aiohttp.TCPConnector(limit=400)
        async with aiohttp.ClientSession(fake.url, connector=connector) as fake_session:
            real, faked = Server(real_session), Server(fake_session)
            await prepare(real, needs_service_account=True)
            await prepare(faked)
            await real.catch_up()
            yield real, faked, fake


async def compare(server: Server) -> dict[str, Reply]:
    replies = [*await asyncio.gather(*map(server.send, READS))]
    replies += [await server.send(row) for row in WRITES]
    replies += await asyncio.gather(*map(server.send, WATCHES_OF_WRITES))
    replies.append(await server.send(END))
    return dict(zip(TITLES, replies, strict=True))


@pytest.fixture(scope="module")
def replies(three_clusters: Testbed) -> Iterator[tuple[dict[str, Reply], dict[str, Reply]]]:
    async def collect() -> tuple[dict[str, Reply], dict[str, Reply]]:
        # Not on one where others change ConfigMaps: its watch cache may have forgotten the first versions by then.
        async with prepared(three_clusters["ap-1"]) as (real, faked, _):
            real_replies, fake_replies = await asyncio.gather(compare(real), compare(faked))
            return real_replies, fake_replies

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        yield runner.run(collect())


TITLES = [
    *(f"read {row.title}" for row in READS),
    *(f"write {number} {row.title}" for number, row in enumerate(WRITES)),
    *(f"after the writes {row.title}" for row in WATCHES_OF_WRITES),
    f"last {END.title}",
]


@pytest.mark.parametrize("title", TITLES)
def test_the_fake_answers_as_the_real_one(replies: tuple[dict[str, Reply], dict[str, Reply]], title: str) -> None:
    real, faked = replies
    assert faked[title] == real[title]


async def test_it_forgets_what_is_compacted_as_the_real_one(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    async with prepared(plane) as (real, faked, fake):
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(plane.etcd_socket))) as etcd:
            compaction = {"revision": real.named["now"], "physical": True}
            async with etcd.post("http://etcd/v3/kv/compaction", data=json.dumps(compaction)) as response:
                assert response.status == 200, await response.text()
        # Its watch cache still has what etcd has forgotten, until it is started anew.
        plane.kill()
        await plane.start()
        fake.compact()
        of_both = await asyncio.gather(*(server.send(row) for row in AFTER_COMPACTION for server in (faked, real)))
        for row, fakes, reals in zip(AFTER_COMPACTION, of_both[::2], of_both[1::2], strict=True):
            assert fakes == reals, row.title


def test_every_row_has_a_title_of_its_own() -> None:
    assert len(set(TITLES)) == len(TITLES)

"""How the fake answers: connections, requests, replies."""

from __future__ import annotations

import asyncio

import msgspec

from federator.api.resource import GroupResource
from federator.testing.fake_api_server import access, discovery, http, list_options, routes
from federator.testing.fake_api_server.connection import Connection
from federator.testing.fake_api_server.faults import Answer, BadObject, Cut, Delay, How, RawReply, Rewrite
from federator.testing.fake_api_server.history import History
from federator.testing.fake_api_server.injection import Injections
from federator.testing.fake_api_server.listing import encode, list_objects
from federator.testing.fake_api_server.objects import Objects
from federator.testing.fake_api_server.reply_writer import ReplyWriter, Severed
from federator.testing.fake_api_server.request_log import Request, RequestLog
from federator.testing.fake_api_server.served_type import ServedType, ServedTypes
from federator.testing.fake_api_server.status import ApiError, Json, bad_request, status, too_large
from federator.testing.fake_api_server.watching import OpenWatch, WatchListMode

GZIP_FROM = 128 * 1024
"""Bytes from which a list is gzipped for clients that accept it."""

_FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Store:
    """What the replicas of one control plane share."""

    def __init__(self, history: int) -> None:
        self.history = History(history)
        self.types = ServedTypes()
        self.objects = Objects(self.history, self.types)
        for name in _FIRST_NAMESPACES:
            self.objects.create(self.types.named("namespaces"), "", {"metadata": {"name": name}})


class Service:
    """The state of one fake and its answers to requests; `FakeApiServer` adds what a test does to it.

    A task per connection, and no other; `FakeApiServer` ends them.
    """

    def __init__(
        self,
        store: Store,
        *,
        tls: bool,
        bookmark_interval: float | None,
        too_large_wait: float,
        watch_list: WatchListMode,
        aggregated_discovery: bool,
    ) -> None:
        self.requests = RequestLog()
        self.bookmark_interval = bookmark_interval
        self.too_large_wait = too_large_wait
        self.watch_list: WatchListMode = watch_list
        self.aggregated_discovery = aggregated_discovery
        self.stale_groups: set[str] = set()
        self._store = store
        self._authority = access.Authority() if tls else None
        self._access = access.Access()
        self._injections = Injections()
        self._behind: int | None = None
        self._dark = False
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._connected = 0
        self._watches: dict[Request, OpenWatch] = {}
        self._changed: set[asyncio.Future[None]] = set()

    def _visible(self) -> int:
        revision = self._store.history.revision
        return revision if self._behind is None else min(self._behind, revision)

    def _written(self, written: GroupResource | None = None) -> None:
        for watch in self._watches.values():
            watch.tell(written)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, set()
        for future in changed:
            if not future.done():
                future.set_result(None)

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._changed.add(future)
        try:
            await future
        finally:
            self._changed.discard(future)

    async def _wait_for_revision(self, revision: int) -> None:
        try:
            async with asyncio.timeout(self.too_large_wait):
                while self._visible() < revision:
                    if self.too_large_wait <= 0:
                        break
                    await self._change()
        except TimeoutError:
            pass
        if self._visible() < revision:
            raise too_large(revision, self._visible())

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection:
        self._connected += 1
        connection = Connection(self._connected, reader, writer)
        task = asyncio.create_task(self._serve(connection), name=f"fake apiserver connection {connection.number}")
        self._connections[connection] = task
        return connection

    async def _serve(self, connection: Connection) -> None:
        try:
            while True:
                try:
                    incoming = await http.read_request(connection.reader, connection.writer)
                except http.BadRequest as error:
                    content = f"{error}\n".encode()
                    head = http.head(error.code, {"Content-Length": str(len(content)), "Connection": "close"})
                    connection.writer.write(head + content)
                    return
                if incoming is None:
                    return
                if not await self._exchange(connection, incoming):
                    return
        except ConnectionError:
            pass  # the client's way to say that it is done
        finally:
            del self._connections[connection]
            connection.writer.close()
            self._notify()

    async def _exchange(self, connection: Connection, incoming: http.Incoming) -> bool:
        """Answers one request; returns whether the connection can take another."""
        clock = asyncio.get_running_loop().time
        request = Request(
            self.requests.total + 1,
            connection.number,
            incoming.method,
            incoming.path,
            incoming.query,
            incoming.headers,
            clock(),
        )
        target = self._classify(request, incoming)
        self.requests.add(request)
        self._notify()
        faults = self._injections.take(request)
        writer = ReplyWriter(connection.writer, request, faults)
        try:
            keep = await self._answer(connection, incoming, request, target, writer)
            request.outcome = "complete"
        except Severed as cut:
            request.outcome = cut.how.value
            await writer.sever(cut.how)
            if cut.how is How.BLACK_HOLE:
                await connection.until_client_leaves()
            keep = cut.how is How.END and request.verb == "watch"
        except ConnectionError:
            request.outcome = "client closed"
            keep = False
        finally:
            request.outcome = request.outcome or "client closed"
            request.ended = clock()
            self._notify()
        return keep and incoming.keep_alive

    def _classify(self, request: Request, incoming: http.Incoming) -> routes.Target | ApiError | None:
        """What it asks for: a resource, a failure, or (None) something else."""
        if routes.is_discovery(incoming.path):
            request.verb = "discover"
            return None
        if incoming.path == "/version" or incoming.path in routes.HEALTH:
            return None
        try:
            target = routes.target(incoming, self._store.types)
        except ApiError as error:
            return error
        request.verb = target.verb
        request.resource = target.served.qualified
        request.namespace = target.namespace
        request.name = target.name
        return target

    async def _answer(
        self,
        connection: Connection,
        incoming: http.Incoming,
        request: Request,
        target: routes.Target | ApiError | None,
        writer: ReplyWriter,
    ) -> bool:
        close = not incoming.keep_alive
        for delay in writer.faults(Delay):
            await asyncio.sleep(delay.seconds)
        if self._dark:
            raise Severed(How.BLACK_HOLE)
        for cut in writer.faults(Cut):
            if cut.at_once:
                raise Severed(cut.how)
        for raw in writer.faults(RawReply):
            connection.writer.write(raw.content)
            await connection.writer.drain()
            raise Severed(How.FIN)
        for answer in writer.faults(Answer):
            await writer.whole(answer.status_code(), answer.body(), answer.headers(), close=close)
            return True
        try:
            request.user = self._access.check(incoming.headers, connection.tls)
            if isinstance(target, ApiError):
                raise target
            if target is None:
                code, content, media = 200, *self._document(incoming)
            elif target.verb == "watch":
                await self._watch(connection, incoming, request, target, writer)
                return True
            else:
                media = "application/json"
                code, content = await self._resource(incoming, target)
        except ApiError as error:
            headers = {"Content-Type": error.content_type, "Cache-Control": "no-cache, private"}
            if error.retry_after is not None:
                headers["Retry-After"] = str(error.retry_after)
            await writer.whole(error.code, error.encoded, headers, close=close)
            return True
        for rewrite in writer.faults(Rewrite):
            content = msgspec.json.encode(rewrite.function(msgspec.json.decode(content)))
        for bad in writer.faults(BadObject):
            listed = msgspec.json.decode(content)
            listed["items"] = [*listed["items"], bad.object()]
            content = msgspec.json.encode(listed)
        accepts_gzip = "gzip" in incoming.headers.get("accept-encoding", "")
        headers = {"Content-Type": media, "Cache-Control": "no-cache, private"}
        await writer.whole(code, content, headers, close=close, compress=accepts_gzip and len(content) > GZIP_FROM)
        return True

    def _document(self, incoming: http.Incoming) -> tuple[bytes, str]:
        if incoming.path == "/version":
            return msgspec.json.encode(discovery.VERSION), "application/json"
        if incoming.path in routes.HEALTH:
            return b"ok", "text/plain; charset=utf-8"
        stale = frozenset(self.stale_groups)
        version = routes.wants_aggregated(incoming.headers.get("accept", ""))
        if version and self.aggregated_discovery and incoming.path in {"/api", "/apis"}:
            core = incoming.path == "/api"
            content = discovery.aggregated(self._store.types, core=core, version=version, stale=stale)
            media = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            return msgspec.json.encode(content), media
        address = incoming.headers.get("host", "")
        document = discovery.document(incoming.path, self._store.types, stale=stale, address=address)
        return msgspec.json.encode(document), "application/json"

    async def _watch(
        self,
        connection: Connection,
        incoming: http.Incoming,
        request: Request,
        target: routes.Target,
        writer: ReplyWriter,
    ) -> None:
        known = self.watch_list != "off"
        partial = routes.wants_partial(incoming.headers.get("accept", ""))
        options = list_options.parse(incoming.query, target.served, target.namespace, watch=True, watch_list=known)
        watch = OpenWatch(
            request,
            target.served,
            options,
            self._store.history,
            partial=partial,
            visible=self._visible,
            bookmark_interval=self.bookmark_interval,
            mode=self.watch_list,
            told=self._notify,
        )
        connection.on_gone = watch.client_gone
        if connection.left:
            watch.client_gone()
        self._watches[request] = watch
        self._notify()
        try:
            await watch.run(writer, self._wait_for_revision)
            await writer.finish()
        finally:
            connection.on_gone = None
            del self._watches[request]

    async def _resource(self, incoming: http.Incoming, target: routes.Target) -> tuple[int, bytes]:
        served = target.served
        partial = routes.wants_partial(incoming.headers.get("accept", ""))
        objects = self._store.objects
        match target.verb:
            case "list" | "deletecollection":
                options = list_options.parse(
                    incoming.query, served, target.namespace, watch=False, watch_list=self.watch_list != "off"
                )
                content = await list_objects(
                    self._store.history,
                    served,
                    options,
                    partial=partial,
                    visible=self._visible,
                    wait_for=self._wait_for_revision,
                )
                if target.verb == "deletecollection":
                    for _, version in self._store.history.at(served.group_resource, self._store.history.revision):
                        if options.selection.contains(version.obj):
                            metadata = version.obj["metadata"]
                            objects.delete(served, metadata["name"], metadata.get("namespace", ""))
                return 200, content
            case "get":
                return 200, await self._get(incoming, target, partial=partial)
            case "create":
                obj = objects.create(served, target.namespace, _body(incoming, served))
                return 201, served.encode(obj)
            case "update":
                obj = _body(incoming, served)
                return 200, served.encode(objects.replace(served, target.name, target.namespace, obj))
            case "patch":
                changes = _patch(incoming)
                return 200, served.encode(objects.patch(served, target.name, target.namespace, changes))
            case _:
                return 200, self._delete(incoming, target)

    async def _get(self, incoming: http.Incoming, target: routes.Target, *, partial: bool) -> bytes:
        text = incoming.query.get("resourceVersion", "")
        revision = list_options.get_version(text)
        history = self._store.history
        served = target.served
        if text:
            await self._wait_for_revision(revision)
        seen = dict(history.at(served.group_resource, self._visible() if text else history.revision))
        version = seen.get(served.key(target.name, target.namespace))
        if version is None:
            raise self._store.objects.missing(served, target.name)
        return encode(served, version, partial=partial)

    def _delete(self, incoming: http.Incoming, target: routes.Target) -> bytes:
        served = target.served
        options = msgspec.json.decode(incoming.body) if incoming.body else None
        if options is not None and not isinstance(options, dict):
            raise bad_request("DeleteOptions have to be an object")
        obj = self._store.objects.delete(served, target.name, target.namespace, options=options)
        metadata = obj["metadata"]
        if "deletionTimestamp" in metadata:
            return served.encode(obj)
        group = {"group": served.type.group} if served.type.group else {}
        details = {"name": target.name, **group, "kind": served.type.resource, "uid": metadata["uid"]}
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return msgspec.json.encode(success)


def _body(incoming: http.Incoming, served: ServedType) -> Json:
    obj = _decoded(incoming, f"the object provided is unrecognized (must be of type {served.type.kind})")
    kind, version = obj.pop("kind", ""), obj.pop("apiVersion", "")
    if served.custom and not kind:
        raise bad_request(f"the object provided is unrecognized (must be of type {served.type.kind})")
    if kind not in {"", served.type.kind} or version not in {"", served.type.api_version}:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {served.type.kind}')
    return obj


def _patch(incoming: http.Incoming) -> Json:
    media = incoming.headers.get("content-type", "").split(";")[0].strip()
    if media != "application/merge-patch+json":
        raise ApiError(415, status(415, details={}))
    return _decoded(incoming, "invalid JSON patch")


def _decoded(incoming: http.Incoming, problem: str) -> Json:
    try:
        return msgspec.json.decode(incoming.body, type=Json)
    except msgspec.MsgspecError:
        raise bad_request(problem) from None

"""The fake itself, and what a test does to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from federator.api.resource import ResourceType
from federator.testing.certificates import KeyPair
from federator.testing.fake_api_server import access
from federator.testing.fake_api_server.connection import StreamProtocol
from federator.testing.fake_api_server.faults import Fault
from federator.testing.fake_api_server.history import Snapshot
from federator.testing.fake_api_server.injection import Injection
from federator.testing.fake_api_server.request_log import Request
from federator.testing.fake_api_server.served_type import ServedType
from federator.testing.fake_api_server.service import Service, Store
from federator.testing.fake_api_server.status import Json
from federator.testing.fake_api_server.watching import OpenWatch, WatchListMode


class FakeApiServer(Service):
    """A kube-apiserver for list and watch, with real history, that misbehaves on demand.

    An async context manager: it listens on a free port of 127.0.0.1 from entering on, and leaving it closes every
    connection and ends every task. It starts with the types `configmaps`, `namespaces`, `nodes`, `pods`, `secrets` and
    `deployments.apps`, and with the namespaces of a new cluster. Nothing is validated but metadata, nothing is
    controlled: a Deployment makes no pods.

    Promises:
        - Every write has the next resourceVersion, deletions too, and a watch begun at any of them replays what came
          after, or says 410 once it is compacted.
        - Methods that are not async happen at once and whole. What they do to a watch comes in the order they were
          called in.
        - A list or watch that a real server of the version in `discovery.VERSION` refuses is refused alike.

    It belongs to the event loop it was entered in; clients may be anywhere.

    Attributes:
        requests: what was asked, see `RequestLog`.
        bookmark_interval: seconds between the bookmarks of a watch, None for none of its own.
        too_large_wait: seconds a request waits for a resourceVersion that has not been seen yet, before its 504.
        watch_list: what becomes of `sendInitialEvents`: "on"; "off", refused as by servers without it; "endless", taken
            but never answered with the bookmark that ends the initial events.
        aggregated_discovery: discovery has its one-document form.
        stale_groups: groups whose server does not answer, for discovery.
    """

    def __init__(
        self,
        *,
        tls: bool = False,
        history: int = 100_000,
        bookmark_interval: float | None = 60.0,
        too_large_wait: float = 3.0,
        watch_list: WatchListMode = "on",
        aggregated_discovery: bool = True,
    ) -> None:
        """Describes a fake; entering it starts it.

        Args:
            tls: it speaks HTTPS, with an authority of its own, and asks clients for a certificate.
            history: events it keeps at least; older ones are compacted.
            bookmark_interval: see the attribute.
            too_large_wait: see the attribute.
            watch_list: see the attribute.
            aggregated_discovery: see the attribute.
        """
        super().__init__(
            Store(history),
            tls=tls,
            bookmark_interval=bookmark_interval,
            too_large_wait=too_large_wait,
            watch_list=watch_list,
            aggregated_discovery=aggregated_discovery,
        )
        self._reservation: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None

    # ---------------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        if self._authority is not None:
            self._tls = self._authority.server_context()
        self._reservation = _bound(0)
        self._store.history.listeners.append(self._written)
        await self.accept_connections()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.history.listeners.remove(self._written)
        self.refuse_connections()
        tasks = list(self._connections.values())
        for connection, task in list(self._connections.items()):
            task.cancel()
            connection.writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1; the same until it is left."""
        if self._reservation is None:
            raise RuntimeError("the FakeApiServer is not entered, or left already")
        return int(self._reservation.getsockname()[1])

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{'https' if self._authority else 'http'}://127.0.0.1:{self.port}"

    @property
    def authority(self) -> bytes | None:
        """PEM of the certificate authority to trust; None without TLS."""
        return self._authority.certificate if self._authority else None

    def replica(self, *, too_large_wait: float | None = None) -> FakeApiServer:
        """Another server of the same store, to be entered on its own: a second apiserver of one control plane.

        It has a port, requests, faults and credentials of its own; see `fall_behind`.
        """
        other = FakeApiServer(
            tls=self._authority is not None,
            bookmark_interval=self.bookmark_interval,
            too_large_wait=self.too_large_wait if too_large_wait is None else too_large_wait,
            watch_list=self.watch_list,
            aggregated_discovery=self.aggregated_discovery,
        )
        other._store = self._store
        other._authority = self._authority
        return other

    # ------------------------------------------------------------------------------------------------- objects

    @property
    def resource_version(self) -> str:
        """Of the newest write, to anything."""
        return str(self._store.history.revision)

    def put(
        self,
        resource: str,
        name: str,
        namespace: str = "default",
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Json:
        """Creates an object, or replaces it whole; a put that changes nothing writes nothing.

        Args:
            resource: plural, short name, kind, or `plural.group`.
            name: its name.
            namespace: its namespace, which need not exist; of no effect for cluster-scoped types.
            labels: its labels.
            annotations: its annotations.
            fields: what it has beside metadata: `data={...}`, `spec={...}`.

        Returns:
            The object as it is stored, with apiVersion and kind.

        Raises:
            LookupError: there is no such type.
            ApiError: the name is not one.
        """
        metadata: Json = {"name": name}
        if labels is not None:
            metadata["labels"] = dict(labels)
        if annotations is not None:
            metadata["annotations"] = dict(annotations)
        return self._put(self._store.types.named(resource), name, namespace, {"metadata": metadata, **fields})

    def put_manifest(self, manifest: Mapping[str, Any]) -> Json:
        """Creates or replaces an object that names its own apiVersion, kind and metadata.

        Raises:
            LookupError, ApiError: as `put`.
        """
        obj = msgspec.json.decode(msgspec.json.encode(manifest), type=Json)
        served = self._store.types.of_manifest(obj)
        metadata = obj["metadata"]
        return self._put(served, metadata["name"], metadata.get("namespace", "default"), obj)

    def patch(self, resource: str, name: str, changes: Mapping[str, Any], namespace: str = "default") -> Json:
        """Merges changes into an object (JSON merge patch: None removes a field) and returns it.

        Raises:
            LookupError: there is no such type.
            ApiError: there is no such object.
        """
        served = self._store.types.named(resource)
        obj = self._store.objects.patch(served, name, _scope(served, namespace), dict(changes))
        return _named(served, obj)

    def touch(self, resource: str, name: str, namespace: str = "default") -> Json:
        """Gives an object a new resourceVersion, by a new value of its annotation `touched`.

        Raises:
            LookupError, ApiError: as `patch`.
        """
        touched = {"touched": str(self._store.history.revision + 1)}
        return self.patch(resource, name, {"metadata": {"annotations": touched}}, namespace)

    def delete(self, resource: str, name: str, namespace: str = "default") -> Json:
        """Deletes an object; a namespace with all it holds. Finalizers only mark it.

        Returns:
            Its last state, with the resourceVersion of the deletion.

        Raises:
            LookupError, ApiError: as `patch`.
        """
        served = self._store.types.named(resource)
        return _named(served, self._store.objects.delete(served, name, _scope(served, namespace)))

    def get(self, resource: str, name: str, namespace: str = "default") -> Json:
        """An object as it is.

        Raises:
            LookupError, ApiError: as `patch`.
        """
        served = self._store.types.named(resource)
        return _named(served, self._store.objects.get(served, name, _scope(served, namespace)))

    def list(self, resource: str, namespace: str = "") -> Sequence[Json]:
        """All objects of a type, of one namespace or all, by key.

        Raises:
            LookupError: there is no such type.
        """
        served = self._store.types.named(resource)
        history = self._store.history
        states = [version.obj for _, version in history.at(served.group_resource, history.revision)]
        return [_named(served, obj) for obj in states if namespace in {"", obj["metadata"].get("namespace")}]

    # --------------------------------------------------------------------------------------------------- types

    def add_resource(
        self, resource_type: ResourceType, *, custom: bool = True, fields: Sequence[str] = ()
    ) -> ResourceType:
        """Serves a further resource type, as the creation of a CustomResourceDefinition would.

        Args:
            resource_type: its names.
            custom: it is written as custom resources are, keys sorted; otherwise as built-in types.
            fields: what field selectors may name beside name and namespace.

        Returns:
            The type.
        """
        paths = ("metadata.name", "metadata.namespace", *fields)
        self._store.types.add(ServedType(resource_type, custom=custom, generation=True, fields=paths))
        self._notify()
        return resource_type

    def remove_resource(self, resource: str, *, with_objects: bool = True) -> None:
        """Ends to serve a type, as the deletion of its definition would: its watches end, its paths are 404.

        Args:
            resource: as in `put`.
            with_objects: its objects are deleted before, and its watches are told.

        Raises:
            LookupError: there is no such type.
        """
        served = self._store.types.named(resource)
        if with_objects:
            for obj in self.list(resource):
                self._store.objects.delete(served, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
        self._store.types.remove(served)
        for watch in self._watches.values():
            if watch.served is served:
                watch.end()
        self._notify()

    # ------------------------------------------------------------------------------------------------- history

    def compact(self, *, keep: int = 0) -> None:
        """Forgets all but the newest `keep` writes: watches and pages that begin before are answered 410."""
        self._store.history.compact(keep=keep)

    def skip_to(self, resource_version: int | str) -> None:
        """Leaves out resourceVersions, e.g. to have large ones. What is written next comes after this one.

        Raises:
            ValueError: it is in the past.
        """
        self._store.history.skip_to(int(resource_version))

    def snapshot(self) -> Snapshot:
        """A backup of the store."""
        return self._store.history.snapshot()

    def restore(self, snapshot: Snapshot, *, cut_watches: bool = False) -> None:
        """Goes back to a backup: objects are as they were, and resourceVersions go on from there.

        Args:
            snapshot: the backup.
            cut_watches: resets open watches. Otherwise they stay open and say nothing until resourceVersions have
                passed those they had seen, as a real server's do.
        """
        if cut_watches:
            for watch in self.watches():
                watch.reset()
        self._store.history.restore(snapshot)

    def fall_behind(self) -> None:
        """Sees nothing that is written from now on, as the cache of a replica that lags.

        Watches and lists at a resourceVersion or "0" are answered as of now; a list without one is still up to date.
        """
        self._behind = self._visible()

    def catch_up(self) -> None:
        """Sees everything again."""
        self._behind = None
        self._written()

    @contextlib.contextmanager
    def losing_events(self) -> Iterator[None]:
        """What is written in this context is in lists but in no watch, not even in one that begins later."""
        history = self._store.history
        history.losing = True
        try:
            yield
        finally:
            history.losing = False

    # ------------------------------------------------------------------------------------------------- watches

    def watches(self, resource: str = "*") -> Sequence[OpenWatch]:
        """The open watches of a resource, oldest first; `*` for all."""
        return [watch for watch in self._watches.values() if watch.request.matches("*", resource)]

    def bookmark(self, resource: str = "*", resource_version: str | None = None) -> None:
        """Sends a bookmark to open watches, with any resourceVersion or the newest; see `OpenWatch.bookmark`."""
        for watch in self.watches(resource):
            watch.bookmark(resource_version)

    def end_watches(self, resource: str = "*") -> None:
        """Ends open watches cleanly."""
        for watch in self.watches(resource):
            watch.end()

    # -------------------------------------------------------------------------------------------------- faults

    def fail(
        self,
        verb: str,
        resource: str,
        *faults: Fault,
        times: int | None = 1,
        skip: int = 0,
        where: Callable[[Request], bool] | None = None,
    ) -> Injection:
        """Has the next requests of a verb and resource go wrong.

        Several calls that mean the same requests queue up: a request has the faults of the first that is not used up.
        Those for all requests (`times=None`) do not queue, a request has them besides. Of answers in place of the reply
        the first counts.

        Args:
            verb: `list`, `watch`, `get`, ... as in `Request.verb`; `*` for all.
            resource: `configmaps`, `deployments.apps`, `deployments`; `*` for all.
            faults: what goes wrong, from `federator.testing.faults`; several at once are combined.
            times: how many requests; None for all from now on.
            skip: how many requests that are meant go well before, once it is this call's turn.
            where: what else has to hold of a request.

        Returns:
            What counts them and can take them back.
        """
        injection = Injection(verb, resource, faults, times=times, skip=skip, where=where)
        self._injections.add(injection)
        return injection

    def heal(self) -> None:
        """Takes back all that `fail` and `go_dark` asked for; what was cut stays cut."""
        self._injections.clear()
        self.come_back()

    def reset_connections(self) -> None:
        """Resets every connection."""
        for connection in list(self._connections):
            connection.reset()

    def refuse_connections(self) -> None:
        """Refuses new connections: the port is not listened on. Those that stand are not touched."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept_connections(self) -> None:
        """Listens again, on the same port."""
        if self._listener is None:
            loop = asyncio.get_running_loop()
            listening = _bound(self.port)
            self._listener = await loop.create_server(
                lambda: StreamProtocol(self._connect), sock=listening, ssl=self._tls, backlog=1024
            )

    def go_dark(self) -> None:
        """Sends nothing more on any connection, old or new, and ends none: the network is gone."""
        self._dark = True
        for watch in self.watches():
            watch.black_hole()

    def come_back(self) -> None:
        """Answers requests again; what went dark before stays dark until its client gives it up."""
        self._dark = False

    # --------------------------------------------------------------------------------------------- credentials

    def require_token(self, *tokens: str) -> None:
        """Takes one of these bearer tokens from now on and answers 401 without; open watches go on."""
        self._access.require_tokens(tokens)

    def require_client_certificate(self, *pairs: KeyPair) -> None:
        """Takes one of these client certificates from now on, or any of `client_certificate` if none is given.

        Tokens of `require_token` are taken as well.
        """
        self._access.require_certificates(pairs)

    def allow_anonymous(self) -> None:
        """Asks nobody for credentials, as in the beginning."""
        self._access.allow_all()

    def client_certificate(self, user: str = "alice", *, groups: Sequence[str] = ()) -> KeyPair:
        """A new client certificate and its key.

        Raises:
            RuntimeError: there is no TLS.
        """
        if self._authority is None:
            raise RuntimeError("client certificates need FakeApiServer(tls=True)")
        return self._authority.client(user, tuple(groups))

    def kubeconfig(
        self,
        path: Path,
        *,
        token: str | None = None,
        token_file: Path | None = None,
        exec: Mapping[str, Any] | None = None,  # noqa: A002 - the name it has there
        client_certificate: KeyPair | None = None,
        context: str = "fake",
    ) -> Path:
        """Writes a kubeconfig with one context and returns its path.

        Args:
            path: the file.
            token: a bearer token.
            token_file: a file with one.
            exec: a plugin: `{"apiVersion": "client.authentication.k8s.io/v1", "command": ...}`.
            client_certificate: of `client_certificate`.
            context: name of the context.
        """
        user: Json = {}
        if token is not None:
            user["token"] = token
        if token_file is not None:
            user["tokenFile"] = str(token_file)
        if exec is not None:
            user["exec"] = {"interactiveMode": "Never", **exec}
        if client_certificate is not None:
            user |= access.inline(client_certificate)
        return access.write_kubeconfig(path, context=context, url=self.url, authority=self.authority, user=user)

    # ------------------------------------------------------------------------------------------------- waiting

    async def wait_for(self, condition: Callable[[], Any], *, timeout: float = 10.0) -> None:
        """Waits until a condition on this server holds; it is looked at after everything that happens here.

        Raises:
            TimeoutError: it did not hold in time; the message has the newest requests.
        """
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await self._change()
        except TimeoutError:
            newest = "\n".join(str(request) for request in list(self.requests)[-20:])
            raise TimeoutError(f"the condition did not hold within {timeout} s; requests:\n{newest}") from None

    async def wait_for_request(
        self, verb: str, resource: str = "*", *, count: int = 1, since: int = 0, timeout: float = 10.0
    ) -> Request:
        """Waits for the `count`th request of a verb and resource, also a past one, with a number above `since`.

        Returns:
            That request.

        Raises:
            TimeoutError: it did not come in time.
        """
        await self.wait_for(lambda: len(self.requests.of(verb, resource, since=since)) >= count, timeout=timeout)
        return self.requests.of(verb, resource, since=since)[count - 1]

    async def wait_for_watch(self, resource: str = "*", *, count: int = 1, timeout: float = 10.0) -> OpenWatch:
        """Waits until so many watches of a resource are open and returns the newest of them.

        Raises:
            TimeoutError: they were not in time.
        """
        await self.wait_for(lambda: len(self.watches(resource)) >= count, timeout=timeout)
        return self.watches(resource)[-1]

    async def wait_until_sent(self, *, timeout: float = 10.0) -> None:
        """Waits until every open watch has been sent all it should be shown.

        Raises:
            TimeoutError: they were not in time.
        """
        await self.wait_for(lambda: all(watch.up_to_date for watch in self.watches()), timeout=timeout)

    def statistics(self) -> Mapping[str, Any]:
        """Connections, requests, open watches, resourceVersion, and the oldest one a watch may begin at."""
        return {
            "connections": len(self._connections),
            "accepted_connections": self._connected,
            "requests": self.requests.total,
            "watches": len(self._watches),
            "resource_version": self._store.history.revision,
            "compacted": self._store.history.compacted,
        }

    def _put(self, served: ServedType, name: str, namespace: str, obj: Json) -> Json:
        objects = self._store.objects
        namespace = _scope(served, namespace)
        if self._store.history.current(served.group_resource, served.key(name, namespace)) is None:
            return _named(served, objects.create(served, namespace, obj, strict=False))
        return _named(served, objects.replace(served, name, namespace, obj, strict=False))


def _bound(port: int) -> socket.socket:
    # A bound socket that does not listen refuses connections, and keeps the port from everybody else.
    # The protocol is named because asyncio sets TCP_NODELAY only where it is, and each flush has to go out at once.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


def _scope(served: ServedType, namespace: str) -> str:
    return namespace if served.type.namespaced else ""


def _named(served: ServedType, obj: Json) -> Json:
    """A copy with apiVersion and kind, which the caller may change."""
    return msgspec.json.decode(served.encode(obj), type=Json)

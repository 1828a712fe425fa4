"""The HTTP side of a process: `/metrics`, `/livez` and `/readyz`, as Kubernetes components serve them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from federator.api.address import split_address
from federator.errors import InvalidInput

ReadyCheck = Callable[[], str | None]
"""Returns None when ready, otherwise why not."""


class ObservabilityServer:
    """Serves metrics and health while its context is open.

    Ready means able to answer, never "all members are there": each answer names who is missing.
    """

    def __init__(self, address: str, registry: CollectorRegistry, checks: Mapping[str, ReadyCheck]) -> None:
        """Prepares the server.

        Args:
            address: `host:port`; port 0 takes a free one. Whoever reaches it may ask: it is plain HTTP.
            registry: what `/metrics` shows.
            checks: by name, what `/readyz` asks.

        Raises:
            InvalidInput: it is no address.
        """
        self._address = address
        self._host, self._port = split_address(address, field="http-listen")
        self._registry = registry
        self._checks = checks
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/healthz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._port

    async def __aenter__(self) -> Self:
        """Listens.

        Raises:
            InvalidInput: the address cannot be listened on.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidInput("http-listen", self._address, "an address that is free") from error
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        results = {name: check() for name, check in self._checks.items()}
        failed = any(why is not None for why in results.values())
        if failed or "verbose" in request.query:
            lines = [f"[{'+' if why is None else '-'}]{name} {why or 'ok'}" for name, why in results.items()]
            lines.append("readyz check failed" if failed else "readyz check passed")
            text = "\n".join(lines) + "\n"
        else:
            text = "ok\n"
        return web.Response(text=text, status=503 if failed else 200)

import aiohttp
import pytest
from prometheus_client import Counter

from federator.errors import InvalidInput
from federator.observability.http import ObservabilityServer
from federator.observability.metrics import new_registry


async def _get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_metrics_show_the_registry_without_created_series() -> None:
    registry = new_registry("test")
    Counter("federator_things", "Things.", registry=registry).inc(3)
    async with ObservabilityServer("127.0.0.1:0", registry, {}) as server:
        status, text = await _get(server.port, "/metrics")
    assert status == 200
    assert "federator_things_total 3.0" in text
    assert 'component="test"' in text
    assert "_created" not in text


async def test_readiness_names_what_is_not_ready_while_liveness_stays() -> None:
    why: list[str | None] = ["still loading"]
    checks = {"ledger": lambda: why[0], "listener": lambda: None}
    async with ObservabilityServer("127.0.0.1:0", new_registry("test"), checks) as server:
        assert await _get(server.port, "/livez") == (200, "ok\n")
        status, text = await _get(server.port, "/readyz")
        assert status == 503
        assert "[-]ledger still loading" in text
        assert "[+]listener ok" in text
        why[0] = None
        assert await _get(server.port, "/readyz") == (200, "ok\n")
        _, text = await _get(server.port, "/readyz?verbose")
        assert text.endswith("readyz check passed\n")


async def test_every_address_of_the_machine_may_be_listened_on() -> None:
    async with ObservabilityServer("0.0.0.0:0", new_registry("test"), {}) as server:
        assert await _get(server.port, "/livez") == (200, "ok\n")


@pytest.mark.parametrize("address", ["9091", "127.0.0.1", "unix:/run/http.sock"])
async def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="http-listen"):
        ObservabilityServer(address, new_registry("test"), {})

"""The informer library's manual: its code blocks run, in its order and in one namespace, and its names are real."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from federator.cache import RateLimitingQueue, RelistCause, ResourceEventHandlerFuncs, SharedInformerFactory
from federator.kube import KubeconfigCredentials, MemberClient, ResourceListWatch
from federator.observability.informer_metrics import InformerCollector, WorkQueueCollector
from federator.testing import FakeApiServer
from tests.fixtures import logs, no_proxies, no_system_authorities, no_task_is_left

__all__ = ["logs", "no_proxies", "no_system_authorities", "no_task_is_left"]

MANUAL = Path(__file__).parents[2] / "docs" / "informer.md"
TEXT = MANUAL.read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@functools.cache
def namespace() -> dict[str, Any]:
    """What the blocks define. They import much, so not while tests are collected."""
    namespace: dict[str, Any] = {"__name__": "manual"}
    for block in BLOCKS:
        exec(compile(block, str(MANUAL), "exec"), namespace)
    return namespace


FUNCTIONS = {each.name for block in BLOCKS for each in ast.parse(block).body if isinstance(each, ast.AsyncFunctionDef)}
ENDLESS = {"first_program", "controller"}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """What the blocks speak of is there."""
    async with FakeApiServer(too_large_wait=0.0) as server:
        server.put("namespaces", "shop")
        server.put(
            "pods", "web-0", "shop", labels={"app": "web"}, spec={"nodeName": "worker-1"}, status={"phase": "Running"}
        )
        server.put("pods", "web-1", "shop", labels={"app": "web"}, spec={}, status={"phase": "Pending"})
        server.put("configmaps", "settings", "shop")
        yield server


@pytest.fixture
async def offered(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """What the blocks' functions take, by the names of their parameters."""
    credentials = KubeconfigCredentials("fake", server.kubeconfig(tmp_path / "kubeconfig"))
    async with MemberClient(credentials) as client, MemberClient(credentials) as other_client, FakeApiServer() as empty:
        yield {
            "client": client,
            "other_client": other_client,
            "credentials": credentials,
            "fake_api_server": empty,
            "tmp_path": tmp_path,
        }


def arguments(name: str, offered: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(namespace()[name]).parameters.values()
    return {each.name: offered[each.name] for each in parameters if each.default is each.empty}


@contextlib.asynccontextmanager
async def running(name: str, offered: dict[str, Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(namespace()[name](**arguments(name, offered)))
    try:
        yield
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110 - what is printed and written sets no event
            await asyncio.sleep(0.1)  # of the loop's clock, which jumps


@pytest.mark.looptime
@pytest.mark.parametrize("name", sorted(FUNCTIONS - ENDLESS))
async def test_a_block_runs(name: str, offered: dict[str, Any]) -> None:
    async with asyncio.timeout(3600):
        result = await namespace()[name](**arguments(name, offered))
    if name == "find_type":
        assert (result.kind, result.version) == ("Deployment", "v1")


@pytest.mark.looptime
async def test_the_first_program_prints_what_there_is_and_what_comes(
    server: FakeApiServer,
    offered: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    printed = ""

    def has_printed(*lines: str) -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return set(lines) <= set(printed.splitlines())

    async with running("first_program", offered):
        await until(lambda: has_printed("there is shop/web-0", "there is shop/web-1", "2 pods"))
        server.put("pods", "web-2", "shop")
        server.touch("pods", "web-0", "shop")
        server.delete("pods", "web-1", "shop")
        await until(lambda: has_printed("new shop/web-2", "changed shop/web-0", "gone shop/web-1"))


@pytest.mark.looptime
async def test_the_controller_brings_the_world_in_line(server: FakeApiServer, offered: dict[str, Any]) -> None:
    def is_stamped(name: str) -> bool:
        return "stamped" in (server.get("configmaps", name, "shop")["metadata"].get("annotations") or {})

    async with running("controller", offered):
        await until(lambda: is_stamped("settings"))
        server.put("configmaps", "later", "shop")
        await until(lambda: is_stamped("later"))


def test_every_block_is_run() -> None:
    assert len(FUNCTIONS) == len(BLOCKS), "each block has one async function, which a test runs"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(federator(?:\.\w+)+)`", TEXT))))
def test_a_dotted_name_is_real(name: str) -> None:
    module, attributes = name, list[str]()
    while True:
        try:
            value: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
    for attribute in attributes:
        value = getattr(value, attribute)


def test_links_go_to_files_and_headings_that_are_there() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", prose)
    assert len(links) > 10
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors
        else:
            assert (MANUAL.parent / link).is_file(), link


async def test_the_metrics_are_those_of_the_collectors(offered: dict[str, Any]) -> None:
    factory = SharedInformerFactory(functools.partial(ResourceListWatch, offered["client"]))
    factory.informer(namespace()["PODS"]).add_event_handler(ResourceEventHandlerFuncs())
    queue = RateLimitingQueue[str](name="queue")
    families = [*InformerCollector(factory).collect(), *WorkQueueCollector(queue).collect()]
    given = {family.name + "_total" * (family.type == "counter") for family in families}
    samples = {sample.name for family in families for sample in family.samples}

    prose = TEXT.replace(InformerCollector.__module__, "")
    named = set(re.findall(r"\b(?:informer|reflector|workqueue)_[a-z_]+\b", prose))
    assert named - given - samples == set(), "named, but not given"
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXT.partition("## Metrics")[2], re.MULTILINE)
    assert {name for row in rows for name in row.split("`")[1::2]} == given, "the tables have each of them"


def test_the_causes_of_relists_are_those_there_are() -> None:
    table = TEXT.partition("| cause of a relist |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {str(cause) for cause in RelistCause}

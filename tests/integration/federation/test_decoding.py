"""An object stays bytes on its way: how often it is decoded from list and watch to commit, watch and list reply.

Nothing on the way may decode an object as a whole. What each step opens to find its few fields is counted exactly, so
that another decode is a decision and not an accident.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import federator.agent.transforms
import federator.aggregator.ingest.frames
from federator.api.cluster import ClusterState
from federator.testing.testbed import Testbed
from tests.integration.federation.in_process import federated

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(120)]

NAMESPACE = "decodes"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
OBJECTS = 20
CHANGES = 30
MARK = b'"decode-mark"'
"""An annotation of every object of the test: what has it is one of them, or its metadata, or a list of them."""

OF_AN_OBJECT = Counter(
    {
        "federator.kube.object_decoder": 1,  # who it is
        "federator.agent.transforms": 2,  # where metadata is, and in it what is dropped
        "federator.aggregator.ledger.indexed_state": 1,  # that it is what its frame says; labels, owners, node
    }
)
"""Partial decodes of each state of each object, by module: three in the agent, one in the aggregator."""

OF_A_FRAME = Counter({"federator.kube.frame_reader": 1})
"""In addition, of each change: what happened, and to which bytes. A list is cut into many items at once."""


class Decodes:
    """What was decoded of marked objects, by the module whose decoder did it, or that called one that decodes all."""

    def __init__(self) -> None:
        self.whole: Counter[str] = Counter()
        self.partial: Counter[str] = Counter()

    def count(self, content: Any, module: str, *, is_whole: bool) -> None:
        if isinstance(content, str):
            content = content.encode()
        marks = bytes(content).count(MARK)
        if is_whole and marks:
            self.whole[module] += marks
        elif marks == 1:
            self.partial[module] += 1


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decodes]:
    """Counts every way in which the product could decode JSON while the block runs."""
    decodes = Decodes()

    def counting(decode: Callable[..., Any], *, module: str = "", type_: object = Any) -> Callable[..., Any]:
        def counted_decode(content: Any, *arguments: Any, **named: Any) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            if not caller.startswith(("federator.testing.", "tests.")):
                is_whole = _is_whole(named.get("type", type_))
                decodes.count(content, module or caller, is_whole=is_whole)
            return decode(content, *arguments, **named)

        return counted_decode

    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if not name.startswith("federator.") or name.startswith("federator.testing"):
                continue
            for attribute, value in list(vars(module).items()):
                decoder = getattr(value, "__self__", None)
                if isinstance(decoder, msgspec.json.Decoder):
                    patch.setattr(module, attribute, counting(value, module=name, type_=decoder.type))
        patch.setattr(msgspec.json, "decode", counting(msgspec.json.decode))
        patch.setattr(msgspec.json, "format", counting(msgspec.json.format))
        patch.setattr(msgspec.json, "Decoder", _refuse_new_decoders)
        patch.setattr(json, "loads", counting(json.loads))
        patch.setattr(yaml, "load", counting(yaml.load))
        yield decodes


def _refuse_new_decoders(*_: object, **__: object) -> None:
    raise AssertionError("a decoder is made while objects are on their way, where nobody would count it")


def _is_whole(type_: object) -> bool:
    """Whether a type has a place for anything whatever; text that is decoded to bytes again (Raw) is none."""
    return type_ in (Any, object) or any(map(_is_whole, getattr(type_, "__args__", ())))


@pytest.fixture(scope="module")
def _objects(living_bed: Testbed) -> None:
    async def create() -> None:
        async with living_bed["eu-1"].client() as admin:
            await admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            for number in range(OBJECTS):
                await admin.create(PATH, _config_map(number))

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(create())


async def _way(
    bed: Testbed, folder: Path, monkeypatch: pytest.MonkeyPatch, *, labels: str = ""
) -> tuple[Decodes, Decodes]:
    """Counts of listing all objects, and of changing some of them one after the other; both until a list reply."""
    settings: dict[str, Any] = {"resources": ("configmaps",), "namespace": NAMESPACE}
    with counted(monkeypatch) as listed:
        async with federated(bed, folder, ["eu-1"], **settings) as (federation, fed):
            answer = await fed.list("configmaps", labels="decodes")
            assert answer.total == OBJECTS
            # Listing has its counts by now; what follows counts anew.
            changed = Decodes()
            totals = _copied(listed)
            async with (
                bed["eu-1"].client() as admin,
                aclosing(fed.watch("configmaps", labels=labels, cursor=answer.cursor)) as events,
            ):
                for number in range(CHANGES):
                    name = f"decode-{number % OBJECTS}"
                    await admin.patch(f"{PATH}/{name}", {"data": {"changed": f"{folder} {number}"}})
                    async for event in events:
                        if event.object is not None:
                            assert event.object.name == name
                            break
            assert (await fed.list("configmaps", labels="decodes")).total == OBJECTS
            await federation.wait_state(fed, ClusterState.LIVE)
            changed.whole = listed.whole - totals.whole
            changed.partial = listed.partial - totals.partial
    return totals, changed


def _copied(decodes: Decodes) -> Decodes:
    copy = Decodes()
    copy.whole, copy.partial = decodes.whole.copy(), decodes.partial.copy()
    return copy


def _times(counts: Counter[str], number: int) -> Counter[str]:
    return Counter({module: count * number for module, count in counts.items()})


@pytest.mark.usefixtures("_objects")
@pytest.mark.parametrize("labels", ["", "decodes"])
async def test_an_object_is_opened_only_as_far_as_stated(
    living_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str
) -> None:
    listed, changed = await _way(living_bed, tmp_path, monkeypatch, labels=labels)
    assert not listed.whole
    assert not changed.whole
    assert listed.partial == _times(OF_AN_OBJECT, OBJECTS)
    assert changed.partial == _times(OF_AN_OBJECT + OF_A_FRAME, CHANGES)


@pytest.mark.usefixtures("_objects")
@pytest.mark.parametrize("place", [federator.agent.transforms, federator.aggregator.ingest.frames])
@pytest.mark.parametrize("decode", ["json.loads(raw)", "msgspec.json.decode(raw)", "yaml.load(raw, yaml.CSafeLoader)"])
async def test_a_decode_that_somebody_adds_is_seen(
    living_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, decode: str
) -> None:
    added: dict[str, Any] = {"__name__": "federator.added", "hash": place.content_hash}
    source = f"import json, msgspec, yaml\ndef content_hash(raw):\n    {decode}\n    return hash(raw)\n"
    builtins.exec(source, added)
    monkeypatch.setattr(place, "content_hash", added["content_hash"])
    listed, changed = await _way(living_bed, tmp_path, monkeypatch)
    assert listed.whole == {"federator.added": OBJECTS}
    assert changed.whole == {"federator.added": CHANGES}


def _config_map(number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"decode-{number}",
            "labels": {"decodes": "yes"},
            "annotations": {"decode-mark": str(number)},
        },
        "data": {"number": str(number), "filler": "so that it is compressed " * 20},
    }

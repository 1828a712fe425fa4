"""One state, one run of bytes, by whichever way it came; and no more decoded than who it is."""

from __future__ import annotations

import gc
import json

import msgspec
import pytest

from federator.api.list_watch import WatchEventType
from federator.api.resource import ResourceType
from federator.kube.object_decoder import ObjectDecoder, UnusableObject

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
WIDGETS = ResourceType(group="example.com", version="v2", resource="widgets", kind="Widget", namespaced=True)

META = '"metadata":{"name":"a-漢","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"1.50"}}'
REST = META + ',"spec":{"n":1.0,"escaped":"\\u00fc\\/","kind":"inner"}'
CANONICAL = f'{{"apiVersion":"v1","kind":"Pod",{REST}}}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        f"{{{REST}}}",
        f'{{"kind":"Pod","apiVersion":"v1",{REST}}}',
        f'{{"apiVersion":"v1","kind":"Pod",{REST}}}',
        f'{{"apiVersion":"v1",{REST},"kind":"Pod"}}',
        f'{{"kind":"Pod",{REST}}}',
        f'{{"kind":"",{REST}}}',
        f'{{"kind":null,"apiVersion":null,{REST}}}',
        f'{{ "kind": "Pod", "apiVersion": "v1", {REST} }}',
        f"{{\n  {REST}\n}}",
    ],
)
def test_every_order_comes_out_alike(text: str) -> None:
    obj = ObjectDecoder(PODS).decode(text.encode())
    assert obj.raw == CANONICAL
    assert (obj.namespace, obj.name, obj.uid, obj.resource_version) == ("n", "a-漢", "u", "7")


def test_custom_resources_keep_their_order() -> None:
    text = f'{{"apiVersion":"example.com/v2","kind":"Widget",{META},"spec":{{}}}}'.encode()
    assert ObjectDecoder(WIDGETS).decode(text).raw == text


@pytest.mark.parametrize("broken", [b"\xf0\x90", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf"])
@pytest.mark.parametrize("place", [b"1.50", b"inner"])
def test_bytes_that_are_no_text_are_refused_wherever_they_are(place: bytes, broken: bytes) -> None:
    with pytest.raises(UnusableObject, match="n/a-漢: not UTF-8"):
        ObjectDecoder(PODS).decode(CANONICAL.replace(place, broken))


def test_metadata_only_objects_get_their_own_type() -> None:
    decoder = ObjectDecoder(PODS, metadata_only=True)
    listed = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",{META}}}'
    assert decoder.decode(listed.encode()).raw == f'{{"apiVersion":"v1","kind":"Pod",{META}}}'.encode()
    with pytest.raises(UnusableObject, match="is a Pod, not a PartialObjectMetadata"):
        decoder.decode(CANONICAL)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"metadata":{"namespace":"n","resourceVersion":"1"}}', "no metadata.name"),
        ('{"metadata":{"name":"","resourceVersion":"1"}}', "no metadata.name"),
        ('{"metadata":null}', "no metadata.name"),
        ("{}", "no metadata.name"),
        ('{"metadata":{"name":"a","namespace":"n"}}', "n/a: no metadata.resourceVersion"),
        ('{"metadata":{"name":5,"resourceVersion":"1"}}', "wrong shape"),
        ('{"metadata":[]}', "wrong shape"),
        ("5", "wrong shape"),
        ("", "wrong shape"),
        (f'{{"kind":"Table","apiVersion":"meta.k8s.io/v1",{META}}}', "is a Table, not a Pod"),
        (f'{{"kind":"Pod","apiVersion":"v2",{META}}}', "is a v2, not a v1"),
    ],
)
def test_unusable_objects_are_named(text: str, reason: str) -> None:
    with pytest.raises(UnusableObject, match=reason):
        ObjectDecoder(PODS).decode(text.encode())


def test_a_missing_namespace_or_uid_is_empty() -> None:
    obj = ObjectDecoder(PODS).decode(b'{"metadata":{"name":"a","namespace":null,"resourceVersion":"1"}}')
    assert (obj.namespace, obj.uid, obj.key) == ("", "", "a")


@pytest.mark.parametrize(
    "prefix", ["", '"kind":"Pod","apiVersion":"v1",', '"apiVersion":"v1","kind":"Pod",', '"kind":"Pod",']
)
def test_an_object_pins_nothing_but_its_own_bytes(prefix: str) -> None:
    page = f'{{"items":[{{{prefix}{REST}}}],"padding":"{"x" * 100_000}"}}'.encode()
    item = msgspec.json.decode(page, type=dict[str, msgspec.Raw])["items"]
    raw = msgspec.json.decode(item, type=list[msgspec.Raw])[0]
    obj = ObjectDecoder(PODS).decode(raw)
    assert type(obj.raw) is bytes
    assert obj.raw == CANONICAL
    assert not any(isinstance(kept, memoryview | msgspec.Raw) for kept in gc.get_referents(obj))


def bookmark(annotations: object) -> bytes:
    return json.dumps({"kind": "Pod", "metadata": {"resourceVersion": "9", "annotations": annotations}}).encode()


@pytest.mark.parametrize(
    ("annotations", "ends"),
    [
        ({"k8s.io/initial-events-end": "true"}, True),
        ({"k8s.io/initial-events-end": "false"}, False),
        ({"other": "true"}, False),
        (None, False),
    ],
)
def test_bookmarks(annotations: object, ends: bool) -> None:
    event = ObjectDecoder(PODS).decode_bookmark(bookmark(annotations))
    assert event.type is WatchEventType.BOOKMARK
    assert event.object.resource_version == "9"
    assert event.object.raw == b""
    assert event.initial_events_end is ends


def test_a_bookmark_may_be_nearly_empty_but_not_of_another_shape() -> None:
    assert ObjectDecoder(PODS).decode_bookmark(b"{}").object.resource_version == ""
    with pytest.raises(UnusableObject):
        ObjectDecoder(PODS).decode_bookmark(b'{"metadata":{"resourceVersion":5}}')

from __future__ import annotations

import msgspec
import pytest

from federator.api.object import KubeObject, ObjectMeta, OwnerReference, decode_meta

RAW = b"""{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-0","namespace":"shop","uid":"u1","resourceVersion":
"7",
"generation":2,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web"},"annotations":null,
"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"u0","controller":true}]},
"spec":{"nodeName":"n1"},"status":{}}"""


def test_only_metadata_is_decoded() -> None:
    assert decode_meta(RAW) == ObjectMeta(
        name="web-0",
        namespace="shop",
        uid="u1",
        resource_version="7",
        generation=2,
        creation_timestamp="2026-01-02T03:04:05Z",
        labels={"app": "web"},
        owner_references=(OwnerReference("ReplicaSet", "web", "u0", "apps/v1", True),),
    )


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"metadata":[]}', b'{"metadata":{"name":1}}', b'{"metadata":{}} x'])
def test_what_has_no_metadata_raises(raw: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_meta(raw)


def test_an_object_without_its_bytes_is_the_same_state() -> None:
    full = KubeObject("shop", "web-0", "u1", "7", RAW, 42)
    assert full.key == "shop/web-0"
    assert KubeObject("", "n1", "u2", "8").key == "n1"
    assert full.meta().labels == {"app": "web"}
    lean = full.without_raw()
    assert (lean.key, lean.uid, lean.resource_version, lean.content_hash, lean.raw) == (full.key, "u1", "7", 42, b"")


def test_metadata_beside_something_deep_is_refused_not_fallen_over() -> None:
    raw = b'{"metadata":{"name":"a"},"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(msgspec.MsgspecError):
        decode_meta(raw)

"""Transforms: what is dropped, what stays byte for byte, and that no value of a Secret gets through."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.agent.settings import SecretMode
from federator.agent.transforms import (
    LAST_APPLIED,
    SecretFingerprint,
    drop_bookkeeping,
    read_key,
    secret_metadata,
    transform_for,
)
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.errors import InvalidInput
from federator.wire.body import content_hash

SECRET_TYPE = ResourceType(group="", version="v1", resource="secrets", kind="Secret", namespaced=True)
POD_TYPE = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
KEY = b"0123456789abcdef"
CANARY = "canary-5b1f"


def as_object(content: object, *, separators: tuple[str, str] = (",", ":")) -> KubeObject:
    raw = content if isinstance(content, bytes) else json.dumps(content, separators=separators).encode()
    return KubeObject("ns", "a", "uid", "7", raw)


def pod(**metadata: object) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "a", **metadata, "uid": "u"},
        "spec": {"z": 1.50, "a": "x"},
    }


MANAGED_FIELDS = [{"manager": 'k"l,}]', "fieldsV1": {'k:{"name":"main"}': {".": {}}}}]


class TestBookkeeping:
    def test_managed_fields_and_last_applied_go_and_the_rest_keeps_its_bytes(self) -> None:
        raw = (
            b'{"kind":"Pod","metadata":{"name":"a","annotations":{"b":"1","'
            + LAST_APPLIED.encode()
            + b'":"{\\"x\\":1}",'
            b'"a":"2"},"managedFields":[{"manager":"k\\"l,}]"}],"uid":"u"},"spec":{"f":1.50,"b":1e3,"a":"\\u00e9"}}'
        )
        assert drop_bookkeeping(as_object(raw)).raw == (
            b'{"kind":"Pod","metadata":{"name":"a","annotations":{"b":"1","a":"2"},"uid":"u"},'
            b'"spec":{"f":1.50,"b":1e3,"a":"\\u00e9"}}'
        )

    def test_annotations_that_become_empty_go_too(self) -> None:
        applied = as_object(pod(annotations={LAST_APPLIED: "{}"}))
        assert drop_bookkeeping(applied).raw == drop_bookkeeping(as_object(pod())).raw
        kept = as_object(pod(annotations={}))
        assert drop_bookkeeping(kept).raw == kept.raw, "empty annotations that were empty before are the object's own"

    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
    @pytest.mark.parametrize(
        "metadata",
        [
            {"managedFields": MANAGED_FIELDS},
            {"managedFields": MANAGED_FIELDS, "annotations": {LAST_APPLIED: "{}", "a": "b"}},
            {"managedFields": [], "annotations": {"a": "b", LAST_APPLIED: '{"managedFields":[]}'}},
            {"annotations": {LAST_APPLIED: "{}"}, "managedFields": None},
            {"annotations": {"a": f'"{LAST_APPLIED}":"x"', "managedFields": "b"}},
            {"annotations": None, "labels": {"last-applied-configuration": "x"}},
        ],
    )
    def test_whatever_the_layout_the_meaning_is_the_same(
        self, metadata: dict[str, Any], separators: tuple[str, str]
    ) -> None:
        # The same bookkeeping once more in the spec is data: it must stay, wherever it stands.
        content = {"spec": {"template": {"metadata": metadata}}, **pod(**metadata)}
        expected = json.loads(json.dumps(content))
        expected["metadata"].pop("managedFields", None)
        annotations = expected["metadata"].get("annotations")
        if annotations and annotations.pop(LAST_APPLIED, None) is not None and not annotations:
            del expected["metadata"]["annotations"]
        for obj in (as_object(content, separators=separators), as_object(pod(**metadata), separators=separators)):
            wanted = expected if b"template" in obj.raw else {**pod(), "metadata": expected["metadata"]}
            assert json.loads(drop_bookkeeping(obj).raw) == wanted

    @given(
        st.dictionaries(st.sampled_from(["a", LAST_APPLIED, "managedFields", "b"]), st.text(), max_size=4),
        st.lists(
            st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner), max_leaves=5),
            max_size=4,
        ),
        st.permutations(["name", "annotations", "managedFields", "uid"]),
    )
    def test_any_metadata_in_any_order_gives_what_decoding_it_whole_would(
        self, annotations: dict[str, str], managed_fields: object, order: list[str]
    ) -> None:
        values = {"name": "a", "annotations": annotations, "managedFields": managed_fields, "uid": "u"}
        content = {"metadata": {field: values[field] for field in order}, "spec": values}
        expected = json.loads(json.dumps(content))
        del expected["metadata"]["managedFields"]
        if LAST_APPLIED in annotations:
            del expected["metadata"]["annotations"][LAST_APPLIED]
            if not expected["metadata"]["annotations"]:
                del expected["metadata"]["annotations"]
        assert json.loads(drop_bookkeeping(as_object(content)).raw) == expected

    def test_it_sets_the_hash_keeps_the_identity_and_is_idempotent(self) -> None:
        obj = as_object(pod(managedFields=MANAGED_FIELDS))
        once = drop_bookkeeping(obj)
        assert once.content_hash == content_hash(once.raw)
        assert (once.key, once.uid, once.resource_version) == (obj.key, obj.uid, obj.resource_version)
        assert drop_bookkeeping(once) is once
        again = drop_bookkeeping(as_object(once.raw))
        assert (again.raw, again.content_hash) == (once.raw, once.content_hash)

    def test_what_has_no_usable_metadata_raises(self) -> None:
        with pytest.raises(msgspec.MsgspecError):
            drop_bookkeeping(as_object(b'{"metadata":[],"managedFields":1}'))


def canary_secret(**changes: object) -> dict[str, Any]:
    """A Secret that holds the canary in every place a value can hide in."""
    encoded = base64.b64encode(CANARY.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "a",
            "namespace": "ns",
            "uid": "uid",
            "labels": {"app": "web"},
            "annotations": {
                LAST_APPLIED: json.dumps({"data": {"password": encoded}}),
                "kapp.k14s.io/original": f'{{"stringData":{{"password":"{CANARY}"}}',
            },
            "managedFields": [{"manager": CANARY}],
        },
        "type": "Opaque",
        "data": {"password": encoded, "twice": base64.b64encode(encoded.encode()).decode()},
        "stringData": {"plain": CANARY},
        **changes,
    }


def canaries() -> list[bytes]:
    forms = [CANARY.encode()]
    for _ in range(3):
        forms.append(base64.b64encode(forms[-1]).rstrip(b"="))
    return forms


SHAPES: dict[str, object] = {
    "as the API defines it": canary_secret(),
    "an unknown field": canary_secret(extra={"password": CANARY}),
    "data that is a list": canary_secret(data=[CANARY]),
    "a value that is an object": canary_secret(data={"password": {"value": CANARY}}),
    "bad base64": canary_secret(data={"password": CANARY + "!"}),
    "a type that is a list": canary_secret(type=[CANARY]),
    "another kind": canary_secret(kind=CANARY, apiVersion=CANARY),
    "a lone surrogate": json.dumps(canary_secret()).replace('"plain": "', '"plain": "\\ud800').encode(),
}


class TestSecrets:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("mode", [SecretMode.OFF, SecretMode.METADATA, SecretMode.FINGERPRINT])
    @pytest.mark.parametrize("key", [None, KEY])
    def test_no_value_gets_through_in_any_mode(self, shape: str, mode: SecretMode, key: bytes | None) -> None:
        obj = as_object(SHAPES[shape])
        assert any(form in obj.raw for form in canaries()), "the scan itself must find what is there"
        try:
            sent = transform_for(SECRET_TYPE, mode, key)(obj)
        except msgspec.MsgspecError:
            return  # nothing is sent
        assert not [form for form in canaries() if form in sent.raw]
        assert json.loads(sent.raw)["metadata"] == {
            "name": "a",
            "namespace": "ns",
            "uid": "uid",
            "labels": {"app": "web"},
        }

    def test_the_same_scan_finds_the_canary_in_a_pod(self) -> None:
        obj = as_object({**pod(), "spec": {"env": CANARY}})
        assert CANARY.encode() in transform_for(POD_TYPE, SecretMode.OFF, None)(obj).raw

    @pytest.mark.parametrize(
        "shape",
        ["an unknown field", "data that is a list", "a value that is an object", "bad base64", "a type that is a list"],
    )
    def test_an_unknown_shape_becomes_metadata_only(self, shape: str) -> None:
        assert json.loads(SecretFingerprint(KEY)(as_object(SHAPES[shape])).raw).keys() == {
            "apiVersion",
            "kind",
            "metadata",
        }

    def test_fingerprints_are_length_and_hmac_of_the_value_and_stay_decodable(self) -> None:
        sent = json.loads(SecretFingerprint(KEY)(as_object(canary_secret())).raw)
        digest = hmac.new(KEY, CANARY.encode(), hashlib.sha256).hexdigest()
        expected = f"length={len(CANARY)} hmac-sha256={digest}"
        assert base64.b64decode(sent["data"]["password"]).decode() == expected
        assert sent["stringData"]["plain"] == expected
        assert (sent["apiVersion"], sent["kind"], sent["type"]) == ("v1", "Secret", "Opaque")

    def test_without_a_key_there_is_no_hash(self) -> None:
        sent = json.loads(SecretFingerprint(None)(as_object(canary_secret())).raw)
        assert base64.b64decode(sent["data"]["password"]).decode() == f"length={len(CANARY)}"

    def test_equal_values_under_other_keys_cannot_be_compared(self) -> None:
        one, other = (SecretFingerprint(key)(as_object(canary_secret())) for key in (KEY, KEY[::-1]))
        assert one.content_hash != other.content_hash

    def test_secret_transforms_are_idempotent(self) -> None:
        for transform in (secret_metadata, SecretFingerprint(KEY)):
            once = transform(as_object(canary_secret()))
            assert transform(once) is once


class TestKey:
    def test_the_same_file_with_or_without_a_final_newline_is_the_same_key(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        path.write_bytes(KEY + b"\n")
        assert read_key(path) == KEY
        assert read_key(None) is None

    def test_a_missing_or_short_key_is_refused(self, tmp_path: Path) -> None:
        short = tmp_path / "short"
        short.write_bytes(b"guess me")
        for path in (short, tmp_path / "missing", tmp_path):
            with pytest.raises(InvalidInput, match="secrets key file"):
                read_key(path)

"""Field paths: text to parts, and what objects have there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.field_path import MAX_PARTS, FieldPath, format_field_path, parse_field_path, read_values
from federator.errors import InvalidInput

POD = {
    "metadata": {"labels": {"app.kubernetes.io/name": "web"}, "annotations": None},
    "spec": {
        "hostNetwork": True,
        "containers": [{"image": "a", "ports": [{"containerPort": 80}, {"containerPort": 443}]}, {"image": ""}, {}],
    },
}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("spec.nodeName", ("spec", "nodeName")),
        (".spec.nodeName", ("spec", "nodeName")),
        (r"metadata.labels.app\.kubernetes\.io/name", ("metadata", "labels", "app.kubernetes.io/name")),
        ("spec.containers.*.image", ("spec", "containers", "*", "image")),
        (r"a\\b\,c", ("a\\b,c",)),
    ],
)
def test_paths_are_read(text: str, path: FieldPath) -> None:
    assert parse_field_path(text) == path


@pytest.mark.parametrize("text", ["", ".", "..a", "a.", "a..b", "a b", "a\\", "a\\b", ".".join("a" * (MAX_PARTS + 1))])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="order_by"):
        parse_field_path(text, field="order_by")


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), min_size=1, max_size=5))
def test_a_path_survives_its_text(parts: list[str]) -> None:
    assert parse_field_path(format_field_path(tuple(parts))) == tuple(parts)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("spec.containers.*.image", ("a", "")),
        ("spec.containers.*.ports.*.containerPort", ("80", "443")),
        ("spec.containers.0.image", ("a",)),
        ("spec.containers.9.image", ()),
        ("spec.hostNetwork", ("true",)),
        ("spec.containers", ()),
        ("spec.containers.image", ()),
        ("spec.*", ()),
        ("metadata.annotations", ()),
        (r"metadata.labels.app\.kubernetes\.io/name", ("web",)),
    ],
)
def test_every_value_at_a_path_is_read(text: str, values: tuple[str, ...]) -> None:
    assert read_values(POD, parse_field_path(text)) == values

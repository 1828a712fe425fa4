"""What labels may be, as Kubernetes' own validation has it."""

from __future__ import annotations

import pytest

from federator.api.label import (
    MAX_CLUSTER_LABELS,
    check_cluster_labels,
    is_label_key,
    is_label_value,
    parse_labels,
)
from federator.errors import InvalidInput


@pytest.mark.parametrize(
    "key",
    ["a", "A", "9", "a-b_c.d", "k" * 63, "example.com/a", "a/b", "1.2-3.x/Y", "d" * 253 + "/k", "kubernetes.io/os"],
)
def test_keys(key: str) -> None:
    assert is_label_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "-a",
        "a-",
        ".a",
        "a b",
        "é",
        "k" * 64,
        "/a",
        "a/",
        "a/b/c",
        "A.com/a",
        "a..b/c",
        "-a/b",
        "d" * 254 + "/k",
        "a\n",
    ],
)
def test_what_is_no_key(key: str) -> None:
    assert not is_label_key(key)


@pytest.mark.parametrize("value", ["", "a", "v" * 63, "A.b-c_9", "0"])
def test_values(value: str) -> None:
    assert is_label_value(value)


@pytest.mark.parametrize("value", [" ", "a b", "-a", "a.", "v" * 64, "ü", "a/b", "a:b", "a\n"])
def test_what_is_no_value(value: str) -> None:
    assert not is_label_value(value)


def test_labels_are_read_and_the_later_of_two_holds() -> None:
    assert parse_labels(["env=prod", "example.com/tier=", "env=test"], field="--cluster-label") == {
        "env": "test",
        "example.com/tier": "",
    }


@pytest.mark.parametrize("text", ["", "env", "=prod", "env=a=b", "env prod", "env=-", " env=prod"])
def test_what_is_no_label_is_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="KEY=VALUE") as refused:
        parse_labels(["ok=1", text], field="--cluster-label")
    assert (refused.value.field, refused.value.given) == ("--cluster-label", text)


def test_a_cluster_has_no_more_labels_than_allowed() -> None:
    labels = {f"k{number}": "v" for number in range(MAX_CLUSTER_LABELS)}
    check_cluster_labels(labels, field="labels")
    with pytest.raises(InvalidInput, match="at most 64"):
        check_cluster_labels({**labels, "more": ""}, field="labels")
    with pytest.raises(InvalidInput, match="KEY=VALUE"):
        check_cluster_labels({"no key": ""}, field="labels")

from __future__ import annotations

import pytest

from federator.cli.sorting import parse_sort
from federator.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("", ""),
        ("name", "name"),
        ("age desc,name", "age desc,name"),
        ("spec.replicas desc", "spec.replicas desc"),
        (".metadata.name", ".metadata.name"),
        ("{.metadata.creationTimestamp}", ".metadata.creationTimestamp"),
        ("{ .spec.replicas }", ".spec.replicas"),
        ("{metadata.name}", ".metadata.name"),
        ("$.spec.x", ".spec.x"),
        (".spec.containers[0].image", ".spec.containers.0.image"),
        ("{.spec.containers[*].image}", ".spec.containers.*.image"),
        ("spec.containers[0].image", ".spec.containers.0.image"),
        (r".metadata.labels.app\.kubernetes\.io/name", r".metadata.labels.app\.kubernetes\.io/name"),
        (".metadata.labels['app.kubernetes.io/name']", r".metadata.labels.app\.kubernetes\.io/name"),
        ('.metadata.labels["a,b"]', r".metadata.labels.a\,b"),
    ],
)
def test_kubectls_paths_and_our_terms(given: str, order: str) -> None:
    assert parse_sort(given) == order


@pytest.mark.parametrize(
    "given",
    [".", "{}", "{.a", "..name", ".a.", "{.a}{.b}", ".a[?(@.b==1)]", ".a[-1]", ".a[0", ".a b", ".a['']", ".a[0:2]"],
)
def test_a_path_that_leads_nowhere_or_to_several_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_sort(given)
    assert refused.value.field == "--sort-by"

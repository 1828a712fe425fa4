"""Listers."""

from __future__ import annotations

import pytest

from federator.api.object import KubeObject
from federator.api.selector import LabelSelector
from federator.cache.indexer import NAMESPACE_INDEX, Indexer, meta_namespace_index_func
from federator.cache.lister import Lister
from federator.errors import MalformedSelector, ObjectNotFound
from tests.unit.cache.doubles import pod


@pytest.fixture(params=[True, False], ids=["with namespace index", "without"])
def lister(request: pytest.FixtureRequest) -> Lister:
    indexer = Indexer({NAMESPACE_INDEX: meta_namespace_index_func} if request.param else None)
    indexer.add(pod("a", 1, labels={"app": "web"}))
    indexer.add(pod("b", 2, labels={"app": "db"}))
    indexer.add(pod("a", 3, namespace="other", labels={"app": "web"}))
    indexer.add(pod("node", 4, namespace=""))
    return Lister(indexer, resource="pods")


def versions(objects: list[KubeObject]) -> list[str]:
    return sorted(obj.resource_version for obj in objects)


def test_st10_lists_over_all_and_by_namespace(lister: Lister) -> None:
    """ST10: list-all, with the namespace index and without."""
    assert versions(lister.list()) == ["1", "2", "3", "4"]
    assert versions(lister.namespace("default").list()) == ["1", "2"]
    assert versions(lister.namespace("nowhere").list()) == []


def test_st10_selects_by_labels(lister: Lister) -> None:
    """ST10."""
    assert versions(lister.list(lambda labels: labels.get("app") == "web")) == ["1", "3"]
    assert versions(lister.namespace("other").list(lambda labels: labels.get("app") == "db")) == []
    assert versions(lister.list("app=web")) == ["1", "3"]
    assert versions(lister.namespace("default").list(LabelSelector.parse("app notin (web)"))) == ["2"]
    with pytest.raises(MalformedSelector):
        lister.list("app in web")


def test_st10_gets_by_name(lister: Lister) -> None:
    """ST10."""
    assert lister.namespace("other").get("a").resource_version == "3"
    assert lister.get("node").resource_version == "4"
    with pytest.raises(ObjectNotFound, match="pods 'a'"):
        lister.get("a")
    with pytest.raises(ObjectNotFound, match="'c' not found in namespace 'default'"):
        lister.namespace("default").get("c")


def test_st10_a_namespace_is_read_from_its_index_where_there_is_one() -> None:
    """ST10: shown by an index that says something else than the objects."""
    indexer = Indexer({NAMESPACE_INDEX: lambda obj: ["elsewhere"]})
    indexer.add(pod("a", 1))
    assert versions(Lister(indexer, resource="pods").namespace("elsewhere").list()) == ["1"]


def test_labels_of_objects_without_bytes_are_refused_not_taken_for_empty() -> None:
    indexer = Indexer()
    indexer.add(pod("a", 1, labels={"app": "web"}).without_raw())
    with pytest.raises(ValueError, match="default/a"):
        Lister(indexer, resource="pods").list(lambda labels: True)

"""Listers: reading an informer's objects by namespace, name and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from federator.api.key import local_key
from federator.api.object import KubeObject
from federator.api.selector import LabelSelector
from federator.cache.indexer import NAMESPACE_INDEX, Indexer
from federator.errors import ObjectNotFound

LabelPredicate = Callable[[Mapping[str, str]], bool]
"""Whether an object with these labels is wanted."""

Labels = LabelPredicate | LabelSelector | str
"""Which objects are wanted by their labels; a text is a label selector, such as "app=web,tier!=cache"."""


class NamespaceLister:
    """Reads the objects of one namespace."""

    def __init__(self, indexer: Indexer, resource: str, namespace: str) -> None:
        self._indexer = indexer
        self._resource = resource
        self._namespace = namespace

    def list(self, selector: Labels | None = None) -> list[KubeObject]:
        """The objects whose labels the selector takes; without the namespace index by looking at all objects.

        Raises:
            MalformedSelector: the text is no label selector.
            ValueError: a selector was given, but the store keeps objects without their bytes.
        """
        if NAMESPACE_INDEX in self._indexer.get_indexers():
            return _select(self._indexer.by_index(NAMESPACE_INDEX, self._namespace), selector)
        return _select((obj for obj in self._indexer.list() if obj.namespace == self._namespace), selector)

    def get(self, name: str) -> KubeObject:
        """The object of this name.

        Raises:
            ObjectNotFound: there is none in the store.
        """
        obj = self._indexer.get_by_key(local_key(self._namespace, name))
        if obj is None:
            raise ObjectNotFound(self._resource, name, namespace=self._namespace)
        return obj


class Lister:
    """Reads the objects of an Indexer. What it returns is shared and immutable."""

    def __init__(self, indexer: Indexer, *, resource: str) -> None:
        """Reads from `indexer`; `resource` names the type in errors."""
        self._indexer = indexer
        self._resource = resource

    def list(self, selector: Labels | None = None) -> list[KubeObject]:
        """The objects of all namespaces whose labels the selector takes.

        Raises:
            MalformedSelector: the text is no label selector.
            ValueError: a selector was given, but the store keeps objects without their bytes.
        """
        return _select(self._indexer.list(), selector)

    def get(self, name: str) -> KubeObject:
        """The cluster-scoped object of this name.

        Raises:
            ObjectNotFound: there is none in the store.
        """
        return self.namespace("").get(name)

    def namespace(self, namespace: str) -> NamespaceLister:
        """Reads one namespace only."""
        return NamespaceLister(self._indexer, self._resource, namespace)


def _select(objects: Iterable[KubeObject], selector: Labels | None) -> list[KubeObject]:
    if selector is None:
        return list(objects)
    if isinstance(selector, str):
        selector = LabelSelector.parse(selector)
    matches = selector.matches if isinstance(selector, LabelSelector) else selector
    return [obj for obj in objects if matches(_labels(obj))]


def _labels(obj: KubeObject) -> Mapping[str, str]:
    if not obj.raw:
        raise ValueError(f"labels of {obj.key} are not known: the store keeps objects without their bytes")
    return obj.meta().labels or {}

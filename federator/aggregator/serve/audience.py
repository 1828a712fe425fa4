"""Audiences: the watches of equal questions, and who of all audiences a change may concern."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

from federator.aggregator.ledger.records import ClusterEntry, Entry, ObjectEntry
from federator.aggregator.serve.question import Question
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource


class Waiting(Protocol):
    """A watch that has nothing to read.

    Attributes:
        position: revision up to which it has read.
        is_waiting: that it waits.
    """

    position: int
    is_waiting: bool


class Audience:
    """The watches of one question.

    Attributes:
        question: what they ask for.
        members: how many there are.
        concerned_at: newest published revision that may concern them. A watch that has read up to it has nothing to
            read before the next one.
        waiting: what wakes those of them that have nothing to read.
    """

    __slots__ = ("concerned_at", "members", "question", "waiting")

    def __init__(self, question: Question, concerned_at: int) -> None:
        self.question = question
        self.members = 0
        self.concerned_at = concerned_at
        self.waiting: dict[Waiting, asyncio.Future[None]] = {}


class _Shape(NamedTuple):
    """By what an audience narrows the objects of a type, each to one value."""

    by_cluster: bool
    by_namespace: bool
    by_name: bool


_Place = tuple[GroupResource, str, str, str]
"""Type, cluster, namespace and name; "" where an audience does not narrow by it."""

_NO_NAMESPACE = "/"
"""Stands for the namespace of objects that live in none: no namespace narrows them. No name contains it."""


class Audiences:
    """All audiences, by what they narrow to: a change finds those it may concern without asking the others.

    Clusters that are selected by globs are compared one audience at a time, once for each cluster and type.
    """

    def __init__(self) -> None:
        self._by_question: dict[Question, Audience] = {}
        self._by_place: dict[_Place, set[Audience]] = {}
        self._shapes: Counter[_Shape] = Counter()

    def __iter__(self) -> Iterator[Audience]:
        return iter(self._by_question.values())

    def __len__(self) -> int:
        return len(self._by_question)

    def join(self, question: Question, revision: int) -> Audience:
        """Returns the audience of a question, with one member more; a new one may be concerned by all up to now."""
        audience = self._by_question.get(question)
        if audience is None:
            audience = self._by_question[question] = Audience(question, revision)
            self._shapes[_shape(question)] += 1
            for place in _places(question):
                self._by_place.setdefault(place, set()).add(audience)
        audience.members += 1
        return audience

    def leave(self, audience: Audience) -> None:
        """Takes one member away; without any the audience is forgotten."""
        audience.members -= 1
        if audience.members:
            return
        question = audience.question
        del self._by_question[question]
        shape = _shape(question)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]
        for place in _places(question):
            self._by_place[place].discard(audience)
            if not self._by_place[place]:
                del self._by_place[place]

    def concerned_by(self, entries: Iterable[Entry]) -> Collection[Audience]:
        """Returns the audiences that have to look at entries."""
        places: set[tuple[_Place, ClusterID]] = set()
        found: set[Audience] = set()
        for entry in entries:
            if isinstance(entry, ObjectEntry):
                key = entry.key
                resource = key.group_resource
                for shape in self._shapes:
                    cluster = key.cluster_id if shape.by_cluster else ""
                    namespace = (key.namespace or _NO_NAMESPACE) if shape.by_namespace else ""
                    places.add(((resource, cluster, namespace, key.name if shape.by_name else ""), key.cluster_id))
            elif isinstance(entry, ClusterEntry):
                found |= {each for each in self if _is_concerned(each.question, entry)}
        for place, cluster_id in places:
            for audience in self._by_place.get(place, _NOBODY):
                if audience not in found and audience.question.selection.has_cluster(cluster_id):
                    found.add(audience)
        return found


_NOBODY: frozenset[Audience] = frozenset()
_WILDCARDS = frozenset("*?[")


def _is_concerned(question: Question, entry: ClusterEntry) -> bool:
    selection = question.selection
    return selection.has_cluster(entry.cluster_id) or selection.is_changed_by(entry)


def _clusters(question: Question) -> tuple[str, ...]:
    """The only clusters that can be meant; none where a glob decides."""
    names = question.selection.clusters.include
    return names if all(_WILDCARDS.isdisjoint(name) for name in names) else ()


def _shape(question: Question) -> _Shape:
    selection = question.selection
    return _Shape(bool(_clusters(question)), bool(selection.namespace), bool(selection.name))


def _places(question: Question) -> Iterator[_Place]:
    selection = question.selection
    namespaces = (selection.namespace, _NO_NAMESPACE) if selection.namespace else ("",)
    for resource in selection.resources:
        for cluster in _clusters(question) or ("",):
            for namespace in namespaces:
                yield resource, cluster, namespace, selection.name

"""Objects of the corpus as an apiserver keeps them, to be put into the etcd of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from federator.testing.admin_client import Json
from tests.bench.corpus import FIRST_VERSION, Corpus

_FOLDERS = {"nodes": "minions", "services": "services/specs"}
"""Where the objects of a type are, if not under the name of the type."""


def stored_objects(corpus: Corpus, counts: Mapping[str, int]) -> Iterator[tuple[str, Json]]:
    """Makes objects for `store_objects`.

    Args:
        corpus: of a sample as the apiserver serves it.
        counts: how many of each type.

    Yields:
        The path of each object, and the object.
    """
    for resource, number in counts.items():
        for index in range(number):
            state = corpus.state(resource, 0, index, FIRST_VERSION)
            obj = msgspec.json.decode(state.raw, type=Json)
            del obj["metadata"]["resourceVersion"]  # the apiserver takes etcd's
            if resource == "pods":
                _make_valid(obj)
            namespace = f"{state.namespace}/" if state.namespace else ""
            yield f"{_FOLDERS.get(resource, resource)}/{namespace}{state.name}", obj


def _make_valid(pod: Json) -> None:
    """What was drawn by itself must fit together where the apiserver is to take changes."""
    for container in pod["spec"]["containers"]:
        resources = container["resources"]
        if "limits" in resources:
            resources["requests"] = resources["limits"]

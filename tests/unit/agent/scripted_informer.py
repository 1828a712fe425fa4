"""An informer that does what a test says, as an outbox sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from federator.agent.outbox import Outbox, TypeSink
from federator.api.key import split_local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.api.resource_version import compare


class ScriptedInformer:
    """Holds what it was told to hold, and tells an outbox of each change.

    Attributes:
        lists: lists asked for.
        fetches: objects asked for, one sequence for each time.
        epoch: how often the cluster was restored.
        held: states without bytes, by key.
    """

    def __init__(self, outbox: Outbox, resource_type: ResourceType) -> None:
        self.lists = 0
        self.fetches: list[Sequence[KubeObject]] = []
        self.epoch = 0
        self.held: dict[str, KubeObject] = {}
        self._low_water = "0"
        self._sink: TypeSink = outbox.add_type(resource_type, self)

    # What the outbox asks.

    def request_list(self) -> None:
        self.lists += 1

    def states(self) -> Sequence[KubeObject]:
        return list(self.held.values())

    def fetch(self, objects: Sequence[KubeObject]) -> None:
        self.fetches.append(objects)

    # What a test does.

    def replaced_all(self, version: str, objects: Iterable[KubeObject], withheld: Iterable[str] = ()) -> None:
        listed = list(objects)
        kept = {key: self.held.get(key) for key in withheld}
        self.held = {obj.key: obj.without_raw() for obj in listed}
        self.held |= {key: obj for key, obj in kept.items() if obj is not None}
        self._sink.replaced_all(version, listed, kept)
        self._low_water = version
        self._sink.settled(version)

    def upserted(self, obj: KubeObject, low_water: str | None = None) -> None:
        """Tells a change; `low_water` where older changes of other objects still wait in the informer."""
        before = self.held.get(obj.key)
        self.held[obj.key] = obj.without_raw()
        self._sink.upserted(obj, before)
        self._settle(obj.resource_version if low_water is None else low_water)

    def deleted(self, key: str, obj: KubeObject | None = None) -> None:
        self._sink.deleted(key, obj, self.held.pop(key, KubeObject(*split_local_key(key), "u", "1")))
        self._settle(obj.resource_version if obj else self._low_water)

    def bookmark(self, version: str) -> None:
        self._sink.bookmark(version)
        self._settle(version)

    def _settle(self, low_water: str) -> None:
        """As the informer does it: the mark of a list or bookmark that is older than a change stays behind it."""
        if compare(low_water, self._low_water) != -1:
            self._low_water = low_water
        self._sink.settled(self._low_water)

    def fetched(self, objects: Sequence[KubeObject]) -> None:
        """Answers the last fetch."""
        self._sink.fetched(self.fetches[-1], objects)

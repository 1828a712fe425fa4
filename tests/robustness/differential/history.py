"""What really happened to the objects of one apiserver, as those who wrote them know it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

Held = Mapping["Key", "State"]
"""What exists, or what somebody takes to exist."""


class Key(NamedTuple):
    """One object.

    Attributes:
        resource: plural name of its type.
        name: `namespace/name`, or `name`.
    """

    resource: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {self.name}"


class State(NamedTuple):
    """One state of an object; UID and resourceVersion tell all states of a key apart."""

    uid: str
    version: str

    def __str__(self) -> str:
        return f"{self.uid[:8]}@{self.version}"


class Gone(msgspec.Struct, frozen=True):
    """The deletion of the object with a UID."""

    uid: str


class Ending(msgspec.Struct, frozen=True):
    """A state in between, right before a deletion, whose version nobody was told: the object is marked as deleted."""

    uid: str


Entry = State | Ending | Gone


class History:
    """The states and deletions of each key, in their order.

    It has no versions of deletions: the apiserver does not tell them to who deletes.
    """

    def __init__(self, marked: Collection[str] = ()) -> None:
        """Empty.

        Args:
            marked: resources whose objects are marked before they are deleted.
        """
        self._marked = marked
        self._entries: defaultdict[Key, list[Entry]] = defaultdict(list)

    @property
    def keys(self) -> Collection[Key]:
        """The keys whose history is known."""
        return self._entries.keys()

    def of(self, key: Key) -> Sequence[Entry]:
        """What happened to a key."""
        return self._entries.get(key, ())

    def last(self, key: Key) -> State | None:
        """The state of a key now; None where it does not exist."""
        entries = self.of(key)
        return entries[-1] if entries and isinstance(entries[-1], State) else None

    def observe(self, key: Key, state: State | None) -> None:
        """Notes what a key has become; None where it does not exist. What is known already is not noted again.

        Between two calls at most one thing may have happened to a key.

        Raises:
            AssertionError: another UID took the place of one that nobody deleted.
        """
        last = self.last(key)
        if state == last:
            return
        if state is None:
            assert last is not None
            if key.resource in self._marked:
                self._entries[key].append(Ending(last.uid))
            self._entries[key].append(Gone(last.uid))
            return
        assert last is None or last.uid == state.uid, f"{key}: {state} in the place of {last}, which nobody deleted"
        self._entries[key].append(state)

    def held(self) -> Held:
        """What exists now."""
        states = ((key, self.last(key)) for key in self._entries)
        return {key: state for key, state in states if state is not None}

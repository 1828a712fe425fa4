"""What every sequence of notifications has to be, whoever tells it. Each check returns what is wrong, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.robustness.differential.history import Ending, Gone, Held, History, Key, State
from tests.robustness.differential.told import Told

_NAMED = 5
"""Differences that are named; of more only the number is."""


def broken_order(told: Sequence[Told], history: History, *, repeats: bool = False) -> list[str]:
    """Per key: legal calls, whose states and deletions are some of the real ones, in the real order.

    Args:
        told: by one follower.
        history: of all that was written.
        repeats: updates may tell of no change, as client-go's do after a list.
    """
    by_key: defaultdict[Key, list[Told]] = defaultdict(list)
    for each in told:
        by_key[each.key].append(each)
    return [f"{key}: {line}" for key, calls in by_key.items() for line in _Follow(key, history, repeats).broken(calls)]


def skipped(told: Sequence[Told], history: History) -> int:
    """How many of the real states were told to nobody: not wrong, and worth knowing."""
    seen = {(each.key, each.state) for each in told if each.type != "delete"}
    return sum(
        isinstance(entry, State) and (key, entry) not in seen for key in history.keys for entry in history.of(key)
    )


def repeated(told: Sequence[Told]) -> int:
    """How many updates told of no change."""
    return sum(each.type == "update" and each.old == each.state for each in told)


def differences(one: str, held: Held, other: str, expected: Held) -> list[str]:
    """Where two do not hold the same."""
    keys = sorted(key for key in held.keys() | expected.keys() if held.get(key) != expected.get(key))
    lines = [f"{key}: {one} has {held.get(key)}, {other} has {expected.get(key)}" for key in keys[:_NAMED]]
    return lines + ([f"… and {len(keys) - _NAMED} more between {one} and {other}"] if keys[_NAMED:] else [])


class _Follow:
    """Goes through what was told of one key, and through its history beside it."""

    def __init__(self, key: Key, history: History, repeats: bool) -> None:
        self._repeats = repeats
        # Of what others write, such as the apiserver itself, nothing is known but that the calls have to be legal.
        self._is_known = key in history.keys
        self._entries = history.of(key)
        self._position = -1
        self._held: State | None = None

    def broken(self, calls: Sequence[Told]) -> Iterator[str]:
        for number, call in enumerate(calls):
            held = self._held
            if call.type == "add" and held is not None:
                yield f"{call}, though {held} was there"
            if call.type != "add" and held is None:
                yield f"{call}, though nothing was there"
            if call.is_initial and number:
                yield f"{call} is not the first that is told of it"
            if call.type == "update" and call.old != held:
                yield f"{call} from {call.old}, though {held} was there"
            if call.type == "delete" and held is not None and held.uid != call.state.uid:
                yield f"{call}, though {held} was there"
            is_repeat = call.type == "update" and call.old == call.state == held
            if is_repeat and not self._repeats:
                yield f"{call} tells of no change"
            elif self._is_known and not is_repeat:
                yield from self._place(call)
            self._held = None if call.type == "delete" else call.state

    def _place(self, call: Told) -> Iterator[str]:
        place = next((each for each in range(self._position + 1, len(self._entries)) if self._is_at(call, each)), None)
        if place is None:
            before = self._entries[self._position] if self._position >= 0 else "the beginning"
            yield f"{call} after {before}: not in the history, or before that"
            return
        self._position = place
        if call.type == "delete" and not self._is_last_state(call, place):
            yield f"{call} is none of the states, nor after them"

    def _is_at(self, call: Told, place: int) -> bool:
        """Whether it is this entry that was told."""
        entry = self._entries[place]
        if call.type == "delete":
            return entry == Gone(call.state.uid)
        return entry == call.state or (entry == Ending(call.state.uid) and self._is_between(call.state, place))

    def _is_last_state(self, call: Told, place: int) -> bool:
        """Whether a deletion comes with the version of the deletion itself, or as a tombstone with a former state."""
        if call.is_tombstone:
            return call.state == self._held or call.state in self._entries[:place]
        return self._is_between(call.state, place)

    def _is_between(self, state: State, place: int) -> bool:
        """Whether its version is after those of all states before a place, and before the next one's."""
        before = [int(entry.version) for entry in self._entries[:place] if isinstance(entry, State)]
        after = [int(entry.version) for entry in self._entries[place:] if isinstance(entry, State)]
        told = [int(self._held.version)] if self._held else []
        return all(each < int(state.version) for each in (*before, *told)) and all(
            each > int(state.version) for each in after
        )

"""What goes wrong in a differential run, drawn from its seed before anything starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum

import msgspec

PAIR_EVERY = 12.0
"""Seconds between two pairs of followers: each begins in the midst of it, without the delays that the others have grown
by their failures."""

_CALM = (0.5, 3.0)
"""Seconds between two faults."""


class Kind(StrEnum):
    """One fault. Those of the links befall both sides alike."""

    RESET = "all connections are reset"
    CUT = "connections are reset in the midst of an answer"
    REFUSE = "all connections are reset and new ones refused"
    BLACK_HOLE = "nothing passes"
    DEAF = "nothing comes back"
    ROUGH = "slow, in crumbs, with losses"
    RESET_BY_CHANCE = "connections are reset by chance"
    KILL_APISERVER = "kill -9 of the apiserver"
    KILL_ALL = "kill -9 of the apiserver and etcd"
    RESTART = "the apiserver and etcd end in order"
    PAUSE = "the apiserver is frozen"
    BEHIND = "nothing passes while the apiserver is killed and written to again, so that watches get 410"


_ON_LINKS = (Kind.RESET, Kind.CUT, Kind.REFUSE, Kind.BLACK_HOLE, Kind.DEAF, Kind.ROUGH, Kind.RESET_BY_CHANCE)
_ON_SERVERS = (Kind.KILL_APISERVER, Kind.KILL_ALL, Kind.RESTART, Kind.PAUSE, Kind.BEHIND)
_AT_ONCE = {Kind.RESET, Kind.CUT}
_STARTING = {Kind.KILL_APISERVER, Kind.KILL_ALL, Kind.RESTART, Kind.BEHIND}

_RESTARTS = 4.0
"""Seconds that a start of the apiserver takes, more or less; for the plan's length only."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong, and is mended again before the next one.

    Attributes:
        after: seconds of calm before it.
        kind: what.
        seconds: how long; 0 for what is over at once.
        size: bytes of answers after which connections are cut.
    """

    after: float
    kind: Kind
    seconds: float = 0.0
    size: int = 0

    def __str__(self) -> str:
        lasting = f", for {self.seconds:g} s" if self.seconds else ""
        return f"after {self.after:g} s: {self.kind}{lasting}" + (f", {self.size} bytes on" if self.size else "")


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A run.

    Attributes:
        seed: decides everything.
        seconds: of load, at least; it outlasts the faults.
        faults: one after another.
        pairs: seconds after which each pair of followers starts.
    """

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    pairs: tuple[float, ...]

    def randomness(self, use: str) -> random.Random:
        """A source for one use, the same in every run."""
        return random.Random(f"{self.seed} differential {use}")


def draw(seed: int, seconds: float) -> Script:
    """Draws a script whose faults fill the time. No kind comes again before all have come."""
    source = random.Random(f"{seed} differential script")
    faults: list[Fault] = []
    deck: list[Kind] = []
    taken = 0.0
    while taken < seconds:
        deck = deck or _shuffled(source)
        fault = _fault(source, deck.pop(0))
        faults.append(fault)
        taken += fault.after + fault.seconds + (_RESTARTS if fault.kind in _STARTING else 0)
    pairs = tuple(number * PAIR_EVERY for number in range(int(seconds // PAIR_EVERY) + 1))
    return Script(seed=seed, seconds=seconds, faults=tuple(faults), pairs=pairs)


def _shuffled(source: random.Random) -> list[Kind]:
    """All kinds; one in two is of the servers, so that a short run has both."""
    links, servers = (source.sample(kinds, len(kinds)) for kinds in (_ON_LINKS, _ON_SERVERS))
    mixed = [kind for pair in zip(links, servers, strict=False) for kind in pair]
    return mixed + links[len(servers) :]


def _fault(source: random.Random, kind: Kind) -> Fault:
    return Fault(
        after=round(source.uniform(*_CALM), 1),
        kind=kind,
        seconds=0.0 if kind in _AT_ONCE else round(source.uniform(0.5, 4.0), 1),
        size=source.randrange(1, 40_000) if kind is Kind.CUT else 0,
    )


def told(scripts: Sequence[Script]) -> str:
    """The scripts, a line a fault."""
    return "\n".join(line for each in scripts for line in (f"seed {each.seed}", *map(str, each.faults)))

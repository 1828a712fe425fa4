"""What happens in a fault run, drawn from its seed before anything starts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

CLUSTERS = ("ap-1", "eu-1", "us-1")

SILENCE = 10.0
"""Seconds after which an aggregator takes a silent agent for gone: two heartbeats, by default."""

LOAD_SECONDS = 8.0
"""Seconds of a round's load, at least."""

_LONG_PAUSE = 1.3
"""Silences that a long pause has more than a short one."""

_SECOND_FAULT = 0.6
"""Share of rounds with two faults."""

_UNTIL_STALE = 0.4
"""Share of the faults that can be seen from outside that last until they are."""


class Kind(StrEnum):
    """What is done to a process."""

    KILL = "kill -9"
    PAUSE = "pause"
    RESTART = "restart"
    """SIGTERM; the process has to end by itself."""
    SUPERSEDE = "supersede"
    """An agent is frozen until its cluster is STALE, another one takes over, the first one thaws and has to wait, and
    gets the cluster back once the other has ended in order."""


class Role(StrEnum):
    """Which process; all but the aggregator exist once in each cluster."""

    APISERVER = "apiserver"
    ETCD = "etcd"
    CONTROL_PLANE = "control plane"
    """An apiserver and its etcd."""
    AGENT = "agent"
    AGGREGATOR = "aggregator"


CONTROL_PLANE_ROLES = frozenset({Role.APISERVER, Role.ETCD, Role.CONTROL_PLANE})


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing done to one process, and undone.

    Attributes:
        at: seconds after the round's load has begun.
        kind: what is done.
        role: to which process.
        cluster: of which cluster; empty for the aggregator.
        seconds: how long it lasts.
        until_stale: it lasts until the cluster is told to be STALE, and `seconds` more.
    """

    at: float
    kind: Kind
    role: Role
    cluster: str = ""
    seconds: float
    until_stale: bool = False

    @property
    def group(self) -> str:
        """What can suffer one fault at a time."""
        return f"{'control plane' if self.role in CONTROL_PLANE_ROLES else self.role} {self.cluster}".rstrip()

    def __str__(self) -> str:
        lasting = f"{'until STALE and ' if self.until_stale else ''}{self.seconds:g} s"
        return f"at {self.at:g} s {self.kind} {self.role} {self.cluster}".rstrip() + f", {lasting}"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A time of load with faults, after which everything has to agree again.

    Attributes:
        number: of the round, from 0. Seed and number decide everything.
        seed: of the run.
        faults: sorted by time.
        load_seconds: how long the load lasts, at least; it outlasts every fault.
        late_watch_at: seconds after which a second watch is opened.
    """

    number: int
    seed: int
    faults: tuple[Fault, ...]
    load_seconds: float
    late_watch_at: float

    def randomness(self, use: str) -> random.Random:
        """A source for one use in this round, the same in every run."""
        return random.Random(f"{self.seed} {self.number} {use}")

    def __str__(self) -> str:
        faults = "; ".join(map(str, self.faults))
        return f"round {self.number}: {faults}; a late watch at {self.late_watch_at:g} s"


def draw(
    seed: int,
    rounds: int,
    *,
    first: int = 0,
    silence: float = SILENCE,
    haste: float = 1.0,
    clusters: Sequence[str] = CLUSTERS,
) -> Iterator[Round]:
    """Draws rounds. Each depends on the seed and its number alone, so that one can be repeated without the others.

    Args:
        seed: of the run.
        rounds: how many.
        first: number of the first one.
        silence: seconds after which the aggregator takes a silent agent for gone; long pauses are longer.
        haste: how much faster all else goes on; what is drawn is the same.
        clusters: those that there are.
    """
    for number in range(first, first + rounds):
        yield _round(seed, number, silence, haste, clusters)


def _round(seed: int, number: int, silence: float, haste: float, clusters: Sequence[str]) -> Round:
    source = random.Random(f"{seed} {number}")
    faults = [_fault(source, silence, haste, clusters)]
    if source.random() < _SECOND_FAULT:
        while (second := _fault(source, silence, haste, clusters)).group == faults[0].group:
            pass
        # Half of the pairs at the same moment.
        if source.random() < 0.5:
            second = msgspec.structs.replace(second, at=faults[0].at)
        faults.append(second)
    faults.sort(key=lambda fault: fault.at)
    return Round(
        number=number,
        seed=seed,
        faults=tuple(faults),
        load_seconds=round(LOAD_SECONDS / haste, 1),
        late_watch_at=round(source.uniform(0, LOAD_SECONDS) / haste, 1),
    )


def _fault(source: random.Random, silence: float, haste: float, clusters: Sequence[str]) -> Fault:
    (role,) = source.choices(tuple(Role), weights=(3, 1, 2, 4, 4))
    (kind,) = source.choices(tuple(Kind), weights=(4, 3, 3, 2 if role is Role.AGENT else 0))
    if role is Role.ETCD and kind is Kind.RESTART:
        role = Role.CONTROL_PLANE  # in order means the apiserver first
    seconds = source.uniform(0.2, 6) / haste
    if kind is Kind.PAUSE and source.random() < 0.4:
        seconds += _LONG_PAUSE * silence
    return Fault(
        at=round(source.uniform(0.5, 5) / haste, 1),
        kind=kind,
        role=role,
        cluster="" if role is Role.AGGREGATOR else source.choice(clusters),
        seconds=round(seconds, 1),
        until_stale=kind is Kind.SUPERSEDE or (_can_be_told(role, kind) and source.random() < _UNTIL_STALE),
    )


def _can_be_told(role: Role, kind: Kind) -> bool:
    """Whether somebody who asks the aggregator learns of it soon.

    A frozen apiserver looks like an idle one for two minutes, and one without etcd answers from its cache.
    """
    if role is Role.AGENT:
        return True
    return role in {Role.APISERVER, Role.CONTROL_PLANE} and kind is not Kind.PAUSE


def told(rounds: Sequence[Round]) -> str:
    """The plan, a line a round."""
    return "\n".join(map(str, rounds))

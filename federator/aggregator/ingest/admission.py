"""Admission: how many listings are taken in at once, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from federator.api.cluster import ClusterID

IDLE_SECONDS = 60.0
"""Seconds without a frame of a listing after which its place is given to whoever waits: an agent that stands still must
not keep others out. What it sends later is taken all the same."""


class Ticket:
    """One listing's place: first it waits, then it is admitted, and at last it is released."""

    def __init__(self, admission: Admission, cluster_id: ClusterID, admitted: Callable[[], None], now: float) -> None:
        """Use `Admission.ask`."""
        self._admission = admission
        self.cluster_id = cluster_id
        self.admitted = admitted
        self.asked_at = self.moved_at = now

    def moved(self) -> None:
        """A frame of the listing came."""
        self.moved_at = self._admission.now()

    def release(self) -> None:
        """Gives the place up, wherever it is; again does nothing."""
        self._admission.release(self)


class Admission:
    """Lets listings in, a few at once.

    - *Bounded*: at most so many hold a place, and at most one of each cluster; one that stands still counts no longer.
    - *Fair*: clusters are served in the order in which they asked. One that wants another listing taken in stands
      behind those that wait already, so nobody starves.

    Nothing here waits: whoever asks is called back, perhaps before `ask` returns.
    """

    def __init__(self, at_once: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        """All places are free.

        Args:
            at_once: places, at least 1.
            idle_seconds: see `IDLE_SECONDS`.
        """
        self._at_once = at_once
        self._idle_seconds = idle_seconds
        self._holding: dict[ClusterID, Ticket] = {}
        self._waiting: OrderedDict[ClusterID, deque[Ticket]] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None
        self._admitted = 0
        self._overdue = 0
        self._waited_seconds = 0.0

    def ask(self, cluster_id: ClusterID, admitted: Callable[[], None]) -> Ticket:
        """Asks for a place.

        Args:
            cluster_id: whose listing it is.
            admitted: called once, when it has a place; must not raise or block.
        """
        ticket = Ticket(self, cluster_id, admitted, self.now())
        self._waiting.setdefault(cluster_id, deque()).append(ticket)
        self._admit()
        return ticket

    def release(self, ticket: Ticket) -> None:
        """See Ticket."""
        if self._holding.get(ticket.cluster_id) is ticket:
            del self._holding[ticket.cluster_id]
        else:
            waiting = self._waiting.get(ticket.cluster_id)
            if waiting is None or ticket not in waiting:
                return
            waiting.remove(ticket)
            if not waiting:
                del self._waiting[ticket.cluster_id]
        self._admit()

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def statistics(self) -> Mapping[str, int | float]:
        """Listings that wait and that hold a place; totals admitted, of seconds waited for that, and of places lost."""
        return {
            "snapshots_waiting": sum(map(len, self._waiting.values())),
            "snapshots_holding": len(self._holding),
            "snapshots_admitted": self._admitted,
            "snapshots_waited_seconds": self._waited_seconds,
            "snapshots_overdue": self._overdue,
        }

    def _admit(self) -> None:
        """Lets in who can be let in; what stands still makes room only where somebody waits."""
        now = self.now()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        while self._waiting:
            is_free = len(self._holding) < self._at_once
            cluster_id = next((one for one in self._waiting if one not in self._holding), None) if is_free else None
            if cluster_id is not None:
                self._let_in(cluster_id, now)
                continue
            slowest = min(self._holding.values(), key=lambda ticket: ticket.moved_at)
            overdue_at = slowest.moved_at + self._idle_seconds
            if now < overdue_at:
                self._look = asyncio.get_running_loop().call_at(overdue_at, self._admit)
                return
            del self._holding[slowest.cluster_id]
            self._overdue += 1

    def _let_in(self, cluster_id: ClusterID, now: float) -> None:
        waiting = self._waiting.pop(cluster_id)
        ticket = waiting.popleft()
        if waiting:
            self._waiting[cluster_id] = waiting  # behind all others
        self._holding[cluster_id] = ticket
        self._admitted += 1
        self._waited_seconds += now - ticket.asked_at
        ticket.moved_at = now
        ticket.admitted()

"""What the fake was asked, and how it went."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping

MAX_REQUESTS = 100_000
"""Requests that are remembered; older ones only count."""


@dataclasses.dataclass(eq=False)
class Request:
    """One request and its reply, which goes on for as long as `live`.

    Attributes:
        number: position among all requests of this server, from 1.
        connection: number of its connection, from 1.
        method: HTTP method.
        path: without the query.
        query: parameters, decoded; the last of each name.
        headers: by lower-case name.
        verb: as RBAC names it: `list`, `watch`, `get`, `create`, `update`, `patch`, `delete`, `deletecollection`; and
            `discover`, or `other`.
        resource: `configmaps`, `deployments.apps`; "" where there is none.
        namespace: from the path.
        name: from the path.
        user: who was recognised: `token`, the common name of a client certificate, or "".
        status: HTTP code of the reply, 0 if none was begun.
        events: frames of a watch that were written, bookmarks and errors included.
        bytes_sent: of the body, before chunks are framed.
        started: on the event loop's clock.
        ended: on the event loop's clock; None as long as it is live.
        outcome: how it ended: `complete`, `client closed`, or the name of the fault that cut it.
    """

    number: int
    connection: int
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    started: float
    verb: str = "other"
    resource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    status: int = 0
    events: int = 0
    bytes_sent: int = 0
    ended: float | None = None
    outcome: str = ""

    @property
    def live(self) -> bool:
        """The reply has not ended yet."""
        return self.ended is None

    def matches(self, verb: str, resource: str) -> bool:
        """Whether it is of this verb and resource; `*` matches all, `deployments` also `deployments.apps`."""
        plural = self.resource.split(".", 1)[0]
        return verb in {"*", self.verb} and resource in {"*", self.resource, plural}

    def __str__(self) -> str:
        return f"{self.verb} {self.resource or self.path} {dict(self.query)} -> {self.status or 'nothing'}"


class RequestLog:
    """All requests in order, the newest 100,000.

    Attributes:
        refused_versions: requests with the text "None" or "null" as a resourceVersion, which no client may ever send;
            they got the answer of the real server, 400 for a list and 500 otherwise.
    """

    def __init__(self) -> None:
        self.refused_versions: list[Request] = []
        self._requests: deque[Request] = deque(maxlen=MAX_REQUESTS)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._total = 0

    def add(self, request: Request) -> None:
        """Remembers a request."""
        self._requests.append(request)
        self._total += 1
        self._counts[request.verb, request.resource] += 1
        if request.query.get("resourceVersion") in {"None", "null"}:
            self.refused_versions.append(request)

    @property
    def total(self) -> int:
        """How many there were."""
        return self._total

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many there were, by verb and resource."""
        return dict(self._counts)

    def of(self, verb: str = "*", resource: str = "*", *, since: int = 0) -> list[Request]:
        """The requests of a verb and resource, `*` for all, with numbers above `since`."""
        return [each for each in self._requests if each.number > since and each.matches(verb, resource)]

    def clear(self) -> None:
        """Forgets what was; numbers and counts go on."""
        self._requests.clear()
        self.refused_versions.clear()

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests))

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

"""Which requests go wrong."""

from __future__ import annotations

from collections.abc import Callable

from federator.testing.fake_api_server.faults import Fault
from federator.testing.fake_api_server.request_log import Request


class Injection:
    """Faults for the next requests of a kind.

    Attributes:
        requests: those that had them, in order.
    """

    def __init__(
        self,
        verb: str,
        resource: str,
        faults: tuple[Fault, ...],
        *,
        times: int | None,
        skip: int,
        where: Callable[[Request], bool] | None,
    ) -> None:
        self.requests: list[Request] = []
        self._verb = verb
        self._resource = resource
        self._faults = faults
        self._times = times
        self._skip = skip
        self._where = where
        self._cancelled = False

    @property
    def used_up(self) -> bool:
        """No further request will have them."""
        return self._cancelled or (self._times is not None and len(self.requests) >= self._times)

    def cancel(self) -> None:
        """Takes them back; idempotent."""
        self._cancelled = True

    @property
    def standing(self) -> bool:
        """It is for all requests from now on, not for a number of them."""
        return self._times is None

    def means(self, request: Request) -> bool:
        """Whether a request is of the kind."""
        return request.matches(self._verb, self._resource) and (self._where is None or self._where(request))

    def take(self, request: Request) -> tuple[Fault, ...]:
        """The faults of a request that is meant; none if it is to be skipped."""
        if self._skip:
            self._skip -= 1
            return ()
        self.requests.append(request)
        return self._faults


class Injections:
    """All that are not used up, in the order they were asked for."""

    def __init__(self) -> None:
        self._injections: list[Injection] = []

    def add(self, injection: Injection) -> None:
        """Takes one up."""
        self._injections.append(injection)

    def clear(self) -> None:
        """Cancels all."""
        for injection in self._injections:
            injection.cancel()
        self._injections.clear()

    def take(self, request: Request) -> list[Fault]:
        """The faults of a request."""
        self._injections = [injection for injection in self._injections if not injection.used_up]
        faults: list[Fault] = []
        served = False
        for injection in self._injections:
            if injection.means(request) and (injection.standing or not served):
                faults += injection.take(request)
                served = served or not injection.standing
        return faults

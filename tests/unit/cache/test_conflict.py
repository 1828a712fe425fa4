"""Again after a conflict; the cases of client-go's retry tests."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes.aio.client import ApiException as AsyncApiException
from kubernetes.client import ApiException

from federator.cache.backoff import Backoff
from federator.cache.conflict import is_conflict, retry_on_conflict
from federator.errors import KubeStatusError, MemberUnreachable

pytestmark = pytest.mark.looptime


def conflict(number: int = 0) -> KubeStatusError:
    return KubeStatusError(409, "Conflict", f"the object has been modified, {number}")


class Step:
    """Fails as it is told, then succeeds; notes when it was called."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.pop(0)
        return "written"

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


async def test_success_ends_it_at_once() -> None:
    step = Step()
    assert await retry_on_conflict(step) == "written"
    assert len(step.times) == 1


async def test_it_goes_on_as_long_as_there_are_conflicts() -> None:
    step = Step(conflict(), conflict())
    assert await retry_on_conflict(step) == "written"
    assert len(step.times) == 3


async def test_conflicts_without_end_raise_the_last_of_them() -> None:
    conflicts = [conflict(number) for number in range(9)]
    step = Step(*conflicts)
    with pytest.raises(KubeStatusError) as raised:
        await retry_on_conflict(step)
    assert raised.value is conflicts[4]
    assert len(step.times) == 5
    for pause, least in zip(step.pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert least <= pause <= least * 1.1 + 1e-6


async def test_another_error_ends_it_at_once() -> None:
    other = MemberUnreachable("https://eu-1", "no answer in time")
    step = Step(conflict(), other)
    with pytest.raises(MemberUnreachable) as raised:
        await retry_on_conflict(step)
    assert raised.value is other
    assert len(step.times) == 2


async def test_cancellation_ends_it_at_once() -> None:
    """TestRetryOnConflictPreservesContextErrorWithoutLastError."""
    step = Step(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await retry_on_conflict(step)
    assert len(step.times) == 1

    step = Step(conflict(), conflict())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(retry_on_conflict(step), 0.05)
    assert len(step.times) == 1


async def test_steps_and_delays_of_ones_own() -> None:
    step = Step(*[conflict()] * 9)
    with pytest.raises(KubeStatusError):
        await retry_on_conflict(step, steps=3, backoff=Backoff(base=2.0, factor=1.0, jitter=0.0))
    assert step.pauses == pytest.approx([2.0, 2.0])


async def test_a_single_step_is_not_followed_by_a_wait() -> None:
    step = Step(conflict())
    with pytest.raises(KubeStatusError):
        await retry_on_conflict(step, steps=1)
    assert asyncio.get_running_loop().time() == step.times[0]


async def test_what_is_a_conflict_can_be_said() -> None:
    step = Step(KeyError("gone"), KeyError("gone"))
    assert await retry_on_conflict(step, is_conflict=lambda error: isinstance(error, KeyError)) == "written"
    step = Step(conflict())
    with pytest.raises(KubeStatusError):
        await retry_on_conflict(step, is_conflict=lambda error: isinstance(error, KeyError))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (conflict(), True),
        (KubeStatusError(409, "AlreadyExists", "it exists"), True),
        (KubeStatusError(404, "NotFound", "it does not"), False),
        (AsyncApiException(status=409), True),
        (AsyncApiException(status=422), False),
        (ApiException(status=409), True),
        (ApiException(), False),
        (ValueError(409), False),
    ],
)
def test_conflicts_are_known_by_their_code(error: Exception, expected: bool) -> None:
    assert is_conflict(error) is expected

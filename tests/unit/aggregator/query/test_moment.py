"""Which revision is meant."""

from __future__ import annotations

import pytest

from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.query.moment import revision_of
from federator.errors import InvalidInput, RevisionExpired
from tests.contract.ledger.member import Member, put


async def test_a_revision_a_time_or_now() -> None:
    now = [1_800_000_000.0]
    ledger = MemoryLedger(clock=lambda: now[0])
    berlin = await Member.join(ledger)
    began = ledger.oldest_revision
    revisions = []
    for _ in range(4):
        now[0] += 10
        await berlin.push(put("web"))
        revisions.append(ledger.revision)
    last_ms = int(now[0] * 1000)
    assert revision_of(ledger, None, None, field="until") == revisions[-1]
    assert revision_of(ledger, revisions[1], None, field="until") == revisions[1]
    assert revision_of(ledger, None, last_ms, field="until") == revisions[-1]
    assert revision_of(ledger, None, last_ms - 1, field="until") == revisions[-2]
    assert revision_of(ledger, None, 0, field="at") == began, "before the ledger began nothing was"
    with pytest.raises(InvalidInput, match="after_revision"):
        revision_of(ledger, revisions[-1] + 1, None, field="after")
    await ledger.compact(revisions[1])
    assert revision_of(ledger, revisions[1], None, field="at") == revisions[1]
    assert revision_of(ledger, None, last_ms - 20_000, field="at") == revisions[1]
    for revision, time_ms in ((revisions[1] - 1, None), (None, last_ms - 20_001), (0, None), (None, 0)):
        with pytest.raises(RevisionExpired) as raised:
            revision_of(ledger, revision, time_ms, field="at")
        assert raised.value.oldest == revisions[1]

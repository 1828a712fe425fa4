from __future__ import annotations

from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.audience import Audiences
from federator.aggregator.serve.portions import Portions
from federator.aggregator.serve.question import Question
from tests.unit.aggregator.federation import PODS, Federation, put


async def test_a_portion_is_known_by_its_audience_and_where_it_begins() -> None:
    federation = Federation()
    await federation.join("a")
    federation.hub.flush()
    base = federation.ledger.revision
    await federation.commit("a", put("x"), put("y"))
    federation.hub.flush()
    segment = federation.hub.segment_after(base)
    assert segment is not None
    audiences = Audiences()
    one = audiences.join(Question(Selection(frozenset({PODS.group_resource}))), 0)
    other = audiences.join(Question(Selection(frozenset({PODS.group_resource}), name="x")), 0)
    portions = Portions()
    assert portions.find(segment, base, one) is None
    whole = portions.evaluate(segment, base, one)
    assert len(whole.events) == 2
    assert portions.find(segment, base, one) is whole
    assert portions.find(segment, base - 100, one) is whole  # it has read nothing of the segment either
    assert portions.find(segment, base + 1, one) is None
    assert portions.find(segment, base, other) is None
    assert len(portions.evaluate(segment, base + 1, one).events) == 1
    assert portions.find(segment, base, one) is whole
    assert portions.statistics()["portion_evaluations"] == 2


async def test_the_oldest_are_forgotten_beyond_the_bound() -> None:
    federation = Federation()
    await federation.join("a")
    audience = Audiences().join(Question(Selection(frozenset({PODS.group_resource}))), 0)
    portions = Portions(max_bytes=50_000)
    for number in range(20):
        federation.hub.flush()
        base = federation.ledger.revision
        await federation.commit("a", put(f"p{number}", data="x" * 10_000))
        federation.hub.flush()
        segment = federation.hub.segment_after(base)
        assert segment is not None
        kept = portions.evaluate(segment, base, audience)
        assert portions.find(segment, base, audience) is kept
        assert portions.statistics()["portion_bytes"] <= 50_000
    assert len(portions._kept) == 4

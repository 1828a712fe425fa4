"""StoredStates against sets: whatever differs is found, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.ingest.frames import StateItems
from federator.aggregator.ingest.stored_states import StoredStates
from federator.wire.digest import Buckets, HashedState, bucket, digest_of
from tests.unit.agent.scripted_cluster import PODS

_keys = st.integers(0, (1 << 64) - 1)
_objects = st.dictionaries(_keys, st.integers(0, 3), max_size=30)


@given(_objects, _objects, st.integers(0, 6))
def test_what_is_missing_other_or_gone_is_found(shared: dict[int, int], more: dict[int, int], bits: int) -> None:
    listed = {**shared, **more}
    stored = {key: state for key, state in shared.items() if state} | {(key + 1) % 2**64: 1 for key in list(more)[:3]}
    states = StoredStates(bits)
    revisions = {key: revision for revision, key in enumerate(stored, 100)}
    for key, state in stored.items():
        states.add(key, state, revisions[key])
    assert states.digest() == digest_of(HashedState(*one) for one in stored.items())
    sums = Buckets(bits)
    for key, state in listed.items():
        sums.add(key, state)
    wanted = set()
    for number in states.differing(sums.sums()):
        assert not states.is_compared
        chosen = [key for key in listed if bucket(key, bits) == number]
        items = StateItems(PODS, bits, frozenset({number}), tuple(chosen), tuple(listed[key] for key in chosen))
        wanted |= {chosen[position] for position in states.compare(items)}
    assert states.is_compared
    assert wanted == {key for key, state in listed.items() if stored.get(key) != state}
    assert set(states.missing) == {revisions[key] for key in stored if key not in listed}

from __future__ import annotations

from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from tests.unit.aggregator.federation import PODS, Federation, put


async def test_a_loaded_view_equals_one_that_followed() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", labels={"app": "web"}), put("y"))
    loaded = MergedView()
    loaded.load(federation.ledger)
    assert loaded.revision == federation.view.revision == federation.ledger.revision
    assert loaded.types.served() == federation.view.types.served()
    pods = Selection(frozenset({PODS.group_resource}))
    assert loaded.indexer.references(loaded.indexer.select(pods)) == federation.view.indexer.references(
        federation.view.indexer.select(pods)
    )
    assert loaded.statistics()["objects"] == 2
    assert loaded.statistics()["clusters"] == 1


async def test_one_step_sees_one_revision() -> None:
    """Every part has applied a commit before the ledger's caller goes on."""
    federation = Federation()
    seen: list[tuple[int, int, int]] = []
    publish = federation.hub.publish

    def spy(commit: object) -> None:
        publish(commit)  # type: ignore[arg-type]
        federation.hub.flush()  # watches may be told a moment later
        seen.append((federation.view.revision, federation.hub.revision, federation.ledger.revision))

    federation.hub.publish = spy  # type: ignore[method-assign]
    await federation.join("a")
    await federation.commit("a", put("x"))
    assert seen
    assert all(len(set(revisions)) == 1 for revisions in seen)

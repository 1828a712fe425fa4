"""Bug 39: elsewhere, the reflector of a type whose definition was deleted asked for it for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

from federator.api.cluster import TypeState
from federator.api.resource import ResourceType
from federator.testing.fake_api_server import Request
from tests.integration.federation.recorder import Recorder
from tests.robustness.bug_cases.follower import version_of
from tests.robustness.linked_bed import LinkedBed, changes, eventually

WIDGETS = ResourceType(
    group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True, singular="widget"
)
NAMES = [f"w{number}" for number in range(10)]


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("deletions_are_told", [True, False], ids=["deletions are told", "the watch just ends"])
async def test_bug39_a_removed_type_takes_its_objects_with_it_and_is_asked_for_no_more(
    tmp_path: Path, deletions_are_told: bool
) -> None:
    async with LinkedBed(tmp_path, ("c0",)) as bed:
        member = bed["c0"]
        server = member.apiserver

        def requests_for_widgets(since: int) -> list[Request]:
            return server.requests.of("*", "widgets.example.com", since=since)

        async def looked_again(times: int) -> None:
            """The agent has asked what types there are."""
            looks = len(server.requests.of("discover"))
            await eventually(lambda: len(server.requests.of("discover")) >= looks + times, timeout=30)

        def state() -> TypeState | None:
            types = member.agent.status().types
            return next((each.state for each in types if each.resource_type.resource == WIDGETS.resource), None)

        server.add_resource(WIDGETS)
        for name in NAMES:
            server.put("widgets", name)
        await bed.start_agents(discovery_interval=0.1, discovery_debounce=0.02, discovery_confirm=0.1)
        await eventually(lambda: state() is TypeState.LIVE)
        async with Recorder(bed.fed, ("widgets",)) as recorder:
            await eventually(recorder.synced.is_set)
            for _ in range(2):
                recorder.events.clear()
                with contextlib.nullcontext() if deletions_are_told else server.losing_events():
                    server.remove_resource("widgets")
                await eventually(lambda: len(told(recorder)) >= len(NAMES), timeout=30)
                await eventually(lambda: "c0 widgets.example.com reflector" not in task_names(), timeout=30)
                seen = server.requests.total
                await looked_again(4)
                assert not requests_for_widgets(seen)
                assert Counter(told(recorder)) == Counter(("DELETED", name) for name in NAMES)
                assert state() is None

                recorder.events.clear()
                server.add_resource(WIDGETS)
                for name in NAMES:
                    server.put("widgets", name)
                await eventually(lambda: state() is TypeState.LIVE, timeout=30)
                await eventually(lambda: len(told(recorder)) >= len(NAMES), timeout=30)
                first = requests_for_widgets(seen)[0]
                assert first.verb == "list"
                assert version_of(first) in {None, "", "0"}, "as if for the first time"
                assert Counter(told(recorder)) == Counter(("ADDED", name) for name in NAMES)
            recorder.check_running()
            assert recorder.starts == 1
        await bed.equal()


def told(recorder: Recorder) -> list[tuple[str, str]]:
    return changes(recorder.events, "c0", resource="widgets")


def task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}

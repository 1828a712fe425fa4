"""What every test of the cache gets: its logs for inspection, and a check that no task is left running."""

from __future__ import annotations

from tests.fixtures import logs, no_task_is_left

__all__ = ["logs", "no_task_is_left"]

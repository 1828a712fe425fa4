"""Questions: what a watch asks for. Watches with equal questions get the same bytes."""

from __future__ import annotations

from typing import NamedTuple

from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection


class Question(NamedTuple):
    """Everything that decides which events a watch gets, and what is in them.

    Attributes:
        selection: which objects.
        with_previous: whether events carry the state before the change.
        scope: what the asker may see.
    """

    selection: Selection
    with_previous: bool = False
    scope: Scope = EVERYTHING

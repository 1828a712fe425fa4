"""The watch checks: what every history of a watch has to pass.

A `History` is what one client saw; a `Reference` is the whole order as a client saw it that asked for everything.
`checks.py` has a function per promise, which any test can use that has recorded both.
"""

from tests.robustness.watch_checks.asked import Asked, State, asked, everything
from tests.robustness.watch_checks.checks import CHECKS, broken, broken_by
from tests.robustness.watch_checks.history import EXPIRED, PRESENT, Call, History, Message, Part
from tests.robustness.watch_checks.reference import Change, Compaction, LedgerRecord, Origin, Reference

__all__ = [
    "CHECKS",
    "EXPIRED",
    "PRESENT",
    "Asked",
    "Call",
    "Change",
    "Compaction",
    "History",
    "LedgerRecord",
    "Message",
    "Origin",
    "Part",
    "Reference",
    "State",
    "asked",
    "broken",
    "broken_by",
    "everything",
]

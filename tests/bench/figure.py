"""Figures: the rows of the report, and what they are made from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from federator import __version__

FEDERATOR = f"federator {__version__}"
"""The contender of everything that is measured of this program."""

MACHINE = "machine"
"""The contender of what concerns the whole machine, the load and the apiservers included."""


class Figure(NamedTuple):
    """One row of the report.

    Attributes:
        scenario: what happened.
        contender: who is measured.
        metric: what of it.
        value: the figure.
        unit: its unit.
        bar: what it should be, in the same unit, such as `<= 20`; empty where nothing is aimed at.
    """

    scenario: str
    contender: str
    metric: str
    value: float
    unit: str
    bar: str = ""


class WrongResult(Exception):
    """What was measured did not do what it was to do; its figures mean nothing."""


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest of the values that at least so many percent of them do not exceed.

    Raises:
        WrongResult: there are none.
    """
    ordered = sorted(values)
    if not ordered:
        raise WrongResult("nothing was measured")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def delays(scenario: str, what: str, seconds: Iterable[float]) -> list[Figure]:
    """The median and the 99th percentile of some delays."""
    taken = list(seconds)
    return [
        Figure(scenario, FEDERATOR, f"{what}, p{percent}", percentile(taken, percent) * 1000, "ms")
        for percent in (50, 99)
    ]

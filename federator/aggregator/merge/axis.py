"""Axes: by what objects are sorted and grouped."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint32]
"""Row numbers, each once."""

Codes = NDArray[np.uint32]
"""A number for each row number, whether or not the row is in use."""


class AxisKind(Enum):
    """What an axis reads of an object."""

    CLUSTER = "cluster"
    TYPE = "type"
    NAMESPACE = "namespace"
    NAME = "name"
    NODE = "node"
    OWNER_KIND = "owner_kind"
    CREATED = "created"
    LABEL = "label"
    FIELD = "field"


class Axis(NamedTuple):
    """One property of objects.

    Attributes:
        kind: what is read.
        name: for LABEL the label's key; for FIELD the path of a field index as `format_field_path` writes it.
    """

    kind: AxisKind
    name: str = ""


class Column(NamedTuple):
    """What all rows have on one axis, dictionary-coded.

    Attributes:
        codes: by row number, the place of the row's value in `values`; 0 where it has none.
        values: by code; the first is "" and nobody's.
        more: for a field of which objects have several values: rows and codes of all values but the first.
    """

    codes: Codes
    values: Sequence[str]
    more: tuple[Rows, Codes] | None = None

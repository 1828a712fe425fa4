"""Native resourceVersions of member clusters.

Within one cluster, one type, one incarnation and one generation they are ordered (KEP-5504, stable in Kubernetes 1.35):
decimal digits without leading zero, of any length. Everything else can only be compared for equality. Across clusters
or types nothing may be compared, so nothing here takes a cluster.
"""

from __future__ import annotations


def is_ordered(resource_version: str) -> bool:
    """Whether the text is a well-formed, comparable resourceVersion; "" and "0" are requests, not versions."""
    return resource_version.isascii() and resource_version.isdecimal() and resource_version[0] != "0"


def compare(left: str, right: str) -> int | None:
    """Returns -1, 0 or 1, or None where the two are different and not both well-formed."""
    if left == right:
        return 0
    if not (is_ordered(left) and is_ordered(right)):
        return None
    return -1 if (len(left), left) < (len(right), right) else 1


def is_older(left: str, right: str) -> bool:
    """Whether `left` is known to be older than `right`; False where they cannot be compared."""
    return compare(left, right) == -1

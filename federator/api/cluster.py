"""Member clusters: their IDs and the states of their lives."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NewType

from federator.errors import ClusterIDCollision, InvalidInput

ClusterID = NewType("ClusterID", str)
"""The name under which a member cluster is known: DNS-like, at most 63 characters."""

MAX_LENGTH = 63
_VALID = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_FOREIGN = re.compile(r"[^a-z0-9.]+")
_HASH_LENGTH = 8

RULE = (
    "lower case; every run of characters other than letters, digits and dots becomes one '-'; "
    "leading and trailing '-' and '.' are dropped; longer than 63 characters: the first 54, '-' and "
    "8 hexadecimal digits of the SHA-256 of the original name"
)
"""The normalising rule in words, for messages and the manual."""


class ClusterState(StrEnum):
    """State of a member cluster; `docs/glossary.md` says what each promises."""

    JOINING = "JOINING"
    SYNCING = "SYNCING"
    LIVE = "LIVE"
    STALE = "STALE"
    RECOVERING = "RECOVERING"
    REMOVED = "REMOVED"


class TypeState(StrEnum):
    """State of one resource type in one cluster."""

    ABSENT = "ABSENT"
    NOT_COLLECTED = "NOT_COLLECTED"
    DENIED = "DENIED"
    SYNCING = "SYNCING"
    LIVE = "LIVE"
    STALE = "STALE"


STAND_IN_PREFIX = "server-"
"""Begins what stands in for the UID of a cluster whose kube-system namespace may not be read: a hash of server and CA,
which changes with either."""


def is_stand_in(cluster_uid: str) -> bool:
    """Whether a cluster UID only stands in for the real one."""
    return cluster_uid.startswith(STAND_IN_PREFIX)


LISTING_ANEW = "listing anew"
"""Reason of a STALE type that both ends of the push protocol give while a full listing is on its way."""

STATES_DIFFER = "states differ, comparing"
"""Reason of a STALE type of which something else is stored than its agent has sent, until it has been listed."""


def parse_cluster_id(text: str, *, field: str = "cluster_id") -> ClusterID:
    """Returns `text` as a ClusterID.

    Raises:
        InvalidInput: it is not `[a-z0-9]([-a-z0-9.]*[a-z0-9])?` of at most 63 characters.
    """
    if len(text) > MAX_LENGTH or not _VALID.fullmatch(text):
        raise InvalidInput(field, text, f"{_VALID.pattern}, at most {MAX_LENGTH} characters")
    return ClusterID(text)


def normalise_cluster_id(name: str) -> ClusterID:
    """Derives a ClusterID from any name, such as a kubeconfig context, by the rule in `RULE`.

    Raises:
        InvalidInput: nothing is left of the name.
    """
    kept = _FOREIGN.sub("-", name.lower()).strip("-.")
    if len(kept) > MAX_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
        kept = kept[: MAX_LENGTH - _HASH_LENGTH - 1].rstrip("-.") + "-" + digest
    if not kept:
        raise InvalidInput("cluster name", name, "a name with at least one letter or digit")
    return parse_cluster_id(kept)


def assign_cluster_ids(names: Iterable[str]) -> dict[str, ClusterID]:
    """Maps each name to its ClusterID.

    Raises:
        ClusterIDCollision: two different names normalise to one ID; the message names both.
        InvalidInput: a name has no usable character.
    """
    assigned: dict[str, ClusterID] = {}
    taken: dict[ClusterID, str] = {}
    for name in names:
        cluster_id = normalise_cluster_id(name)
        holder = taken.setdefault(cluster_id, name)
        if holder != name:
            raise ClusterIDCollision(cluster_id, (holder, name))
        assigned[name] = cluster_id
    return assigned

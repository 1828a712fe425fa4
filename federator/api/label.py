"""Labels: what keys and values may be, as Kubernetes has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from federator.errors import InvalidInput

MAX_CLUSTER_LABELS = 64
"""Labels of one cluster. They are for choosing clusters by, and travel with each session."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_PREFIX = 253
_ALLOWED = (
    "KEY=VALUE, where KEY is [<DNS subdomain>/]<name>, and name and VALUE have at most 63 letters, digits, '-', '_' "
    "and '.', starting and ending with a letter or digit; VALUE may be empty"
)


def is_label_key(text: str) -> bool:
    """Whether a label could have this key: a name of at most 63 characters, optionally behind a subdomain and "/"."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= _MAX_PREFIX and _PREFIX.fullmatch(prefix)):
        return False
    return _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether a label could have this value: empty, or as the name in a key."""
    return not text or _NAME.fullmatch(text) is not None


def check_cluster_labels(labels: Mapping[str, str], *, field: str) -> None:
    """Checks the labels of a cluster.

    Args:
        labels: value by key.
        field: name of the field they came in, for the message.

    Raises:
        InvalidInput: a key or value cannot be a label's, or there are more than `MAX_CLUSTER_LABELS`.
    """
    if len(labels) > MAX_CLUSTER_LABELS:
        raise InvalidInput(field, f"{len(labels)} labels", f"at most {MAX_CLUSTER_LABELS} of one cluster")
    for key, value in labels.items():
        if not (is_label_key(key) and is_label_value(value)):
            raise InvalidInput(field, f"{key[:256]}={value[:256]}", _ALLOWED)


def parse_labels(texts: Iterable[str], *, field: str) -> dict[str, str]:
    """Reads labels as they are written on a command line; of two with one key the later one holds.

    Args:
        texts: each `KEY=VALUE`.
        field: name of the field they came in, for the message.

    Raises:
        InvalidInput: one is not of this form, or its key or value cannot be a label's.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and is_label_key(key) and is_label_value(value)):
            raise InvalidInput(field, text[:512], _ALLOWED)
        labels[key] = value
    return labels

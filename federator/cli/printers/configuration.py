"""Configuration, identities and permissions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from federator.cli.printers.printer import (
    Cell,
    Manifest,
    Printer,
    age_of,
    columns,
    entries_at,
    mapping_at,
    name_of,
    text_at,
)


def _config_map(config_map: Manifest, now: datetime) -> Sequence[Cell]:
    count = len(mapping_at(config_map, "data")) + len(mapping_at(config_map, "binaryData"))
    return (name_of(config_map), count, age_of(config_map, now))


def _secret(secret: Manifest, now: datetime) -> Sequence[Cell]:
    # Agents may send a Secret's metadata only; then the count of its entries is not known.
    data = len(mapping_at(secret, "data")) if "data" in secret or "type" in secret else "<unknown>"
    return (name_of(secret), text_at(secret, "type") or "<unknown>", data, age_of(secret, now))


def _binding(binding: Manifest, now: datetime) -> Sequence[Cell]:
    subjects = entries_at(binding, "subjects")

    def named(kind: str) -> str:
        return ", ".join(text_at(subject, "name") for subject in subjects if subject.get("kind") == kind)

    accounts = [subject for subject in subjects if subject.get("kind") == "ServiceAccount"]
    return (
        name_of(binding),
        f"{text_at(binding, 'roleRef', 'kind')}/{text_at(binding, 'roleRef', 'name')}",
        age_of(binding, now),
        named("User"),
        named("Group"),
        ", ".join(f"{text_at(account, 'namespace')}/{text_at(account, 'name')}" for account in accounts),
    )


CONFIG_MAPS = Printer(columns("NAME,DATA,AGE"), _config_map)
SECRETS = Printer(columns("NAME,TYPE,DATA,AGE"), _secret)
BINDINGS = Printer(columns("NAME,ROLE,AGE,USERS*,GROUPS*,SERVICEACCOUNTS*"), _binding)

"""Labels and label selectors as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federator.cli.printers.printer import entries_at, mapping_at, text_at


def format_labels(labels: Mapping[str, Any]) -> str:
    """`a=1,b=2`, sorted by key, or `<none>`."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels)) or "<none>"


def format_label_selector(selector: Any, *, empty: str = "<none>") -> str:
    """A LabelSelector as the text that selects the same, sorted by key; `empty` where it has no conditions."""
    requirements = [(key, f"{key}={value}") for key, value in mapping_at(selector, "matchLabels").items()]
    for expression in entries_at(selector, "matchExpressions"):
        key = text_at(expression, "key")
        operator = text_at(expression, "operator")
        values = ",".join(sorted(map(str, expression.get("values") or ())))
        match operator:
            case "In" | "NotIn":
                requirements.append((key, f"{key} {operator.lower()} ({values})"))
            case "Exists":
                requirements.append((key, key))
            case "DoesNotExist":
                requirements.append((key, f"!{key}"))
            case _:
                return "<error>"
    requirements.sort(key=lambda requirement: requirement[0])
    return ",".join(text for _, text in requirements) or empty

"""YAML that every reader reads back as what it was."""

from __future__ import annotations

import re
from typing import Any

import yaml

from federator.errors import FederatorError

_NUMBER = re.compile(
    r"[-+]?(?:"
    r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+"  # other bases
    r"|(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?"  # decimal
    r"|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"  # base 60, as YAML 1.1 reads 12:30
    r"|\.inf)|\.nan",
    re.IGNORECASE,
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", "=", "<<"}
"""Words with a meaning in YAML 1.1 or 1.2, in any case."""


def is_ambiguous(text: str) -> bool:
    """Whether a plain text would be read as something else by YAML 1.1 or 1.2, or by one of their common readers."""
    return text.lower() in _WORDS or _NUMBER.fullmatch(text) is not None or _DATE.fullmatch(text) is not None


class _Dumper(yaml.CSafeDumper):
    """Quotes ambiguous texts, writes texts of several lines as blocks, and never refers back to an equal value."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.CSafeDumper, text: str) -> yaml.Node:
    style = '"' if is_ambiguous(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(document: Any) -> str:
    """A document as YAML, keys in their order, lines never folded.

    Raises:
        FederatorError: it is nested too deeply, some hundreds of levels.
    """
    try:
        return yaml.dump(
            document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=-1, default_flow_style=False
        )
    except RecursionError:
        raise FederatorError("an object is nested too deeply for -o yaml; take -o json") from None

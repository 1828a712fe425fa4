"""Selectors: which objects, which fields, which clusters.

Three small languages, each parsed whole before anything runs. Malformed text raises `MalformedSelector` and is never
treated as empty; text and number of conditions are bounded, so that no question costs more than its answer is worth.

- `LabelSelector`: kubectl's grammar with the semantics of Kubernetes: `!=` and `notin` also select objects that don't
  have the key; no requirement selects everything.
- `FieldSelector`: `path=value`, `path==value`, `path!=value`, on any dotted path; a missing field equals "".
- `ClusterSelector`: globs on the ClusterID; a leading `!` excludes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from wcmatch import fnmatch

from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath
from federator.errors import MalformedSelector, UnknownCluster

MAX_CONDITIONS = 1000
"""Requirements and their values in one selector, together."""

MAX_TEXT_BYTES = 64 * 1024
"""Length of one selector's text."""

_INT64 = range(-(2**63), 2**63)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,63}")


# ---------------------------------------------------------------------------------------------------------- labels


class LabelOperator(StrEnum):
    """What a requirement asks of a label; equality is IN with one value."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER_THAN = ">"
    LESS_THAN = "<"


class LabelRequirement(msgspec.Struct, frozen=True, order=True):
    """One condition on one label.

    Attributes:
        key: the label's key.
        operator: what is asked.
        values: sorted and without repeats; empty for EXISTS and DOES_NOT_EXIST, one decimal number for comparisons.
    """

    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the condition."""
        value = labels.get(self.key)
        match self.operator:
            case LabelOperator.IN:
                return value is not None and value in self.values
            case LabelOperator.NOT_IN:
                return value is None or value not in self.values
            case LabelOperator.EXISTS:
                return value is not None
            case LabelOperator.DOES_NOT_EXIST:
                return value is None
            case _:
                return value is not None and self.compares(value)

    def compares(self, value: str) -> bool:
        """For GREATER_THAN and LESS_THAN: whether a label's value is a number on the right side of the bound."""
        number = _int64(value)
        if number is None:
            return False
        bound = int(self.values[0])
        return number > bound if self.operator is LabelOperator.GREATER_THAN else number < bound

    def __str__(self) -> str:
        match self.operator:
            case LabelOperator.EXISTS:
                return self.key
            case LabelOperator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case LabelOperator.IN if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case LabelOperator.NOT_IN if len(self.values) == 1:
                return f"{self.key}!={self.values[0]}"
            case LabelOperator.IN | LabelOperator.NOT_IN:
                return f"{self.key} {self.operator} ({','.join(self.values)})"
            case _:
                return f"{self.key}{self.operator}{self.values[0]}"


class LabelSelector(msgspec.Struct, frozen=True):
    """Requirements that must all hold; none selects everything. `parse(str(selector))` equals the selector."""

    requirements: tuple[LabelRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str, *, field: str = "label_selector") -> LabelSelector:
        """Reads kubectl's grammar: `k=v`, `k==v`, `k!=v`, `k in (a,b)`, `k notin (a,b)`, `k`, `!k`, `k>1`, `k<1`.

        Args:
            text: comma-joined requirements; white space between tokens means nothing.
            field: name of the field the text came in, for the message.

        Raises:
            MalformedSelector: the text is not of this grammar, a key or value cannot be a label's, or it is too long.
        """
        _check_length(field, text)
        requirements = _LabelParser(field, text).selector()
        _check_cost(field, text, sum(1 + len(requirement.values) for requirement in requirements))
        return cls(tuple(sorted(set(requirements))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def implies(self, other: LabelSelector) -> bool:
        """Whether every object this selects is selected by `other`; False also where that is merely not obvious."""
        return set(other.requirements) <= set(self.requirements)

    def __iter__(self) -> Iterator[LabelRequirement]:
        return iter(self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


_LABEL_GRAMMAR = (
    "comma-joined requirements: k=v, k==v, k!=v, k in (a,b), k notin (a,b), k, !k, k>1, k<1, where k is "
    "[<DNS subdomain>/]<name>, and names and values have at most 63 letters, digits, '-', '_' and '.', starting and "
    "ending with a letter or digit"
)
_LABEL_TOKEN = re.compile(r"\s*(?:(?P<operator>==|=|!=|!|>|<|\(|\)|,)|(?P<word>[^\s=!(),<>]+))", re.ASCII)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_PREFIX = 253


class _LabelParser:
    """Recursive descent over the tokens of one text; `in` and `notin` are words wherever no operator may stand."""

    def __init__(self, field: str, text: str) -> None:
        self._field = field
        self._text = text
        self._tokens = self._tokenise(text)
        self._next = 0

    def selector(self) -> list[LabelRequirement]:
        requirements: list[LabelRequirement] = []
        while self._peek():
            if requirements:
                self._expect(",")
            requirements.append(self._requirement())
        return requirements

    def _requirement(self) -> LabelRequirement:
        if self._peek() == "!":
            self._take()
            return LabelRequirement(self._key(), LabelOperator.DOES_NOT_EXIST)
        key = self._key()
        if self._peek() in {"", ","}:
            return LabelRequirement(key, LabelOperator.EXISTS)
        match self._take():
            case "in":
                return LabelRequirement(key, LabelOperator.IN, self._value_set())
            case "notin":
                return LabelRequirement(key, LabelOperator.NOT_IN, self._value_set())
            case "=" | "==":
                return LabelRequirement(key, LabelOperator.IN, (self._value(),))
            case "!=":
                return LabelRequirement(key, LabelOperator.NOT_IN, (self._value(),))
            case ">" | "<" as operator:
                return LabelRequirement(key, LabelOperator(operator), (self._number(),))
            case _:
                raise self._malformed()

    def _key(self) -> str:
        key = self._word()
        prefix, slash, name = key.rpartition("/")
        if slash and not (len(prefix) <= _MAX_PREFIX and _LABEL_PREFIX.fullmatch(prefix)):
            raise self._malformed()
        if not _LABEL_NAME.fullmatch(name):
            raise self._malformed()
        return key

    def _value(self) -> str:
        """A value, or "" where none stands."""
        if self._peek() in {"", ",", ")"}:
            return ""
        value = self._word()
        if not _LABEL_NAME.fullmatch(value):
            raise self._malformed()
        return value

    def _value_set(self) -> tuple[str, ...]:
        self._expect("(")
        values = {self._value()}
        while self._peek() == ",":
            self._take()
            values.add(self._value())
        self._expect(")")
        return tuple(sorted(values))

    def _number(self) -> str:
        value = self._value()
        if _int64(value) is None:
            raise self._malformed()
        return value

    def _word(self) -> str:
        word = self._take()
        if not word or word in "=!(),<>" or word in {"==", "!="}:
            raise self._malformed()
        return word

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._malformed()

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _tokenise(self, text: str) -> list[str]:
        tokens: list[str] = []
        end = len(text.rstrip(" \t\r\n\f\v"))
        position = 0
        while position < end:
            token = _LABEL_TOKEN.match(text, position)
            if token is None:  # pragma: no cover - every character is a token's
                raise self._malformed()
            tokens.append(token["operator"] or token["word"])
            position = token.end()
        return tokens

    def _malformed(self) -> MalformedSelector:
        return MalformedSelector(self._field, self._text, _LABEL_GRAMMAR)


# ---------------------------------------------------------------------------------------------------------- fields


class FieldRequirement(NamedTuple):
    """One condition on one field.

    Attributes:
        path: which field.
        equal: whether it has to be equal, or different.
        value: to what.
    """

    path: FieldPath
    equal: bool
    value: str

    def matches(self, value: str | None) -> bool:
        """Whether a field of this value (see `read_field`) meets the condition."""
        return (value == self.value) is self.equal

    def __str__(self) -> str:
        path = ".".join(_escape(part, "\\.,=!") for part in self.path)
        return path + ("=" if self.equal else "!=") + _escape(self.value, "\\,=")


class FieldSelector(msgspec.Struct, frozen=True):
    """Requirements that must all hold; none selects everything. `parse(str(selector))` equals the selector."""

    requirements: tuple[FieldRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str, *, field: str = "field_selector") -> FieldSelector:
        r"""Reads `path=value`, `path==value` and `path!=value`, comma-joined.

        Args:
            text: in values `\,`, `\=` and `\\` stand for themselves; in paths also `\.`, for keys with dots.
            field: name of the field the text came in, for the message.

        Raises:
            MalformedSelector: a term has no operator, a path has an empty part or white space, or it is too long.
        """
        _check_length(field, text)
        requirements = [_field_requirement(field, text, term) for term in _field_terms(field, text)]
        _check_cost(field, text, sum(1 + len(requirement.path) for requirement in requirements))
        return cls(tuple(sorted(set(requirements))))

    def matches(self, read: Callable[[FieldPath], str | None]) -> bool:
        """Whether an object is selected, given what reads its fields as `read_field` does."""
        return all(requirement.matches(read(requirement.path)) for requirement in self.requirements)

    def __iter__(self) -> Iterator[FieldRequirement]:
        return iter(self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


_FIELD_GRAMMAR = (
    r"comma-joined path=value, path==value or path!=value, where a path is dotted, such as spec.nodeName, and "
    r"a backslash stands before each ',', '=' or '\' that is meant literally (in a path also before '.' and '!')"
)
_FIELD_TERM = re.compile(r"(?:[^\\,]|\\.)*", re.DOTALL)
_FIELD_PARTS = re.compile(r"(?P<path>(?:[^\\=!]|\\.)*)(?P<operator>==|!=|=)(?P<value>.*)", re.DOTALL)
_PATH_PART = re.compile(r"(?:[^\\.\s]|\\[\\.,=!])+")
_FIELD_VALUE = re.compile(r"(?:[^\\,=]|\\[\\,=])*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _field_terms(field: str, text: str) -> Iterator[str]:
    position = 0
    while text:
        term = _FIELD_TERM.match(text, position)
        assert term is not None, "the pattern matches the empty text"
        yield term[0]
        if term.end() == len(text):
            return
        if text[term.end()] != ",":
            raise MalformedSelector(field, text, _FIELD_GRAMMAR)
        position = term.end() + 1


def _field_requirement(field: str, text: str, term: str) -> FieldRequirement:
    parts = _FIELD_PARTS.fullmatch(term)
    if parts is None or not _FIELD_VALUE.fullmatch(parts["value"]):
        raise MalformedSelector(field, text, _FIELD_GRAMMAR)
    path: list[str] = []
    position = 0
    while True:
        part = _PATH_PART.match(parts["path"], position)
        if part is None:
            raise MalformedSelector(field, text, _FIELD_GRAMMAR)
        path.append(_ESCAPED.sub(r"\1", part[0]))
        position = part.end()
        if position == len(parts["path"]):
            break
        if parts["path"][position] != ".":
            raise MalformedSelector(field, text, _FIELD_GRAMMAR)
        position += 1
    return FieldRequirement(tuple(path), parts["operator"] != "!=", _ESCAPED.sub(r"\1", parts["value"]))


def _escape(text: str, special: str) -> str:
    return "".join("\\" + character if character in special else character for character in text)


# -------------------------------------------------------------------------------------------------------- clusters

_CLUSTER_GRAMMAR = (
    "ClusterIDs and globs on them (*, ?, [a-z]) of lower-case letters, digits, '-' and '.', each with a leading '!' to "
    "exclude"
)
_GLOB = re.compile(r"(?:[-a-z0-9.*?]|\[!?[-a-z0-9.]+\])+")
_WILDCARDS = frozenset("*?[")


class ClusterSelector:
    """Globs on the ClusterID: selected is what one of them matches and no exclusion does.

    Without any that includes, all clusters but the excluded ones are selected. It decides by name alone, so it holds
    for clusters that join later, too.
    """

    def __init__(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        self._selected = fnmatch.compile(
            self.include or ("*",), flags=fnmatch.CASE, limit=0, exclude=self.exclude or None
        )
        self._decided: dict[ClusterID, bool] = {}  # a watch asks for each event; there are as many as members

    @classmethod
    def parse(cls, globs: Iterable[str], *, field: str = "clusters") -> ClusterSelector:
        """Reads globs, each of which may be several, comma-joined.

        Raises:
            MalformedSelector: one is empty or has characters that no ClusterID has, or there are too many.
        """
        texts = [glob.strip() for text in globs for glob in text.split(",")]
        joined = ",".join(texts)
        _check_length(field, joined)
        _check_cost(field, joined, len(texts))
        if not all(_GLOB.fullmatch(text.removeprefix("!")) for text in texts):
            raise MalformedSelector(field, joined, _CLUSTER_GRAMMAR)
        return cls(
            (text for text in texts if not text.startswith("!")), (text[1:] for text in texts if text.startswith("!"))
        )

    def matches(self, cluster_id: ClusterID) -> bool:
        """Whether the cluster is selected."""
        selected = self._decided.get(cluster_id)
        if selected is None:
            selected = self._decided[cluster_id] = bool(self._selected.match(cluster_id))
        return selected

    def resolve(self, members: Iterable[ClusterID], former: Iterable[ClusterID] = ()) -> tuple[ClusterID, ...]:
        """Returns the selected clusters, sorted.

        Args:
            members: the clusters that globs select from.
            former: clusters that only count where they are named literally.

        Raises:
            UnknownCluster: a glob without wildcards names neither.
        """
        known = set(members)
        left = set(former)
        named = {glob for glob in (*self.include, *self.exclude) if _WILDCARDS.isdisjoint(glob)}
        for name in sorted(named - known - left):
            raise UnknownCluster(name, tuple(sorted(known)))
        candidates = known | (left & set(self.include))
        return tuple(sorted(cluster_id for cluster_id in candidates if self.matches(cluster_id)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSelector):
            return NotImplemented
        return (self.include, self.exclude) == (other.include, other.exclude)

    def __hash__(self) -> int:
        return hash((self.include, self.exclude))

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)

    def __str__(self) -> str:
        return ",".join((*self.include, *(f"!{glob}" for glob in self.exclude)))


# ---------------------------------------------------------------------------------------------------------- limits


def _check_length(field: str, text: str) -> None:
    if len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise MalformedSelector(field, f"{text[:64]}…", f"at most {MAX_TEXT_BYTES} bytes")


def _check_cost(field: str, text: str, conditions: int) -> None:
    if conditions > MAX_CONDITIONS:
        raise MalformedSelector(field, f"{text[:64]}…", f"at most {MAX_CONDITIONS} requirements and values together")


def _int64(text: str) -> int | None:
    if not _DECIMAL.fullmatch(text) or int(text) not in _INT64:
        return None
    return int(text)

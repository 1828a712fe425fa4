"""Selectors: which objects, which fields, which clusters.

Three small languages, each parsed whole before anything runs. Malformed text raises `MalformedSelector` and is never
treated as empty; text and number of conditions are bounded, so that no question costs more than its answer is worth.

- `LabelSelector`: kubectl's grammar with the semantics of Kubernetes: `!=` and `notin` also select objects that don't
  have the key; no requirement selects everything.
- `FieldSelector`: `path=value`, `path==value`, `path!=value`, on any dotted path; a missing field equals "". In a path
  with a part `*` for all elements of an array, equal means that some element is, and different that none is.
- `ClusterSelector`: globs on the ClusterID; a leading `!` excludes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from federator.api.cluster import ClusterID
from federator.api.field_path import FIELD_PATH_GRAMMAR, FieldPath, FieldValue, format_field_path, scan_field_path
from federator.api.label import is_label_key, is_label_value
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
        return cls(tuple(sorted(set(_LabelParser(field, text).selector()))))

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
_LABEL_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!<>(),]|[^ \t\r\n=!(),<>]+|$)", re.DOTALL)


class _LabelParser:
    """Recursive descent over one text; `in` and `notin` are words wherever no operator may stand.

    It reads a token at a time and counts conditions, so that a text with too many is refused before it is read to its
    end.
    """

    def __init__(self, field: str, text: str) -> None:
        self._field = field
        self._text = text
        self._token = ""
        self._start = 0
        self._end = 0
        self._conditions = 0
        self._advance()

    def selector(self) -> list[LabelRequirement]:
        requirements: list[LabelRequirement] = []
        while self._token:
            if requirements:
                self._expect(",")
            self._count()
            requirements.append(self._requirement())
        return requirements

    def _requirement(self) -> LabelRequirement:
        if self._token == "!":
            self._advance()
            return LabelRequirement(self._key(), LabelOperator.DOES_NOT_EXIST)
        key = self._key()
        match self._token:
            case "" | ",":
                return LabelRequirement(key, LabelOperator.EXISTS)
            case "in" | "notin" as operator:
                self._advance()
                return LabelRequirement(key, LabelOperator(operator), self._value_set())
            case "=" | "==":
                self._advance()
                return LabelRequirement(key, LabelOperator.IN, (self._value(),))
            case "!=":
                self._advance()
                return LabelRequirement(key, LabelOperator.NOT_IN, (self._value(),))
            case ">" | "<" as operator:
                self._advance()
                return LabelRequirement(key, LabelOperator(operator), (self._number(),))
            case _:
                raise self._malformed()

    def _key(self) -> str:
        key = self._token
        if not is_label_key(key):
            raise self._malformed()
        self._advance()
        return key

    def _value(self) -> str:
        """A value, or "" where none stands."""
        self._count()
        value = self._token
        if value in _ENDS_OF_VALUES:
            return ""
        if not is_label_value(value):
            raise self._malformed()
        self._advance()
        return value

    def _value_set(self) -> tuple[str, ...]:
        self._expect("(")
        values = {self._value()}
        while self._token == ",":
            self._advance()
            values.add(self._value())
        self._expect(")")
        return tuple(sorted(values))

    def _number(self) -> str:
        if _int64(self._token) is None:
            raise self._malformed()
        return self._value()

    def _expect(self, token: str) -> None:
        if self._token != token:
            raise self._malformed()
        self._advance()

    def _advance(self) -> None:
        """Goes on to the next token, "" at the end."""
        token = _LABEL_TOKEN.match(self._text, self._end)
        assert token is not None, "every character is of some token"
        self._token, self._start, self._end = token[1], token.start(1), token.end()

    def _count(self) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise _too_costly(self._field, self._text)

    def _malformed(self) -> MalformedSelector:
        return MalformedSelector(self._field, self._text, _LABEL_GRAMMAR, self._start)


_ENDS_OF_VALUES = frozenset({"", ",", ")"})


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

    def matches(self, value: FieldValue) -> bool:
        """Whether a field of this value (see `read_comparable`) meets the condition.

        Of several values, one that is equal is enough; "different" means that none is equal.
        """
        is_equal = self.value in value if isinstance(value, tuple) else value == self.value
        return is_equal is self.equal

    def __str__(self) -> str:
        value = re.sub(r"([\\,=])", r"\\\1", self.value)
        return format_field_path(self.path) + ("=" if self.equal else "!=") + value


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
        return cls(tuple(sorted(set(_field_requirements(field, text)))))

    def matches(self, read: Callable[[FieldPath], FieldValue]) -> bool:
        """Whether an object is selected, given what reads its fields as `read_comparable` does."""
        return all(requirement.matches(read(requirement.path)) for requirement in self.requirements)

    def __iter__(self) -> Iterator[FieldRequirement]:
        return iter(self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


_FIELD_GRAMMAR = (
    f"comma-joined path=value, path==value or path!=value, where a path is {FIELD_PATH_GRAMMAR}, and in a value a "
    r"backslash stands before each ',', '=' and '\' that is meant literally"
)
_FIELD_OPERATOR = re.compile(r"==|!=|=")
_FIELD_VALUE = re.compile(r"(?:[^\\,=]|\\[\\,=])*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _field_requirements(field: str, text: str) -> Iterator[FieldRequirement]:
    position = conditions = 0
    while text:
        path, position = scan_field_path(text, position)
        operator = _FIELD_OPERATOR.match(text, position)
        if not path or operator is None:
            break
        value = _FIELD_VALUE.match(text, operator.end())
        assert value is not None, "the pattern matches the empty text"
        conditions += 1 + len(path)
        if conditions > MAX_CONDITIONS:
            raise _too_costly(field, text)
        yield FieldRequirement(path, operator[0] != "!=", _ESCAPED.sub(r"\1", value[0]))
        position = value.end()
        if position == len(text):
            return
        if text[position] != ",":
            break
        position += 1
    if text:
        raise MalformedSelector(field, text, _FIELD_GRAMMAR, position)


# -------------------------------------------------------------------------------------------------------- clusters

MAX_GLOBS = 100
"""Globs with wildcards in one selector: each is tried on every cluster's name, while names are looked up."""

_CLUSTER_GRAMMAR = (
    "ClusterIDs and globs on them (*, ?, [a-z]) of lower-case letters, digits, '-' and '.', each with a leading '!' to "
    "exclude"
)
_GLOB = re.compile(r"!?(?:[-a-z0-9.*?]|\[!?[-a-z0-9.]+\])+")
_WILDCARDS = frozenset("*?[")


class ClusterSelector:
    """Globs on the ClusterID: selected is what one of them matches and no exclusion does.

    Without any that includes, all clusters but the excluded ones are selected. It decides by name alone, so it holds
    for clusters that join later, too.
    """

    def __init__(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> None:
        self.include = tuple(include)
        self.exclude = tuple(exclude)
        self._includes = _Globs(self.include or ("*",))
        self._excludes = _Globs(self.exclude)
        self._decided: dict[ClusterID, bool] = {}  # a watch asks for each event; there are as many as members

    @classmethod
    def parse(cls, globs: Iterable[str], *, field: str = "clusters") -> ClusterSelector:
        """Reads globs, each of which may be several, comma-joined.

        Raises:
            MalformedSelector: one is empty or has characters that no ClusterID has, or there are too many.
        """
        joined = _join(field, globs)
        if joined is None:
            return cls()
        if joined.count(",") >= MAX_CONDITIONS:
            raise _too_costly(field, joined)
        include: list[str] = []
        exclude: list[str] = []
        position = 0
        for part in joined.split(","):
            glob = part.strip()
            start = position + len(part) - len(part.lstrip())
            read = _GLOB.match(glob)
            if read is None or read.end() < len(glob):
                raise MalformedSelector(field, joined, _CLUSTER_GRAMMAR, start + (read.end() if read else 0))
            (exclude if glob.startswith("!") else include).append(glob.removeprefix("!"))
            position += len(part) + 1
        if sum(map(_is_wild, (*include, *exclude))) > MAX_GLOBS:
            raise MalformedSelector(field, _excerpt(joined), f"at most {MAX_GLOBS} globs with wildcards")
        return cls(include, exclude)

    def matches(self, cluster_id: ClusterID) -> bool:
        """Whether the cluster is selected."""
        selected = self._decided.get(cluster_id)
        if selected is None:
            selected = self._includes.match(cluster_id) and not self._excludes.match(cluster_id)
            self._decided[cluster_id] = selected
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
        named = {glob for glob in (*self.include, *self.exclude) if not _is_wild(glob)}
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


class _Globs:
    """What any of several globs matches."""

    def __init__(self, globs: Iterable[str]) -> None:
        given = tuple(globs)
        self._names = frozenset(glob for glob in given if not _is_wild(glob))
        # What `translate` makes backtracks at no star but the last, so that no glob takes longer than its length.
        wild = "|".join(fnmatch.translate(glob) for glob in given if _is_wild(glob))
        self._wild = re.compile(wild) if wild else None

    def match(self, name: str) -> bool:
        return name in self._names or (self._wild is not None and self._wild.match(name) is not None)


def _is_wild(glob: str) -> bool:
    return not _WILDCARDS.isdisjoint(glob)


def _join(field: str, globs: Iterable[str]) -> str | None:
    """All globs in one text; None where there are none, which is not the same as an empty one."""
    parts: list[str] = []
    size = 0
    for glob in globs:
        size += len(glob) + 1
        if size > MAX_TEXT_BYTES:
            raise MalformedSelector(field, _excerpt(glob), f"at most {MAX_TEXT_BYTES} bytes")
        parts.append(glob)
    return ",".join(parts) if parts else None


# ---------------------------------------------------------------------------------------------------------- limits


def _check_length(field: str, text: str) -> None:
    if len(text) > MAX_TEXT_BYTES or len(text.encode(errors="surrogatepass")) > MAX_TEXT_BYTES:
        raise MalformedSelector(field, _excerpt(text), f"at most {MAX_TEXT_BYTES} bytes")


def _too_costly(field: str, text: str) -> MalformedSelector:
    return MalformedSelector(field, _excerpt(text), f"at most {MAX_CONDITIONS} requirements and values together")


def _excerpt(text: str) -> str:
    return text if len(text) <= 64 else f"{text[:64]}…"


def _int64(text: str) -> int | None:
    if not _DECIMAL.fullmatch(text) or int(text) not in _INT64:
        return None
    return int(text)

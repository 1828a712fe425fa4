"""The query of a list or watch, and what the apiserver makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from federator.api.field_path import read_field
from federator.api.selector import FieldSelector, LabelSelector
from federator.errors import MalformedSelector
from federator.testing.fake_api_server.served_type import ServedType
from federator.testing.fake_api_server.status import ApiError, Json, bad_request, internal, invalid

_FORBIDDEN = "FieldValueForbidden"
_MATCH = "resourceVersionMatch"
_INITIAL = "sendInitialEvents"
_UINT64 = 2**64


class Selection(NamedTuple):
    """Which objects of a type a request is about.

    Attributes:
        namespace: the only one, or "" for all.
        labels: label selector.
        fields: field selector.
    """

    namespace: str
    labels: LabelSelector
    fields: FieldSelector

    def __bool__(self) -> bool:
        """Whether there are selectors."""
        return bool(self.labels) or bool(self.fields)

    def contains(self, obj: Json) -> bool:
        """Whether an object is selected."""
        metadata = obj["metadata"]
        return (
            (not self.namespace or metadata.get("namespace") == self.namespace)
            and self.labels.matches(metadata.get("labels") or {})
            and self.fields.matches(lambda path: read_field(obj, path))
        )


class ListOptions(NamedTuple):
    """A checked query.

    Attributes:
        selection: which objects.
        resource_version: as it came.
        match: `Exact`, `NotOlderThan` or "".
        limit: items per page, 0 for all.
        continue_token: of the page before.
        timeout: seconds of a watch, 0 if the server decides.
        bookmarks: the client takes bookmarks.
        initial_events: whether the client asks for them, or asks not to have them; None if it says nothing.
    """

    selection: Selection
    resource_version: str
    match: str
    limit: int
    continue_token: str
    timeout: int
    bookmarks: bool
    initial_events: bool | None

    @property
    def revision(self) -> int:
        """The resourceVersion of a watch as a number, 0 for "".

        Raises:
            ApiError: 500: it is none.
        """
        return get_version(self.resource_version)


def is_watch(query: Mapping[str, str]) -> bool:
    """Whether a query asks for a watch."""
    return _flag(query, "watch")


def parse(
    query: Mapping[str, str], served: ServedType, namespace: str, *, watch: bool, watch_list: bool
) -> ListOptions:
    """Reads a query in the apiserver's order: numbers and selectors, then what may stand together, then fields.

    Args:
        query: parameters.
        served: the type asked about.
        namespace: from the path.
        watch: it is a watch.
        watch_list: the server knows `sendInitialEvents`.

    Raises:
        ApiError: 400 or 422.
    """
    limit = _number(query, "limit")
    timeout = _number(query, "timeoutSeconds")
    try:
        labels = LabelSelector.parse(query.get("labelSelector", ""))
    except MalformedSelector as error:
        raise bad_request(f"unable to parse requirement: {error}") from None
    fields = _fields(query.get("fieldSelector", ""))
    causes = _watch_causes(query, known=watch_list) if watch else _list_causes(query)
    if causes:
        details = {"group": "meta.k8s.io", "kind": "ListOptions"}
        raise invalid('ListOptions.meta.k8s.io ""', details, causes)
    _check_fields(served, fields)
    return ListOptions(
        Selection(namespace, labels, fields),
        query.get("resourceVersion", ""),
        query.get(_MATCH, ""),
        max(limit, 0),
        query.get("continue", ""),
        max(timeout, 0),
        _flag(query, "allowWatchBookmarks"),
        _flag(query, _INITIAL) if query.get(_INITIAL) else None,
    )


def check_list_version(text: str) -> int:
    """The resourceVersion of a list as a number, 0 for "".

    Raises:
        ApiError: 400: it is none.
    """
    return _parse_version(text, lambda problem: bad_request(f"invalid resource version: {problem}"))


def get_version(text: str) -> int:
    """The resourceVersion of a GET or watch as a number, 0 for "".

    Raises:
        ApiError: 500: it is none.
    """
    return _parse_version(text, internal)


def _parse_version(text: str, error: Callable[[str], ApiError]) -> int:
    if not text:
        return 0
    problem = ""
    if not re.fullmatch("[0-9]+", text):
        problem = "invalid syntax"
    elif int(text) >= _UINT64:
        problem = "value out of range"
    if problem:
        raise error(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {problem}')
    return int(text)


def _list_causes(query: Mapping[str, str]) -> list[tuple[str, str, str]]:
    causes: list[tuple[str, str, str]] = []
    if match := query.get(_MATCH):
        if not query.get("resourceVersion"):
            causes.append(_forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided"))
        if query.get("continue"):
            causes.append(_forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided"))
        if match not in {"Exact", "NotOlderThan"}:
            causes.append(_unsupported(match, '"Exact", "NotOlderThan", ""'))
        if match == "Exact" and query.get("resourceVersion") == "0":
            causes.append(_forbidden(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"'))
    if query.get(_INITIAL):
        causes.append(_forbidden(_INITIAL, f"{_INITIAL} is forbidden for list"))
    return causes


def _watch_causes(query: Mapping[str, str], *, known: bool) -> list[tuple[str, str, str]]:
    causes: list[tuple[str, str, str]] = []
    match = query.get(_MATCH, "")
    initial = bool(query.get(_INITIAL))
    if initial:
        if match != "NotOlderThan":
            causes.append(_forbidden(_MATCH, f"{_INITIAL} requires setting {_MATCH} to NotOlderThan"))
        if not known:
            gate = f"{_INITIAL} is forbidden for watch unless the WatchList feature gate is enabled"
            causes.append(_forbidden(_INITIAL, gate))
    if match:
        if not initial:
            causes.append(_forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless {_INITIAL} is provided"))
        if match != "NotOlderThan":
            causes.append(_unsupported(match, '"NotOlderThan"'))
    if query.get("continue"):
        causes.append(_forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided"))
    return causes


def _forbidden(field: str, text: str) -> tuple[str, str, str]:
    return (_FORBIDDEN, f"Forbidden: {text}", field)


def _unsupported(value: str, supported: str) -> tuple[str, str, str]:
    return ("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {supported}', _MATCH)


def _fields(text: str) -> FieldSelector:
    try:
        return FieldSelector.parse(text)
    except MalformedSelector:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'") from None


def _check_fields(served: ServedType, fields: FieldSelector) -> None:
    for requirement in fields:
        name = ".".join(requirement.path)
        if name not in served.fields:
            if served.fields == ("metadata.name", "metadata.namespace") and not served.custom:
                raise bad_request(f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"')
            raise bad_request(f"field label not supported: {name}")


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def _flag(query: Mapping[str, str], name: str) -> bool:
    """A boolean as apimachinery reads one: everything but "false" and "0" is true."""
    return name in query and query[name].lower() not in {"false", "0"}

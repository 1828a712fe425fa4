"""The page of errors agrees with itself: tree, classes and table."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import federator
from federator import errors
from federator.errors import ERRORS, FederatorError, InvalidInput, LedgerError, Outcome, outcome

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def _page() -> list[list[str]]:
    """Cells of each row of the page's table, without the header."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def _tree() -> dict[str, str]:
    """Class name → name of its base, as the docstring draws them."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        drawn = re.match(r"(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:\s{2,}.*)?$", line)
        if not drawn or (not drawn["lead"] and drawn["name"] != "FederatorError"):
            continue
        depth = len(drawn["lead"]) // 4
        del path[depth:]
        if path:
            parents[drawn["name"]] = path[-1]
        path.append(drawn["name"])
    return parents


def _subclasses(base: type[FederatorError]) -> Iterator[type[FederatorError]]:
    for subclass in base.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield subclass
            yield from _subclasses(subclass)


def test_the_docstring_draws_every_class_under_its_base() -> None:
    assert _tree() == {subclass.__name__: subclass.__bases__[0].__name__ for subclass in _subclasses(FederatorError)}


def test_the_table_has_every_class() -> None:
    assert set(ERRORS) == {FederatorError, *_subclasses(FederatorError)}


def test_the_page_for_users_is_the_table() -> None:
    listed = [tuple(cell.strip("`") for cell in (row[0], row[1], *row[3:6])) for row in _page()]
    assert listed == [
        (error.reason, error.__name__, into.grpc, str(into.http), str(into.exit)) for error, into in ERRORS.items()
    ]


def test_the_page_says_of_every_error_when_it_comes_and_what_to_do() -> None:
    assert not [row[0] for row in _page() if len(row) != 7 or not row[2] or not row[6]]


def test_no_error_of_ours_stands_outside_the_table() -> None:
    def subclasses(base: type[FederatorError]) -> Iterator[type[FederatorError]]:
        for subclass in base.__subclasses__():
            yield subclass
            yield from subclasses(subclass)

    for module in pkgutil.walk_packages(federator.__path__, f"{federator.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {error for error in subclasses(FederatorError) if error.__module__.split(".")[0] == federator.__name__}
    assert ours == set(ERRORS) - {FederatorError}


def test_reasons_are_unique_and_upper_snake() -> None:
    reasons = [error.reason for error in ERRORS]
    assert len(set(reasons)) == len(reasons)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*[A-Z0-9]", reason) for reason in reasons)


@pytest.mark.parametrize("listed", ERRORS.values(), ids=[error.__name__ for error in ERRORS])
def test_outcomes_are_real_statuses(listed: Outcome) -> None:
    assert grpc.StatusCode[listed.grpc] is not grpc.StatusCode.OK
    assert 400 <= listed.http < 600
    assert listed.exit in {1, 2, 3, 4}


def test_every_cursor_error_has_the_exit_code_of_lost_cursors() -> None:
    assert {listed.exit for error, listed in ERRORS.items() if error.__name__.startswith("Cursor")} == {4}


def test_a_class_outside_the_table_takes_its_nearest_base() -> None:
    class Special(LedgerError):
        reason = "SPECIAL"

    assert outcome(Special()) == ERRORS[LedgerError]


def test_metadata_has_every_variable_of_the_message_as_text() -> None:
    error = InvalidInput("selection.name", ("a", 1), "one name")
    assert error.metadata() == {"field": "selection.name", "given": "a,1", "allowed": "one name"}
    assert str(error) == "selection.name: 'a,1' is not allowed; allowed: one name"
    without = errors.KubeStatusError(410, "Expired", "too old", retry_after=None)
    assert "retry_after" not in without.metadata()
    assert errors.CursorForeign(b"\xff" * 99).metadata() == {"cursor": "\\xff" * 64}


def test_expired_and_too_large_resource_versions_are_told_in_all_dialects() -> None:
    def status(code: int, reason: str, message: str = "", *causes: str) -> errors.KubeStatusError:
        return errors.KubeStatusError(code, reason, message, causes=causes)

    assert status(410, "Expired").is_expired
    assert status(410, "Gone").is_expired
    assert status(410, "").is_expired
    assert not status(410, "Timeout").is_expired
    assert not status(404, "NotFound").is_expired
    assert status(504, "Timeout", "x", "ResourceVersionTooLarge").is_too_large_resource_version
    assert status(504, "", "Too large resource version: 5, current: 4").is_too_large_resource_version
    assert status(500, "Timeout", "Too large resource version: 5").is_too_large_resource_version
    assert not status(504, "Timeout", "slow").is_too_large_resource_version

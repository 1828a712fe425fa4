from __future__ import annotations

import pytest

from federator.cli.output.table import Table, printable_cell


def test_columns_are_three_spaces_apart_and_lines_have_no_tail() -> None:
    table = Table(["NAME", "UP", "AGE"])
    assert table.text([["a-long-name", "1", "5d"], ["b", "12", "<unknown>"]]) == (
        "NAME          UP    AGE\n"
        "a-long-name   1     5d\n"
        "b             12    <unknown>\n"
    )  # fmt: skip


def test_the_header_is_written_once_and_widths_only_grow() -> None:
    table = Table(["NAME", "AGE"])
    assert table.text([]) == ""
    assert table.text([["long-name", "5d"]]) == "NAME        AGE\nlong-name   5d\n"
    assert table.text([["a", "5d"]]) == "a           5d\n"
    table.repeat_header()
    assert table.text([["a", "5d"]]) == "NAME        AGE\na           5d\n"


def test_without_header() -> None:
    assert Table(["NAME", "AGE"], show_header=False).text([["a", "5d"]]) == "a     5d\n"


@pytest.mark.parametrize(
    ("cell", "printed"),
    [("", "<none>"), ("a\nb", "a..."), ("a\r", "a..."), ("\x1b[31mred", "^[[31mred"), ("a\tb", "a b")],
)
def test_cells_keep_to_their_row(cell: str, printed: str) -> None:
    assert printable_cell(cell) == printed

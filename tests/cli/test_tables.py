"""Tables: at any width, piped or not, every value is in the output."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ipex_lookahead.cli.tables import fact_lines, markdown_lines, print_facts, print_table, table_lines, terminal_width

WORD = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
CELL = st.lists(WORD, min_size=1, max_size=3).map(" ".join) | st.sampled_from(["1.25x", "", "-", "12/12", "3 suffix"])


@st.composite
def tables(draw):
    count = draw(st.integers(1, 12))
    headings = draw(st.lists(WORD, min_size=count, max_size=count))
    rows = draw(st.lists(st.lists(CELL, min_size=count, max_size=count), max_size=6))
    return headings, rows, draw(st.integers(1, count))


def flat(lines) -> str:
    return " ".join(" ".join(lines).split())


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(40, 200))
def test_every_value_is_in_the_output_and_lines_fit(table, width):
    headings, rows, keys = table
    lines = table_lines(headings, rows, width, keys=keys)
    for text in (*headings, *(cell for row in rows for cell in row)):
        assert " ".join(text.split()) in flat(lines)
    widest = max((cell_len(word) for row in [headings, *rows] for cell in row for word in cell.split()), default=0)
    assert max(map(cell_len, lines)) <= max(width, widest + 2)


@settings(max_examples=100, deadline=None)
@given(tables(), st.integers(40, 120))
def test_markdown_holds_every_value_too(table, width):
    headings, rows, _ = table
    said = flat(markdown_lines(headings, rows, width))
    for cell in (cell for row in rows for cell in row):
        assert cell.replace("|", "\\|") in said


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WORD, CELL), min_size=1, max_size=6), st.integers(40, 120))
def test_facts_hold_every_value(facts, width):
    said = flat(fact_lines(facts, width))
    for label, value in facts:
        assert f"{label} {value}".strip() in said


HEADINGS = ("name", "tok/s", "prompt\ntok/s", "identical")
ROWS = [("plain", "5.1", 120, "-"), ("lookahead 3", "12.9", 118, "12/12")]


def test_a_table_that_fits():
    assert table_lines(HEADINGS, ROWS, 80, title="a model", caption="a note") == [
        "a model",
        "                    prompt",
        "name         tok/s   tok/s  identical",
        "plain          5.1     120          -",
        "lookahead 3   12.9     118      12/12",
        "a note",
    ]


def test_the_gap_narrows_before_columns_are_stacked():
    assert table_lines(HEADINGS, ROWS, 35)[1] == "name        tok/s  tok/s identical"


def test_stacked_below_the_names():
    assert table_lines(HEADINGS, ROWS, 28) == [
        "              prompt".replace("              ", "                    "),
        "name         tok/s   tok/s",
        "plain          5.1     120",
        "lookahead 3   12.9     118",
        "",
        "name         identical",
        "plain                -",
        "lookahead 3      12/12",
    ]


def test_row_by_row_where_not_even_one_column_fits():
    assert table_lines(("file", "state"), [("a" * 30, "b" * 30), ("c", "d")], 40) == [
        "file   " + "a" * 30,
        "state  " + "b" * 30,
        "",
        "file   c",
        "state  d",
    ]


def test_a_long_fact_goes_on_below_itself():
    assert fact_lines([("cost", "one two three four"), ("path", "/" + "x" * 40)], 20) == [
        "cost  one two three",
        "      four",
        "path",
        "  /" + "x" * 40,
    ]


def test_markdown_becomes_a_list_where_it_is_narrow():
    assert markdown_lines(("kernel", "ms"), [("native", "1.5")], 40) == [
        "| kernel | ms  |",
        "| ------ | --- |",
        "| native | 1.5 |",
    ]
    assert markdown_lines(("kernel", "milliseconds"), [("native sym_int4", "1.5, 2.5")], 30) == [
        "- native sym_int4;",
        "  milliseconds: 1.5, 2.5",
    ]


def test_what_could_steer_a_terminal_is_written_out():
    assert table_lines(("name",), [("a\x1b[2J\nb",)], 80)[1] == r"a\x1b[2J\nb"


def test_a_row_of_another_length_is_a_fault():
    with pytest.raises(ValueError, match="2 cells"):
        table_lines(("a",), [("1", "2")], 80)


def test_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "53")
    assert terminal_width() == 53
    monkeypatch.delenv("COLUMNS")
    assert terminal_width() == 80, "capsys is no terminal"
    print_table(("a", "b"), [("x" * 70, "y" * 70)])
    assert capsys.readouterr().out == "a  " + "x" * 70 + "\nb  " + "y" * 70 + "\n"


def test_facts_in_a_pipe_are_lines(capsys, monkeypatch):
    """A command in a hint can be cut out and run."""
    monkeypatch.delenv("COLUMNS", raising=False)
    print_facts([("what to do", "word " * 40), ("b", 1)])
    assert capsys.readouterr().out == f"what to do  {('word ' * 40).strip()}\nb           1\n"

"""Lines that end between words, whatever pieces the text comes in."""

from __future__ import annotations

import random
import textwrap

import click
import pytest

from ipex_lookahead.cli.wrapping import WordWrap

PROSE = "The sky is blue because air scatters short waves more than long ones, which is why sunsets are red. " * 3


def wrapped(text, width, pieces=None, paint=str):
    out: list[str] = []
    wrap = WordWrap(out.append, lambda: width)
    for piece in pieces if pieces is not None else [text]:
        wrap.put(piece, paint)
    wrap.end()
    return "".join(out)


@pytest.mark.parametrize("width", [1, 5, 20, 79, 1000])
def test_prose_is_broken_as_by_textwrap(width):
    expected = textwrap.wrap(PROSE, width, break_long_words=False, break_on_hyphens=False)
    assert wrapped(PROSE, width).split("\n") == expected


@pytest.mark.parametrize("seed", range(8))
def test_pieces_do_not_matter(seed):
    rng = random.Random(seed)
    text = PROSE + "\n\n  - one\n  - two, 中文字符 and more\n```py\nx = 'a long line of code that stays'\n```\n" + PROSE
    cuts = sorted({0, len(text), *rng.sample(range(len(text)), 60)})
    pieces = [text[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    assert wrapped(text, 24, pieces) == wrapped(text, 24)
    assert wrapped(text, 24).replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_indents_and_empty_lines_stay():
    assert wrapped("a\n\n  b c\n\td\n", 10) == "a\n\n  b c\n\td\n"
    assert wrapped("  aaa bbb ccc", 9) == "  aaa bbb\nccc"


def test_code_between_fences_is_left_to_the_terminal():
    code = "```python\nvalue = one_name + another_name + a_third_name\n```\n"
    assert wrapped(code + "one two three four", 12) == code + "one two\nthree four"


def test_words_are_written_when_they_are_whole():
    out: list[str] = []
    wrap = WordWrap(out.append, lambda: 10)
    wrap.put("Hel")
    assert out == []
    wrap.put("lo wor")
    assert "".join(out) == "Hello"
    wrap.put("ld")
    wrap.end()
    assert "".join(out) == "Hello\nworld"


def test_wide_signs_are_words():
    assert wrapped("中文字符没有空格", 6) == "中文字\n符没有\n空格"


def test_colours_take_no_columns():
    pieces, painted = ["aaa b", "bb ", "ccc"], lambda text: click.style(text, fg="green")
    coloured = wrapped("", 7, pieces, painted)
    assert click.unstyle(coloured) == "aaa bbb\nccc"
    assert coloured.count("\x1b[32m") == 4


def test_a_line_of_statistics_is_broken_between_words(monkeypatch, capsys):
    from ipex_lookahead.cli import tables
    from ipex_lookahead.cli.tables import print_line

    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(tables, "is_terminal", lambda stream: True)
    print_line("128 tokens · 45.1 tok/s · 48% drafted")
    print_line("  short, indented")
    monkeypatch.setattr(tables, "is_terminal", lambda stream: False)
    print_line("piped lines are not broken, however long they are " * 3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["128 tokens · 45.1", "tok/s · 48% drafted", "  short, indented"]
    assert len(lines) == 4

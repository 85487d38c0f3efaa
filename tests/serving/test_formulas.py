"""Formulas in Markdown: what is one, what stays text, and that Markdown leaves their contents alone."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from ipex_lookahead.serving import formulas
from ipex_lookahead.serving.markdown import nodes
from tests.serving.test_markdown import said, tags, walk


def found(text: str) -> list[str]:
    """The formulas of a text."""
    return [node["children"][0] for node, _ in walk(nodes(text)) if isinstance(node, dict) and node["tag"] == "math"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"So \(x_1 * y_1 * z\) and \[a\_b\].", [r"\(x_1 * y_1 * z\)", r"\[a\_b\]"]),
        ("$x$, ($y_1$) and **$z$**, $w$-axis, $1$.", ["$x$", "$y_1$", "$z$", "$w$", "$1$"]),
        ("Both $$a$$ and\n$$\nb\n$$", ["$$a$$", "$$\nb\n$$"]),
        (r"$a \$ b$ \(c \\) d\)", [r"$a \$ b$", r"\(c \\) d\)"]),
        (r"\[ a \\[1em] b \]", [r"\[ a \\[1em] b \]"]),
        ("# $t$\n\n> $q$\n\n|a|\n|-|\n|$c$|\n", ["$t$", "$q$", "$c$"]),
        ("1. One\n   \\[\n   x\n   \\]\n2. Two $y$", ["\\[\nx\n\\]", "$y$"]),
        ("$\\text{<b>}$", ["$\\text{<b>}$"]),
    ],
)
def test_formulas_keep_what_was_written(text, wanted):
    assert found(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "From $5-$10, US$6, $7/month or $8.",
        "Set $HOME:$PATH or ${HOME} and $USER here.",
        "$ x$ and $x $",
        "An open $x and \\(y and \\[z and $$w",
        "$$$$ and \\(\\) and \\[ \\]",
        "\\$x\\$ \\\\(y\\\\)",
        "`$x$` and ``\\(y\\)``",
        "```\n$$\nx\n$$\n```",
        "    $$x$$",
        "$x\n\ny$",
        "\\(" + "x" * formulas.MAX_CHARACTERS + "\\)",
    ],
)
def test_other_text_stays_text(text):
    assert found(text) == []


def test_lines_of_a_displayed_formula_are_no_markdown():
    text = "Thus:\n\\[\na\n===\n- b\n# c\n> d\n\\]\nso."
    shown = nodes(text)
    assert tags(shown) == ["p", "p", "math", "p"]
    assert [node["line"] for node in shown] == [0, 1, 8]
    assert said(shown) == "Thus:" + text[6:-4] + "so."


def test_an_unfinished_formula_is_text_until_its_end_is_there():
    text = "Then\n$$\nx_1 = \\frac{a}{b}\n- c\n$$"
    for cut in range(len(text)):
        shown = nodes(text[:cut])
        assert "math" not in tags(shown)
        assert tags(shown) in ([], ["p"], ["p", "p"])
    assert found(text) == [text[5:]]


@pytest.mark.parametrize("end", ["\n\n- b\n$$", "\n```\n$$\n```", "\n"])
def test_a_formula_that_never_ends_takes_no_more_than_its_lines(end):
    assert found("$$\na" + end) == []
    assert nodes("$$\na" + end)[0]["children"] == ["$$\na"]


def test_the_page_has_the_same_limit():
    script: Any = (files("ipex_lookahead.serving") / "page" / "math.js").read_text()
    assert int(re.search(r"CHARACTERS = (\d+)", script)[1]) == formulas.MAX_CHARACTERS

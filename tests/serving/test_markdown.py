"""Markdown as nodes: what is hostile stays text, what is huge stays small, and what streams settles."""

from __future__ import annotations

import itertools
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ipex_lookahead.serving import markdown
from ipex_lookahead.serving.markdown import CLASSES, LANGUAGES, SCHEMES, TAGS, nodes
from tests.gates import cases

PAGE = files("ipex_lookahead.serving") / "page"
TABLE = "|g|h|\n|:-|-:|\n|1|2|\n"
FIELDS = {"tag", "children", "class", "href", "language", "start", "line"}
PIECES = ["a ", "*", "**", "`", "```python\n", "```\n", "\n", "\n\n", "> ", "- ", "1. ", "    "]
PIECES += ["| a | b |\n", "|-|:-:|\n"]
PIECES += ["# ", "---\n", "===\n", "<b>", "](", "[", "![", ")", "http://x.y", "javascript:alert(1)", "~~", "\\", "&lt;",
          "\r\n", "\t", "é", "x = 'y'", "$", "$$", "\\(", "\\)", "\\[", "\\]", "x_1"]  # fmt: skip


def walk(found: list[Any], depth: int = 1):
    for node in found:
        yield node, depth
        if isinstance(node, dict):
            yield from walk(node["children"], depth + 1)


def said(found: list[Any]) -> str:
    return "".join(node for node, _ in walk(found) if isinstance(node, str))


def tags(found: list[Any]) -> list[str]:
    return [node["tag"] for node, _ in walk(found) if isinstance(node, dict)]


def harmless(found: list[Any]) -> None:
    """Holds for every tree: only what the page knows, and no address but of three schemes."""
    for node, depth in walk(found):
        assert depth <= markdown.DEPTH + 3
        if isinstance(node, str):
            continue
        assert node["tag"] in TAGS
        assert node.keys() <= FIELDS
        assert ("href" in node) == (node["tag"] == "a")
        assert node.get("href", "http:").partition(":")[0].lower() in SCHEMES
        assert re.fullmatch(r"code-[a-z]+|align-(left|center|right)", node.get("class", "code-name"))
    json.dumps(found)


def test_what_there_is():
    text = "# Title\n\nA *b* **c** `d` ~~e~~\n[f](https://x.y/z)\n\n3. one\n4. two\n   - in\n\n> said\n\n---\n\n"
    text += TABLE
    title, first, numbered, quote, line, table = nodes(text)
    assert title == {"tag": "h3", "children": ["Title"], "line": 0}
    assert first["children"] == [
        "A ",
        {"tag": "em", "children": ["b"]},
        " ",
        {"tag": "strong", "children": ["c"]},
        " ",
        {"tag": "code", "children": ["d"]},
        " ",
        {"tag": "del", "children": ["e"]},
        "\n",
        {"tag": "a", "children": ["f"], "href": "https://x.y/z"},
    ]
    assert (numbered["tag"], numbered["start"], numbered["line"]) == ("ol", 3, 5)
    assert tags(numbered["children"]) == ["li", "li", "ul", "li"]
    assert tags([quote, line]) == ["blockquote", "p", "hr"]
    assert tags([table]) == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    aligned = [n["class"] for n, _ in walk([table]) if isinstance(n, dict) and "class" in n]
    assert aligned == ["align-left", "align-right"] * 2


def test_code_has_colours_and_keeps_every_character():
    code = "\n\ndef f(x):\n\treturn 'a' + 1  # why\n"
    (block,) = nodes(f"```python title\n{code}```")
    assert (block["tag"], block["language"], said([block])) == ("pre", "python", code)
    classes = {n["class"]: said([n]).strip() for n, _ in walk([block]) if isinstance(n, dict) and n["tag"] == "span"}
    assert classes == {
        "code-keyword": "return",
        "code-name": "f",
        "code-string": "'a'",
        "code-number": "1",
        "code-comment": "# why",
    }


@pytest.mark.parametrize("language", ["", "no-such-language", "brainfuck"])
def test_other_code_has_none(language):
    (block,) = nodes(f"```{language}\ndef f(): pass\n```")
    assert block["children"] == ["def f(): pass\n"]


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_language_keeps_what_was_written(language):
    code = "def f(x): return 'a\\n' /* b */ <c d=\"e\">{{ f }}</c> # g\n\n\n  $x = [1, 2.5e3];\n- y: z\n+ w\n\x00"
    (block,) = nodes(f"~~~{language}\n{code}\n~~~")
    assert said([block]) == code.replace("\x00", "�") + "\n"
    harmless([block])


def test_classes_are_those_of_the_style():
    style = (PAGE / "answer.css").read_text()
    assert set(re.findall(r"\.code-(\w+)", style)) == set(CLASSES.values())


def test_the_page_knows_the_same_tags():
    script = (PAGE / "markdown.js").read_text()
    assert set(re.search(r'\("([a-z0-9 ]+)"\)\.split', script)[1].split()) == TAGS


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "a <b onclick='x'>b</b> <!-- c --> <?d?>",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt:alert(1))",
        "[a](java\tscript:alert(1))",
        "[a](&#106;avascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "![a](data:image/svg+xml;base64,PHN2Zz4=)",
        "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:x) [d](//x.y/z) [e](/page/page.js) [f](#g)",
        "[a]: javascript:alert(1)\n\n[a] [b][a]",
        "<javascript:alert(1)>",
    ],
)
def test_what_is_hostile_is_text(text):
    found = nodes(text)
    harmless(found)
    assert "a" not in tags(found)
    assert "img" not in json.dumps(tags(found))
    assert "b" not in tags(found)
    for word in re.findall(r"<\w[^>]*>", text):
        assert word in said(found), "it is shown, not run"


@pytest.mark.parametrize("address", ["", "x", "http://[", "javascript:x", "//x.y", "https", "#http:x", "blob:http:x"])
def test_addresses_of_other_kinds_are_none(address):
    assert markdown._link(address, "said") == "said"


def test_pictures_are_links_for_the_page_loads_nothing():
    (block,) = nodes("![a cat](https://x.y/cat.png) ![](javascript:x)")
    assert block["children"][0] == {"tag": "a", "href": "https://x.y/cat.png", "children": ["a cat"]}


@pytest.mark.parametrize(
    "text",
    ["[" * 20_000, "> " * 20_000, "- " * 20_000, "*a **b " * 5_000, "![" * 10_000, "`" * 20_000, "[a](" * 5_000,
     "\n".join("  " * i + "- a" for i in range(200)), "<" * 20_000, "_a__" * 5_000, "|a" * 5_000 + "\n" + "|-" * 5_000,
     "$" * 60_000, "$$\n" * 20_000, "\\(" * 30_000, "- \\[\n" * 10_000, "\\(\\\\)" * 12_000, "$a$" * 20_000,
     "~~" * 10_000, "```python\n" + "(" * 40_000, "**" * 3_000 + "a" + "**" * 3_000],
)  # fmt: skip
def test_what_is_huge_is_bounded(text):
    found = nodes(text)
    harmless(found)
    assert len(json.dumps(found)) < 60 * len(text) + 1000


def test_what_is_further_in_than_is_shown_is_still_said():
    parser = MarkdownIt("commonmark", {"maxNesting": 1_000})
    deep = "> " * 60 + "a *b*"
    found = markdown._Tree(lambda: 0.0).of(parser.parse(deep))
    harmless(found)
    assert said(found) == "a b"


def test_long_code_and_long_lines_have_no_colours():
    short, long = "x = 1\n", "x = 1\n" * (markdown.CODE_CHARACTERS // 6 + 1)
    line = "x" * (markdown.LINE_CHARACTERS + 1)
    for code, coloured in ((short, True), (long, False), (line, False)):
        (block,) = nodes(f"```python\n{code}\n```")
        assert ("span" in tags([block])) is coloured
        assert said([block]) == code + "\n"


def test_colours_end_when_their_time_has_passed():
    ticks = itertools.chain([0.0] * 8, itertools.repeat(markdown.SECONDS + 1))
    code = "x = 1\n" * 100
    (block,) = nodes(f"```python\n{code}```", clock=lambda: next(ticks))
    assert said([block]) == code, "none of it is lost"
    assert 0 < tags([block]).count("span") < 10


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_harmless(text):
    harmless(nodes(text))


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(lambda some: "".join(some).replace("\r\n", "\n")), st.data())
def test_blocks_before_the_last_stay_as_they_are(text, data):
    """The page renders only the last block of what streams: the rest of the text, alone, gives what the whole gives."""
    begun = nodes(text[: data.draw(st.integers(0, len(text)), "cut")])
    whole = nodes(text)
    assert whole[: len(begun) - 1 if begun else 0] == begun[:-1]
    if len(begun) < 2:
        return
    line = begun[-1]["line"]
    rest = nodes("\n".join(text.split("\n")[line:]))
    moved = [{**node, "line": node["line"] + line} for node in rest]
    assert whole[len(begun) - 1 :] == moved

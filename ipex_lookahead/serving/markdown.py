"""Markdown as a tree of nodes that the page builds with createElement: no HTML is made of it anywhere.

A node is a text, or an object with ``tag``, one of ``TAGS``, and ``children``; it may have ``class``, ``href``,
``language`` (of a ``pre``), ``start`` (of an ``ol``) and ``line``, where a block begins, counted from 0. The child of
a ``math`` is LaTeX with its delimiters. What the text writes as HTML stays text; addresses are those of ``SCHEMES``;
pictures become links, for the page loads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String, _TokenType

from ipex_lookahead.serving.formulas import add_formulas

Node = str | dict[str, Any]
TAGS = frozenset(
    "a blockquote br code del em h3 h4 h5 h6 hr li math ol p pre span strong table tbody td th thead tr ul".split()
)
"""The tags there are; headings begin at the third level, below those of the page."""
SCHEMES = frozenset({"http", "https", "mailto"})
NESTING = 40
"""Lists, items and quotes within each other that are read; what is further in is left out."""
DEPTH = 40
"""Nodes within nodes at most; what is further in belongs to the last."""
CODE_CHARACTERS, LINE_CHARACTERS = 50_000, 2_000
"""Longer code, or code with longer lines, is not highlighted: lexers are slow on it."""
SECONDS = 0.5
"""Seconds from the start of a text after which its further code is not highlighted."""
LANGUAGES = frozenset(
    "bash c console cpp csharp css diff docker go haskell html ini java javascript json kotlin lua make perl php"
    " powershell python ruby rust scala splus sql swift tex toml typescript xml yaml".split()
)
"""Lexers that are used, by the first of their aliases; code in other languages is not highlighted."""
CLASSES = {
    Comment: "comment",
    Keyword: "keyword",
    String: "string",
    Number: "number",
    Name.Function: "name",
    Name.Class: "name",
    Name.Tag: "name",
    Name.Builtin: "builtin",
    Name.Decorator: "builtin",
    Name.Attribute: "builtin",
    Operator.Word: "keyword",
    Generic.Deleted: "deleted",
    Generic.Inserted: "inserted",
    Generic.Heading: "name",
    Generic.Subheading: "name",
}
"""Kind of token in code, and all below it -> class, as ``answer.css`` has them with ``code-`` before."""
_SHIFTED = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6", "s": "del"}


def nodes(text: str, clock: Callable[[], float] = time.monotonic) -> list[Node]:
    """A text's blocks, each with its line. Takes time in proportion to the text, which callers bound.

    Args:
        text: Markdown as CommonMark has it, with tables, struck-out text and formulas.
        clock: seconds; ``SECONDS`` are counted by it.
    """
    return _Tree(clock).of(_parser().parse(text))


@cache
def _parser() -> _Parser:
    made = _Parser("commonmark", {"html": False, "maxNesting": NESTING})
    made.enable(["table", "strikethrough"])
    add_formulas(made)
    return made


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # what makes no link stays as it was written
        return _followed(url)


def _followed(address: str) -> bool:
    """Whether an address may become a link."""
    try:
        return urlsplit(address).scheme.lower() in SCHEMES
    except ValueError:  # such as "http://["
        return False


class _Tree:
    """Makes nodes of a parser's tokens, which say where something begins and where it ends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + SECONDS

    def of(self, tokens: list[Token]) -> list[Node]:
        found: list[Node] = []
        open_: list[list[Node]] = [found]
        for token in self._flat(tokens):
            if token.nesting < 0:
                open_.pop()
                continue
            children = open_[-1]
            if token.nesting == 0:
                _append(children, self._leaf(token))
                continue
            node = _opened(token)
            if node is None or len(open_) > DEPTH:
                open_.append(children)
            else:
                children.append(node)
                open_.append(node["children"])
        return found

    @staticmethod
    def _flat(tokens: list[Token]) -> Iterator[Token]:
        for token in tokens:
            if token.type == "inline":
                yield from token.children or ()
            else:
                yield token

    def _leaf(self, token: Token) -> Node:
        if token.type in ("fence", "code_block"):
            return _placed(self._code(token.content, token.info), token)
        if token.type in ("code_inline", "math"):
            return {"tag": token.tag, "children": [token.content]}
        if token.type == "hardbreak":
            return {"tag": "br", "children": []}
        if token.type == "softbreak":
            return "\n"
        if token.type == "hr":
            return _placed({"tag": "hr", "children": []}, token)
        if token.type == "image":
            return _link(str(token.attrs.get("src", "")), token.content or "picture")
        return token.content

    def _code(self, code: str, info: str) -> dict[str, Any]:
        language = info.split()[0][:40] if info.split() else ""
        lexer = _lexer(language.lower())
        node: dict[str, Any] = {"tag": "pre", "children": [code] if code else []}
        if language:
            node["language"] = language
        if lexer is None or len(code) > CODE_CHARACTERS or max(map(len, code.split("\n"))) > LINE_CHARACTERS:
            return node
        children: list[Node] = []
        last, done = "", 0
        for kind, piece in lex(code, lexer):
            if self._clock() > self._end:
                break
            done += len(piece)
            name = _class(kind) if piece.strip() else last  # white space goes with what is before it
            if not children or name != last:
                children.append({"tag": "span", "class": f"code-{name}", "children": []} if name else "")
            _extend(children, piece)
            last = name
        if done < len(code):
            children.append(code[done:])
        node["children"] = children
        return node


def _opened(token: Token) -> dict[str, Any] | None:
    """The node that a token opens; None for one that has no box of its own."""
    if token.hidden:
        return None  # the paragraphs of a tight list
    tag = _SHIFTED.get(token.tag, token.tag)
    if tag not in TAGS:
        return None
    node: dict[str, Any] = {"tag": tag, "children": []}
    if tag == "a":
        node["href"] = str(token.attrs.get("href", ""))
        return node if _followed(node["href"]) else None
    if tag == "ol" and isinstance(token.attrs.get("start"), int):
        node["start"] = token.attrs["start"]
    if tag in ("td", "th") and "style" in token.attrs:
        node["class"] = "align-" + str(token.attrs["style"]).rpartition(":")[2]
    return _placed(node, token)


def _placed(node: dict[str, Any], token: Token) -> dict[str, Any]:
    if token.level == 0 and token.map is not None:
        node["line"] = token.map[0]
    return node


def _link(address: str, said: str) -> Node:
    return {"tag": "a", "href": address, "children": [said]} if _followed(address) else said


def _append(children: list[Node], node: Node) -> None:
    """Texts that follow each other are one."""
    if isinstance(node, str) and children and isinstance(children[-1], str):
        children[-1] += node
    elif node:
        children.append(node)


def _extend(children: list[Node], piece: str) -> None:
    last = children[-1]
    _append(children if isinstance(last, str) else last["children"], piece)


def _class(kind: _TokenType) -> str:
    return next((CLASSES[above] for above in reversed(kind.split()) if above in CLASSES), "")


@cache
def _languages() -> dict[str, str]:
    """Every alias of the languages -> the first of them."""
    known = (aliases for _, aliases, _, _ in get_all_lexers(plugins=False) if aliases and aliases[0] in LANGUAGES)
    return {alias: aliases[0] for aliases in known for alias in aliases}


def _lexer(alias: str) -> Lexer | None:
    language = _languages().get(alias)
    return None if language is None else get_lexer_by_name(language, stripnl=False, ensurenl=False)

r"""Formulas in Markdown: ``\(...\)``, ``$...$``, and displayed ``\[...\]``, ``$$...$$``, as tokens of the type "math".

A formula is recognized before Markdown reads its backslashes, stars and underscores, and once its end is there: until
then it is text. A single ``$`` opens a formula only next to a character other than a space. The next ``$`` has to
close it: after a character other than a space, and not before a letter or digit: "$5 and $10" is text.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

MAX_CHARACTERS = 4000
"""Characters of a formula; a longer one is text. ``math.js`` has the same limit."""
_CLOSINGS = {"$$": "$$", "\\[": "\\]", "$": "$", "\\(": "\\)"}
_DISPLAYED = ("$$", "\\[")
_FENCES = ("```", "~~~")
_MAX_ESCAPED = 32
"""Escaped closings that are passed over, so that a search takes time in proportion to ``MAX_CHARACTERS``."""


def add_formulas(parser: MarkdownIt) -> None:
    """Add the rules for formulas to a parser."""
    parser.inline.ruler.before("escape", "math", _inline)
    ends: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("fence", "math", _block, ends)


def _inline(state: StateInline, silent: bool) -> bool:
    """Read a formula at the current position."""
    begin, source = state.pos, state.src
    opening = source[begin : begin + 2]
    if opening not in _CLOSINGS:
        opening = source[begin]
        if opening != "$":
            return False
    end = _end(source, begin, opening)
    if end < 0:
        return False
    if not silent:
        state.push("math", "math", 0).content = source[begin:end]
    state.pos = end
    return True


def _end(source: str, begin: int, opening: str) -> int:
    """Return the position behind the formula that opens at ``begin``; -1 if there is none."""
    inside = begin + len(opening)
    closing = _CLOSINGS[opening]
    at = _closing(source, inside, closing)
    if at < 0 or not source[inside:at].strip():
        return -1
    end = at + len(closing)
    if opening == "$":
        before, behind = source[begin - 1 : begin], source[end : end + 1]
        if before == "$" or before.isalnum() or behind == "$" or behind.isalnum():
            return -1
        if source[inside].isspace() or source[at - 1].isspace():
            return -1
    return end


def _closing(source: str, begin: int, closing: str, end: int | None = None) -> int:
    """Return the position of the first closing delimiter from ``begin`` on without a backslash before it, or -1."""
    at, last = begin, begin + MAX_CHARACTERS if end is None else end
    for _ in range(_MAX_ESCAPED):
        at = source.find(closing, at, last)
        if at < 0:
            return -1
        backslashes = at - begin - len(source[begin:at].rstrip("\\"))
        if backslashes % 2 == 0:
            return at
        at += 1
    return -1


def _block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read the lines of a displayed formula as a paragraph, so that Markdown takes none of them for a list or heading.

    An opening at the begin of a line begins the paragraph whether or not the formula is complete: what streams must not
    change blocks that are complete. It ends behind the line with the closing delimiter, or before an empty line.
    """
    if state.is_code_block(start):
        return False
    begin = state.bMarks[start] + state.tShift[start]
    opening = state.src[begin : begin + 2]
    if opening not in _DISPLAYED:
        return False
    if silent:
        return True
    line, begin = start, begin + 2
    while _closing(state.src, begin, _CLOSINGS[opening], state.eMarks[line]) < 0:
        line += 1
        if line >= end or state.isEmpty(line) or state.sCount[line] < state.blkIndent:
            break
        begin = state.bMarks[line] + state.tShift[line]
        if state.src.startswith(_FENCES, begin):
            break
    else:
        line += 1
    state.push("paragraph_open", "p", 1).map = [start, line]
    token = state.push("inline", "", 0)
    token.content = state.getLines(start, line, state.blkIndent, False).strip()
    token.map, token.children = [start, line], []
    state.push("paragraph_close", "p", -1)
    state.line = line
    return True

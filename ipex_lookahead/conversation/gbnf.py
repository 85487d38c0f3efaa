"""llama.cpp's GBNF -> llguidance's dialect of Lark.

llguidance reads an answer lexeme by lexeme, and each lexeme takes the longest text that it can. A part of a grammar
without recursion is one lexeme here, which is fast, unless a longer text would hide a shorter one that the grammar
allows as well: then it is taken apart (:mod:`.lexemes`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from ipex_lookahead.conversation.lexemes import ANY, LAST, Kind, Lexemes, Node, Rules, fused
from ipex_lookahead.errors import InputError

_GBNF = re.compile(r"(?m)^[ \t]*[\w-]+[ \t]*::=")
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*(\[[^]\n]*\]|\{[^}\n]*\})?\s*:(?!:=))")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[\w-]+")
_NUMBER = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"!?<(?:\[([0-9]+)\]|[^>\r\n]+)>")
_COUNTS = re.compile(r"\{\s*([0-9]+)\s*(,?)\s*([0-9]*)\s*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
MAX_DEPTH = 100
"""Parentheses, and references from rule to rule, inside each other."""
MAX_REPETITIONS = 1_000_000
Encode = Callable[[str], list[int]]
"""A text's token ids, in which control tokens are tokens."""


def is_lark(text: str) -> bool:
    """Return True for a grammar in Lark, which has a rule ``start: ...``, and no rule of GBNF, ``name ::= ...``."""
    return _GBNF.search(text) is None and _LARK.search(text) is not None


def lark_of(text: str, encode: Encode, ends: Collection[int]) -> str:
    """Convert a grammar from GBNF to Lark.

    Args:
        text: the grammar.
        encode: of the model's tokenizer, for ``<token>``.
        ends: ids that end an answer, which ``!<token>`` leaves out.

    Raises:
        InputError: the text is not valid GBNF; the message names the line and the column.
    """
    rules = _Parser(text, encode).rules()
    try:
        return _Writer(fused(rules, "root"), ends).text()
    except RecursionError:
        raise InputError("the grammar cannot be read: its rules and parentheses are nested too deeply") from None


class _Parser:
    """Reads a grammar as llama.cpp does, with the rule's own name for what is wrong with it."""

    def __init__(self, text: str, encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._at = 0
        self._depth = 0
        self._references: list[tuple[str, int]] = []

    def rules(self) -> Rules:
        """Return each rule by its name; the last one of a name counts."""
        found: Rules = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._taken(_NAME, "the name of a rule; GBNF has `root ::= ...`, Lark `start: ...`")[0]
            self._skip(_SPACE)
            self._sign("::=", f"::= behind {name!r}")
            self._skip(_LINES)
            found[name] = self._alternatives(nested=False)
            if self._at < len(self._text) and self._next() not in "\r\n":
                raise self._error("expected a symbol, | or the end of the line")
            self._skip(_LINES)
        for name, at in [("root", 0), *self._references]:
            if name not in found:
                raise self._error(f"there is no rule {name!r}", at)
        return found

    def _alternatives(self, *, nested: bool) -> Node:
        found = [self._sequence(nested=nested)]
        while True:
            behind = _LINES.match(self._text, self._at)
            if behind is not None and self._text.startswith("|", behind.end()):  # at the start of a line too
                self._at = behind.end()
            if self._next() != "|":
                return found[0] if len(found) == 1 else Node(Kind.ALT, found)
            self._at += 1
            self._skip(_LINES)
            found.append(self._sequence(nested=nested))

    def _sequence(self, *, nested: bool) -> Node:
        space = _LINES if nested else _SPACE
        found: list[Node] = []
        while (item := self._item()) is not None:
            self._skip(space)
            stacked = 0
            while (counts := self._counts()) is not None:
                stacked += 1
                if stacked > MAX_DEPTH:
                    raise self._error(f"at most {MAX_DEPTH} repetitions may be nested")
                item = Node(Kind.REPEAT, [item], low=counts[0], high=counts[1])
                self._skip(space)
            found.append(item)
        if self._next() in tuple("*+?{"):
            raise self._error(f"expected something to repeat before {self._next()!r}")
        return found[0] if len(found) == 1 else Node(Kind.SEQ, found)

    def _item(self) -> Node | None:
        """Return a literal, a class, a token, a group or the name of a rule; None where something else comes."""
        sign = self._next()
        if sign == '"':
            self._at += 1
            codes = list(self._codes('"'))
            return Node(Kind.SEQ, [Node(Kind.CHARS, ranges=((code, code),)) for code in codes])
        if sign == "[":
            return self._class()
        if sign == ".":
            self._at += 1
            return Node(Kind.CHARS, ranges=ANY)
        if sign == "(":
            return self._group()
        if sign in ("<", "!"):
            return self._token()
        if (name := _NAME.match(self._text, self._at)) is None:
            return None
        self._references.append((name[0], self._at))
        self._at = name.end()
        return Node(Kind.RULE, name=name[0])

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} parentheses may be nested")
        self._at += 1
        self._skip(_LINES)
        inner = self._alternatives(nested=True)
        self._skip(_LINES)
        self._sign(")", "a symbol, | or )")
        self._depth -= 1
        return inner

    def _class(self) -> Node:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while self._next() != "]":
            first = last = self._code()
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._code()
            ranges.append((first, last))
        self._at += 1
        if not ranges:  # llama.cpp takes [] and [^] for no text at all
            return Node(Kind.SEQ, [])
        ordered = sorted((first, last) for first, last in ranges if first <= last)
        return Node(Kind.CHARS, ranges=tuple(_inverted(ordered)) if negated else tuple(ordered))

    def _codes(self, end: str) -> Iterator[int]:
        while self._next() != end:
            yield self._code()
        self._at += 1

    def _code(self) -> int:
        """Return the code point of a character or an escape."""
        start, sign = self._at, self._next()
        if not sign:
            raise self._error('expected the end of a text, ", or of a class, ]')
        self._at += 1
        if sign != "\\":
            return ord(sign)
        letter = self._next()
        self._at += 1
        if letter in _ESCAPES:
            return ord(_ESCAPES[letter])
        count = _HEX_DIGITS.get(letter)
        if count is None:
            raise self._error(
                'expected an escape of GBNF: \\n \\r \\t \\\\ \\" \\[ \\] \\- \\xXX \\uXXXX \\UXXXXXXXX', start
            )
        digits = self._text[self._at : self._at + count]
        if re.fullmatch(f"[0-9a-fA-F]{{{count}}}", digits) is None:
            raise self._error(f"expected {count} hexadecimal digits after \\{letter}", start)
        self._at += count
        code = int(digits, 16)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise self._error("it is not a Unicode character", start)
        return code

    def _token(self) -> Node:
        start = self._at
        found = self._taken(_TOKEN, "a token, <[id]> or <its text>, perhaps with ! before it")
        ids = [int(found[1][:12])] if found[1] is not None else self._encode(found[0].removeprefix("!"))
        if len(ids) != 1:
            raise self._error("it is not one token of this model", start)
        return Node(Kind.TOKEN, token=ids[0], negated=found[0].startswith("!"))

    def _counts(self) -> tuple[int, int | None] | None:
        """Return the least and the most of a repetition, None for no most; None where no repetition comes."""
        start, sign = self._at, self._next()
        if sign in ("*", "+", "?"):
            self._at += 1
            return int(sign == "+"), 1 if sign == "?" else None
        if sign != "{":
            return None
        found = self._taken(_COUNTS, "a repetition: {m}, {m,} or {m,n}")
        if not found[2] and found[3]:
            raise self._error("expected a repetition: {m}, {m,} or {m,n}", start)
        low = int(found[1][:12])
        high = int(found[3][:12]) if found[3] else None if found[2] else low
        if max(low, high or 0) > MAX_REPETITIONS or (high is not None and high < low):
            raise self._error(f"expected a repetition of {{m,n}} with m <= n <= {MAX_REPETITIONS:,}", start)
        return low, high

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _sign(self, sign: str, wanted: str) -> None:
        if not self._text.startswith(sign, self._at):
            raise self._error(f"expected {wanted}")
        self._at += len(sign)

    def _taken(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {wanted}")
        self._at = found.end()
        return found

    def _error(self, problem: str, at: int | None = None) -> InputError:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        seen = "".join(self._text[at : at + 20].splitlines()[:1]).strip()
        got = f"'{seen}'" if seen else "the line's end"
        return InputError(f"the grammar cannot be read: line {line}, column {column}, at {got}: {problem}")


def _inverted(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What ranges in order leave out."""
    begin = 0
    for first, last in ranges:
        if first > begin:
            yield begin, first - 1
        begin = max(begin, last + 1)
    if begin <= LAST:
        yield begin, LAST


class _Writer:
    """Writes rules in Lark: TERMINALS for what is one lexeme, rules for what is not."""

    def __init__(self, rules: Rules, ends: Collection[int]) -> None:
        self._rules = rules
        self._ends = ends
        self._lexemes = Lexemes(rules, "root")
        self._names: dict[tuple[str, bool], str] = {}
        self._lines: list[str] = []
        self._left: list[tuple[str, str, bool]] = []

    def text(self) -> str:
        """Return the whole grammar."""
        start = f"start: {self._rule('root', whole=False)}"
        while self._left:
            made, name, whole = self._left.pop()
            self._lines.append(f"{made}: {self._written(self._rules[name], whole=whole)}")
        return "\n".join([start, *self._lines, ""])

    def _rule(self, name: str, *, whole: bool) -> str:
        """Return the name in Lark of a rule, which is written later where it is new.

        ``whole``: inside of a lexeme.
        """
        key = (f"rule {name}", whole)
        if key not in self._names:
            made = self._names[key] = f"{'T' if whole else 'r'}{len(self._names)}"
            self._left.append((made, name, whole))
        return self._names[key]

    def _written(self, node: Node, *, whole: bool) -> str:
        if not whole and node in self._lexemes:
            return self._lexeme(node)
        if node.kind is Kind.CHARS:
            return _chars(node.ranges)
        if node.kind is Kind.RULE:
            return self._rule(node.name, whole=whole)
        if node.kind is Kind.TOKEN:
            left_out = ",".join(map(str, sorted({node.token, *self._ends})))
            return f"<[^{left_out}]>" if node.negated else f"<[{node.token}]>"
        parts = [self._written(one, whole=whole) for one in node.parts]
        if node.kind is Kind.ALT:
            return f"({' | '.join(parts)})"
        if node.kind is Kind.SEQ:
            literal = _literal(node)
            return literal if whole and literal else f"({' '.join(parts)})" if parts else '""'
        if node.high == 0:
            return '""'
        most = "" if node.high is None else node.high
        return f"({parts[0]}){{{node.low},{most}}}"

    def _lexeme(self, node: Node) -> str:
        """Return the name of a lexeme, which is never empty, as it may be left out instead."""
        written, nullable = self._written(node, whole=True), self._lexemes.is_nullable(node)
        key = (written, True)
        if key not in self._names:
            self._names[key] = f"T{len(self._names)}"
            self._lines.append(f"{self._names[key]}: {written}{f' & {_SOME}' if nullable else ''}")
        return f"({self._names[key]})?" if nullable else self._names[key]


_SOME = "/(?s:.)+/"
_NO_CHARACTER = r"^\s\S"
"""A class of nothing. The library takes one of all ranges, negated, for U+D7FF."""


def _literal(node: Node) -> str:
    """Return a sequence of single characters as a text in quotes; "" for another one."""
    codes = [one.ranges[0][0] for one in node.parts if one.kind is Kind.CHARS and _is_single(one.ranges)]
    return json.dumps("".join(map(chr, codes))) if codes and len(codes) == len(node.parts) else ""


def _is_single(ranges: Sequence[tuple[int, int]]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _chars(ranges: Sequence[tuple[int, int]]) -> str:
    """Return a class as a pattern; of one that holds nothing, a pattern that matches nothing."""
    if _is_single(ranges):
        return json.dumps(chr(ranges[0][0]))
    inner = "".join(rf"\u{{{first:X}}}-\u{{{last:X}}}" for first, last in ranges)
    return f"/[{inner or _NO_CHARACTER}]/"

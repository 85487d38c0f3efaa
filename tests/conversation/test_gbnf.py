"""GBNF means in the server what it means in llama.cpp; what is wrong in it is named by its place."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.gbnf import is_lark, lark_of
from ipex_lookahead.errors import InputError
from tests.conversation.calls.bytes_vocabulary import END, FIRST, MARKS, ids_of, matcher_of
from tests.gates import cases

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


def encode(text: str) -> list[int]:
    return ids_of(text, tokens=True)


def converted(text: str) -> str:
    return lark_of(text, encode, [END])


def takes(grammar: str, *texts: str) -> list[bool]:
    matcher = matcher_of(converted(grammar))
    found = []
    for text in texts:
        one, ids = matcher.deep_copy(), ids_of(text, tokens=True)
        found.append(one.try_consume_tokens(ids) == len(ids) and one.is_accepting())
    return found


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "\u00e9\xe9\U0001F600"', ["éé😀"], ["é"]),
        (r'root ::= "\n\r\t\\\"\[\]\-"', ['\n\r\t\\"[]-'], []),
        ('root ::= "a\n#b"', ["a\n#b"], []),
        (r"root ::= [\[\]\\\-\x41-\x43\u00e9\U0001F600-\U0001F64F]", [*"[]\\-ABCé😁"], ["a", "\n"]),
        ("root ::= [a&&b]{3}", ["a&b", "&&&"], ["aab ", "ab"]),
        ("root ::= [ab~~c||d]+", ["ab~c|d", "||"], ["-"]),
        ("root ::= [+--]+", ["+,-"], ["."]),
        ("root ::= [a--b]", ["b"], ["a", "-"]),
        ("root ::= [a-c-]+", ["a-c"], ["d"]),
        ("root ::= [--/]+", ["-./"], [","]),
        ("root ::= [a^]+", ["^a"], ["b"]),
        ("root ::= [^^]", ["a", "\n"], ["^"]),
        (r"root ::= [^\]\n]", ["a", "["], ["]", "\n"]),
        ("root ::= [[:alpha:]", ["[", ":", "a"], ["b", "]"]),
        ("root ::= [z-a] | [c]", ["c"], ["z", "a"]),
        ("root ::= [^\\x00-\\U0010FFFF]? \"a\"", ["a"], ["ba"]),
        ("root ::= [] \"a\" [^]", ["a"], ["", "b"]),
        ("root ::= .", ["a", "\n", "😀"], ["", "ab"]),
        ("root ::= [.*+?(){}|/#$]+", [".*+?(){}|/#$"], ["a"]),
        ('root ::= "/.*+?(){}|[]#$^&~%@<>"', ["/.*+?(){}|[]#$^&~%@<>"], []),
        ('root ::= start\nstart ::= "x"', ["x"], []),
        ('root ::= import-2 _x declare\nimport-2 ::= "1"\n_x ::= "2"\ndeclare ::= "3"', ["123"], []),
        ('root ::= A-b a_b Ab 1\nA-b ::= "1"\na_b ::= "2"\nAb ::= "3"\n1 ::= "4"', ["1234"], []),
        ('root ::= "a" {2}', ["aa"], ["a", "aaa"]),
        ('root ::= "ab"{2,}', ["abab", "ababab"], ["ab"]),
        ('root ::= "a"{ 0 , 2 }', ["", "aa"], ["aaa"]),
        ('root ::= "a"{0} "b" "c"{0,0}', ["b"], ["ab", "bc"]),
        ('root ::= "a"*?', ["", "aa"], []),
        ('root ::= "a" | # one\n  "b" |\n\n "c"', ["a", "b", "c"], []),
        ('root ::= "a"\n  | "b"\n  | "c"', ["a", "b", "c"], []),
        ('root ::= ("a"\n "b" # comment\n | )  "c"', ["abc", "c"], ["ab"]),
        ('root ::= | "a"', ["", "a"], []),
        ('root ::= "a" | [z-a]', ["a"], ["\ud7ff", ""]),
        ('root ::= (((("a"))))+', ["aa"], [""]),
        ('# nothing\r\nroot ::= "a"\r\n\r\n# more\r\nx ::= "unused"\r\n', ["a"], []),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        ('root ::= root "x" | "y"', ["y", "yxx"], ["x"]),
        ('root ::= a\na ::= b "x" | "y"\nb ::= a', ["y", "yxx"], ["x"]),
        ('root ::= "(" root ")" | ""', ["", "(())"], ["(()"]),
        ('root ::= "[" ("a" | "ab") "b" root? "]"', ["[ab]", "[abb]", "[ab[ab]]"], ["[abbb]"]),
        ('root ::= word ("," root)?\nword ::= [a-z]+ [a-z]', ["ab", "abc,de"], ["a", "ab,c"]),
        ('root ::= ws "(" ws root? ws ")" ws\nws ::= [ \\n]*', [" ( ( )  )\n", "()"], ["( "]),
        (JSON, ['{"a": [1, -2.5e3, "x\\n\\u00e9"], "b": {"c": null}}', "{}"], ['{"a"}', "{'a': 1}", '{"a": 01}', "[]"]),
    ],
)  # fmt: skip
def test_what_llama_cpp_takes(grammar: str, good: list[str], bad: list[str]) -> None:
    assert takes(grammar, *good, *bad) == [True] * len(good) + [False] * len(bad)


def test_tokens() -> None:
    first = MARKS[0]
    number = FIRST + MARKS.index(first)
    for grammar in (f"root ::= <[{number}]>", f"root ::= {first}"):
        assert takes(grammar, first, "a") == [True, False]
    matcher = matcher_of(converted(f"root ::= !{first}* {first}"))
    assert matcher.validate_tokens([97, number]) == 2
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    assert mask[97]
    assert not mask[END], "an answer does not end in the middle"


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("", "line 1, column 1, at the line's end: there is no rule 'root'"),
        ('x ::= "a"', "line 1, column 1, at 'x ::= \"a\"': there is no rule 'root'"),
        ('root ::= "a"\nb ::= missing', "line 2, column 7, at 'missing': there is no rule 'missing'"),
        ('root ::= "a', 'line 1, column 12, at the line\'s end: expected the end of a text, ", or of a class, ]'),
        ("root ::= [a", "line 1, column 12, at the line's end: expected the end of a text"),
        ('root ::= "a"\n\n  b = "c"', "line 3, column 5, at '= \"c\"': expected ::= behind 'b'"),
        ('root ::= ("a" | "b"', "line 1, column 20, at the line's end: expected a symbol, | or )"),
        ('root ::= "a" )', "line 1, column 14, at ')': expected a symbol, | or the end of the line"),
        (r'root ::= "\q"', 'line 1, column 11, at \'\\q"\': expected an escape of GBNF'),
        (r'root ::= "\u12"', "expected 4 hexadecimal digits after"),
        (r'root ::= "\ud800"', "it is not a Unicode character"),
        (r'root ::= "\U00110000"', "it is not a Unicode character"),
        ('root ::= * "a"', "line 1, column 10, at '* \"a\"': expected something to repeat before '*'"),
        ('root ::= "a"{3,2}', "line 1, column 13, at '{3,2}': expected a repetition of {m,n} with m <= n"),
        ('root ::= "a"{,2}', "expected a repetition: {m}, {m,} or {m,n}"),
        ('root ::= "a"{99999999999}', "with m <= n <= 1,000,000"),
        ("root ::= <ab>", "line 1, column 10, at '<ab>': it is not one token of this model"),
        ("root ::= !a", "expected a token"),
        ("root ::= " + "(" * 200, "at most 100 parentheses may be nested"),
        ('root ::= "a"\n::= "b"', "expected the name of a rule; GBNF has `root ::= ...`, Lark `start: ...`"),
        ("".join(f"{'root' if not at else f'r{at}'} ::= r{at + 1}\n" for at in range(500)) + 'r500 ::= "x"',
         "its rules refer to each other over 200 deep"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(grammar: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        converted(grammar)


@pytest.mark.parametrize(
    ("text", "lark"),
    [
        ("start: /a/", True), ("  start : /a/", True), ("%llguidance {}\nstart: A\nA: /a/", True),
        ("x: /a/\nstart[lazy]: x", True), ('start: "::="', True), ('start ::= "x"\nroot ::= start', False),
        ('root ::= "start: "', False), ('root ::= "a"\nstart::="x"', False), ("root: /a/", False), ("", False),
        ('root ::= "a\nstart: b"', False),
    ],
)  # fmt: skip
def test_lark_is_told_from_gbnf(text: str, lark: bool) -> None:
    assert is_lark(text) == lark


NAMES = ("root", "start", "a-b")
LETTERS = "ab&"
Part = tuple[Any, ...]
"""("text", t), ("class", letters, negated), ("any",), ("seq", parts), ("alt", parts), ("repeat", part, m, n), ("rule",
name)."""

LEAVES = (
    st.text(LETTERS, max_size=3).map(lambda text: ("text", text))
    | st.tuples(st.just("class"), st.sets(st.sampled_from(LETTERS), min_size=1).map("".join), st.booleans())
    | st.just(("any",))
    | st.sampled_from(NAMES).map(lambda name: ("rule", name))
)
COUNTS = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (0, 2), (1, 3), (2, None), (0, 0)])
PARTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.sampled_from(["seq", "alt"]), st.lists(inner, min_size=1, max_size=3))
        | st.tuples(st.just("repeat"), inner, COUNTS)
    ),
    max_leaves=7,
)


def written(part: Part, chance: random.Random) -> str:
    """A part in GBNF, with one of the spellings that it has."""
    kind = part[0]
    if kind == "text":
        return '"' + "".join(_letter(one, chance) for one in part[1]) + '"'
    if kind == "class":
        return f"[{'^' * part[2]}{''.join(_letter(one, chance) for one in part[1])}]"
    if kind == "any":
        return "."
    if kind == "rule":
        return str(part[1])
    if kind == "repeat":
        low, high = part[2]
        signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        counts = f"{{{low},{'' if high is None else high}}}" if low != high else f"{{{low}}}"
        return f"({written(part[1], chance)}){signs.get(part[2], counts)}"
    between = chance.choice([" ", "  "]) if kind == "seq" else chance.choice([" | ", "|", " |\n  ", " | # so\n"])
    return f"({between.join(written(one, chance) for one in part[1])})"


def _letter(letter: str, chance: random.Random) -> str:
    code = ord(letter)
    return chance.choice([letter, f"\\x{code:02x}", f"\\u{code:04X}", f"\\U{code:08x}"])


def matches(rules: dict[str, Part], text: str) -> bool:
    """Whether a text is in a grammar: from each place all ends that a rule can reach, until none is new."""
    ends: dict[tuple[str, int], set[int]] = {(name, at): set() for name in rules for at in range(len(text) + 1)}

    def reached(part: Part, at: int) -> set[int]:
        kind = part[0]
        if kind == "text":
            return {at + len(part[1])} if text.startswith(part[1], at) else set()
        if kind in ("class", "any"):
            return {at + 1} if at < len(text) and (kind == "any" or (text[at] in part[1]) != part[2]) else set()
        if kind == "rule":
            return set(ends[part[1], at])
        if kind == "alt":
            return set().union(*(reached(one, at) for one in part[1]))
        if kind == "seq":
            found = {at}
            for one in part[1]:
                found = set().union(*(reached(one, place) for place in found))
            return found
        low, high = part[2]
        now, found = {at}, {at} if low == 0 else set()
        for count in range(1, (low + len(text) + 1 if high is None else high) + 1):
            now = set().union(*(reached(part[1], place) for place in now))
            found |= now if count >= low else set()
        return found

    while True:
        new = {(name, at): reached(rules[name], at) for name, at in ends}
        if new == ends:
            return len(text) in ends["root", 0]
        ends = new


TEXTS = [
    "",
    *(a + b for a in ("", *LETTERS, "c") for b in LETTERS),
    *"aab aba abab bbb a&b &&a aaaa bab& ababab".split(),
]


@pytest.mark.rotating(1)
@settings(max_examples=cases(150, 1_000), deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(dict.fromkeys(NAMES, PARTS)),
    st.integers(0, 1000),
    st.lists(st.text("ab&", max_size=7), max_size=8),
)
def test_any_grammar_takes_what_its_rules_say(rules: dict[str, Part], seed: int, more: list[str]) -> None:
    chance = random.Random(seed)
    texts = [*TEXTS, *more]
    grammar = "\n".join(f"{name} ::= {written(rules[name], chance)}" for name in NAMES)
    assert takes(grammar, *texts) == [matches(rules, text) for text in texts], f"{grammar}\n{converted(grammar)}"


def test_a_grammar_of_many_rules_and_long_lists_is_read_in_time() -> None:
    words = " | ".join(f'"word{at}"' for at in range(900))
    assert takes(f'root ::= "(" root ")" | ({words}) ("," root)?', "word899", "(word1,word12)", "word") == [
        True,
        True,
        False,
    ]
    rules = "".join(f'r{at} ::= "a" r{at + 1} | "b"\n' for at in range(150))
    assert takes(f'root ::= r0\n{rules}r150 ::= "c" root | "c"', "ab", "a" * 150 + "cb", "aa") == [True, True, False]

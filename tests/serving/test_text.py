"""Text that is shown piece by piece is the text, whole characters, and never any of what it stops at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ipex_lookahead.conversation.text import AnswerText
from ipex_lookahead.runtime.service import TokenLogprob
from ipex_lookahead.runtime.stop_texts import StopTexts
from tests.gates import cases
from tests.support.chat_tokenizer import chat_tokenizer


class Tokenizer:
    """One token a byte, as the commands have tokenizers."""

    def __init__(self) -> None:
        self._made = chat_tokenizer()
        self.silent_ids = frozenset(self._made.all_special_ids)

    def encode(self, text: str) -> list[int]:
        return list(self._made.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        return str(self._made.decode(ids))


TOKENIZER = Tokenizer()
END = next(iter(TOKENIZER.silent_ids))
TEXTS = st.text(alphabet="abcé漢😀 ", max_size=24)


def fed(ids: list[int], cuts: list[int], stops: list[str]) -> tuple[str, AnswerText, list[int]]:
    answer, text, tokens, at = AnswerText(TOKENIZER, stops), "", [], 0  # type: ignore[arg-type]
    for cut in [*sorted(cuts), len(ids)]:
        new = ids[at : max(at, cut)]
        at = max(at, cut)
        shown = answer.put(new, [None] * len(new), [TokenLogprob(i, -0.5, ()) for i in new])
        for stop in stops:
            assert stop not in text + shown.text
        text += shown.text
        assert "".join(piece.text for piece in shown.pieces) == shown.text
        tokens += [piece.token for piece in shown.pieces if piece.token is not None]
    shown = answer.end()
    tokens += [piece.token for piece in shown.pieces if piece.token is not None]
    return text + shown.text, answer, tokens


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 300), deadline=None, derandomize=True)
@given(TEXTS, st.lists(st.integers(0, 60), max_size=8), st.lists(st.text("abé漢", min_size=1, max_size=4), max_size=3))
@example("abc", [1, 2], ["abc", "b"])  # was "a" or nothing, by the pieces that it came in
def test_any_cut_gives_the_same(text, cuts, stops):
    ids = TOKENIZER.encode(text)
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    expected = text[: min(ends)[1]] if ends else text  # before the one that is whole first
    said, answer, tokens = fed([*ids, END], cuts, stops)
    assert said == expected
    assert (answer.stopped is not None) == bool(ends)
    assert answer.length == len(expected)
    assert tokens == ids[: len(tokens)]
    if not ends:
        assert tokens == ids


def test_a_beginning_of_a_stop_text_is_held_back_and_comes_after_all():
    answer = AnswerText(TOKENIZER, ["abc"])  # type: ignore[arg-type]
    ids = TOKENIZER.encode("xab!")
    assert [answer.put([i], [None]).text for i in ids] == ["x", "", "", "ab!"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("ab", max_size=12), st.integers(0, 14), st.sampled_from(["a", "ab", "aa", "bab"]), st.booleans())
def test_a_text_to_stop_at_counts_from_the_least_length_on(text, least, stop, at_once):
    """Its last character must come behind the first ``least`` tokens; it may begin in them."""
    answer, ids = AnswerText(TOKENIZER, [stop], min_tokens=least), TOKENIZER.encode(text)  # type: ignore[arg-type]
    pieces = [ids] if at_once else [[i] for i in ids]
    said = "".join(answer.put(new, [None] * len(new)).text for new in pieces) + answer.end().text
    ends = [end for end in range(least + 1, len(text) + 1) if text[:end].endswith(stop)]
    assert said == (text[: ends[0] - len(stop)] if ends else text)
    ours = StopTexts(TOKENIZER, [stop], 3 + least)
    begun = TOKENIZER.encode("xyz")
    found = [ours(np.array(begun + ids[:end])) for end in range(1, len(ids) + 1)]
    assert found.index(True) + 1 == ends[0] if ends else not any(found)


def test_a_token_that_ends_an_answer_is_not_shown():
    a, e_acute = TOKENIZER.encode("a"), TOKENIZER.encode("é")
    for silent_too in (False, True):
        answer = AnswerText(TOKENIZER, ["ab"], stop_ids=e_acute[1:], silent_too=silent_too)  # type: ignore[arg-type]
        shown = answer.put([*a, *e_acute], [None] * 3)
        last = answer.end()
        assert (shown.text + last.text, answer.stopped) == ("a\ufffd", e_acute[1])
        tokens = [piece.token for piece in [*shown.pieces, *last.pieces] if piece.token is not None]
        assert tokens == [*a, *e_acute[: 1 + silent_too]]


def test_markers_are_shown_and_other_special_tokens_are_not():
    answer = AnswerText(TOKENIZER, [], {END: "[CALL]"})  # type: ignore[arg-type]
    other = next(i for i in TOKENIZER.silent_ids if i != END)
    assert answer.put([*TOKENIZER.encode("a"), END, other, *TOKENIZER.encode("b")], [None] * 4).text == "a[CALL]b"


def test_pieces_know_their_source_and_place():
    answer = AnswerText(TOKENIZER, [])  # type: ignore[arg-type]
    shown = answer.put(TOKENIZER.encode("aé"), ["prompt", None, "store"])
    assert [(piece.text, piece.source, piece.start) for piece in shown.pieces] == [
        ("a", "prompt", 0), ("", None, 1), ("é", "store", 1),
    ]  # fmt: skip

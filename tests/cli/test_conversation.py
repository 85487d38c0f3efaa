"""The tokens of a conversation: the model's own answers stay as it gave them; what does not fit is left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.cli.conversation import Conversation, Turn

START, END = 1000, 1001


def tokenize(text: str) -> list[int]:
    return [ord(c) for c in text]


def encode(messages: list[dict[str, str]]) -> list[int]:
    ids: list[int] = []
    for message in messages:
        ids += [START, ord(message["role"][0]), *tokenize(message["content"]), END]
    return [*ids, START, ord("a")]


def conversation(system: str | None = None) -> Conversation:
    return Conversation(encode, tokenize, system)


def test_first_prompt_is_the_template():
    assert conversation("be kind").prompt([Turn("hi")]) == encode(
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    )


def test_answers_keep_the_tokens_the_model_gave():
    """``ids`` 5000 stands for "ab": a split that the tokenizer itself would not choose."""
    ids = conversation().prompt([Turn("q", "ab", [5000]), Turn("r")])
    assert ids == [
        START,
        ord("u"),
        ord("q"),
        END,
        START,
        ord("a"),
        5000,
        END,
        START,
        ord("u"),
        ord("r"),
        END,
        START,
        ord("a"),
    ]


def test_the_prompt_before_is_a_prefix_of_the_next_one():
    first = conversation().prompt([Turn("q")])
    second = conversation().prompt([Turn("q", "ab", [5000]), Turn("r", "cd", [6000, 6001]), Turn("s")])
    assert second[: len(first) + 1] == [*first, 5000]
    assert second.count(6001) == 1


def test_a_template_that_rewrites_history_is_followed():
    def forgetful(messages):
        return encode([{**m, "content": "-" if m["role"] == "assistant" else m["content"]} for m in messages])

    turns = [Turn("q", "ab", [5000]), Turn("r")]
    expected = forgetful(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "r"}]
    )
    assert Conversation(forgetful, tokenize).prompt(turns) == expected


def test_a_template_that_drops_earlier_turns_is_followed():
    def last_only(messages):
        return encode(messages[-1:])

    assert Conversation(last_only, tokenize).prompt([Turn("q", "ab", [5000]), Turn("r")]) == encode(
        [{"role": "user", "content": "r"}]
    )


def test_what_does_not_fit_is_dropped_oldest_first_and_counted():
    turns = [Turn("a" * 50, "b" * 50, tokenize("b" * 50)), Turn("c" * 20, "d", [5000]), Turn("e")]
    everything = conversation().prompt(turns)
    fitted = conversation().fit(turns, context=70, new_tokens=10)
    assert fitted is not None
    assert fitted.ids == conversation().prompt(turns[1:])
    assert fitted.dropped_turns == 1
    assert fitted.dropped_tokens == len(everything) - len(fitted.ids)
    assert fitted.room == 70 - len(fitted.ids)


@pytest.mark.parametrize(("length", "room"), [(92, 3), (94, 1), (95, None), (200, None)])
def test_the_last_message_alone(length, room):
    """Five tokens of template stand round a message; with fewer than one left nothing can be answered."""
    fitted = conversation().fit([Turn("x" * length)], context=100, new_tokens=50)
    assert (fitted.room if fitted else None) == room


texts = st.text(alphabet="abc ", max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=5), texts, st.integers(10, 120))
def test_a_fitted_prompt_fits(past, last, context):
    turns = [Turn(q, a, tokenize(a)) for q, a in past] + [Turn(last)]
    fitted = conversation("s").fit(turns, context, new_tokens=8)
    if fitted is None:
        assert len(conversation("s").prompt([Turn(last)])) >= context
        return
    assert len(fitted.ids) + fitted.room == context
    assert fitted.ids == encode(conversation("s").messages(turns[fitted.dropped_turns :]))
    assert fitted.dropped_turns in range(len(turns))
    if len(fitted.ids) + 8 > context:
        assert fitted.dropped_turns == len(turns) - 1, "more could have been dropped"

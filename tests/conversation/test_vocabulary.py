"""Text in a grammar is written with ordinary tokens, whatever it spells and whatever the kind of vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.conversation.grammar import Compiler, Grammar, Grammars
from ipex_lookahead.conversation.text import AnswerText
from ipex_lookahead.conversation.vocabulary import TextVocabulary, token_bytes
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.text import TextTokenizer
from tests.support.vocabularies import ORDINARY, SPECIAL, byte_level, pieces, spelled

VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "byte-level": byte_level,
    "byte-level that merges a control token": lambda: merging(byte_level()),
    "pieces": spelled,
    "sentencepiece": lambda: pieces(False),
    "sentencepiece with a space before text": lambda: pieces(True),
}


MERGED = "body"


def merging(metadata: dict[str, Any]) -> dict[str, Any]:
    """With a control token that is what merges make of ordinary text."""
    tokens, types = metadata["tokenizer.ggml.tokens"], list(metadata["tokenizer.ggml.token_type"])
    types[tokens.index(MERGED)] = types[-2]
    return {**metadata, "tokenizer.ggml.token_type": types}


@pytest.fixture(scope="module", params=VOCABULARIES)
def made(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    tokenizer = text_from_gguf(VOCABULARIES[request.param](), "x.gguf")
    size = max(tokenizer.get_vocab().values()) + 1
    assert tokenizer.eos_token_id is not None
    ends = [tokenizer.eos_token_id]
    tokens = token_bytes(tokenizer, size)
    compiler = Compiler(tokenizer, tokens, ends)
    yield SimpleNamespace(tokenizer=tokenizer, grammars=Grammars(compiler), size=size, ends=ends)
    compiler.close()


def drawn(grammar: Grammar, size: int, ends: list[int], seed: int) -> list[int]:
    """An answer of tokens drawn at random of those allowed; a draft of them all is allowed as well."""
    process, _ = grammar.constrain(0)
    noise, ids = np.random.default_rng(seed), []
    while len(ids) < 200:
        logits = process(np.array(ids, np.int64), noise.random(size).astype(np.float32))
        token = int(logits.argmax())
        assert logits[token] > -np.inf
        if token in ends:
            _, cut = grammar.constrain(0)
            assert list(cut(np.array([], np.int64), Draft.chain(ids)).tokens) == ids
            return ids
        ids.append(token)
    pytest.fail("no end within 200 tokens")


def shown(tokenizer: TextTokenizer, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[str, str | None]:
    """The text that a stream of these tokens shows, and the text that it stopped at."""
    text = AnswerText(tokenizer, stops)
    return "".join(text.put([i], [None]).text for i in ids) + text.end().text, text.stopped


SPELLED = [
    *SPECIAL,
    *ORDINARY,
    "<s>",
    "</s>",
    "<unk>",
    MERGED,
    "a<|end|>b",
    "<|start|><|end|> x",
    "é<|end|>\n",
    "<0x41>",
]


@pytest.mark.parametrize("text", SPELLED)
@pytest.mark.rotating(24)
def test_what_spells_a_control_token_is_text(made: SimpleNamespace, text: str) -> None:
    schema = {
        "type": "object",
        "properties": {text: {"const": text}},
        "required": [text],
        "additionalProperties": False,
    }
    grammars: Grammars = made.grammars
    escaped = re.sub(r"([][()|./])", r"\\\1", text).replace("\n", r"\n")
    for grammar in (
        grammars.json_schema({"enum": [text]}),
        grammars.json_schema(schema),
        grammars.json_schema({"type": "string", "pattern": f"^{escaped}$"}),
        grammars.lark(f"start: {json.dumps(text)}"),
        grammars.lark(f"start: /{escaped}/"),
        grammars.lark(f'start: "x" rest | {json.dumps(text)}\nrest: {json.dumps(text)}'),
    ):
        for seed in range(3):
            ids = drawn(grammar, made.size, made.ends, seed)
            said, stopped = shown(made.tokenizer, ids)
            assert (json.loads(said) if said[0] in '"{' else said.removeprefix("x")) in (text, {text: text}), ids
            assert stopped is None
            assert shown(made.tokenizer, ids, (text,))[1] == (text if text in said else None)


def test_text_of_any_letters_has_no_control_tokens(made: SimpleNamespace) -> None:
    process, cut = made.grammars.lark("start: /(.|\\n)*/").constrain(0)
    allowed = np.isfinite(process(np.array([], np.int64), np.zeros(made.size, np.float32)))
    vocabulary = made.tokenizer.get_vocab()
    control = [vocabulary[text] for text in (*SPECIAL, "<s>", "</s>", "<unk>") if text in vocabulary]
    assert control
    assert not allowed[[i for i in control if i not in made.ends]].any()
    for i in control:
        assert i in made.ends or not len(cut(np.array([], np.int64), Draft.chain([i])))


def test_text_is_the_longest_tokens_where_the_tokenizer_gives_none() -> None:
    vocabulary = TextVocabulary([b"a", b"ab", b"</s>"], [2], {2}, lambda text: [])
    assert vocabulary(b"aab") == [0, 1]
    assert vocabulary("aabc") == [0, 1], "up to what no token can write"


def test_a_tokenizer_that_has_ended_is_done_without() -> None:
    def encode(text: str) -> list[int]:
        raise LookaheadError("the process has ended")

    assert TextVocabulary([b"a", b"ab", b"</s>"], [2], {2}, encode)(b"ab") == [1]


@pytest.mark.parametrize(
    ("ids", "right"),
    [([0], [1]), ([2], [1]), ([1], [1]), ([0, 0], [1]), ([], [1]), ([9], [1]), ([0, 3], [0, 3])],
    ids=str,
)
def test_ids_that_are_other_bytes_are_not_taken(ids: list[int], right: list[int]) -> None:
    assert TextVocabulary([b"a", b"ab", b"ab", b"b"], [2], {2}, lambda text: ids)(b"ab") == right

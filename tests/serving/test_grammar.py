"""An answer in a grammar never leaves it, whoever draws the tokens; what cannot be compiled is refused."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from ipex_lookahead.conversation.grammar import Grammar
from ipex_lookahead.conversation.request import Conversation, Form, grammar_of
from ipex_lookahead.conversation.vocabulary import token_bytes
from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.conversation import prepare
from ipex_lookahead.serving.server import Served
from tests.serving.schemas import KEPT, REFUSED
from tests.support.chat_tokenizer import SIZE

MOST = 2000
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served(server) -> Served:
    return server.served


def compiled(served: Served, conversation: Conversation) -> Grammar | None:
    """What the answer of a conversation keeps to."""
    constraint = prepare(served, conversation).constraint
    return None if constraint is None else constraint(served.grammars)


def walked(served: Served, schema: object, seed: int) -> str:
    """Text of tokens drawn at random of those allowed; after a while those that close what is open are preferred."""
    process, _ = served.grammars.json_schema(schema).constrain(3)
    rng, ids = np.random.default_rng(seed), [5, 6, 7]
    likes = {i: 8.0 for i, text in enumerate(served.tokens) if text in (b'"', b"}", b"]")} | dict.fromkeys(
        served.eos_ids, 9.0
    )
    while len(ids) < MOST:
        noise = rng.random(served.vocab_size).astype(np.float32)
        for token, more in likes.items():
            noise[token] += more if len(ids) > 40 else -0.5
        processed = process(np.array(ids, np.int64), noise)
        token = int(processed.argmax())
        assert processed[token] > -np.inf
        if token in served.eos_ids:
            return b"".join(served.tokens[i] for i in ids[3:]).decode("utf-8")
        ids.append(token)
    pytest.fail(f"no end within {MOST} tokens of {schema}")


@pytest.mark.parametrize("schema", KEPT, ids=lambda schema: json.dumps(schema)[:50])
@pytest.mark.rotating(20)
def test_every_answer_validates(served, schema):
    for seed in range(3):
        jsonschema.validate(json.loads(walked(served, schema, seed)), schema)


OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "list"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_every_usual_layout_of_json_is_allowed(served, indent):
    text = json.dumps({"name": "Lena", "list": [1, 2]}, indent=indent)
    assert allowed(served, text) == len(text)
    close = json.dumps({"name": "Lena", "list": [1, 2]}, separators=(",", ":"))
    assert allowed(served, close) == len(close)


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ('{"name": "Lena"\n\n,\n', '{"name": "Lena"\n'),
        ('{"name":  "Lena"', '{"name": '),
        ('{\n\n"name"', "{\n"),
        ('{"name": "Lena",' + "\n" + 25 * " ", '{"name": "Lena",' + "\n" + 24 * " "),
        ('{"name": "Lena", "list": [1 \n', '{"name": "Lena", "list": [1 '),
    ],
)
def test_white_space_between_parts_is_bounded(served, text, reached):
    assert allowed(served, text) == len(reached)
    assert allowed(served, text, schema=True) == len(reached), "without a schema too"


def allowed(served: Served, text: str, schema: object = OBJECT) -> int:
    """How many characters of a text the grammar takes, each as a token of its own."""
    process, _ = served.grammars.json_schema(schema).constrain(0)
    singles = {token: i for i, token in enumerate(served.tokens) if len(token) == 1}
    ids = np.array([singles[sign.encode()] for sign in text], np.int64)
    for done, token in enumerate(ids):
        if not process(ids[:done], np.zeros(served.vocab_size, np.float32))[token] > -np.inf:
            return done
    return len(ids)


def test_an_object_has_the_keys_that_its_schema_names(served):
    """The constraint itself and, behind a thought, the same schema within a grammar."""
    named = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert allowed(served, '{"a": 1, "b": 2}', named) == len('{"a": 1')
    assert allowed(served, '{"b": 2}', {**named, "additionalProperties": True}) == len('{"b": 2}')
    assert allowed(served, '{"b": 2}', {"type": "object"}) == len('{"b": 2}')
    thinking = grammar_of(served.grammars, Form("x", named), "thought ", 'thought: "T"\n')
    _, cut = thinking.constrain(0)
    text = served.encode('T{"a":1,')
    assert len(cut(np.array([], np.int64), Draft.chain(text))) == len(text) - 1


@pytest.mark.parametrize("schema", REFUSED, ids=lambda schema: json.dumps(schema)[:50])
def test_what_cannot_be_compiled_is_refused(served, client, schema):
    with pytest.raises(InputError, match="cannot be compiled"):
        served.grammars.json_schema(schema)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    given = {"messages": ASKED, "max_tokens": 4, "response_format": wanted}
    answer = client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 400, answer.text


def test_what_outgrows_the_limits_on_the_way_is_the_schemas_fault():
    """llguidance makes a pattern's states as they are reached and gives up at some number: "(a|b)*" 2,000 times."""

    class Outgrown:
        def deep_copy(self):
            return self

        def compute_bitmask(self):
            return b""

        def is_error(self):
            return True

        def get_error(self):
            return "lexer error: too many expressions constructed\n<state>\nits state"

    process, _ = Grammar(Outgrown(), SIZE, [0]).constrain(0)
    with pytest.raises(InputError, match="too complex to continue: .*: too many expressions constructed(\n|$)"):
        process(np.empty(0, np.int64), np.zeros(SIZE, np.float32))


@pytest.mark.parametrize("choice", ["auto", "required", "f"])
def test_objects_are_arguments_of_functions(served, choice):
    """Among them those that llama.cpp stumbled over: its issues 25746, 25923, 19051, 27619 and 28081."""
    objects = [schema for schema in KEPT if isinstance(schema, dict) and schema.get("type") == "object"]
    assert len(objects) > 10
    for schema in objects:
        function = {"name": "f", "parameters": schema, "description": '{ "quoted" } ::= \n' * 9, "strict": True}
        assert compiled(served, Conversation(ASKED, [function], choice)) is not None


def test_a_broken_tool_ends_its_own_request_alone(client):
    for parameters in REFUSED:
        if isinstance(parameters, dict):
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            given = {"messages": ASKED, "max_tokens": 1, "tools": tools}
            assert client.post("/v1/chat/completions", json={**given, "tool_choice": "required"}).status_code == 400
            assert client.post("/v1/chat/completions", json=given).status_code == 200


def test_json_object_begins_as_one(client):
    given = {
        "messages": ASKED,
        "temperature": 30,
        "seed": 3,
        "max_tokens": 30,
        "response_format": {"type": "json_object"},
    }
    assert client.post("/v1/chat/completions", json=given).json()["choices"][0]["message"]["content"].startswith("{")


def test_white_space_ends_in_forced_calls_too(client):
    """Greedy, the tiny model would write nothing else."""
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    parameters = {"type": "object", "properties": {"a": digit}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "w", "parameters": parameters}}]
    named = {"type": "function", "function": {"name": "w"}}
    given = {"messages": ASKED, "temperature": 0, "max_tokens": 700, "tools": tools, "tool_choice": named}
    (choice,) = client.post("/v1/chat/completions", json=given).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"


WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
           "additionalProperties": False}  # fmt: skip
ODD = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}


def said_at_will(served, text, functions):
    """How much of a text a model could say that may call these functions, and whether it could end there."""
    conversation = Conversation([{"role": "user", "content": "Hi"}], functions)
    grammar = compiled(served, conversation)
    assert grammar is not None
    process, cut = grammar.constrain(0)
    ids = served.encode(text)
    draft = cut(np.array([], np.int64), Draft.chain(ids))
    if len(draft) < len(ids):
        return served.tokenizer.decode(list(draft.tokens)), False
    logits = process(np.array(ids, np.int64), np.zeros(served.vocab_size, np.float32))
    return text, bool(np.isfinite(logits[sorted(served.eos_ids)]).all())


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", True), ("No call, but < and <tool> and é.", True), ("{}", True), ("I look.\n<tool_call", True),
        ('<tool_call>\n{"name": "w", "arguments": {"city": "Rome"}}\n</tool_call>', True),
        ('Well. <tool_call>{"name":"w","arguments":{"city":"Oslo"}}</tool_call>\n<tool_call>', False),
        ('<tool_call>\n{"name": "w"', False), ('<tool_call>\n{"name": "o", "arguments": {"x": [1, 1]}}', False),
        ('<tool_call>\n{"name": "o", "arguments": {"x": [1, 1]}}</tool_call> Done.', True),
    ],
)  # fmt: skip
def test_calls_at_will_are_free_text_until_one_begins(served, text, ends):
    functions = [{"name": "w", "parameters": WEATHER}, {"name": "o", "parameters": ODD}]
    assert said_at_will(served, text, functions) == (text, ends)


@pytest.mark.parametrize("space", ["  ", "\n", "\t"])
def test_calls_have_at_most_one_space_between_tokens_of_json(served, space):
    functions = [{"name": "w", "parameters": WEATHER}]
    said, _ = said_at_will(served, f'<tool_call>{{"name":{space}"w"', functions)
    assert said == '<tool_call>{"name":' + (" " if space == "  " else "")


def test_a_strict_function_is_never_let_loose(client):
    tool = {"type": "function", "function": {"name": "o", "parameters": ODD}}
    given = {"messages": ASKED, "max_tokens": 2, "tools": [tool]}
    assert client.post("/v1/chat/completions", json=given).status_code == 200
    tool["function"]["strict"] = True
    answer = client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 400
    assert "uniqueItems" in answer.json()["error"]["message"]


def state(served, lark):
    return served.grammars.lark(lark).constrain(0)


def test_drafts_are_cut_to_what_the_grammar_allows(served):
    encode = served.encode
    _, cut = state(served, 'start: "abc" ("d" | "e") "f"')
    ids = np.array(encode("a"), np.int64)
    bc, bx, bcdf = encode("bc"), encode("bx"), encode("bcdf")
    assert list(cut(ids, Draft.chain(bc)).tokens) == bc
    assert list(cut(ids, Draft.chain(bx)).tokens) == bx[:1]
    assert list(cut(ids, Draft.chain(bcdf)).tokens) == bcdf
    assert len(cut(ids, Draft.chain(encode("zz")))) == 0
    b, c, d, e, x = encode("bcdex")
    tree = Draft([b, x, c, x, d, e, b], [-1, -1, 0, 1, 2, 2, 4], 0, [0.9] * 7, list("1234567"))
    kept = cut(ids, tree)
    assert (list(kept.tokens), list(kept.parents)) == ([b, c, d, e], [-1, 0, 1, 1])
    assert list(kept.sources) == ["1", "3", "5", "6"]
    scratch = cut(ids, Draft([b, c, x, x], [-1, 0, -1, 2], scratch=2))
    assert (list(scratch.tokens), scratch.scratch) == ([b, c], 0)
    ids = np.array(encode("abcd"), np.int64)  # three more were emitted meanwhile
    assert list(cut(ids, Draft.chain(encode("ff"))).tokens) == encode("f")


class Pieces:
    """The vocabulary of a SentencePiece model, as far as ``token_bytes`` looks at it."""

    silent_ids = frozenset({256})
    all_special_ids = (256,)

    def get_vocab(self):
        return {f"<0x{byte:02X}>": byte for byte in range(256)} | {"</s>": 256, "▁Hé": 257, "▁▁": 258, "far": 999}


def test_the_bytes_of_pieces():
    found = token_bytes(Pieces(), 260)  # type: ignore[arg-type]
    assert found[:256] == [bytes([byte]) for byte in range(256)]
    assert found[256:] == [b"</s>", " Hé".encode(), b"  ", b""]

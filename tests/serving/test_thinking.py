"""What was thought is told apart from what is said, whatever is drafted, and a grammar begins behind the thought."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from ipex_lookahead.conversation.calls.base import Call
from ipex_lookahead.conversation.calls.json_calls import Tagged
from ipex_lookahead.conversation.reader import Reader
from ipex_lookahead.conversation.thinking import CHANNEL, TAGS, Marks, Mode, Thought, marks_of, mode_of
from ipex_lookahead.conversation.tools import Parser
from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.runtime.service import Event
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.tokenization.folder import text_from_folder
from tests.gates import cases
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import CHAT_TEMPLATE
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tool_chats import FUNCTION

CALL = '<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call>'


def parted(mode: Mode, text: str, cuts: Any, *, tools: bool = False, marks: Marks = TAGS) -> list[tuple[str, str]]:
    """What a reader makes of a text in pieces, in order."""
    reader = Reader(mode, Parser(Tagged(), [{"name": "w"}]) if tools else None, marks)
    found: list[tuple[str, str]] = []
    at = 0
    for cut in [*sorted({min(cut, len(text)) for cut in cuts}), None]:
        for part in reader.put(text[at:cut], last=cut is None):
            kind = "call" if isinstance(part, Call) else "thought" if isinstance(part, Thought) else "text"
            said = part.arguments if isinstance(part, Call) else str(part)
            if found and found[-1][0] == kind != "call":
                found[-1] = (kind, found[-1][1] + said)
            else:
                found.append((kind, said))
        at = cut or 0
    return found


@pytest.mark.parametrize(
    ("mode", "text", "parts"),
    [
        (Mode.PERHAPS, "<think>\nhm\n\n</think>\n\nHi", [("thought", "hm"), ("text", "Hi")]),
        (Mode.PERHAPS, "\n<think></think>Hi", [("text", "Hi")]),
        (Mode.PERHAPS, "<thin", [("text", "<thin")]),
        (Mode.PERHAPS, "Say <think>a</think>", [("text", "Say <think>a</think>")]),
        (Mode.PERHAPS, "<think>\na\n\nb\n", [("thought", "a\n\nb\n")]),
        (Mode.WITHIN, "\na</thi</think> b</think>", [("thought", "a</thi"), ("text", " b</think>")]),
        (Mode.NONE, "<think>a</think>", [("text", "<think>a</think>")]),
        (Mode.WITHIN, f"a {CALL}</think>\n{CALL}\nb", [("thought", f"a {CALL}"), ("call", '{"a": 1}'), ("text", "b")]),
    ],
)
def test_parts(mode: Mode, text: str, parts: list[tuple[str, str]]) -> None:
    for cuts in ([], range(len(text))):
        assert parted(mode, text, cuts, tools=True) == parts


@pytest.mark.parametrize(
    ("mode", "text", "parts"),
    [
        (Mode.PERHAPS, "<|channel>thought\nhm\n<channel|>Hi", [("thought", "hm"), ("text", "Hi")]),
        (Mode.NONE, "<|channel>thought\n<channel|>Hi", [("text", "Hi")]),
        (Mode.NONE, "<|channel>thought\na\n<channel|>\n<|channel>thought\nb<channel|>Hi",
         [("thought", "a\n\nb"), ("text", "Hi")]),
        (Mode.WITHIN, "a<|channel>b\n<channel|>Hi<channel|>", [("thought", "a<|channel>b"), ("text", "Hi<channel|>")]),
        (Mode.WITHIN, "a<channel|>\n\n<|channel>though", [("thought", "a"), ("text", "<|channel>though")]),
        (Mode.PERHAPS, "Say <|channel>thought\na<channel|>", [("text", "Say <|channel>thought\na<channel|>")]),
        (Mode.PERHAPS, f"<|channel>thought\n{CALL}<channel|>{CALL}", [("thought", CALL), ("call", '{"a": 1}')]),
    ],
)  # fmt: skip
def test_parts_of_channels(mode: Mode, text: str, parts: list[tuple[str, str]]) -> None:
    for cuts in ([], range(len(text))):
        assert parted(mode, text, cuts, tools=True, marks=CHANNEL) == parts


EVERY_MARKS = {"tags": TAGS, "channels": CHANNEL}
MARKS = [mark for one in EVERY_MARKS.values() for mark in (one.opening, one.begin, one.end)]
PIECES = st.sampled_from(
    [*MARKS, "thought", "<|chan", "nel>", "<thi", "nk>", "</", "\n", "\n\n", " ", "a", "é", "<", CALL, "<tool_call>"]
)


@pytest.mark.rotating(1)
@settings(max_examples=cases(150, 1_200), deadline=None, derandomize=True)
@given(
    st.sampled_from(Mode), st.lists(PIECES, max_size=10).map("".join), st.lists(st.integers(0, 90), max_size=12),
    st.booleans(), st.sampled_from([TAGS, CHANNEL]),
)  # fmt: skip
def test_parts_do_not_hang_on_the_pieces(mode: Mode, text: str, cuts: list[int], tools: bool, marks: Marks) -> None:
    whole = parted(mode, text, [], tools=tools, marks=marks)
    assert parted(mode, text, cuts, tools=tools, marks=marks) == whole
    assert parted(mode, text, range(len(text)), tools=tools, marks=marks) == whole


@pytest.mark.parametrize(
    ("template", "end", "begun", "mode"),
    [
        ("no markers", "<|im_start|>assistant\n", "", Mode.NONE),
        ("{{ '</think>' }}", "<|im_start|>assistant\n", "", Mode.PERHAPS),
        ("{{ '</think>' }}", "<|im_start|>assistant\n<think>\n", "", Mode.WITHIN),
        ("{{ '</think>' }}", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", Mode.NONE),
        ("{{ '</think>' }}", "what is <think><|im_end|>\n<|im_start|>assistant\n", "", Mode.PERHAPS),
        ("{{ '</think>' }}", "<|im_start|>assistant\nHello", "Hello", Mode.NONE),
        ("{{ '</think>' }}", "<|im_start|>assistant\n<think>hm", "<think>hm", Mode.WITHIN),
        ("{{ '</think>' }}", "<|im_start|>assistant\n<think>\nso</think>", "so</think>", Mode.NONE),
        ("{{ '<channel|>' }}", "<|turn>model\n", "", Mode.PERHAPS),
        ("{{ '<channel|>' }}", "<|turn>model\n<|channel>thought\n<channel|>", "", Mode.NONE),
        ("{{ '<channel|>' }}", "<tool_response|><|channel>thought\n", "", Mode.WITHIN),
        ("{{ '<channel|>' }}", "<tool_response|>", "", Mode.PERHAPS),
        ("{{ '<|channel|>' }}", "<|start|>assistant", "", Mode.NONE),
        ("{{ 'to=self<|message|><|eom|>' }}", "<|eot|><|start|>assistant", "", Mode.PERHAPS),
        ("{{ 'to=self<|message|><|eom|>' }}", "<|start|>assistant to=self<|message|>", "", Mode.WITHIN),
        ("{{ 'to=self<|message|><|eom|>' }}", "<|start|>assistant to=user<|message|>Hi", "Hi", Mode.NONE),
    ],
)
def test_how_an_answer_begins(template: str, end: str, begun: str, mode: Mode) -> None:
    assert mode_of(marks_of(template), end, begun) is mode


@dataclass
class Says:
    """``says(text, opened)``: a model that says ``text`` to anything; ``opened``: its prompts end in a thought."""

    marks: Marks
    client: TestClient
    script: list[int]
    encode: Callable[[str], list[int]]
    head: list[int] = field(default_factory=list)

    def __call__(self, text: str, opened: bool) -> TestClient:
        self.script[:] = self.encode(text)
        self.head[:] = self.encode("assistant\n" + (self.marks.opening + "\n" if opened else ""))
        return self.client


@pytest.fixture(
    scope="module", params=["tags, text", "tags, special tokens", "channels, text", "channels, special tokens"]
)
def says(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Says]:
    """Marks are text, as Qwen's tokens are that any text is split at, or special tokens that are not shown."""
    from tests.support.chat_tokenizer import chat_tokenizer

    kind, _, spelled = request.param.partition(", ")
    marks = EVERY_MARKS[kind]
    folder = tmp_path_factory.mktemp("thinking")
    made = chat_tokenizer()
    if spelled != "text":
        made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", marks.begin, marks.end]})
    turn = f"{{% if opened %}}{{{{ '{marks.opening}\\n' }}}}{{% elif false %}}{{{{ '{marks.end}' }}}}{{% endif %}}"
    made.chat_template = CHAT_TEMPLATE.replace("assistant\n{%", "assistant\n" + turn + "{%")
    made.save_pretrained(folder)
    size = len(made)
    tokenizer = text_from_folder(Path(folder), {"vocab_size": size})
    assert tokenizer is not None
    script: list[int] = []
    head: list[int] = []

    def logits(tokens: list[int]) -> Any:
        row = np.zeros(size, np.float32)
        begin = len(tokens) - tokens[::-1].index(3) + len(head) if 3 in tokens else len(tokens)
        at = len(tokens) - begin
        row[script[at] if 0 <= at < len(script) else 2] = 1.0
        return row

    loaded = LoadedModel(ScriptedEngine(logits, size), "fp32", generation_config={"eos_token_id": 2})
    with serving(TextModel(loaded, tokenizer), slots=6) as client:
        yield Says(marks, client, script, partial(tokenizer.encode, add_special_tokens=False), head)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
LOOKAHEADS: list[Any] = [0, 1, 4, 32, "auto", 8]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("behind", ["\n\n", "", "{no JSON\n"])
@pytest.mark.rotating(5)
def test_strict_json_behind_a_thought_every_time(says: Says, opened: bool, behind: str) -> None:
    """Drafts go across the end of the thought, and say there what the schema forbids."""
    thought = 'Let me see: {"b": [1,\nit is 7'
    begin, end = "" if opened else says.marks.opening + "\n", says.marks.end
    said = f'{begin}{thought}\n{end}{behind}{{"a": 7}}'
    client = says(said, opened)
    wrong = f'{begin}{thought}\n{end}\n\n{{"b": 1}} and more'

    def ask(n: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "What is it?"}], "temperature": 0, "response_format": STRICT,
            "lookahead": LOOKAHEADS[n % 6], "chat_template_kwargs": {"opened": opened}, "max_tokens": 200,
        }  # fmt: skip
        if n % 4:
            body["prediction"] = {"type": "content", "content": (said, wrong, thought)[n % 3]}
        found = client.post("/v1/chat/completions", json=body).json()
        used = found["usage"]
        kept = (used["completion_tokens"], used["completion_tokens_details"]["reasoning_tokens"])
        return {**found["choices"][0]["message"], "usage": kept}

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(12)))
    assert found == found[:1] * 12
    assert found[0]["reasoning_content"] == thought
    answer = json.loads(found[0]["content"])
    assert answer.keys() == {"a"}
    assert answer == {"a": 7} or behind.strip()
    assert 0 < found[0]["usage"][1] < found[0]["usage"][0]


@pytest.mark.parametrize("opened", [False, True])
def test_a_thought_goes_on_after_the_limit(says: Says, opened: bool) -> None:
    said = f"{'' if opened else says.marks.opening}\nhmm\n\n{says.marks.end}\n\nHé."
    client = says(said, opened)
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "chat_template_kwargs": {"opened": opened},
        "max_tokens": 200, "return_token_ids": True,
    }  # fmt: skip

    def ask(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = client.post("/v1/chat/completions", json={**body, **more}).json()["choices"][0]
        return found

    whole = ask()
    assert (whole["message"]["reasoning_content"], whole["message"]["content"]) == ("hmm", "Hé.")
    for cut in range(1, len(whole["token_ids"])):
        first = ask(max_tokens=cut)
        begun = {"role": "assistant", "content": "", "token_ids": first["token_ids"]}
        rest = {"messages": [*body["messages"], begun], "continue_final_message": True, "echo": True}
        assert ask(**rest) == whole


@pytest.mark.parametrize("marks", EVERY_MARKS.values(), ids=EVERY_MARKS)
@pytest.mark.parametrize("cut", [0, 1, 5, 20, 26, 27, 40, 1000])
def test_a_step_whose_draft_has_the_end_of_the_thought(
    live: Any, model: Any, monkeypatch: pytest.MonkeyPatch, marks: Marks, cut: int
) -> None:
    """All tokens of a step come at once, of which the first or the last is the model's own."""
    monkeypatch.setattr(model.tokenizer, "chat_template", f"{CHAT_TEMPLATE}{{# {marks.end} #}}")
    running = live()
    asked = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "return_draft_trace": True}
    ticket, answer = running.ask("/v1/chat/completions", asked)
    text = f"{marks.opening}\nhm\n{marks.end}\nHi."
    ids = running.server.served.encode(text)
    for step in (ids[:cut], ids[cut:]):
        if step:
            origins = ["prediction"] * (len(step) - 1) + [None]
            ticket.tell(Event("tokens", tokens=list(step), origins=origins))
    ticket.finish()
    thought, said, trace = _traced(answer(), stream=True)
    assert (thought, said) == ("hm", "Hi.")
    own = {len(ids[:cut]) - 1, len(ids) - 1} - {-1}
    assert trace == [(sign, None if at in own else "prediction") for at, sign in enumerate(text)]


def _traced(answer: Any, stream: bool) -> tuple[str, str, list[tuple[str, str | None]]]:
    """Thought, text, and each character with what had drafted it."""
    chunks = _events(answer.text) if stream else [answer.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = [choice["delta" if stream else "message"] for choice in choices]
    thought, text = ("".join(one.get(key) or "" for one in said) for key in ("reasoning_content", "content"))
    pieces = [piece for one in (chunks if stream else choices) for piece in one.get("draft_trace", ())]
    return thought, text, [(sign, piece["source"]) for piece in pieces for sign in piece["text"]]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.rotating(4)
def test_calls_behind_a_thought(says: Says, opened: bool) -> None:
    """Forced or free, single or not; what looks like a call in the thought is none."""
    thought = "I may call <tool_cal or not."
    said = f"{'' if opened else says.marks.opening}{thought}{says.marks.end}\n{CALL}\n{CALL}"
    client = says(said, opened)

    def ask(n: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Weather?"}], "temperature": 0, "lookahead": LOOKAHEADS[n % 6],
            "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": ("auto", "required")[n // 6 % 2],
            "parallel_tool_calls": False, "chat_template_kwargs": {"opened": opened}, "max_tokens": 300,
            "prediction": {"type": "content", "content": said},
        }  # fmt: skip
        found = client.post("/v1/chat/completions", json=body).json()
        (choice,) = found["choices"]
        calls = [one["function"] for one in choice["message"]["tool_calls"]]
        used = found["usage"]["completion_tokens"]
        return {"calls": calls, "thought": choice["message"]["reasoning_content"], "used": used}

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(12)))
    assert found == found[:1] * 12
    assert found[0]["thought"] == thought
    assert found[0]["calls"] == [{"name": "w", "arguments": '{"a": 1}'}]


def test_each_api_tells_the_thought_in_its_words(says: Says) -> None:
    client = says(f"{says.marks.opening}\nhm\n{says.marks.end}\n\nHi.", False)
    asked = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "lookahead": 4}
    lines = client.post("/v1/chat/completions", json={**asked, "stream": True}).text.splitlines()
    deltas = [c["delta"] for line in lines if line.startswith("data: {") for c in json.loads(line[6:])["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hi."

    whole = client.post("/v1/messages", json={**asked, "max_tokens": 99}).json()
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Hi."},
    ]
    events = _events(client.post("/v1/messages", json={**asked, "max_tokens": 99, "stream": True}).text)
    blocks = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
    assert blocks == [(0, "thinking"), (1, "text")]
    assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1]
    told = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in told) == "hm"

    body = {"input": "Hello", "temperature": 0, "lookahead": 4}
    whole = client.post("/v1/responses", json=body).json()
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = _events(client.post("/v1/responses", json={**body, "stream": True}).text)
    assert "".join(e["delta"] for e in events if e["type"] == "response.reasoning_text.delta") == "hm"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    done = [e["item"]["type"] for e in events if e["type"] == "response.output_item.done"]
    assert done == ["reasoning", "message"]


def test_an_answer_that_ends_in_its_thought(says: Says) -> None:
    client = says(f"{says.marks.opening}\nhm and hm", False)
    body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "hm and hm"


@pytest.mark.rotating(1)
def test_numbers_that_every_reader_of_json_keeps(says: Says) -> None:
    client = says("Hi", False)
    body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 1}
    seeds = [client.post("/v1/chat/completions", json=body).json()["timings"]["seed"] for _ in range(20)]
    assert all(0 <= seed < 2**53 for seed in seeds)
    for seed, told in ((2**53 - 1, 2**53 - 1), (2**53 + 1, None)):
        assert client.post("/v1/chat/completions", json={**body, "seed": seed}).json()["timings"]["seed"] == told
    for path in ("/v1/models", "/health", "/tokenizer_info"):
        _fits(client.get(path).json())
    for path, asked in (
        ("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 3}),
        ("/v1/completions", {"prompt": "a", "logprobs": 2, "echo": True}),
        ("/v1/messages", {**body, "max_tokens": 9}),
        ("/v1/responses", {"input": "a"}),
    ):
        _fits(client.post(path, json=asked).json())


def _fits(value: Any) -> None:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _fits(one)
    elif isinstance(value, int | float):
        assert abs(value) < 2**53, value


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]

"""Answers of messages with heads, through the server: reasoning, budgets, forms and calls, whatever is drafted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.tokenization.folder import text_from_folder
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import chat_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tool_chats import FUNCTION

NEXT = "<|eom|><|start|>assistant"
THOUGHT = f" to=self<|message|>hm, <atem:function_calls>{NEXT}"
BLOCK = (
    '<atem:function_calls>\n<atem:invoke name="w">\n<atem:parameter name="a">1</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls>"
)
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}{{ tools }}{{ m.tool_calls }}<|eom|>"
    "{% endfor %}{% if false %} to=self<|message|><atem:function_calls>{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


class Says:
    """``says(text, **body)``: the choice of a model that says ``text`` to anything, drafted with it."""

    def __init__(self, client: TestClient, script: list[int], encode: Any) -> None:
        self.client, self.script, self.encode = client, script, encode

    def __call__(self, text: str, **body: Any) -> Any:
        self.script[:] = self.encode(text)
        asked = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 300, **body}
        found = []
        for lookahead in (0, 8):
            prediction = {"type": "content", "content": text}
            sent = {**asked, "lookahead": lookahead, "prediction": prediction}
            answer = self.client.post("/v1/chat/completions", json=sent).json()
            assert "choices" in answer, answer
            message = answer["choices"][0]["message"]
            calls = [one["function"] for one in message.get("tool_calls") or ()]
            found.append((message.get("reasoning_content"), message.get("content"), calls))
        assert found[0] == found[1]
        return found[0]


@pytest.fixture(scope="module")
def says(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Says]:
    folder = tmp_path_factory.mktemp("channels")
    made = chat_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|message|>", "<|eom|>"]})
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    size = len(made)
    tokenizer = text_from_folder(Path(folder), {"vocab_size": size})
    assert tokenizer is not None
    script: list[int] = []
    start = tokenizer.encode("<|start|>assistant", add_special_tokens=False)

    def logits(tokens: list[int]) -> Any:
        """Follow the script behind the last start of an answer in the prompt."""
        row = np.zeros(size, np.float32)
        places = [at for at in range(len(tokens)) if tokens[at : at + len(start)] == start]
        at = len(tokens) - places[0] - len(start) if places else 0
        row[script[at] if at < len(script) else 2] = 1.0
        return row

    loaded = LoadedModel(ScriptedEngine(logits, size), "fp32", generation_config={"eos_token_id": 2})

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    with serving(TextModel(loaded, tokenizer), slots=2) as client:
        yield Says(client, script, encode)


TOOLS: Any = {"tools": [{"type": "function", "function": FUNCTION}]}
W = {"name": "w", "arguments": '{"a": 1}'}
HM = "hm, <atem:function_calls>"


def test_thought_and_text(says: Says) -> None:
    assert says(f"{THOUGHT} to=user<|message|>Hi.") == (HM, "Hi.", [])
    assert says(" to=user<|message|>Hi.")[1:] == ("Hi.", [])


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "w"}}], ids=str)
@pytest.mark.parametrize("thought", ["", THOUGHT], ids=["bare", "thought"])
def test_calls(says: Says, choice: Any, thought: str) -> None:
    found = says(f"{thought} to=w<|message|>{BLOCK}", tool_choice=choice, **TOOLS)
    assert (found[0] or "", found[2]) == (HM if thought else "", [W])
    assert not found[1]


def test_markup_in_text_is_no_call(says: Says) -> None:
    assert says(f" to=user<|message|>{BLOCK}", **TOOLS)[1:] == (BLOCK, [])


def test_a_form_is_kept_to_in_the_message_to_the_user(says: Says) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    no_tools: dict[str, Any] = {}
    for tools in (no_tools, TOOLS):
        thought, text, calls = says(f'{THOUGHT} to=user<|message|>{{"a": 7}}', response_format=form, **tools)
        assert (thought, json.loads(text), calls) == (HM, {"a": 7}, [])
    assert says(f" to=w<|message|>{BLOCK}", response_format=form, **TOOLS)[2] == [W]


def test_a_budget_ends_the_thought(says: Says) -> None:
    thought, _, _ = says(f" to=self<|message|>{'hm ' * 60}", thinking_budget=4)
    assert thought == "hm h"


def test_a_begun_answer_is_a_message_to_the_user(says: Says) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]
    found = says(" to=user<|message|>Hi, you.", messages=messages, continue_final_message=True)
    assert found[1] == ", you."

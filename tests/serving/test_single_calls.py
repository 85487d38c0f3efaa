"""Calls of tools at any load: the same bytes and the same usage, whoever else is there and whatever is drafted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.tokenization.folder import text_from_folder
from tests.gates import cases
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import SIZE
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tool_chats import FUNCTION, PARAMETERS, chat

CALL = '<tool_call>\n{"name": "w", "arguments": {"a": %d}}\n</tool_call>'
TEXT = "I look.\n" + CALL % 1 + "\n" + CALL % 2 + "\nDone, and more of it."
END, TURN = 2, 3
LOOKAHEADS: list[Any] = [0, 1, 3, 8, 32, "auto"]


Says = Callable[[str], TestClient]


@pytest.fixture(scope="module")
def says(folder: Any) -> Iterator[Says]:
    """``says(text)``: asks a model that says ``text`` whatever it is asked, and its end."""
    tokenizer = text_from_folder(folder, {"vocab_size": SIZE})
    assert tokenizer is not None
    script: list[int] = []
    head = len(tokenizer.encode("assistant\n", add_special_tokens=False))

    def logits(tokens: list[int]) -> Any:
        row = np.zeros(SIZE, np.float32)
        begin = len(tokens) - tokens[::-1].index(TURN) + head if TURN in tokens else len(tokens)
        at = len(tokens) - begin
        row[script[at] if 0 <= at < len(script) else END] = 1.0
        return row

    loaded = LoadedModel(ScriptedEngine(logits, SIZE), "fp32", generation_config={"eos_token_id": END})
    with serving(TextModel(loaded, tokenizer), slots=6) as client:

        def ask(text: str) -> TestClient:
            script[:] = tokenizer.encode(text, add_special_tokens=False)
            return client

        yield ask


def many(ask: Callable[[Any, bool], Any]) -> list[Any]:
    """Eight at once, with several settings of lookahead, streamed and whole."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: ask(LOOKAHEADS[n % len(LOOKAHEADS)], n % 3 == 0), range(8)))


@pytest.mark.parametrize("likely", [TEXT, "", "Something else"])
def test_a_single_call_ends_the_answer_at_its_last_token(says: Says, likely: str) -> None:
    client = says(TEXT)
    more: dict[str, Any] = {"parallel_tool_calls": False}
    if likely:  # drafts that go on across the end of the call
        more["prediction"] = {"type": "content", "content": likely}
    found = many(lambda lookahead, stream: chat(client, lookahead, stream=stream, **more))
    until = TEXT.index("</tool_call>") + len("</tool_call>")
    assert found[0]["content"] == "I look.\n"
    assert found[0]["calls"] == [{"name": "w", "arguments": '{"a": 1}'}]
    assert found[0]["reason"] == "tool_calls"
    assert found[0]["usage"]["completion_tokens"] == len(TEXT[:until].encode())
    assert found == found[:1] * 8


def test_several_calls_and_what_is_between_them(says: Says) -> None:
    client = says(TEXT)
    found = many(lambda lookahead, stream: chat(client, lookahead, stream=stream))
    assert found[0]["content"] == "I look.\nDone, and more of it."
    assert [one["arguments"] for one in found[0]["calls"]] == ['{"a": 1}', '{"a": 2}']
    assert found[0]["usage"]["completion_tokens"] == len(TEXT.encode()) + 1
    assert found == found[:1] * 8


@pytest.mark.parametrize("stop", [["</tool_call>"], ["Done"], ["ook", "I look.\n<"], ["more"]])
def test_a_text_to_stop_at_ends_the_answer_at_its_last_token_too(says: Says, stop: list[str]) -> None:
    client = says(TEXT)
    more = {"stop": stop, "prediction": {"type": "content", "content": TEXT}}
    found = many(lambda lookahead, stream: chat(client, lookahead, stream=stream, **more))
    ends = min(TEXT.index(one) + len(one) for one in stop)
    assert found[0]["usage"]["completion_tokens"] == len(TEXT[:ends].encode())
    assert found == found[:1] * 8


def test_anthropics_and_responses_words_for_it(says: Says) -> None:
    client = says(TEXT)
    tool = {"name": "w", "input_schema": PARAMETERS}
    for one, body in (
        ("/v1/messages", {"max_tokens": 500, "messages": [{"role": "user", "content": "Weather?"}], "tools": [tool]}),
        ("/v1/responses", {"input": "Weather?", "tools": [{"type": "function", **FUNCTION}]}),
    ):
        single = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
        single = single if "messages" in one else {"parallel_tool_calls": False}
        for more in (single, {}):
            found = many(
                lambda lookahead, _, one=one, body={**body, **more}: client.post(
                    one, json={**body, "temperature": 0, "lookahead": lookahead}
                ).json()
            )
            said = [_said(answer) for answer in found]
            first = ["I look.\n", {"a": 1}]
            assert said[0][0] == (first if more else [*first, {"a": 2}, "Done, and more of it."])
            assert said == said[:1] * 8


def _said(answer: dict[str, Any]) -> tuple[list[Any], int]:
    """Texts and arguments in order, and the tokens that they took."""
    parts: list[Any] = []
    for item in answer.get("content") or answer["output"]:
        if item["type"] in ("tool_use", "function_call"):
            parts.append(item["input"] if "input" in item else json.loads(item["arguments"]))
        else:
            parts.append(item["text"] if item["type"] == "text" else item["content"][0]["text"])
    return parts, answer["usage"]["output_tokens"]


PIECES = [CALL % 1, CALL % 2, "\n", " ", "Done.", "<tool_call>", "</tool_call>", "{", "é", "<tool", "[TOOL_CALLS]"]


@pytest.mark.rotating(1)
@settings(max_examples=cases(10, 60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join), st.booleans(), st.sampled_from(LOOKAHEADS)
)
def test_any_text_is_the_same_streamed_or_whole_with_any_lookahead(
    says: Says, text: str, one: bool, lookahead: Any
) -> None:
    client = says(text)
    more: dict[str, Any] = {"parallel_tool_calls": not one, "max_tokens": 300}
    plain = chat(client, 0, **more)
    assert chat(client, lookahead, **more) == plain
    assert chat(client, lookahead, stream=True, **more) == plain
    assert chat(client, 0, prediction={"type": "content", "content": text}, **more) == plain

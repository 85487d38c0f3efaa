"""Thinking budgets and stopped loops give the same tokens with and without drafts, in every API."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ipex_lookahead.conversation.thinking import NO_LIMIT, budget_of
from tests.serving.test_thinking import CALL, FUNCTION, LOOKAHEADS, STRICT, Says, says

__all__ = ["says"]

THOUGHT = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."
MESSAGES = [{"role": "user", "content": "What is it?"}]


def chat(client: Any, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 300, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    used = found["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return {**found["choices"][0], "used": used}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 9])
def test_a_thought_ends_at_its_budget(says: Says, opened: bool, budget: int) -> None:
    """The same bytes with and without drafts, and a thought that is shorter is left alone."""
    client = says(f"{'' if opened else says.marks.opening}{THOUGHT}{says.marks.end}Done.", opened)
    kwargs = {"chat_template_kwargs": {"opened": opened}}

    def ask(n: int) -> dict[str, Any]:
        prediction = {"prediction": {"type": "content", "content": THOUGHT}} if n % 2 else {}
        return chat(client, thinking_budget=budget, lookahead=LOOKAHEADS[n % 6], **kwargs, **prediction)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, range(6)))
    assert found == found[:1] * 6
    thought = found[0]["message"].get("reasoning_content") or ""
    assert THOUGHT.startswith(thought.strip())
    assert len(thought) < len(THOUGHT)
    assert bool(thought.strip()) == (budget > 0)
    assert found[0]["message"]["content"]
    whole = chat(client, **kwargs)
    assert whole["message"]["reasoning_content"] == THOUGHT
    assert chat(client, thinking_budget=500, **kwargs) == chat(client, reasoning_budget=-1, **kwargs) == whole
    assert found[0]["used"] < whole["used"]


def test_a_grammar_and_calls_come_behind_a_thought_that_was_ended(says: Says) -> None:
    """The line end that is forced takes the place of the thought's last token, so that the script goes on behind it."""
    budget = len(says.encode(THOUGHT)) - len(says.encode("\n"))
    client = says(f'{says.marks.opening}{THOUGHT}{says.marks.end}{{"a": 7}}', False)
    found = [chat(client, thinking_budget=budget, response_format=STRICT, lookahead=n) for n in (0, 4)]
    assert found[0] == found[1]
    assert json.loads(found[0]["message"]["content"]) == {"a": 7}
    assert found[0]["message"]["reasoning_content"] == THOUGHT[:-1]
    client = says(f"{says.marks.opening}{THOUGHT}{says.marks.end}\n{CALL}", False)
    tools = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
    found = [chat(client, thinking_budget=budget, lookahead=n, **tools) for n in (0, 4)]
    for one in found:
        assert [call["function"]["arguments"] for call in one["message"]["tool_calls"]] == ['{"a": 1}']
        assert one["used"] == found[0]["used"]


def test_a_continuation_is_the_rest_of_the_answer(says: Says) -> None:
    """Also where the first part ends within the end of the thought."""
    client = says(f"{says.marks.opening}{THOUGHT}{says.marks.end}Done.", False)
    more = {"return_token_ids": True, "thinking_budget": 5, "max_tokens": 60}
    whole = chat(client, **more)
    for cut in range(1, len(whole["token_ids"]), 3):
        first = chat(client, **{**more, "max_tokens": cut})
        begun = {"role": "assistant", "content": "", "token_ids": first["token_ids"]}
        rest = {"messages": [*MESSAGES, begun], "continue_final_message": True, "echo": True}
        limit = {"max_tokens": 60 - cut}
        found = chat(client, **{**more, **rest, **limit})
        assert (found["token_ids"], found["message"]) == (whole["token_ids"], whole["message"])


def test_each_api_has_its_word_for_the_budget(says: Says) -> None:
    client = says(f"{says.marks.opening}{THOUGHT}{says.marks.end}Done.", False)
    expected = chat(client, thinking_budget=7)["message"]["reasoning_content"]
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 160}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 7}}
    found = client.post("/v1/messages", json={**body, **thinking}).json()["content"]
    assert (found[0]["type"], found[0]["thinking"]) == ("thinking", expected)
    wrong = client.post("/v1/messages", json={**body, "thinking": {"type": "enabled", "budget_tokens": 0}})
    assert (wrong.status_code, "budget_tokens" in wrong.text) == (400, True)
    minimal = chat(client, reasoning_effort="minimal")
    assert not (minimal["message"].get("reasoning_content") or "").strip()
    response = client.post("/v1/responses", json={"input": "Hi", "temperature": 0, "reasoning": {"effort": "none"}})
    assert response.json()["usage"]["output_tokens_details"]["reasoning_tokens"] < 20


@pytest.mark.parametrize(
    ("template", "given", "effort", "default", "expected"),
    [
        ("", None, None, None, None),
        ("", None, None, 50, 50),
        ("", 7, "high", 50, 7),
        ("", NO_LIMIT, "low", 50, None),
        ("", None, "low", 50, 1024),
        ("", None, "xhigh", 50, None),
        ("{{ reasoning_effort }}", None, "low", 50, 50),
        ("", None, 3, None, None),
    ],
)
def test_which_budget_counts(template: str, given: int, effort: Any, default: int, expected: int | None) -> None:
    assert budget_of(template, given, effort, default) == expected


def test_an_answer_that_loops_ends(client) -> None:
    """Where the request says so; each API has a word for it."""
    looping = {"temperature": 0, "logit_bias": {"70": 100}}
    body = {"messages": MESSAGES, "max_tokens": 400, **looping}
    assert client.post("/v1/chat/completions", json=body).json()["choices"][0]["finish_reason"] == "length"
    for lookahead in (0, 4):
        found = client.post("/v1/chat/completions", json={**body, "stop_loops": True, "lookahead": lookahead}).json()
        (choice,) = found["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition")
        assert found["usage"]["completion_tokens"] == 192
        assert found["timings"]["repeats_itself"] is True
    found = client.post("/v1/messages", json={**body, "stop_loops": True}).json()
    assert (found["stop_reason"], found["usage"]["output_tokens"]) == ("end_turn", 192)
    found = client.post("/v1/responses", json={"input": "Hi", "stop_loops": True, **looping}).json()
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "repetition"})


@pytest.mark.parametrize("behind", ["Done.", '{"a": 7}', CALL], ids=["text", "grammar", "tools"])
def test_thought_tokens_are_counted_streamed_and_whole(says: Says, behind: str) -> None:
    """In OpenAI's APIs and in ``timings``, with a budget and what comes behind it; other APIs count them as output."""
    budget = 5
    thought = len(says.encode(f"{THOUGHT[:budget]}\n{says.marks.end}"))
    client = says(f"{says.marks.opening}{THOUGHT}{says.marks.end}{behind}", False)
    body: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 99, "thinking_budget": budget}
    body |= {"response_format": STRICT} if behind.startswith("{") else {}
    body |= {"tools": [{"type": "function", "function": FUNCTION}]} if behind is CALL else {}
    whole = client.post("/v1/chat/completions", json=body).json()
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    lines = client.post("/v1/chat/completions", json={**body, **streaming}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    (timings,) = [chunk["timings"] for chunk in chunks if "timings" in chunk]
    assert chunks[-1]["usage"]["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
    assert whole["timings"]["thinking_n"] == timings["thinking_n"] == thought


def test_other_apis_count_thought_tokens(says: Says) -> None:
    client = says(f"{says.marks.opening}{THOUGHT}{says.marks.end}Done.", False)
    body: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 300}
    usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    total, thought = usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]
    found = client.post("/v1/messages", json=body).json()
    assert (found["usage"]["output_tokens"], found["timings"]["thinking_n"]) == (total, thought)
    lines = client.post("/v1/messages", json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert next(one for one in events if one["type"] == "message_delta")["usage"]["output_tokens"] == total
    asked = {"input": "What is it?", "temperature": 0}
    one = client.post("/v1/responses", json=asked).json()["usage"]
    lines = client.post("/v1/responses", json={**asked, "stream": True}).text.splitlines()
    last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]["response"]["usage"]
    assert (one, one["output_tokens_details"]) == (last, {"reasoning_tokens": thought})
    options = {"model": "tiny", "messages": MESSAGES, "options": {"temperature": 0}}
    lines = client.post("/api/chat", json=options).text.splitlines()
    assert client.post("/api/chat", json={**options, "stream": False}).json()["eval_count"] == total
    assert json.loads(lines[-1])["eval_count"] == total

"""Requests of coding agents: none is refused, what is ignored is known, and their prompts are found again.

``agents.jsonl`` has requests as fourteen agents send them, a line each. They are reduced to their structure: texts are
``<str>``, JSON texts ``<str:json>``, and at most three tools of a kind are kept.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ipex_lookahead import __version__
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Event
from ipex_lookahead.serving.sse import Pulse
from tests.serving.conftest import LIMITS, serving
from tests.serving.test_messages import SCHEMA
from tests.support.chat_tokenizer import write_chat_llama

TURNS = [json.loads(line) for line in (Path(__file__).parent / "agents.jsonl").read_text("utf-8").splitlines()]
IGNORED = {"client_metadata", "tools.4 (web_search)", "tools.2 (web_search)"}
"""All that the requests hold and that has no effect, by the name in ``x-ignored-fields``."""


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server with a context of 16,384 tokens."""
    folder = write_chat_llama(tmp_path_factory.mktemp("agents") / "tiny", context=16384)
    with serving(load_text_model(str(folder), engine="native", threads=1, progress=False)) as client:
        yield client


def filled(value: Any) -> Any:
    """A structure with texts."""
    if isinstance(value, dict):
        return {key: filled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(filled, value))
    return {"<str>": "a text", "<str:json>": "{}"}.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn["turn"])
def test_requests_of_agents_are_answered(roomy: TestClient, turn: Any) -> None:
    limit = "max_output_tokens" if turn["path"] == "/v1/responses" else "max_tokens"
    short = {} if turn["path"].startswith("/api/") or "count" in turn["path"] else {limit: 4}
    body = {**filled(turn["body"]), "model": "tiny", **short}
    answer = roomy.post(turn["path"], json=body, headers=turn["headers"])
    assert answer.status_code == 200, answer.text
    assert "event: error" not in answer.text
    assert "response.failed" not in answer.text
    assert {*filter(None, answer.headers.get("x-ignored-fields", "").split(", "))} <= IGNORED


def test_a_line_that_changes_with_each_conversation_is_not_in_the_prompt(client):
    def counted(system: Any) -> int:
        body = {"system": system, "messages": [{"role": "user", "content": "Hi"}]}
        return client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]

    plain = counted("Be brief.")
    line = "x-anthropic-billing-header: cc_version=2.1.42; cch=65abc;"
    assert counted([{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}]) == plain
    assert counted(f"{line}\nBe brief.") == plain
    assert counted([{"type": "text", "text": "Be brief."}, {"type": "text", "text": line}]) > plain


FUNCTION = {"type": "function", "name": "w", "description": "weather", "parameters": SCHEMA}
NAMESPACE = {"type": "namespace", "name": "inner", "description": "more", "tools": [{**FUNCTION, "name": "w"}]}
CUSTOM = {"type": "custom", "name": "patch", "description": "edits", "format": {"type": "text"}}


def called(client: Any, tools: list[Any], name: str, **fields: Any) -> Any:
    choice = {"type": "function", "name": name} if "tool_choice" not in fields else fields.pop("tool_choice")
    body = {"input": "Hi", "tools": tools, "tool_choice": choice, "max_output_tokens": 400, "temperature": 0, **fields}
    answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def test_a_function_of_a_namespace_is_called_by_its_bare_name(client):
    """Codex expects the namespace in a field of its own. The model gets another name where the bare one is taken."""
    (item,) = called(client, [NAMESPACE], "w").json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "inner", "w")
    both = [FUNCTION, NAMESPACE]
    (item,) = called(client, both, "w").json()["output"]
    assert "namespace" not in item
    (item,) = called(client, both, "", tool_choice={**FUNCTION, "namespace": "inner"}).json()["output"]
    assert (item["namespace"], item["name"]) == ("inner", "w")
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
    conversation = [{"role": "user", "content": "Hi"}, item, result]
    answer = client.post("/v1/responses", json={"input": conversation, "tools": both, "max_output_tokens": 4})
    assert answer.status_code == 200, answer.text


def test_a_custom_tool_takes_a_text(client):
    """``max_output_tokens`` is large, since the random model decides when the text ends."""
    body = {"input": "Hi", "tools": [CUSTOM], "tool_choice": "required", "max_output_tokens": 1500, "temperature": 1.5}
    found = [
        item
        for seed in range(8)
        for item in client.post("/v1/responses", json={**body, "seed": seed}).json()["output"]
        if item["type"] == "custom_tool_call"
    ]
    assert found
    item = found[0]
    assert item["name"] == "patch"
    assert isinstance(item["input"], str)
    assert item["id"].startswith("ctc_")
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    conversation = [{"role": "user", "content": "Hi"}, item, output]
    answer = client.post("/v1/responses", json={"input": conversation, "tools": [CUSTOM], "max_output_tokens": 4})
    assert answer.status_code == 200, answer.text


def test_hosted_tools_are_left_out_and_named(client):
    tools = [FUNCTION, {"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    body = {"input": "Hi", "max_output_tokens": 4}
    answer = client.post("/v1/responses", json={**body, "tools": tools})
    assert answer.headers["x-ignored-fields"] == "tools.1 (web_search), tools.2 (image_generation)"
    alone = client.post("/v1/responses", json={**body, "tools": [FUNCTION]})
    assert answer.json()["usage"]["input_tokens"] == alone.json()["usage"]["input_tokens"]


DEFERRED = {"name": "later", "description": "loaded when it is needed", "input_schema": SCHEMA, "defer_loading": True}
NOW = {"name": "w", "description": "weather", "input_schema": SCHEMA}


def searched(*names: str) -> list[Any]:
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "w", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": references}]},
    ]


def test_a_deferred_tool_comes_into_the_prompt_where_it_is_referred_to(client):
    """And not before: the prompt up to there is as it was, so that the prefix cache has it."""

    def counted(messages: list[Any], tools: list[Any]) -> int:
        answer = client.post("/v1/messages/count_tokens", json={"messages": messages, "tools": tools})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    first = searched()[:1]
    assert counted(first, [NOW, DEFERRED]) == counted(first, [NOW])
    assert counted(searched("later"), [NOW, DEFERRED]) > counted(searched("gone"), [NOW, DEFERRED]) + 20
    before = {"messages": searched("gone"), "tools": [NOW, DEFERRED], "max_tokens": 1}
    client.post("/v1/messages", json=before)
    used = client.post("/v1/messages", json={**before, "messages": searched("later")}).json()["usage"]
    assert used["cache_read_input_tokens"] >= counted(first, [NOW]) // 64 * 64
    body = {
        "messages": searched("later"), "tools": [NOW, DEFERRED], "max_tokens": 300, "temperature": 0,
        "tool_choice": {"type": "tool", "name": "later"},
    }  # fmt: skip
    answer = client.post("/v1/messages", json=body).json()
    assert [block["name"] for block in answer["content"] if block["type"] == "tool_use"] == ["later"]
    refused = client.post("/v1/messages", json={**body, "messages": first})
    assert refused.status_code == 400
    assert "later" in refused.text


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(client, server):
    text = "word " * 3000
    answer = client.post("/v1/messages", json={"messages": [{"role": "user", "content": text}], "max_tokens": 4})
    context = server.served.max_context
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
    assert found is not None
    assert int(found[1]) > int(found[2]) == context - 1
    chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
    assert chat.json()["error"]["code"] == "context_length_exceeded"


def test_ollamas_clients_get_a_version_that_they_accept(client):
    found = client.get("/api/version").json()
    assert tuple(map(int, found["version"].split("."))) >= (0, 13, 4)
    assert found["ipex_lookahead"] == __version__
    assert "tools" in client.post("/api/show", json={"model": "tiny"}).json()["capabilities"]


def test_a_pause_between_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is looked at after 5 seconds at the latest: no pause is longer than 10."""
    now = [0]
    monkeypatch.setattr("ipex_lookahead.serving.sse.time.monotonic", lambda: now[0])
    pulse, sent, pauses = Pulse(5), 0, []
    for wait, written in ((1, False), (4, False), (5, False), (1, True), (3, False), (1, False), (4, False)):
        now[0] += wait
        if pulse.due(written=written) or written:
            pauses.append(now[0] - sent)
            sent = now[0]
    assert pauses == [5, 5, 1, 8]


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/responses", {"input": "Hi"}, '"type":"response.in_progress"'),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, "event: ping"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, '"delta":{},'),
        ("/v1/completions", {"prompt": "Hi"}, '"text":"",'),
    ],
)
def test_streams_have_events_while_a_prompt_is_read(live: Any, path: str, body: Any, event: str) -> None:
    running = live(limits=replace(LIMITS, ping_seconds=0.02))
    ticket, answer = running.ask(path, {"model": "tiny", "stream": True, **body})
    for done in range(1, 9):
        ticket.tell(Event("prefill", done=64 * done, total=900))
        time.sleep(0.02)
    ticket.say(70)
    ticket.finish()
    before, _, _ = answer().text.rpartition(": prefill 512/900")
    assert before.count(event) >= 3

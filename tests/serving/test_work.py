"""One request's work is bounded, and done where it does not hold up the others."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import httpx
import pytest

from ipex_lookahead.errors import ContextLengthError
from ipex_lookahead.serving.body import parts
from ipex_lookahead.serving.limits import MOST_MESSAGES, Limits
from ipex_lookahead.tokenization.text import _LONG
from tests.serving.conftest import LIMITS

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def longest(model, server):
    return model.engine.max_context * max(map(len, server.served.tokens))


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions", "v1/responses", "v1/messages", "tokenize"])
def test_text_that_no_context_holds_is_refused_before_it_is_tokenized(client, model, longest, path, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "encode", lambda *_, **__: pytest.fail("it was tokenized"))
    text = "a" * (longest + 1)
    said = [{"role": "user", "content": text}]
    body = {"v1/completions": {"prompt": text}, "v1/responses": {"input": text}, "tokenize": {"content": text}}
    answer = client.post(f"/{path}", json=body.get(path, {"messages": said, "max_tokens": 1}))
    assert answer.status_code == 400
    words = "prompt is too long" if path == "v1/messages" else "holds at most"
    assert words in answer.json()["error"]["message"]


def test_texts_count_together_wherever_they_stand(server, longest):
    half = "a" * (longest // 2 + 1)
    server.served.check_length([{"role": "user", "content": half}])
    with pytest.raises(ContextLengthError):
        server.served.check_length([{"content": half}, {"tool_calls": [{"function": {"arguments": {half: 1}}}]}])


@pytest.mark.parametrize(
    ("value", "containers", "values"),
    [
        ([], 1, 1),
        ({"a": [1, "x", {}]}, 3, 3),
        ("[{,", 0, 1),
        ('"[\\', 0, 1),
        (['\\"[,', "\\", "[{"], 1, 3),
        ([[[]]], 3, 1),
        ([{}] * 10, 11, 10),
    ],
    ids=str,
)
def test_parts_are_counted(value, containers, values):
    body = json.dumps(value).encode()
    assert parts(body, replace(LIMITS, containers=containers, values=values)) == ""
    if containers:
        assert "objects and lists" in parts(body, replace(LIMITS, containers=containers - 1))
    if values > 1:
        assert f"{values - 1} values" in parts(body, replace(LIMITS, values=values - 1))


@pytest.mark.parametrize("body", [b"{broken", b'"' * 99, b'"' + b'\\"' * 100_000, b"\xff\\"], ids=range(4))
def test_what_is_no_json_has_parts_too(body):
    assert parts(body, LIMITS) == ""


def test_bodies_of_too_many_parts_are_refused(live):
    running = live(limits=replace(LIMITS, containers=2000))
    url = running.url + "/v1/chat/completions"
    many = {"messages": HI, "metadata": [{"x": "y" * 100}] * 3000}
    answer = httpx.post(url, json=many, timeout=120)
    assert (answer.status_code, "objects and lists" in answer.text) == (413, True)
    numbers = httpx.post(running.url + "/detokenize", json={"tokens": [65] * (LIMITS.values + 1)}, timeout=120)
    assert (numbers.status_code, "values" in numbers.text) == (413, True)


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_conversations_of_too_many_messages_are_refused(client, path):
    said = HI * (MOST_MESSAGES + 1)
    body = {"input": said} if path == "responses" else {"messages": said, "max_tokens": 1}
    assert client.post(f"/v1/{path}", json=body).status_code == 400


def test_schemas_are_bounded_together(client):
    limits = Limits()
    schema = {"type": "object", "properties": {f"p{i}": {"description": "x" * 1000} for i in range(200)}}
    count = limits.schemas_bytes // len(json.dumps(schema)) + 1
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(count)]
    answer = client.post("/v1/chat/completions", json={"messages": HI, "tools": tools, "max_tokens": 1})
    assert answer.status_code == 400
    assert "schemas exceed the limit" in answer.json()["error"]["message"]


LONG_TEXT = "ab " * 66_000


@pytest.mark.parametrize(
    "schema",
    [
        {"const": LONG_TEXT},
        {"enum": ["a", LONG_TEXT]},
        {"type": "string", "pattern": "a" * 5000},
        {"properties": {"x" * 5000: {}}},
        {"properties": {"description": {"const": LONG_TEXT}}},
    ],
    ids=range(5),
)
def test_what_each_token_is_compared_with_is_bounded(client, schema):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": HI, "max_tokens": 1, "response_format": wanted}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "characters" in answer.json()["error"]["message"]


def test_long_descriptions_are_not_compared(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "a", "description": "b" * 9000}}}
    body = {"messages": HI, "max_tokens": 4, "response_format": wanted}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_other_threads_run_while_a_long_text_is_encoded(model):
    """Only for batches does the library give Python's lock away: a counter goes on counting meanwhile."""
    text = "ab " * (6 * _LONG)
    counted, ended = [0], threading.Event()

    def count() -> None:
        while not ended.is_set():
            counted[0] += 1
            time.sleep(0)

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = counted[0]
        ids = model.tokenizer.encode(text)
        during = counted[0] - before
    finally:
        ended.set()
        counter.join()
    assert during > 50
    assert ids == [i for at in range(0, len(text), 3000) for i in model.tokenizer.encode(text[at : at + 3000])]

"""Ollama's API on a tiny model: the same answers as by the other APIs, in its shapes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jsonschema
import pytest

from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.serving.test_chat import ASKED, HOT, expected
from tests.serving.test_messages import SCHEMA

TOOLS = [{"type": "function", "function": {"name": "w", "description": "weather", "parameters": SCHEMA}}]
OPTIONS = {**HOT, "num_predict": 16}


def generation(client: Any, path: str, **fields: Any) -> Any:
    given = {"messages": ASKED} if path == "chat" else {"prompt": "Hi"}
    answer = client.post(f"/api/{path}", json={"model": "tiny", "options": OPTIONS, "stream": False, **given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: Any, path: str, **fields: Any) -> list[Any]:
    given = {"messages": ASKED} if path == "chat" else {"prompt": "Hi"}
    answer = client.post(f"/api/{path}", json={"model": "tiny", "options": OPTIONS, **given, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(one) for one in answer.text.splitlines()]
    assert [one["done"] for one in found] == [False] * (len(found) - 1) + [True]
    return found


def said(one: Any) -> str:
    return str(one["message"]["content"] if "message" in one else one["response"])


@pytest.mark.parametrize("path", ["chat", "generate"])
@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "other-name"])
def test_the_answer_is_the_models_streamed_or_whole(client, model, path, name):
    whole = generation(client, path, model=name)
    assert said(whole) == expected(model, SamplingParams(16, **HOT))
    assert (whole["model"], whole["done"], whole["done_reason"]) == (name, True, "length")
    lines = streamed(client, path, model=name)
    assert "".join(map(said, lines)) == said(whole)
    last = lines[-1]
    for one in (whole, last):
        assert one["eval_count"] == 16
        assert one["prompt_eval_count"] == whole["prompt_eval_count"] > 0
        assert one["total_duration"] >= one["eval_duration"] > 0
        assert datetime.fromisoformat(one["created_at"].replace("Z", "+00:00")).tzinfo is not None


def test_raw_text_goes_on_as_it_is(client, model):
    ids = model.generate(model.tokenizer.encode("One two"), SamplingParams(16, **HOT))
    expected_text = model.tokenizer.decode(ids, skip_special_tokens=True)
    assert generation(client, "generate", prompt="One two", raw=True)["response"] == expected_text
    told = {"prompt": "One two", "raw": True, "format": SCHEMA, "options": {**HOT, "num_predict": 300}}
    jsonschema.validate(json.loads(generation(client, "generate", **told)["response"]), SCHEMA)


def test_a_system_text_is_a_message(client):
    spoken = [{"role": "system", "content": "Be brief"}, *ASKED]
    assert said(generation(client, "generate", system="Be brief")) == said(generation(client, "chat", messages=spoken))


def test_options_are_those_of_the_other_apis(client):
    asked = {"num_predict": 12, "temperature": 20, "seed": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.01,
             "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["zz"]}  # fmt: skip
    theirs = {**asked, "max_tokens": 12, "repetition_penalty": 1.3, "messages": ASKED}
    for name in ("num_predict", "repeat_penalty"):
        del theirs[name]
    answer = client.post("/v1/chat/completions", json=theirs).json()["choices"][0]["message"]["content"]
    assert said(generation(client, "chat", options=asked)) == answer
    whole = said(generation(client, "chat"))
    assert said(generation(client, "chat", options={**OPTIONS, "stop": [whole[5]]})) == whole[: whole.index(whole[5])]
    for endless in (-1, -2, 0):
        few = {**HOT, "num_predict": endless, "stop": [whole[5]]}
        assert said(generation(client, "chat", options=few)) == whole[: whole.index(whole[5])]


def test_what_is_not_known_is_passed_over_and_named(client):
    given = {"model": "tiny", "messages": ASKED, "options": {**OPTIONS, "num_gpu": 1, "num_ctx": 4096}, "efort": 1}
    answer = client.post("/api/chat", json=given)
    assert answer.headers["x-ignored-fields"] == "efort, options.num_gpu"


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_a_format_is_kept_to(client, form):
    options = {**HOT, "num_predict": 300}
    for path in ("chat", "generate"):
        found = generation(client, path, format=form, options=options)
        if found["done_reason"] == "stop":
            assert isinstance(json.loads(said(found)), dict)
            if form != "json":
                jsonschema.validate(json.loads(said(found)), SCHEMA)
        else:
            assert form == "json"


def test_calls_of_tools(client, live):
    """What the model writes as a call is one; and the conversation with its result goes on."""
    running = live()
    tokens = running.server.served.encode('<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call>')
    ticket, answer = running.ask("/api/chat", {"model": "tiny", "messages": ASKED, "tools": TOOLS})
    for token in tokens:
        ticket.say(token)
    ticket.finish()
    lines = [json.loads(one) for one in answer().text.splitlines()]
    calls = [call for one in lines for call in one["message"].get("tool_calls", ())]
    assert [call["function"]["name"] for call in calls] == ["w"]
    assert calls[0]["function"]["arguments"] == {"a": 1}
    assert lines[-1]["done_reason"] == "stop"
    conversation = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "w", "content": "sunny"},
    ]
    assert said(generation(client, "chat", messages=conversation, tools=TOOLS)) is not None


def test_a_model_is_loaded_already(client):
    assert generation(client, "chat", messages=[])["done_reason"] == "load"
    assert generation(client, "generate", prompt="")["done_reason"] == "load"
    assert generation(client, "generate", prompt=None, keep_alive=0)["done_reason"] == "unload"
    assert said(generation(client, "chat", keep_alive="5m"))


def test_what_is_told_of_the_model(client, server):
    listed = client.get("/api/tags").json()["models"]
    assert [one["name"] for one in listed] == ["tiny", "other-name"]
    assert {"modified_at", "size", "digest", "details"} <= listed[0].keys()
    assert [one["context_length"] for one in client.get("/api/ps").json()["models"]] == [2048, 2048]
    for field in ("model", "name"):
        shown = client.post("/api/show", json={field: "tiny:latest"}).json()
        assert shown["template"] == server.served.template
        assert shown["model_info"]["llama.context_length"] == 2048
        assert "completion" in shown["capabilities"]
    assert client.get("/api/version").json()["version"]


@pytest.mark.parametrize(
    ("path", "status", "fields"),
    [
        ("chat", 404, {"model": "llama3"}),
        ("chat", 400, {"model": None}),
        ("chat", 400, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}),
        ("chat", 400, {"messages": [{"role": "robot", "content": "x"}]}),
        ("chat", 400, {"messages": [{"role": "assistant", "tool_calls": [{"function": 4}]}]}),
        ("chat", 400, {"format": "xml"}),
        ("chat", 400, {"options": {"temperature": "hot"}}),
        ("chat", 400, {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
        ("generate", 400, {"images": ["aGk="]}),
        ("generate", 400, {"suffix": "end"}),
        ("generate", 400, {"context": [1, 2]}),
        ("generate", 400, {"prompt": "x" * 100_000}),
        ("show", 404, {"model": "llama3"}),
        ("nowhere", 404, {}),
    ],
    ids=str,
)
def test_errors_are_told_as_ollama_does(client, path, status, fields):
    given = {"chat": {"messages": ASKED}, "generate": {"prompt": "Hi"}}.get(path, {})
    answer = client.post(f"/api/{path}", json={"model": "tiny", **given, **fields})
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert isinstance(answer.json()["error"], str)


def test_an_error_in_a_stream_is_a_line(live):
    ticket, answer = live().ask("/api/generate", {"model": "tiny", "prompt": "Hi"})
    ticket.finish("cancelled")
    assert "shutting down" in json.loads(answer().text.splitlines()[-1])["error"]

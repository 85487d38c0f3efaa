"""Wrong requests: a status, a sentence that names the field, in OpenAI's shape; never a 500, never a 422."""

from __future__ import annotations

import copy
import json

import pytest

from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.fields import REFUSED, support
from tests.gates import rotating
from tests.support.server_attacks import SOUND

ASKED = [{"role": "user", "content": "Hi"}]
WRONG = [
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages", {"messages": "Hi"}),
    ("messages.0.role", {"messages": [{"role": "robot", "content": "Hi"}]}),
    (
        "messages.0.content.0.image_url",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
    ("messages.0.content.0.text", {"messages": [{"role": "user", "content": [{"type": "text", "text": 4}]}]}),
    ("messages.0.tool_calls.0", {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("seed", {"seed": -2}),
    ("seed", {"seed": 0.5}),
    ("top_k", {"top_k": -2}),
    ("seed", {"seed": 2**70}),
    ("seed", {"seed": True}),
    ("n", {"n": 0}),
    ("n", {"n": 99}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": -4}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop", {"stop": "x" * 2000}),
    ("logit_bias", {"logit_bias": {"99999": 1}}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("logit_bias", {"logit_bias": {str(i): 0 for i in range(2000)}}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("lookahead", {"lookahead": 1000}),
    ("lookahead", {"lookahead": "much"}),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("response_format.json_schema.schema", {"response_format": {"type": "json_schema"}}),
    ("tools.0", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    ("tools.1", {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}),
    ("tools.0.type", {"tools": [{"type": "retrieval", "function": {"name": "a"}}]}),
    ("tools.0.function.parameters", {"tools": [{"type": "function", "function": {"name": "a", "parameters": "x"}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(200)]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "b"}}}),
    ("tool_choice", {"tool_choice": {"type": "function"}}),
    ("prediction.type", {"prediction": {"type": "text", "content": ""}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
    ("model", {"model": 4}),
    ("modalities", {"modalities": ["audio"]}),
    ("web_search_options", {"web_search_options": {}}),
    ("stream_options.usage", {"stream_options": {"usage": True}}),
    ("response_format.schema", {"response_format": {"type": "json_object", "schema": {}}}),
    ("tools.0.strict", {"tools": [{"type": "function", "strict": True, "function": {"name": "a"}}]}),
    ("tools.0.function.schema", {"tools": [{"type": "function", "function": {"name": "a", "schema": {}}}]}),
    ("messages.0.audio", {"messages": [{"role": "assistant", "content": "Hi", "audio": {"id": "x"}}]}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named(client, param, fields):
    answer = client.post("/v1/chat/completions", json={"messages": ASKED, "max_tokens": 2, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[0] in error["message"]
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": ["x"] * 129, "n": 2}),
        ("suffix", {"suffix": "end"}),
        ("best_of", {"best_of": 17}),
        ("logprobs", {"logprobs": 50}),
        ("logprobs", {"logprobs": True}),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_completion_is_named(client, param, fields):
    answer = client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("v1/responses", {"input": "Hi", "reasoning": {"efort": "low"}}),
        ("v1/responses", {"input": "Hi", "text": {"format": {"type": "text", "efort": 1}}}),
        ("v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "a", "efort": 1}]}),
        ("v1/messages", {"messages": ASKED, "max_tokens": 1, "output_config": {"efort": 1}}),
        ("v1/messages", {"messages": ASKED, "max_tokens": 1, "tools": [{"name": "a", "efort": 1}]}),
    ],
    ids=str,
)
def test_an_unknown_field_further_in_is_refused_by_its_name(client, path, given):
    answer = client.post(f"/{path}", json=given)
    assert answer.status_code == 400
    assert "efort: there is no such field; " in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("v1/chat/completions", {"messages": ASKED, "max_tokens": 1}),
        ("v1/completions", {"prompt": "Hi", "max_tokens": 1}),
        ("v1/responses", {"input": "Hi", "max_output_tokens": 1}),
        ("v1/messages", {"messages": ASKED, "max_tokens": 1}),
        ("v1/messages/count_tokens", {"messages": ASKED}),
        ("apply-template", {"messages": ASKED}),
        ("tokenize", {"prompt": "Hi"}),
        ("detokenize", {"tokens": [5]}),
    ],
    ids=str,
)
def test_unknown_fields_of_a_request_are_named_in_a_header_or_refused(client, server, monkeypatch, path, given):
    assert "x-ignored-fields" not in client.post(f"/{path}", json={**given, "efort": None}).headers
    asked = {**given, "efort": 1, "a,b\r\né": 2}
    answer = client.post(f"/{path}", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "a?b???, efort"
    monkeypatch.setattr(server.settings, "strict_fields", True)
    assert client.post(f"/{path}", json={**given, "efort": None}).status_code == 200
    answer = client.post(f"/{path}", json={**given, "efort": 1})
    assert answer.status_code == 400
    assert "efort: there is no such field; " in answer.json()["error"]["message"]


def test_the_nearest_field_is_named(client, server, monkeypatch):
    monkeypatch.setattr(server.settings, "strict_fields", True)
    answer = client.post("/v1/chat/completions", json={"messages": ASKED, "max_token": 3})
    error = answer.json()["error"]
    assert error["message"] == "max_token: there is no such field; did you mean 'max_tokens'?"
    assert error["code"] == "unknown_parameter"


@pytest.mark.parametrize(
    ("path", "request_model"), [("chat/completions", ChatRequest), ("completions", CompletionRequest)]
)
def test_every_refused_field_is_refused(client, path, request_model):
    given = {"messages": ASKED} if request_model is ChatRequest else {"prompt": "Hi"}
    refused = [name for name, what, _ in support(request_model) if what == REFUSED]
    assert refused
    for name in refused:
        for value in ("nothing of the kind", ["x"], 77):
            answer = client.post(f"/v1/{path}", json={**given, "max_tokens": 1, name: value})
            assert answer.status_code == 400, (name, value)
            assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"4", b'"x"', b"\xff\xfe", b"{" * 100_000,
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"chat_template_kwargs":{"a":"\\ud800"},"n":0}',
    ],
    ids=lambda body: repr(body[:50]),
)  # fmt: skip
def test_bodies_that_are_no_request(client, body):
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{\n  "prompt": "Hi"\n  "n": 1}', "expecting ',' delimiter at line 3, column 3, near"),
        (b'{"prompt": "Hi", }', "at line 1, column 1"),
        (b'{"prompt": "Hi"', "where it ends"),
        (b'{"prompt": "H\xff"}', "byte 13 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_body_is_said_to_be_broken_and_where(client, body, said):
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith("the request body is not valid JSON: ")
    assert said in error["message"]
    assert error["code"] == "invalid_json"


def test_a_prompt_that_leaves_no_room(client, model):
    long = [{"role": "user", "content": "x" * model.engine.max_context}]
    answer = client.post("/v1/chat/completions", json={"messages": long})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert f"{model.engine.max_context:,}" in answer.json()["error"]["message"]


def test_another_model(client):
    answer = client.post("/v1/chat/completions", json={"messages": ASKED, "model": "gpt-9"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert "tiny, other-name" in error["message"]
    assert client.get("/v1/models/gpt-9").status_code == 404


def test_a_model_of_anthropics_is_the_one_that_there_is(client, server, monkeypatch):
    asked = {"messages": ASKED, "model": "claude-opus-4-5", "max_tokens": 1}
    for path in ("/v1/messages", "/v1/chat/completions"):
        answer = client.post(path, json=asked)
        assert (answer.status_code, answer.json()["model"]) == (200, "claude-opus-4-5")
    monkeypatch.setattr(server.settings, "strict_model", True)
    assert client.post("/v1/messages", json=asked).status_code == 404


def test_whole_numbers_may_have_a_point(client):
    asked = {"messages": ASKED, "seed": 5, "temperature": 30.0}
    whole = client.post("/v1/chat/completions", json={**asked, "max_tokens": 4, "n": 2, "top_k": 9}).json()
    pointed = client.post("/v1/chat/completions", json={**asked, "max_tokens": 4.0, "n": 2.0, "top_k": 9.0}).json()
    assert pointed["choices"] == whole["choices"]
    assert client.post("/v1/completions", json={"prompt": [5.0, 6.0], "max_tokens": 1.0}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": [5.5, 6.0], "max_tokens": 1.0}).status_code == 400


def test_minus_one(client, model):
    """As many tokens as the context holds, all tokens to choose from, and a seed that is drawn."""
    prompt = "x" * (model.engine.max_context - 7)
    given = {"prompt": prompt, "temperature": 30, "seed": 5}
    answer = client.post("/v1/completions", json={**given, "max_tokens": -1, "top_k": -1}).json()
    room = model.engine.max_context - answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == room < 16
    others = client.post("/v1/completions", json={**given, "max_tokens": room, "top_k": 0}).json()
    assert answer["choices"][0]["text"] == others["choices"][0]["text"]
    asked = {"messages": [{"role": "user", "content": prompt[64:]}], "max_tokens": -1, "temperature": 30, "seed": -1}
    for path in ("/v1/chat/completions", "/v1/messages"):
        first, second = (client.post(path, json=asked).json()["timings"] for _ in range(2))
        assert 1 < first["predicted_n"] < 64
        assert first["seed"] != second["seed"]
        assert min(first["seed"], second["seed"]) >= 0
    asked = {"input": prompt[64:], "max_output_tokens": -1, "temperature": 30, "seed": -1}
    seeds = {client.post("/v1/responses", json=asked).json()["timings"]["seed"] for _ in range(2)}
    assert len(seeds) == 2


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)])
def test_paths_and_methods(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_another_content_type_is_read_as_json_where_no_page_sent_it(client, kind):
    body = json.dumps({"messages": ASKED, "max_tokens": 1}).encode()

    def status(**headers: str) -> int:
        named = {"content-type": kind} if kind else {}
        return client.post("/v1/chat/completions", content=body, headers={**named, **headers}).status_code

    assert status() == 200
    assert status(**{"sec-fetch-site": "none"}) == 200
    assert status(**{"sec-fetch-site": "cross-site"}) == 415
    assert status(origin="http://evil.example") == 403
    assert status(origin="null") == 403
    assert status(origin="http://testserver") == 415, "the page itself says what it sends"


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("schema", [False, 1, "x", [1]])
def test_what_is_no_schema_or_allows_nothing_is_refused(client, schema, tools):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {"messages": ASKED, "max_tokens": 1, "tools": tools or None, "response_format": wanted}
    assert client.post("/v1/chat/completions", json=asked).status_code == 400
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    assert client.post("/v1/responses", json={"input": "hi", "text": text}).status_code == 400
    asked = {"messages": ASKED, "max_tokens": 1, "output_format": {"type": "json_schema", "schema": schema}}
    assert client.post("/v1/messages", json=asked).status_code == 400


@pytest.mark.parametrize("penalty", [0, 1e-300, 1e-7, 101])
def test_a_penalty_that_leaves_no_finite_number_is_refused(client, penalty):
    asked = {"messages": ASKED, "max_tokens": 2, "repetition_penalty": penalty}
    assert client.post("/v1/chat/completions", json=asked).status_code == 400


def _places(tree):
    """(container, key) of every value in a JSON tree."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


@pytest.mark.parametrize("number", range(len(SOUND)), ids=lambda number: SOUND[number][0])
def test_no_kind_of_value_in_any_place_is_a_500(client, number):
    path, body = SOUND[number]
    assert client.post(path, json=body).status_code == 200
    for odd in rotating([[], {"type": []}, 0.5, None], 2, lambda odd: {"odd": repr(odd)}):
        for at in range(len(list(_places(copy.deepcopy(body))))):
            tree = copy.deepcopy(body)
            container, key = list(_places(tree))[at]
            container[key] = odd
            if key not in (
                "max_tokens",
                "max_output_tokens",
                "num_predict",
                "n_predict",
                "options",
            ):  # the tiny model would talk on and on
                answer = client.post(path, json=tree)
                assert answer.status_code in (200, 400, 404), (tree, answer.text)
                assert answer.status_code == 200 or answer.json()["error"]

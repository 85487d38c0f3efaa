"""/v1/completions, and what is told of the model and of its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.runtime.logprobs import logprob_of
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.serving.test_chat import HOT, events


def generation(client: Any, **fields: Any) -> Any:
    answer = client.post("/v1/completions", json={"prompt": "One", "max_tokens": 8, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(model: Any, ids: list[int], params: SamplingParams) -> str:
    return str(model.tokenizer.decode(model.generate(ids, params), skip_special_tokens=True))


@pytest.mark.parametrize("kind", ["text", "texts", "ids", "lists"])
def test_prompts_of_each_kind(client, model, kind):
    ids = model.tokenizer.encode("One")
    prompt = {"text": "One", "texts": ["One", "Two"], "ids": ids, "lists": [ids, model.tokenizer.encode("Two")]}[kind]
    found = generation(client, prompt=prompt, **HOT)
    said = [expected(model, model.tokenizer.encode(text), SamplingParams(8, **HOT)) for text in ("One", "Two")]
    many = kind in ("texts", "lists")
    assert [choice["text"] for choice in found["choices"]] == said[: 2 if many else 1]
    assert found["object"] == "text_completion"
    chunks = events(
        client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8, "stream": True, **HOT}).text
    )
    for index, text in enumerate(said[: 2 if many else 1]):
        parts = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(parts) == text


def test_sixteen_tokens_where_no_number_is_given(client, model):
    found = generation(client, max_tokens=None, logit_bias={str(model.tokenizer.eos_token_id): -100})
    assert found["usage"]["completion_tokens"] == 16


def test_the_prompt_comes_back(client):
    assert generation(client, echo=True, max_tokens=0)["choices"][0]["text"] == "One"
    plain = generation(client)["choices"][0]["text"]
    assert generation(client, echo=True)["choices"][0]["text"] == "One" + plain
    given = {"prompt": "One", "max_tokens": 8, "temperature": 0, "echo": True, "stream": True}
    chunks = events(client.post("/v1/completions", json=given).text)
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"]) == "One" + plain


def one_forward(model: Any, ids: list[int], top: int) -> list[Any]:
    """What the model finds of a text's tokens, by one forward of its own."""
    engine = model.engine
    logits = engine.forward(chain(engine.new_cache(), np.array(ids, np.int32), OutputRequest(logits=True))).logits
    return [logprob_of(token, row, top) for token, row in zip(ids[1:], logits, strict=False)]


@pytest.mark.parametrize("kind", ["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_log_probabilities_of_the_prompt(client, model, kind, stream, max_tokens):
    """As lm-eval asks for them: the numbers of one forward over prompt and answer, to the last bit."""
    text = "<|im_start|>Gehört es " + "x" * 150
    ids = model.tokenizer.encode(text)
    given = {
        "prompt": text if kind == "text" else ids, "max_tokens": max_tokens, "temperature": 0, "echo": True,
        "logprobs": 2, "stream": stream, "logit_bias": {str(model.tokenizer.eos_token_id): -100},
    }  # fmt: skip
    answer = client.post("/v1/completions", json=given)
    assert answer.status_code == 200, answer.text
    found = events(answer.text) if stream else [answer.json()]
    choices = [choice for chunk in found for choice in chunk["choices"]]
    lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    told = {name: [one for part in lists for one in part[name]] for name in lists[0]}
    said = "".join(choice["text"] for choice in choices)
    assert said.startswith(text)
    whole = ids + model.tokenizer.encode(said[len(text) :])
    assert len(told["tokens"]) == len(ids) + max_tokens
    if len(whole) == len(told["tokens"]):  # else a byte of the answer is no character
        expected_ones = one_forward(model, whole, 2)
        assert told["token_logprobs"] == [None, *[one.logprob for one in expected_ones]]
        for mine, theirs in zip(told["top_logprobs"][1:], expected_ones, strict=True):
            assert {value for _, value in theirs.top} <= set(mine.values())
    assert told["top_logprobs"][0] is None
    assert told["tokens"][0] == "<|im_start|>"
    for token, start in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert said[start : start + len(token)] == token


def test_the_token_that_ends_an_answer_is_told_with_the_others(client, model):
    """Whoever counts tokens from the end of the lists, as lm-eval does, would else be one off."""
    end = model.tokenizer.eos_token_id
    given = {"echo": True, "logprobs": 1, "max_tokens": 1, "logit_bias": {str(end): 100}}
    (choice,) = generation(client, **given)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"] == ["O", "n", "e", "<|im_end|>"]
    assert choice["text"] == "One"


def test_models(client, model, server, monkeypatch):
    listed = client.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["tiny", "other-name"]
    assert listed[0]["max_model_len"] == model.engine.max_context
    assert client.get("/v1/models/other-name").json() == listed[1]
    own = {"temperature": 0.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "seed": None}
    assert listed[0]["meta"]["sampling"] == own, "of a request that says nothing of it"
    assert client.get("/models").json()["data"] == listed
    assert (listed[0]["meta"]["chat_template"], listed[0]["meta"]["thinking_switch"]) == (True, False)
    monkeypatch.setitem(vars(server.served), "template", "")
    assert client.get("/v1/models").json()["data"][0]["meta"]["chat_template"] is False


def test_tokens_there_and_back(client, model):
    text = "Hé <|im_end|>"
    for field in ("prompt", "content"):
        found = client.post("/tokenize", json={field: text}).json()
        assert found["tokens"] == model.tokenizer.encode(text)
        assert found["count"] == len(found["tokens"])
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"] == text
    pieces = client.post("/tokenize", json={"prompt": "é", "with_pieces": True}).json()["pieces"]
    assert pieces == ["bytes:\\xc3", "bytes:\\xa9"]
    assert client.post("/detokenize", json={"tokens": [99999]}).status_code == 400
    assert client.post("/tokenize", json={}).status_code == 400


def test_health_and_metrics(client):
    generation(client)
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json()["status"] == "ready"
    text = client.get("/metrics").text
    for name in (
        "ipex_lookahead_http_requests_total", "ipex_lookahead_request_success_total",
        "ipex_lookahead_prompt_tokens_total",
        "ipex_lookahead_generation_tokens_total", "ipex_lookahead_time_to_first_token_seconds_bucket",
        "ipex_lookahead_num_requests_running", "ipex_lookahead_kv_cache_bytes",
    ):  # fmt: skip
        assert name in text
    assert 'path="/v1/completions",status="200"' in text
    assert "/nowhere/else" not in client.get("/nowhere/else").text + client.get("/metrics").text


def test_the_document(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health"} <= paths.keys()


def test_the_best_of_several_are_the_likeliest(client):
    given = {"prompt": ["One", "Two"], "max_tokens": 6, "temperature": 30, "seed": 3}
    all_five = client.post("/v1/completions", json={**given, "n": 5, "logprobs": 0}).json()
    means = [sum(one["logprobs"]["token_logprobs"]) / 6 for one in all_five["choices"]]
    best = client.post("/v1/completions", json={**given, "n": 2, "best_of": 5}).json()
    assert [one["index"] for one in best["choices"]] == [0, 1, 2, 3]
    for prompt in (0, 1):
        order = sorted(range(5 * prompt, 5 * prompt + 5), key=lambda at: -means[at])[:2]
        texts = [all_five["choices"][at]["text"] for at in order]
        assert [one["text"] for one in best["choices"][2 * prompt :][:2]] == texts
    assert best["usage"] == all_five["usage"]
    assert all(one["logprobs"] is None for one in best["choices"])
    for wrong in ({"best_of": 1, "n": 2}, {"best_of": 99}, {"best_of": 2, "stream": True}):
        answer = client.post("/v1/completions", json={**given, **wrong})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")


def test_many_prompts_of_one_request(client):
    """More than the service has room for, which wait for each other; and each is what it is alone."""
    prompts = [f"Number {number}" for number in range(256)]
    given = {"max_tokens": 2, "temperature": 30, "seed": 3}
    found = client.post("/v1/completions", json={**given, "prompt": prompts}).json()["choices"]
    assert [one["index"] for one in found] == list(range(256))
    for number in (0, 100, 255):
        alone = client.post("/v1/completions", json={**given, "prompt": prompts[number]}).json()["choices"]
        assert alone[0]["text"] == found[number]["text"]
    answer = client.post("/v1/completions", json={**given, "prompt": prompts, "n": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")

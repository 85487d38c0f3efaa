"""llama-server's own paths: the same answers as /v1/completions gives, in its shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.test_chat import HOT


def ask(client: Any, **fields: Any) -> Any:
    answer = client.post("/completion", json={"prompt": "One two", "n_predict": 16, **HOT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("lookahead", [0, 3])
def test_the_answer_is_that_of_completions(client, model, lookahead):
    asked = {"prompt": "One two", "max_tokens": 16, **HOT}
    theirs = client.post("/v1/completions", json=asked).json()
    found = ask(client, lookahead=lookahead)
    assert found["content"] == theirs["choices"][0]["text"]
    assert (found["stop"], found["stop_type"], found["tokens_predicted"]) == (True, "limit", 16)
    assert found["tokens_evaluated"] == theirs["usage"]["prompt_tokens"]
    assert found["prompt"] == "One two"
    assert model.tokenizer.decode(found["tokens"], skip_special_tokens=True) == found["content"]
    ids = model.tokenizer.encode("One two")
    assert ask(client, prompt=ids)["content"] == found["content"]
    lines = client.post("/completion", json={"prompt": "One two", "n_predict": 16, **HOT, "stream": True}).text
    events = [json.loads(line[6:]) for line in lines.split("\n") if line.startswith("data: ")]
    assert "".join(one["content"] for one in events) == found["content"]
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    assert [i for one in events for i in one["tokens"]] == found["tokens"]
    assert events[-1]["timings"]["predicted_n"] == 16


def test_how_an_answer_ended(client, model):
    whole = ask(client)["content"]
    found = ask(client, stop=[whole[5]])
    assert (found["stop_type"], found["stopping_word"]) == ("word", whole[5])
    assert found["content"] == whole[: whole.index(whole[5])]
    (end,) = model.eos_ids
    found = ask(client, logit_bias={str(end): 100}, temperature=0)
    assert (found["stop_type"], found["content"]) == ("eos", "")
    assert ask(client, grammar='root ::= "yes" | "no"')["content"] in ("yes", "no")


def test_without_a_number_of_tokens_it_goes_on_to_the_contexts_end(client, model):
    prompt = "x" * (model.engine.max_context - 20)
    for fields in ({}, {"n_predict": -1}):
        found = client.post("/completion", json={"prompt": prompt, **HOT, "ignore_eos": True, **fields}).json()
        assert found["tokens_predicted"] + found["tokens_evaluated"] == model.engine.max_context


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("n_probs", {"n_probs": 5}),
        ("n", {"n": 2}),
        ("ignore_eos", {"ignore_eos": True, "json_schema": {}}),
    ],
)
def test_what_cannot_be_done_is_named(client, param, fields):
    answer = client.post("/completion", json={"prompt": "Hi", "n_predict": 1, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_clients_read_of_the_server(client, server):
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == server.served.max_context
    assert props["total_slots"] == 4
    assert props["chat_template"] == server.served.template
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "<|im_end|>")
    slots = client.get("/slots").json()
    assert [one["id"] for one in slots] == [0, 1, 2, 3]
    assert not any(one["is_processing"] for one in slots)
    assert client.get("/v1/health").json() == {"status": "ok"}

"""Every field about sampling, in every API alike: it has an effect, or the header ``x-ignored-fields`` names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.fields import IGNORED, support
from ipex_lookahead.serving.llama_server import InfillRequest, LlamaRequest
from ipex_lookahead.serving.messages import MessagesRequest
from ipex_lookahead.serving.ollama import Options
from ipex_lookahead.serving.responses import ResponsesRequest
from ipex_lookahead.serving.sampling import Sampler
from tests.serving.test_chat import ASKED, FUNCTIONS, events, streamed, text_of


@dataclass
class Api:
    body: dict[str, Any]
    length: str
    nested: str = ""

    def given(self, most: int, fields: dict[str, Any]) -> dict[str, Any]:
        said = {self.length: most, **fields}
        return {**self.body, **({self.nested: said} if self.nested else said)}


APIS = {
    "/v1/chat/completions": Api({"messages": ASKED}, "max_tokens"),
    "/v1/completions": Api({"prompt": "One two"}, "max_tokens"),
    "/v1/responses": Api({"input": "Hi"}, "max_output_tokens"),
    "/v1/messages": Api({"messages": ASKED}, "max_tokens"),
    "/api/chat": Api({"model": "tiny", "messages": ASKED, "stream": False}, "num_predict", "options"),
    "/api/generate": Api({"model": "tiny", "prompt": "Hi", "stream": False}, "num_predict", "options"),
    "/completion": Api({"prompt": "One two"}, "n_predict"),
}
END = {"logit_bias": {"2": 100}}
LETTER = {"logit_bias": {"84": 100}}
HOT = {"temperature": 30, "seed": 5}
COLD = {"temperature": 0}
CLOSE = {"temperature": 2, "seed": 5, "logit_bias": {str(token): 100 for token in range(69, 95)}}
"""Twenty-six letters are drawn, of which a penalty decides."""
HONORED: dict[str, tuple[dict[str, Any], Any]] = {
    "temperature": (HOT, 0),
    "top_p": (HOT, 0.01),
    "top_k": (HOT, 1),
    "min_p": (HOT, 1.0),
    "seed": (HOT, 6),
    "presence_penalty": (CLOSE, 2.0),
    "frequency_penalty": (CLOSE, 2.0),
    "repetition_penalty": (CLOSE, 50.0),
    "repeat_penalty": (CLOSE, 50.0),
    "logit_bias": (COLD, [[84, 100], [85, False]]),
    "ignore_eos": ({**COLD, **END}, True),
    "min_tokens": ({**COLD, **END}, 3),
    "stop_token_ids": ({**COLD, **LETTER}, [84]),
    "stop_loops": ({**COLD, **LETTER}, True),
}
"""Field -> a request, and a value with which its answer is another one."""
WITH_EFFECT: dict[str, Any] = {
    "typical_p": 0.5, "tfs_z": 0.5, "top_n_sigma": 1.5, "mirostat": 2, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
    "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.1,
    "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n"], "repeat_last_n": 64, "penalize_nl": False, "penalize_newline": False,
    "samplers": ["top_k"], "sampler_seq": "k", "min_keep": 5, "bad_words": ["no"], "allowed_token_ids": [1],
    "length_penalty": 2.0, "use_beam_search": True, "early_stopping": True,
}  # fmt: skip
"""Fields of llama-server, vLLM and Ollama that are not supported -> a value that would change an answer there."""
NEUTRAL: dict[str, Any] = {
    "typical_p": 1.0, "tfs_z": 1.0, "top_n_sigma": -1.0, "mirostat": 0, "dynatemp_range": 0.0, "xtc_probability": 0.0,
    "dry_multiplier": 0.0, "repeat_last_n": -1, "length_penalty": 1.0, "use_beam_search": False, "mirostat_tau": None,
}  # fmt: skip


def ask(client: Any, path: str, most: int = 6, **fields: Any) -> Any:
    answer = client.post(path, json=APIS[path].given(most, fields))
    assert answer.status_code == 200, (path, fields, answer.text)
    return answer


def said(answer: Any) -> Any:
    """What an answer says and how many tokens it took, in whatever shape."""
    found = answer.json()
    parts = [found.get(name) for name in ("content", "response", "message", "output")]
    parts += [choice.get("text") or choice.get("message") for choice in found.get("choices", ())]
    used = found.get("usage") or {}
    counts = [found.get("eval_count"), found.get("tokens_predicted")]
    texts = [part for part in parts if part is not None]
    for part in texts:
        for item in part if isinstance(part, list) else ():
            item.pop("id", None)
    return texts, [*counts, used.get("completion_tokens"), used.get("output_tokens")]


@pytest.mark.parametrize("path", APIS)
def test_each_honored_field_has_an_effect(client, path):
    for field, (base, value) in HONORED.items():
        most = 240 if field == "stop_loops" else 24
        plain, answer = ask(client, path, most, **base), ask(client, path, most, **{**base, field: value})
        assert "x-ignored-fields" not in answer.headers, field
        assert said(answer) != said(plain), field


@pytest.mark.parametrize("path", APIS)
def test_each_other_field_is_named_and_changes_nothing(client, path):
    plain, answer = ask(client, path, **HOT), ask(client, path, **HOT, **WITH_EFFECT)
    place = f"{APIS[path].nested}." if APIS[path].nested else ""
    assert set(answer.headers["x-ignored-fields"].split(", ")) == {place + name for name in WITH_EFFECT}
    assert said(answer) == said(plain)
    assert "x-ignored-fields" not in ask(client, path, **HOT, **NEUTRAL).headers


def test_the_tables_above_have_every_field():
    declared = {name: what for name, what, _ in support(Sampler)}
    assert {name for name, what in declared.items() if what == IGNORED} == WITH_EFFECT.keys()
    assert {name for name, what in declared.items() if what != IGNORED} == HONORED.keys()
    requests = (
        ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, Options, LlamaRequest, InfillRequest
    )  # fmt: skip
    assert all(issubclass(one, Sampler) for one in requests)


def test_a_strict_server_refuses_what_is_not_supported(client, server, monkeypatch):
    monkeypatch.setattr(server.settings, "strict_fields", True)
    answer = client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1, "mirostat": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "mirostat")
    assert client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1, "mirostat": 0}).status_code == 200


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("repeat_penalty", {"repeat_penalty": 1.2, "repetition_penalty": 1.1}),
        ("min_tokens", {"min_tokens": 7}),
        ("min_tokens", {"min_tokens": -1}),
        ("stop_token_ids", {"stop_token_ids": [260]}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("logit_bias", {"logit_bias": [[260, 1]]}),
        ("logit_bias", {"logit_bias": [[1, 1, 1]]}),
        ("logit_bias", {"logit_bias": [[1, True]]}),
        ("logit_bias", {"logit_bias": ["x"]}),
        ("logit_bias", {"logit_bias": {"1": True}}),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", APIS)
def test_what_cannot_be_is_refused_by_name(client, path, field, fields):
    answer = client.post(path, json=APIS[path].given(6, fields))
    assert answer.status_code == 400, answer.text
    assert field in answer.text


Q, R = 84, 85
"""Two letters' ids."""


def letter(model: Any, token: int) -> str:
    return str(model.tokenizer.decode([token]))


@pytest.mark.parametrize("lookahead", [0, 3, "auto"])
def test_no_answer_is_shorter_than_its_least_length(client, model, lookahead):
    """End tokens, tokens and texts to stop at do not end it before; with drafts as without."""
    q, r = letter(model, Q), letter(model, R)
    cases: list[tuple[dict[str, Any], str, int, Any]] = [
        ({"logit_bias": {"2": 100, str(Q): 50}, "min_tokens": 5}, q * 5, 6, None),
        ({"logit_bias": {str(R): 50, str(Q): 100}, "stop_token_ids": [Q], "min_tokens": 3}, r * 3, 4, Q),
        ({"logit_bias": {str(R): 50, str(Q): 100}, "stop_token_ids": [Q], "ignore_eos": True}, "", 1, Q),
        ({"logit_bias": {str(Q): 100}, "stop": [q * 3], "min_tokens": 5}, q * 3, 6, q * 3),
        ({"logit_bias": {str(Q): 100}, "stop": [q], "min_tokens": 16}, q * 16, 16, None),
        ({"logit_bias": {"2": 100}, "stop_token_ids": [2]}, "", 1, None),
    ]
    for fields, text, tokens, reason in cases:
        given = {"temperature": 0, "max_tokens": 16, "lookahead": lookahead, **fields}
        found = client.post("/v1/chat/completions", json={"messages": ASKED, **given}).json()
        (choice,) = found["choices"]
        assert (choice["message"]["content"], found["usage"]["completion_tokens"]) == (text, tokens), fields
        finish = "length" if tokens == 16 else "stop"
        assert (choice["finish_reason"], choice["stop_reason"]) == (finish, reason), fields
        chunks = streamed(client, **given)
        last = chunks[-1]["choices"][0]
        assert (text_of(chunks), last["finish_reason"], last["stop_reason"]) == (text, finish, reason)
        legacy = client.post("/v1/completions", json={"prompt": "One", **given}).json()["choices"][0]
        assert (legacy["text"], legacy["finish_reason"], legacy["stop_reason"]) == (text, finish, reason)
        pieces = events(client.post("/v1/completions", json={"prompt": "One", "stream": True, **given}).text)
        assert "".join(chunk["choices"][0]["text"] for chunk in pieces) == text
        assert pieces[-1]["choices"][0]["stop_reason"] == reason


def test_a_least_length_and_a_grammar_exclude_each_other(client):
    for more in ({"response_format": {"type": "json_object"}}, {"tools": FUNCTIONS}, {"guided_regex": "a"}):
        answer = client.post("/v1/chat/completions", json={"messages": ASKED, "min_tokens": 2, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")
    given = {"messages": ASKED, "min_tokens": 2, "max_tokens": 4, "tools": FUNCTIONS, "tool_choice": "none"}
    assert client.post("/v1/chat/completions", json=given).status_code == 200


def test_whether_to_think_is_the_templates(client, model, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ enable_thinking }}:" + model.tokenizer.chat_template)

    def prompt(**fields: Any) -> Any:
        return client.post("/apply-template", json={"messages": ASKED, **fields})

    for value in (True, False):
        same = {"chat_template_kwargs": {"enable_thinking": value}}
        assert prompt(enable_thinking=value).json()["prompt"].startswith(f"{value}:")
        assert prompt(enable_thinking=value, **same).json() == prompt(**same).json()
        for other in (
            {"chat_template_kwargs": {"enable_thinking": not value}},
            {"reasoning_effort": "none" if value else "high"},
        ):
            answer = prompt(enable_thinking=value, **other)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "enable_thinking")

"""A conversation over HTTP with models that have recurrent layers, or shared keys: a turn reads what is new, and says
the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.serving.usage import whole_pages
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.family_table import FAMILIES, variants
from tests.support.tiny_families import config_of, with_weights, write_folder

VARIANTS = {"qwen3_5_text": "plain", "lfm2": "plain", "granitemoehybrid": "recurrent", "gemma4_text": "e2b"}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = request.param
    variant = next(one for one in variants(family) if one.name == VARIANTS[family])
    if "vocab_size_per_layer_input" in variant.values:
        variant = replace(variant, values={**variant.values, "vocab_size_per_layer_input": SIZE})
    sizes = {**FAMILIES[family].base, "vocab_size": SIZE, "max_position_embeddings": 2048}
    model = with_weights(config_of(family, variant, base=sizes))
    made = write_folder(tmp_path_factory.mktemp("served"), model)
    chat_tokenizer().save_pretrained(made)
    return made


@contextmanager
def served(folder: Path, kv_cache: str) -> Iterator[TestClient]:
    """A server that remembers nothing yet."""
    model = load_text_model(str(folder), engine="native", threads=1, progress=False, kv_cache=kv_cache)
    with serving(model) as client:
        yield client


def answer(client: TestClient, messages: list[dict[str, str]], **fields: Any) -> Any:
    asked = {"messages": messages, "max_tokens": 20, "temperature": 3, "seed": 5, "ignore_eos": True, **fields}
    found = client.post("/v1/chat/completions", json=asked)
    assert found.status_code == 200, found.text
    return found.json()


def openai_answer(client: TestClient, messages: list[dict[str, str]]) -> tuple[Any, int]:
    found = answer(client, messages)
    return found["choices"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def anthropic_answer(client: TestClient, messages: list[dict[str, str]]) -> tuple[Any, int]:
    asked = {"model": "tiny", "max_tokens": 20, "temperature": 0, "messages": messages[1:]}
    found = client.post("/v1/messages", json={**asked, "system": messages[0]["content"]})
    assert found.status_code == 200, found.text
    return found.json()["content"], found.json()["usage"]["cache_read_input_tokens"]


SYSTEM = {"role": "system", "content": "You help sailors, and speak of the sea and of its winds. " * 6}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.rotating(3)
def test_a_second_conversation_finds_the_system_prompt(folder: Path, api: str) -> None:
    """And another last turn finds the turns before it, whatever is said there; the answers are those of reading all."""
    first = [SYSTEM, {"role": "user", "content": "which wind blows from the south? " * 2}]
    second = [SYSTEM, {"role": "user", "content": "a ship has three masts; name them. " * 2}]
    turns = [*second, {"role": "assistant", "content": "fore, main, mizzen. " * 6}]
    third, fourth = (
        [*turns, {"role": "user", "content": text * 4}] for text in ("and its sails? ", "not quite; again. ")
    )
    asked = {"openai": openai_answer, "anthropic": anthropic_answer}[api]
    with served(folder, "fp16") as client:
        for messages, begins in ((first, None), (second, [SYSTEM]), (third, second), (fourth, turns)):
            found, cached = asked(client, messages)
            with served(folder, "fp16") as fresh:
                plain, none = asked(fresh, messages)
            assert found == plain
            assert none == 0
            if begins is not None:
                whole = sum(len(one["content"]) for one in begins)  # a token is a byte
                assert cached >= whole_pages(whole)


@pytest.mark.parametrize(("lookahead", "kv_cache"), [(0, "fp16"), (4, "fp16"), (4, "int8")])
@pytest.mark.rotating(4)
def test_a_second_turn_finds_the_first(folder: Path, lookahead: int, kv_cache: str) -> None:
    messages = [{"role": "user", "content": "tell me of the sea. " * 12}]
    with served(folder, kv_cache) as client:
        known = 0
        for turn in range(3):
            found = answer(client, messages, lookahead=lookahead)
            with served(folder, kv_cache) as fresh:
                plain = answer(fresh, messages, lookahead=0)
            assert found["choices"] == plain["choices"]
            usage = found["usage"]
            assert usage["prompt_tokens"] == plain["usage"]["prompt_tokens"]
            assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert whole_pages(max(0, known - 1)) <= cached <= known + 20, (
                "the prompt before, and what of its answer is text"
            )
            assert found["timings"]["cache_n"] + found["timings"]["prompt_n"] == usage["prompt_tokens"]
            assert (cached > usage["prompt_tokens"] // 2) == (turn > 0)
            known = usage["prompt_tokens"]
            messages = [*messages, found["choices"][0]["message"], {"role": "user", "content": f"and of {turn}?"}]

"""The service on the embedded model: an answer is the same alone, in a running batch that comes and goes, on warm and
on scarce memory, with any source of drafts, greedy and seeded, streamed or whole, under any key."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.api import position_bytes
from ipex_lookahead.errors import DownloadError
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Event, Service, Stream
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.gates import cases, seed
from tests.support.random_eagle3 import random_eagle3

PROMPTS = cases(4, 60)
NEW_TOKENS = cases(12, 64)
CROWD = cases(3, 8)
KEYS = ("", "a", "b", "b")
STRATEGIES: list[Any] = [None, 3, "auto", "head", "suffix", "recycling", "jacobi", "prompt_lookup"]
"""``auto`` drafts with a head too, a random one: it is tried now and then."""


@pytest.fixture(scope="module")
def model() -> TextModel:
    try:
        made = load_text_model("default", threads=2, progress=False)
    except DownloadError as error:
        pytest.skip(f"the embedded model is not there and cannot be fetched: {error}")
    made.engine.head = random_eagle3(made.engine)  # type: ignore[attr-defined]
    return made


def asked(model: TextModel) -> list[tuple[list[int], SamplingParams]]:
    """The packaged prompts, spread over their kinds, greedy and seeded in turn."""
    lines = (files("ipex_lookahead.bench") / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = [lines[at * len(lines) // PROMPTS] for at in range(PROMPTS)]
    ids = [build_prompt(model.tokenizer, model.config, json.loads(line)["prompt"]) for line in chosen]
    hot = {"temperature": 0.8, "top_p": 0.95}
    return [(ids, SamplingParams(NEW_TOKENS, seed=n, **(hot if n % 2 else {}))) for n, ids in enumerate(ids)]


def answer_of(events: list[Event]) -> list[int]:
    assert events[-1].kind == "finish", events[-1].error
    return [token for event in events for token in event.tokens]


def test_an_answer_is_the_same_at_any_load(model: TextModel) -> None:
    wanted = asked(model)
    alone = [model.generate(ids, rules) for ids, rules in wanted]
    rng = np.random.default_rng(seed())
    longest = max(len(ids) for ids, _ in wanted) + NEW_TOKENS
    page = 64 * position_bytes(model.engine)
    for memory in (2**30, (longest // 64 + 2) * page):
        service = Service(model, slots=CROWD - 1, cache_memory=memory)  # so that keys take turns
        try:
            for _ in ("cold", "warm"):
                running: list[tuple[int, Stream]] = []
                for number in rng.permutation(PROMPTS).tolist():
                    ids, rules = wanted[number]
                    options: dict[str, Any] = {
                        "lookahead": STRATEGIES[int(rng.integers(len(STRATEGIES)))],
                        "adaptive": bool(rng.integers(2)),
                        "key": KEYS[int(rng.integers(len(KEYS)))],
                        "prediction": alone[int(rng.integers(PROMPTS))] if rng.random() < 0.3 else (),
                    }
                    if rng.random() < 0.3:  # one that leaves
                        leaving = service.stream(ids, SamplingParams(NEW_TOKENS), **options)
                        next(leaving)
                        leaving.close()
                    running.append((number, service.stream(ids, rules, **options)))
                    if len(running) == CROWD:
                        done, stream = running.pop(int(rng.integers(CROWD)))
                        assert answer_of(list(stream)) == alone[done]
                for number, stream in running:
                    assert answer_of(list(stream)) == alone[number]
        finally:
            service.close()


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


def test_calls_thoughts_and_strict_json_are_the_same_at_any_load(model: TextModel) -> None:
    """Forced, single and free calls, schemas, and prompts that end in a thought: what is heard and what it took is
    what one gets alone, without lookahead."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from starlette.testclient import TestClient

    from ipex_lookahead.serving.app import make_app
    from ipex_lookahead.serving.server import Server, Settings
    from tests.support.tool_chats import chat

    thinking = copy.copy(model)  # one whose template knows thoughts; what it makes of them is its own affair
    thinking.tokenizer = copy.copy(model.tokenizer)
    turn = "{% if opened %}{{ '<think>\\n' }}{% elif false %}{{ '</think>' }}{% endif %}"
    thinking.tokenizer.chat_template = str(model.tokenizer.chat_template) + turn

    rng = np.random.default_rng(seed())
    asks: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": f"Call w with a = {n} and then with {n + 1}."}],
            "parallel_tool_calls": bool(n % 3),
            "max_tokens": 4 * NEW_TOKENS,
            "seed": n,
            "temperature": (0, 0.9)[n // 2 % 2],
            "chat_template_kwargs": {"opened": n % 5 == 4},
            **({"tools": None, "response_format": STRICT} if n % 4 == 3 else {}),
            **({"tool_choice": "required"} if n % 4 == 1 else {}),
        }
        for n in range(cases(5, 40))
    ]
    server = Server(Settings(names=("embedded",)))
    server.ready(thinking, lambda one: Service(one, slots=CROWD))
    try:
        with TestClient(make_app(server), raise_server_exceptions=False) as client:
            alone = [chat(client, 0, **ask) for ask in asks]
            for ask, heard in zip(asks, alone, strict=True):
                if "response_format" in ask and heard["reason"] == "stop":
                    assert json.loads(heard["content"]).keys() == {"a"}
            order = [int(n) for _ in range(2) for n in rng.permutation(len(asks))]
            how = [(STRATEGIES[int(rng.integers(3))] or 0, bool(rng.integers(2))) for _ in order]
            likely = ['hm\n</think>\n\n{"a": 1}', '{"a": 1} and more', "<tool_call>", ""]

            def again(n: int, how: tuple[Any, bool]) -> Any:
                text = likely[n % len(likely)]
                more = {"prediction": {"type": "content", "content": text}} if text else {}
                return chat(client, how[0], stream=how[1], **asks[n], **more)

            with ThreadPoolExecutor(2 * CROWD) as pool:
                assert list(pool.map(again, order, how)) == [alone[n] for n in order]
    finally:
        server.close(0.0)

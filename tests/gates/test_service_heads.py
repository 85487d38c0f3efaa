"""Services whose model has a head: an answer is what it is alone, whatever comes and goes beside it, and what a head
read of a prompt is found again with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import Draft
from ipex_lookahead.engines.api import position_bytes, state_bytes
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from tests.gates import cases, seed
from tests.support.heads import KINDS, opened, write
from tests.support.letters import text_model, tokens_of

REQUESTS = cases(14, 300)
NEW_TOKENS = 40
LIKELY = LookaheadConfig("head", num_draft_tokens=4, adaptive=False, draft_min_prob=0.0)
STRATEGIES: tuple[Any, ...] = (None, "auto", "head", 3, LIKELY, LookaheadConfig("auto", 8, adaptive=False))


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeEngine:
    return opened(write(request.param, tmp_path_factory.mktemp("head")), threads=1)


def even_alone(ids: Any, logits: Any) -> Any:
    """A processor as a grammar's: only even tokens may follow."""
    logits = logits.copy()
    logits[..., 1::2] = -np.inf
    return logits


def even_drafts(ids: Any, draft: Draft) -> Draft:
    """Of a draft what the processor lets through: the chain up to its first odd token."""
    if any(parent != row - 1 for row, parent in enumerate(draft.parents)):
        return draft
    count = next((row for row, token in enumerate(draft.tokens) if token % 2), len(draft.tokens))
    return Draft(draft.tokens[:count], list(range(-1, count - 1)), 0, list(draft.probs[:count]))


def prompts(engine: NativeEngine) -> list[list[int]]:
    """Some that begin alike."""
    rng = np.random.default_rng(seed())
    texts = [rng.integers(3, engine.vocab_size, 150).tolist() for _ in range(3)]
    return [texts[n % 3][: 70 + 13 * n] for n in range(6)]


@pytest.mark.parametrize("memory", ["scarce", "plenty"])
def test_an_answer_is_the_same_at_any_load(engine: NativeEngine, memory: str) -> None:
    """With sequences of one seed, predictions, processors, filters, requests that leave, and all of it twice."""
    model, texts = text_model(engine), prompts(engine)
    rng = np.random.default_rng(seed())
    asks: list[dict[str, Any]] = [
        {
            "prompt": texts[n % len(texts)],
            "params": SamplingParams(NEW_TOKENS, seed=7, **({"temperature": 0.9} if n % 2 else {})),
            "sequence": n % 4,
            **({"processors": [even_alone], "draft_filter": even_drafts} if n % 5 == 4 else {}),
        }
        for n in range(REQUESTS)
    ]
    page, state = 64 * position_bytes(engine), state_bytes(engine)
    size = 5 * page + 5 * state if memory == "scarce" else 1 << 27
    with closing(Service(model, slots=1)) as one_by_one:
        alone = [tokens_of(list(one_by_one.stream(**ask))) for ask in asks]
    with closing(Service(model, slots=3, cache_memory=size)) as service:
        running: list[tuple[int, Any]] = []
        for number in [*rng.permutation(REQUESTS).tolist(), *rng.permutation(REQUESTS).tolist()]:
            more = {
                "lookahead": STRATEGIES[int(rng.integers(len(STRATEGIES)))],
                "key": ("a", "b")[int(rng.integers(2))],
                "prediction": alone[int(rng.integers(REQUESTS))] if rng.random() < 0.3 else (),
            }
            if rng.random() < 0.4:  # one that leaves
                leaving = service.stream(**asks[number], **more)
                next(leaving)
                leaving.close()
            running.append((number, service.stream(**asks[number], **more)))
            if len(running) == 4:
                done, stream = running.pop(int(rng.integers(4)))
                assert tokens_of(list(stream)) == alone[done]
        for number, stream in running:
            assert tokens_of(list(stream)) == alone[number]
        assert memory == "plenty" or service.preemptions
        assert service.cached_tokens


def test_a_prompt_that_is_found_again_is_drafted_for_as_before(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request's drafts are the first's: what the head read was kept with the prompt."""
    found: list[Any] = []
    draft = engine.head.draft

    def recorded(*given: Any, **named: Any) -> Any:
        found.append(draft(*given, **named))
        return found[-1]

    monkeypatch.setattr(engine.head, "draft", recorded)
    prompt = prompts(engine)[-1]
    with closing(Service(text_model(engine), slots=1)) as service:
        answers, drafts = [], []
        for _ in range(3):
            found.clear()
            answers.append(tokens_of(list(service.stream(prompt, SamplingParams(30), lookahead=LIKELY))))
            drafts.append([*found])
        assert service.cached_tokens >= len(prompt)
    assert answers[0] == answers[1] == answers[2]
    assert drafts[0] == drafts[1] == drafts[2]
    assert sum(len(tokens) for tokens, _ in drafts[0]) > 30


def test_two_services_at_once(engine: NativeEngine, tmp_path: Path) -> None:
    """Each has a model and a head of its own."""
    models = [text_model(engine), text_model(opened(write("mtp", tmp_path), threads=1))]
    texts = [prompts(model.engine)[0] for model in models]
    alone = [model.generate(text, SamplingParams(NEW_TOKENS)) for model, text in zip(models, texts, strict=True)]
    found: list[list[list[int]]] = [[], []]

    def ask(number: int) -> None:
        with closing(Service(models[number], slots=2)) as service:
            streams = [service.stream(texts[number], SamplingParams(NEW_TOKENS), lookahead=LIKELY) for _ in range(3)]
            found[number] = [tokens_of(list(stream)) for stream in streams]

    threads = [threading.Thread(target=ask, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [[one] * 3 for one in alone]


def followed(engine: NativeEngine, length: int, follow: Callable[[Any], None]) -> Any:
    """A cache of so many positions, read in chunks."""
    cache = engine.new_cache()
    follow(cache)
    tokens = np.random.default_rng(0).integers(0, engine.vocab_size, length).astype(np.int32)
    for first in range(0, length, 256):
        engine.forward(chain(cache, tokens[first : first + 256]))
        cache.keep(list(range(len(tokens[first : first + 256]))))
    engine.forward(chain(cache, tokens[:1]))  # before which the head reads what waits
    return cache


def test_a_position_takes_what_is_counted_for_it(engine: NativeEngine) -> None:
    """What a followed cache holds more is the head's keys, values and tokens, and features of few rows."""
    head, length = engine.head, 1024
    without, with_head = (followed(engine, length, how).raw.bytes for how in (lambda cache: None, head.follow))
    more = position_bytes(engine) - engine.describe()["kv_bytes_per_token"]
    assert more == head.position_bytes == head.describe()["kv_bytes_per_token"]
    assert (more == 0) == head.target_keys
    features = 4 * head.width * (2 * 129 + 64)
    assert length * more * (0 if head.spec.layers[0].mixer.window else 1) <= with_head - without
    assert with_head - without <= 1.5 * (length + 2 * 64) * more + features

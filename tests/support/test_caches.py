"""Random walks over the caches of the test engines, and the oracle engine against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.support.cache_walk import Plain, forward, walk
from tests.support.numpy_engine import NumpyEngine, tiny_numpy_engine
from tests.support.scripted_engine import markov
from tests.support.tiny import TinyLlama

ENGINES: dict[str, Any] = {
    "numpy": tiny_numpy_engine(vocab=16, hidden=16, layers=2, heads=2, kv_heads=1, intermediate=16, tie=False),
    "scripted": markov(vocab_size=16, order=40),
}
PLAIN = {name: Plain(engine) for name, engine in ENGINES.items()}


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_walks(name: str, seed: int) -> None:
    walk(ENGINES[name], seed, steps=8, plain=PLAIN[name], longest=20)


@pytest.mark.parametrize("name", ENGINES)
def test_keeping_what_is_no_path_is_refused(name: str) -> None:
    engine = ENGINES[name]
    for rows in ([1], [0, 2], [0, 1, 1], [3], [-1], [1, 0]):
        cache = engine.new_cache()
        forward(engine, [cache], [[1, 2, 3]], [[-1, 0, -1]])
        with pytest.raises(InputError):
            cache.keep(rows)


@pytest.mark.parametrize("name", ENGINES)
def test_bad_batches_are_refused(name: str) -> None:
    engine = ENGINES[name]
    for tokens, parents in (([16], [-1]), ([-1], [-1]), ([1, 2], [-1, 1]), ([1, 2], [-1, 2]), ([1], [-2])):
        with pytest.raises(InputError):
            forward(engine, [engine.new_cache()], [tokens], [parents])
    length = engine.max_context + 1
    with pytest.raises(ContextLengthError):
        forward(engine, [engine.new_cache()], [[1] * length], [list(range(-1, length - 1))])


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"tie": False, "kv_heads": 4},
        {"heads": 4, "kv_heads": 1, "head_dim": 24, "attention_bias": True, "mlp_bias": True},
        {"rope_theta": 500000.0, "layers": 1, "intermediate": 40},
    ],
)
def test_the_oracle_agrees_with_transformers(sizes: dict[str, Any]) -> None:
    """Float32 against float32: the orders of summation differ, so the last bits may."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tiny = TinyLlama(**sizes)
    config = tiny.config("float32")
    weights = tiny.weights()
    theirs = LlamaForCausalLM(
        LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "model_type")})
    )
    state = {name: torch.from_numpy(w) for name, w in weights.items()}
    if tiny.tie:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    theirs.load_state_dict(state)
    tokens = np.random.default_rng(0).integers(0, tiny.vocab, 23).astype(np.int32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens).long()[None]).logits[0].numpy()
    engine = NumpyEngine(config, weights)
    out = engine.forward(
        Batch([engine.new_cache()], [23], tokens, np.arange(-1, 22, dtype=np.int32), OutputRequest(logits=True))
    )
    assert out.logits is not None
    np.testing.assert_allclose(out.logits, expected, atol=2e-4, rtol=2e-4)

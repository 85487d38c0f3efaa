"""Perplexity against values worked out by hand, and the engine against transformers on a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.bench import quality
from ipex_lookahead.errors import InputError
from tests.support.tiny import write_tiny_llama


def test_uniform_logits_have_the_vocabularys_size_as_perplexity() -> None:
    got = quality.perplexity(lambda ids: iter([np.zeros((len(ids), 50), np.float32)]), range(40), window=16)
    assert got == pytest.approx(50)


def test_the_likelihoods_are_those_of_the_next_tokens() -> None:
    """Window of 4: token t + 1 gets logit t + 1, the others 0; the first token of a window is not counted."""

    def logits(ids: np.ndarray) -> object:
        rows = np.zeros((len(ids), 10), np.float32)
        for at in range(len(ids) - 1):
            rows[at, ids[at + 1]] = at + 1
        yield rows[:2]
        yield rows[2:]

    losses = [math.log(math.exp(k) + 9) - k for k in (1, 2, 3)]
    assert quality.perplexity(logits, [3, 1, 4, 1, 5, 9, 2, 6], window=4) == pytest.approx(math.exp(sum(losses) / 3))


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="2 tokens"):
        quality.perplexity(lambda ids: iter(()), [1], window=16)


@pytest.mark.parametrize("low_bit", [None, "sym_int4"])
def test_the_engine_has_the_references_perplexity(tmp_path: Path, low_bit: str | None) -> None:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    from ipex_lookahead import AutoModelForCausalLM

    folder = write_tiny_llama(tmp_path, seed=2, hidden=64)
    model = AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, threads=1, progress=False)
    ids = np.random.default_rng(0).integers(0, 96, 600)
    reference = quality.reference_model(model)
    ours = quality.perplexity(quality.engine_logits(model.engine), ids, 200)
    theirs = quality.perplexity(quality.reference_logits(reference), ids, 200)
    # Random weights have perplexities in the millions, so it is their logarithms that are compared.
    assert abs(math.log(ours) / math.log(theirs) - 1) < 0.005
    prompts = [ids[i : i + 9].tolist() for i in range(0, 200, 10)]
    assert quality.first_token_agreement(model.engine, reference, prompts) >= 19

"""Seeded sampling through ``generate`` follows the processed softmax, with lookahead as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from ipex_lookahead.config import LookaheadConfig
from tests.support.generate import generate
from tests.support.scripted_engine import markov

VOCAB = 8
SETTINGS = {"temperature": 0.9, "top_k": 6, "top_p": 0.9}
MODES: dict[str, Any] = {
    "plain": None,
    **{
        f"{strategy}, {'adaptive' if adaptive else 'fixed'}": LookaheadConfig(strategy, 7, adaptive=adaptive)
        for strategy in ("prompt_lookup", "suffix", "recycling", "jacobi", "auto")
        for adaptive in (False, True)
    },
}


def processed_softmax(logits: np.ndarray) -> np.ndarray:
    scores, ids = torch.from_numpy(logits)[None].double(), torch.zeros((1, 1), dtype=torch.int64)
    scores = hf.TemperatureLogitsWarper(SETTINGS["temperature"])(ids, scores)
    scores = hf.TopKLogitsWarper(int(SETTINGS["top_k"]))(ids, scores)
    return hf.TopPLogitsWarper(SETTINGS["top_p"])(ids, scores).softmax(-1)[0].numpy()


@pytest.mark.parametrize("mode", MODES)
def test_each_token_follows_the_processed_softmax_of_the_one_before(mode: str) -> None:
    """Chi-square over all transitions of a first-order chain: 5 texts of 800 tokens, fixed seeds."""
    engine = markov(VOCAB, order=1, seed=4, sharpness=1.5)
    counts = np.zeros((VOCAB, VOCAB))
    accepted = 0
    for seed in range(5):
        out = generate(
            engine,
            torch.tensor([[1, 2, 3]]),
            max_new_tokens=800,
            do_sample=True,
            seed=seed,
            lookahead=MODES[mode],
            return_dict_in_generate=True,
            **SETTINGS,
        )
        text = out.sequences[0, 2:].tolist()
        np.add.at(counts, (text[:-1], text[1:]), 1)
        accepted += out.stats.accepted
    assert (accepted > 0) == (mode != "plain"), "nothing that was drafted was ever emitted"

    statistic, freedom = 0.0, 0
    for last in range(VOCAB):
        expected = processed_softmax(engine._logits_of([last]))
        seen, inside = counts[last], expected > 0
        assert seen[~inside].sum() == 0, "a token that the warpers exclude"
        if seen.sum() < 50:
            continue
        mean = seen.sum() * expected[inside]
        statistic += ((seen[inside] - mean) ** 2 / mean).sum()
        freedom += inside.sum() - 1
    assert freedom >= 15
    # Wilson and Hilferty's approximation of the quantile at 4 standard deviations (3 in 100,000).
    assert statistic <= freedom * (1 - 2 / (9 * freedom) + 4 * np.sqrt(2 / (9 * freedom))) ** 3

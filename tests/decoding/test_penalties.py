"""Penalties against their definitions, and Hugging Face's processors where they have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers.generation import logits_process as hf

from ipex_lookahead.decoding.penalties import NEVER, CountPenalties, LeastLength, NoRepeatedNGrams, RepetitionPenalty

VOCAB = 50


def made(seed: int, length: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 12, length), (3 * rng.standard_normal(VOCAB)).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RepetitionPenalty(1.3), hf.RepetitionPenaltyLogitsProcessor(1.3)),
        (RepetitionPenalty(0.7), hf.RepetitionPenaltyLogitsProcessor(0.7)),
        *((NoRepeatedNGrams(n), hf.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3, 31, 40)),
        (LeastLength(31, (4, 9)), hf.MinLengthLogitsProcessor(31, [4, 9])),
        (LeastLength(30, (4, 9)), hf.MinLengthLogitsProcessor(30, [4, 9])),
        (LeastLength(NEVER, (3, 9, 49)), hf.SuppressTokensLogitsProcessor([3, 9, 49])),
    ],
)
@pytest.mark.rotating(20)
def test_as_hugging_face_has_them(ours, theirs, seed):
    ids, logits = made(seed)
    expected = theirs(torch.from_numpy(ids)[None], torch.from_numpy(logits.copy())[None])[0].numpy()
    assert ours(ids, logits.copy()).tobytes() == expected.tobytes()


@settings(deadline=None)
@given(
    hnp.arrays(np.float32, 40, elements=st.floats(width=32, allow_nan=False)),
    st.lists(st.integers(0, 39), min_size=1, max_size=60),
    st.floats(1e-3, 1e3),
)
def test_the_repetition_penalty_has_the_bits_of_hugging_faces(logits, seen, penalty):
    """Repeated tokens, zeros, denormals and infinities included; tokens beyond the logits are left out."""
    ids, scores = torch.tensor([seen]), torch.from_numpy(logits[None].copy())
    expected = hf.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
    found = RepetitionPenalty(penalty)(np.array([*seen, 40, 10**6]), logits)
    assert found.tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("presence", "frequency"), [(0.5, 0.0), (0.0, 0.5), (1.5, -0.25)])
def test_counts_as_openai_defines_them(presence, frequency, seed):
    ids, logits = made(seed)
    prompt = 11
    expected = logits.astype(np.float64)
    for token in range(VOCAB):
        count = sum(1 for i in ids[prompt:] if i == token)
        expected[token] -= count * frequency + (count > 0) * presence
    np.testing.assert_allclose(CountPenalties(presence, frequency, prompt)(ids, logits.copy()), expected, atol=1e-6)


def test_an_empty_answer_has_no_counts():
    ids, logits = made(0)
    assert CountPenalties(1.0, 1.0, len(ids))(ids, logits.copy()).tobytes() == logits.tobytes()

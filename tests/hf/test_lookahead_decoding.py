"""The paper's three parameters: what they mean to the loop, and that the tokens are those of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipex_lookahead import LookaheadConfig, LookaheadDecoding
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.errors import InputError
from tests.hf.test_model import build
from tests.support.scripted_engine import markov

IDS = torch.tensor([[1, 5, 3, 5, 3, 7], [2, 9, 9, 2, 9, 9]])
SAMPLED = {"do_sample": True, "seed": 4, "temperature": 0.8, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def model() -> Any:
    return build(markov(vocab_size=16, order=2, seed=1))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("how", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("w", "n", "g"), [(15, 5, 5), (1, 2, 1), (3, 3, 2), (7, 7, 7)])
def test_the_tokens_are_those_of_plain_decoding(
    model: Any, w: int, n: int, g: int, how: dict[str, Any], adaptive: bool
) -> None:
    options = {"eos_token_id": 0, "pad_token_id": 0, **how}
    plain = model.generate(IDS, max_new_tokens=100, **options)
    decoding = LookaheadDecoding(model, W=w, N=n, G=g, adaptive=adaptive)
    assert torch.equal(decoding.generate(IDS, max_new_tokens=100, **options), plain)
    if not adaptive:
        assert model.stats.drafted > 0
        assert max(model.draft_num) <= 2 * ((n - 1) * (w + g) - 1)


def test_its_defaults_are_the_papers(model: Any) -> None:
    assert LookaheadDecoding(model).config == LookaheadConfig("jacobi", 79, window=15, ngram=5, guesses=5)
    out = LookaheadDecoding(model).generate(IDS[:1], eos_token_id=None)
    assert out.shape == (1, 6 + 256)


def test_it_gains_steps() -> None:
    """A text that repeats itself fills the pool: fewer steps than tokens."""
    model = build(markov(vocab_size=16, order=2, seed=3))
    LookaheadDecoding(model, 5, 4, 5, adaptive=False).generate(IDS[:1], 120, eos_token_id=None)
    assert model.stats.mean_acceptance_length > 1.5
    assert max(model.draft_num) == 3 * 10 - 1


def test_all_of_generates_arguments_are_taken(model: Any) -> None:
    seen: list[int] = []

    def watch(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids.shape[1])
        return scores

    LookaheadDecoding(model).generate(IDS[:1], max_new_tokens=8, logits_processor=[watch], eos_token_id=None)
    assert seen == list(range(6, 14))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"W": 0}, "window is 0; it must be a whole number from 1"),
        ({"N": 1}, "ngram is 1; it must be a whole number from 2"),
        ({"G": 2.5}, "guesses is 2.5; it must be a whole number from 1"),
        ({"W": 30, "N": 7, "G": 30}, f"W=30, N=7, G=30 take 359 rows .* a step holds {MAX_DRAFT}; choose a smaller"),
    ],
)
def test_bad_parameters(model: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LookaheadDecoding(model, **parameters)


def test_another_lookahead_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="LookaheadDecoding has its own lookahead"):
        LookaheadDecoding(model).generate(IDS, lookahead=3)

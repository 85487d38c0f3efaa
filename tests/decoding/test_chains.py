"""The loop over an engine that takes no trees: every draft reaches it as a chain, and the text is the same."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead import InputError, LookaheadConfig
from tests.support.generate import generate
from tests.support.numpy_engine import NumpyEngine, tiny_numpy_engine


class ChainsOnly:
    """A numpy engine that refuses branches."""

    def __init__(self, engine: NumpyEngine) -> None:
        self._engine = engine
        self.supports_tree = False
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def forward(self, batch):
        first = 0
        for count in batch.counts:
            assert batch.parents[first : first + count].tolist() == list(range(-1, count - 1))
            self.rows = max(self.rows, count) if count < 9 else self.rows
            first += count
        return self._engine.forward(batch)


PROMPT = [[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 8, 5, 6]]


@pytest.mark.parametrize("strategy", ["prompt_lookup", "suffix", "auto", "recycling"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_strategies_that_draft_trees_are_cut_to_chains(strategy, adaptive):
    engine = tiny_numpy_engine(vocab=24, seed=3)
    plain = generate(engine, PROMPT, max_new_tokens=24)
    chains = ChainsOnly(engine)
    config = LookaheadConfig(strategy=strategy, num_draft_tokens=7, adaptive=adaptive)
    assert np.array_equal(generate(chains, PROMPT, max_new_tokens=24, lookahead=config), plain)
    assert adaptive or chains.rows > 1


def test_scratch_rows_are_refused_and_the_alternatives_named():
    chains = ChainsOnly(tiny_numpy_engine(vocab=24))
    jacobi = LookaheadConfig(strategy="jacobi", num_draft_tokens=40)
    with pytest.raises(InputError, match=r"scratch rows.*prompt_lookup, suffix"):
        generate(chains, PROMPT, max_new_tokens=64, lookahead=jacobi)

from __future__ import annotations

from typing import Any

import numpy as np

from ipex_lookahead.drafting.draft import Outcome
from ipex_lookahead.drafting.heads.chain import HeadChain


class CountingHead:
    """Gives logits without end."""

    def allow_tokens(self, cache: Any, tokens: Any) -> None: ...

    def end_draft(self, cache: Any) -> None: ...

    def next_logits(self, cache: Any, last: int, *, first: bool) -> Any:
        return np.zeros(4, np.float32)


def test_processors_see_the_text_and_what_is_drafted_so_far() -> None:
    seen: list[list[int]] = []

    def choose(logits: Any, tokens: Any) -> tuple[int, float]:
        assert tokens.dtype == np.int64
        seen.append(tokens.tolist())
        return len(tokens) + 100, 1.0

    chain, chance = HeadChain(CountingHead(), lambda: None, choose), np.random.default_rng(0)  # type: ignore
    text = [5, 6, 7]
    chain.begin(text)
    for step in range(60):
        copied = chance.integers(0, 9, int(chance.integers(0, 4))).tolist()
        budget = int(chance.integers(1, 5))
        seen.clear()
        draft = chain.propose_after(copied, budget)
        before = [*text, *copied]
        assert draft.tokens == [len(before) + 100 + at for at in range(budget)]
        assert seen == [[*before, *draft.tokens[:at]] for at in range(budget)]
        emitted = chance.integers(0, 9, 1 + step % 5).tolist()
        chain.observe(Outcome(draft, [], emitted))
        text += emitted

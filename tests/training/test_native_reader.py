"""A head that was taught here, read as the native engine reads any EAGLE-3 folder: it accepts what torch's does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.auto import load_text_model
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.training.acceptance import Acceptance
from tests.support.eagle3_chain import acceptance, greedy_texts
from tests.training.conftest import Trained

DEPTH = 4


def native_acceptance(engine: object, texts: Sequence[tuple[Sequence[int], int]]) -> Acceptance:
    """Chains along texts, begun where the last one's accepted tokens and the target's own end, as decoding goes."""
    drafted, accepted = [0] * DEPTH, [0] * DEPTH
    for text, prompt in texts:
        tokens, cache = np.array(text, np.int32), engine.new_cache()
        engine.head.follow(cache)
        at = prompt  # tokens that the target has run
        while at + 1 + DEPTH <= len(tokens) - 1:
            engine.forward(chain(cache, tokens[cache.length : at]))
            cache.keep(list(range(at - cache.length)))
            found, _ = engine.head.draft(cache, int(tokens[at]), DEPTH)
            right = [one == true for one, true in zip(found, tokens[at + 1 :], strict=False)]
            taken = right.index(False) if False in right else len(right)
            for depth in range(DEPTH):
                drafted[depth] += 1
                accepted[depth] += depth < taken
            at += 1 + taken
    return Acceptance(tuple(drafted), tuple(accepted))


def test_it_accepts_what_torch_does(trained: Trained) -> None:
    reference = trained.reference
    texts = greedy_texts(reference.model, trained.unseen, 96)
    engine = load_text_model(str(trained.target), drafter=str(trained.folder), progress=False, threads=1).engine
    right, mine = acceptance(reference, texts), native_acceptance(engine, texts)
    assert sum(right.drafted) > 2000
    assert mine.rate == pytest.approx(right.rate, abs=0.01)
    assert mine.by_depth == pytest.approx(right.by_depth, abs=0.02)


def test_its_drafts_change_no_token(trained: Trained) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained.target, drafter=trained.folder, progress=False, threads=1)
    accepted = 0
    for prompt in trained.unseen[:6]:
        ids = torch.tensor([prompt])
        for sampling in ({}, {"do_sample": True, "temperature": 0.7, "seed": 3}):
            plain = model.generate(ids, max_new_tokens=80, **sampling)
            for config in (LookaheadConfig("head", 4, adaptive=False, draft_min_prob=0.0), "auto"):
                assert model.generate(ids, max_new_tokens=80, lookahead=config, **sampling).tolist() == plain.tolist()
                accepted += model.stats.accepted
    assert accepted > 100

"""A trained EAGLE-3 head: its drafts are accepted about as often as in training, and change no token.

``stories260K_eagle3`` is a head of one layer in SpecForge's layout, trained for stories260K: 450 steps on 384 of the
model's own greedy answers. ``unseen.json`` holds prompts, as token ids, that it was not trained on. ``test_eagle3.py``
compares random heads with the formulas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.engines.prefill import chain

DEPTH = 4
HEAD = Path(__file__).parent / "stories260K_eagle3"
UNSEEN: list[list[int]] = json.loads((HEAD / "unseen.json").read_text())


@pytest.fixture(scope="module")
def model(shared: Path) -> Any:
    target = shared / "models" / "stories260K"
    return AutoModelForCausalLM.from_pretrained(target, drafter=HEAD, progress=False, threads=1)


def test_a_third_of_its_drafts_is_accepted(model: Any) -> None:
    """Chains along greedy texts, each begun where the accepted tokens of the last one and the target's own end."""
    drafted, accepted = 0, [0] * DEPTH
    for prompt in UNSEEN[:16]:
        tokens = model.generate(torch.tensor([prompt]), max_new_tokens=80)[0].numpy().astype(np.int32)
        cache, at = model.engine.new_cache(), len(prompt)  # ``at``: number of tokens that the target has run
        model.engine.head.follow(cache)
        while at + 1 + DEPTH <= len(tokens) - 1:
            model.engine.forward(chain(cache, tokens[cache.length : at]))
            cache.keep(list(range(at - cache.length)))
            found, _ = model.engine.head.draft(cache, int(tokens[at]), DEPTH)
            right = [one == true for one, true in zip(found, tokens[at + 1 :], strict=False)]
            taken = right.index(False) if False in right else len(right)
            drafted += 1
            for depth in range(taken):
                accepted[depth] += 1
            at += 1 + taken
    assert drafted > 100
    assert sum(accepted) / (drafted * DEPTH) > 0.3
    assert accepted == sorted(accepted, reverse=True)


def test_its_drafts_change_no_token(model: Any) -> None:
    accepted = 0
    for prompt in UNSEEN[:6]:
        ids = torch.tensor([prompt])
        for sampling in ({}, {"do_sample": True, "temperature": 0.7, "seed": 3}):
            plain = model.generate(ids, max_new_tokens=80, **sampling)
            for config in (LookaheadConfig("head", 4, adaptive=False, draft_min_prob=0.0), "auto"):
                assert model.generate(ids, max_new_tokens=80, lookahead=config, **sampling).tolist() == plain.tolist()
                accepted += model.stats.accepted
    assert accepted > 100

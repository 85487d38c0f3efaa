"""A trained EAGLE-3 head on the native engine accepts what the torch reference accepts; wrong readings lose.

``stories260K_eagle3`` is a head of one layer in SpecForge's layout, trained for stories260K: 450 steps on 384 of the
model's own greedy answers. ``unseen.json`` holds prompts, as token ids, that it was not trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.runtime.loading import load_text_model
from tests.support.eagle3_chain import WRONG, Reference, acceptance, greedy_texts
from tests.support.eagle3_torch import Acceptance

DEPTH = 4
HEAD = Path(__file__).parent / "stories260K_eagle3"
UNSEEN: list[list[int]] = json.loads((HEAD / "unseen.json").read_text())


@pytest.fixture(scope="module")
def target(shared: Path) -> Path:
    return shared / "models" / "stories260K"


@pytest.fixture(scope="module")
def reference(target: Path) -> Reference:
    return Reference.load(target, HEAD)


@pytest.fixture(scope="module")
def texts(reference: Reference) -> list[tuple[list[int], int]]:
    return greedy_texts(reference.model, UNSEEN[:16], 80)


@pytest.fixture(scope="module")
def right(reference: Reference, texts: list[tuple[list[int], int]]) -> Acceptance:
    return acceptance(reference, texts)


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


def test_the_torch_reference_accepts_a_third(right: Acceptance) -> None:
    assert right.rate > 0.3
    assert list(right.by_depth) == sorted(right.by_depth, reverse=True)


@pytest.mark.parametrize("reading", WRONG)
def test_a_wrong_reading_loses(
    reference: Reference, texts: list[tuple[list[int], int]], right: Acceptance, reading: str
) -> None:
    assert acceptance(reference, texts, reading).rate < right.rate - 0.02


def test_the_native_engine_accepts_what_torch_does(
    target: Path, texts: list[tuple[list[int], int]], right: Acceptance
) -> None:
    engine = load_text_model(str(target), drafter=str(HEAD), progress=False, threads=1).engine
    mine = native_acceptance(engine, texts)
    assert sum(right.drafted) > 500
    assert mine.rate == pytest.approx(right.rate, abs=0.01)
    assert mine.by_depth == pytest.approx(right.by_depth, abs=0.02)


def test_its_drafts_change_no_token(target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target, drafter=HEAD, progress=False, threads=1)
    accepted = 0
    for prompt in UNSEEN[:6]:
        ids = torch.tensor([prompt])
        for sampling in ({}, {"do_sample": True, "temperature": 0.7, "seed": 3}):
            plain = model.generate(ids, max_new_tokens=80, **sampling)
            for config in (LookaheadConfig("head", 4, adaptive=False, draft_min_prob=0.0), "auto"):
                assert model.generate(ids, max_new_tokens=80, lookahead=config, **sampling).tolist() == plain.tolist()
                accepted += model.stats.accepted
    assert accepted > 100

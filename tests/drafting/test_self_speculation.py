"""A model that drafts with a four-bit copy of itself: the text is unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.draft_model import DraftModel
from tests.support.family_table import variants
from tests.support.scripted_engine import markov
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_families import build, write_folder

SAMPLED = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 11}
IDS = torch.tensor([[1, 40, 7, 7, 40, 7], [0, 0, 1, 9, 30, 31]])
OPTIONS: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 32}


def load(folder: Path, low_bit: str | None = "sym_int8", **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, threads=1, progress=False, **kwargs)


HYBRIDS = {"qwen3_5_text": "plain", "lfm2_moe": "plain", "granitemoehybrid": "recurrent", "nemotron_h": "plain"}
"""Families with recurrent layers, and the variant that has them."""


@pytest.fixture(scope="module", params=["tied", "untied", *HYBRIDS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    if request.param in HYBRIDS:
        pytest.importorskip("transformers", minversion="5", reason="these families came with transformers 5")
        variant = next(one for one in variants(request.param) if one.name == HYBRIDS[request.param])
        return write_folder(made, build(request.param, variant))
    tied = request.param == "tied"
    sizes = {"vocab": 96, "hidden": 64, "layers": 3, "tie": tied, "attention_bias": not tied}
    return write_tiny_llama(made, context=128, **sizes)


@pytest.mark.parametrize("low_bit", ["sym_int8", "bf16", "fp16", None])
@pytest.mark.parametrize("how", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.rotating(8)
def test_the_text_is_that_of_plain_decoding(folder: Path, low_bit: str | None, how: dict[str, Any]) -> None:
    model = load(folder, low_bit, speculative=True)
    plain = model.generate(IDS, lookahead=0, **OPTIONS, **how)
    assert model.stats.drafted == 0
    assert model.runtime.copy is None  # nothing is made before it is needed
    out = model.generate(IDS, adaptive=False, **OPTIONS, **how)
    assert torch.equal(out, plain)
    assert model.stats.drafted > 0
    assert model.stats.accepted > 0
    made = model.runtime.copy
    for options in ({"max_step_draft": 3}, {"th_stop_draft": 0.0}, {"auto_th_stop_draft": True}):
        assert torch.equal(model.generate(IDS, adaptive=False, **options, **OPTIONS, **how), plain)
    assert torch.equal(model.generate(IDS, **OPTIONS, **how), plain)  # adaptive
    assert model.runtime.copy is made  # one copy serves all generations


@pytest.mark.parametrize("how", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.rotating(4)
def test_the_logits_are_those_of_plain_decoding(folder: Path, how: dict[str, Any]) -> None:
    """The copy writes behind the committed positions of the target's own cache: not a bit of these may change."""
    model = load(folder, speculative=True)
    asked = OPTIONS | {
        "return_dict_in_generate": True,
        "output_logits": True,
        "max_new_tokens": 90,
    }  # over a page's end
    plain = model.generate(IDS, lookahead=0, **asked, **how)
    out = model.generate(IDS, adaptive=False, th_stop_draft=0.3, **asked, **how)
    assert model.stats.accepted > 10
    assert torch.equal(out.sequences, plain.sequences)
    assert len(out.logits) == len(plain.logits) == 90
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits, strict=True))


def test_the_copy_drafts_what_the_target_would(folder: Path) -> None:
    """With the target as its own copy every token is accepted: it sees the very same keys and values."""
    model = load(folder)
    model.runtime.copy = model.engine
    config = LookaheadConfig("self_speculation", 7, adaptive=False, draft_min_prob=0.0)
    for how in ({}, SAMPLED):
        plain = model.generate(IDS, lookahead=0, **OPTIONS, **how)
        assert torch.equal(model.generate(IDS, lookahead=config, **OPTIONS, **how), plain)
        assert model.stats.acceptance_rate == 1.0
        assert model.stats.steps == 4  # 31 tokens after the first, eight a step


def test_the_worked_example_and_what_becomes_of_the_cache() -> None:
    engine = markov(vocab_size=30, order=1, seed=0)
    cache = engine.new_cache()
    cache.tokens = [5]
    proposer = DraftModel(engine, min_prob=0.0, shared=cache)
    proposer.begin([5, 6])
    assert engine.batches == []
    first = int(engine._logits_of([5, 6]).argmax())
    second = int(engine._logits_of([6, first]).argmax())
    assert list(proposer.propose(2).tokens) == [first, second]
    assert [counts for counts, _, _ in engine.batches] == [[1], [1]]
    assert cache.tokens == [5]
    cache.tokens = [5, 6, first]  # the target accepts one and goes its own way
    proposer.observe(Outcome(Draft.chain([first, second]), [0], [first, 9]))
    assert cache.tokens == [5, 6, first]
    assert list(proposer.propose(1).tokens) == [int(engine._logits_of([first, 9]).argmax())]
    assert cache.tokens == [5, 6, first]


def test_an_error_inside_a_draft_leaves_the_cache_as_it_was() -> None:
    engine = markov(vocab_size=30, order=1, seed=0)
    cache = engine.new_cache()
    cache.tokens = [5]

    def choose(logits: np.ndarray, tokens: np.ndarray) -> tuple[int, float]:
        if len(tokens) == 4:
            raise KeyboardInterrupt
        return 3, 1.0

    proposer = DraftModel(engine, choose, shared=cache)
    proposer.begin([5, 6])
    with pytest.raises(KeyboardInterrupt):
        proposer.propose(8)
    assert cache.tokens == [5]


def test_ipex_llms_options_of_drafts_are_kept(folder: Path) -> None:
    model = load(folder, speculative=True)
    ids, options = IDS[:1], OPTIONS | {"adaptive": False}
    model.generate(ids, th_stop_draft=0.0, **options)
    assert max(model.draft_num) == 8
    model.generate(ids, th_stop_draft=0.0, max_step_draft=3, **options)
    assert max(model.draft_num) == 3
    model.generate(ids, th_stop_draft=1.0, **options)
    assert max(model.draft_num) == 1  # no token is certain: each draft ends with its first
    model.generate(ids, th_stop_draft=1.0, min_step_draft=4, auto_parameters=[1, 0.5, 0.9, 1e-2, 0.9], **options)
    assert max(model.draft_num) == 4


def test_an_explicit_lookahead_takes_its_place(folder: Path) -> None:
    model = load(folder, speculative=True)
    plain = load(folder).generate(IDS, **OPTIONS)
    assert torch.equal(model.generate(IDS, lookahead=3, **OPTIONS), plain)
    assert model.runtime.copy is None


def test_the_strategy_works_without_the_flag(folder: Path) -> None:
    model = load(folder)
    plain = model.generate(IDS, **OPTIONS)
    assert model.stats.drafted == 0
    config = LookaheadConfig("self_speculation", 5, adaptive=False)
    assert torch.equal(model.generate(IDS, lookahead=config, **OPTIONS), plain)
    assert model.stats.drafted > 0

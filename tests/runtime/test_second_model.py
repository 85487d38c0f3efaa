"""A second model never changes the output, whatever it is; and what asks for one."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.decoding.sampling import Sampler, WarperParams, gumbel
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.lookahead import resolve_lookahead, second_model_lookahead, strategy_config
from ipex_lookahead.runtime.second_model import check_vocabulary, shared_choice
from tests.decoding.test_exact import MODES, PROMPTS, assert_same, new_tokens, padded, run
from tests.hf.test_model import build
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.generate import generate
from tests.support.scripted_engine import ScriptedEngine, markov, scripted

DRAFT = LookaheadConfig("draft_model", 6, adaptive=False, draft_min_prob=0.0)


def second(engine: Any, draft: Any, prompts: list[list[int]], config: Any = DRAFT, **kwargs: Any) -> Any:
    kwargs = {"max_new_tokens": 40, "eos_token_id": 0, "pad_token_id": 0, "return_dict_in_generate": True} | kwargs
    options = {"output_logits": True, "output_scores": True, "lookahead": config, "draft_engine": draft}
    return generate(engine, **padded(prompts), **options, **kwargs)


def nearly(engine: ScriptedEngine, noise: float, **kwargs: Any) -> ScriptedEngine:
    """The same engine with a small error in its logits, as a copy in fewer bits has it."""

    def logits(tokens: list[int]) -> np.ndarray:
        rng = np.random.default_rng(tokens[-2:])
        return (engine._logits_of(tokens) + noise * rng.standard_normal(engine.vocab_size)).astype(np.float32)

    return ScriptedEngine(logits, engine.vocab_size, **kwargs)


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return markov(vocab_size=12, order=2, seed=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("min_prob", [0.0, 0.5])
def test_tokens_and_logits_are_those_of_plain_decoding(
    engine: ScriptedEngine, mode: str, batch: int, min_prob: float
) -> None:
    plain = run(engine, PROMPTS[:batch], **MODES[mode])
    drafts = {
        "the target itself": engine,
        "nearly the target": nearly(engine, 0.3),
        "another text": markov(vocab_size=12, order=2, seed=3),
        "another order": markov(vocab_size=12, order=1, seed=2),
        "a short context": nearly(engine, 0.3, max_context=14),
    }
    rates = {}
    for name, draft in drafts.items():
        config = LookaheadConfig("draft_model", 6, adaptive=False, draft_min_prob=min_prob)
        out = second(engine, draft, PROMPTS[:batch], config, **MODES[mode])
        assert_same(out, plain)
        assert out.stats.drafted > 0
        rates[name] = out.stats.acceptance_rate
    assert rates["the target itself"] == 1.0
    assert rates["the target itself"] >= rates["nearly the target"] > rates["another text"]


@pytest.mark.parametrize("mode", MODES)
def test_the_adaptive_budget_changes_nothing(engine: ScriptedEngine, mode: str) -> None:
    config = LookaheadConfig("draft_model", 6)
    assert_same(second(engine, engine, PROMPTS, config, **MODES[mode]), run(engine, PROMPTS, **MODES[mode]))


def test_shared_noise_keeps_acceptance_high(engine: ScriptedEngine) -> None:
    """Two independent draws from the same distribution would agree with probability sum p^2 only."""
    flat = markov(vocab_size=12, order=2, seed=4, sharpness=0.5)
    rates = []
    for seed in range(5):
        out = second(flat, nearly(flat, 0.1), PROMPTS[:1], do_sample=True, seed=seed, eos_token_id=None)
        rates.append(out.stats.acceptance_rate)
    probabilities = [torch.softmax(torch.from_numpy(flat._logits_of([1, t])), 0) for t in range(12)]
    assert np.mean([float((p * p).sum()) for p in probabilities]) < 0.15
    assert np.mean(rates) > 0.5


def test_the_end_and_the_limit_inside_a_draft() -> None:
    target = scripted([3, 4, 5, 6, 7, 8, 0, 9, 9], 10, prompt_length=2)
    for limit in range(1, 10):
        plain = run(target, [[1, 2]], max_new_tokens=limit)
        out = second(target, target, [[1, 2]], max_new_tokens=limit)
        assert_same(out, plain)
        assert new_tokens(out, 2)[0] == [3, 4, 5, 6, 7, 8, 0][:limit]
        assert out.stats.finish_reasons == plain.stats.finish_reasons
    # 3 from the prompt; 4 5 6 7 8 0 drafted: nothing is drafted beyond the end token
    assert out.stats.drafted == out.stats.accepted == 6


def test_the_drafts_context_may_be_shorter_than_the_targets() -> None:
    target = markov(vocab_size=12, order=2, seed=2)
    short = nearly(target, 0.0, max_context=16)
    plain = run(target, [[1, 5, 3]], eos_token_id=None)
    out = second(target, short, [[1, 5, 3]], eos_token_id=None)
    assert_same(out, plain)
    late = [drafted for drafted, *_ in out.stats.per_step[-10:]]
    assert out.stats.accepted >= 10
    assert late == [0] * 10
    prompt = PROMPTS[2] * 2  # 22 tokens: the draft model cannot even read it
    out = second(target, short, [prompt])
    assert_same(out, run(target, [prompt]))
    assert out.stats.drafted == 0


def test_an_abandoned_generation_leaves_nothing_behind(engine: ScriptedEngine) -> None:
    plain = run(engine, PROMPTS[:1], eos_token_id=None)
    caches: list[Any] = []
    draft = nearly(engine, 0.3)
    make = draft.new_cache
    draft.new_cache = lambda: caches.append(weakref.ref(cache := make())) or cache  # type: ignore[method-assign,func-returns-value]

    class Stop(Exception):
        pass

    def stop_after(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > 20:
            raise Stop
        return scores

    with pytest.raises(Stop):
        second(engine, draft, PROMPTS[:1], logits_processor=[stop_after], eos_token_id=None)
    assert_same(second(engine, draft, PROMPTS[:1], eos_token_id=None), plain)
    gc.collect()
    assert caches
    assert not [c for c in caches if c() is not None]


def test_the_callers_processors_see_only_emitted_positions(engine: ScriptedEngine) -> None:
    seen: list[int] = []

    def watch(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(ids.shape[1])
        return scores

    second(engine, engine, PROMPTS[:1], logits_processor=[watch], eos_token_id=None, max_new_tokens=20)
    assert seen == list(range(6, 26))


def test_a_dead_end_of_the_draft_ends_the_draft_alone() -> None:
    """On the draft's own path every token is forbidden; the target goes another way."""
    target = scripted([2, 3, 1, 2, 3, 1, 0], 4, prompt_length=1)
    lost = scripted([1] * 9, 4, prompt_length=1)
    options = {"no_repeat_ngram_size": 1, "max_new_tokens": 3}
    for kwargs in ({}, {"do_sample": True, "seed": 1}):
        plain = run(target, [[0]], **{"eos_token_id": None, **options, **kwargs})
        assert_same(second(target, lost, [[0]], **{"eos_token_id": None, **options, **kwargs}), plain)


# ---- the estimate -----------------------------------------------


def test_the_lead_is_the_softmax_of_the_perturbed_scores() -> None:
    rng = np.random.default_rng(0)
    for position in range(50):
        logits = (2 * rng.standard_normal(40)).astype(np.float32)
        sampler = Sampler(WarperParams(temperature=2.0), 7, 3)
        token = sampler(logits, position)
        scores = logits.astype(np.float64) / 2.0 + gumbel(np.arange(40), 7, 3, position)
        assert token == scores.argmax()
        weights = np.exp(scores - scores.max())
        # tokens less than exp(-6) times as likely as the first are left out
        assert sampler.lead(logits, position, token) == pytest.approx(weights[token] / weights.sum(), abs=0.02)


def test_the_lead_leaves_out_what_was_cut() -> None:
    logits = np.array([3.0, 2.9, 2.8, -np.inf], np.float32)
    sampler = Sampler(WarperParams(top_k=1), 0, 0)
    for position in range(20):
        assert sampler(logits, position) == 0
        scores = logits[:3] + gumbel(np.arange(3), 0, 0, position)
        lost = scores[scores <= scores[0]]
        expected = 1 / np.exp(lost - scores[0]).sum()
        assert sampler.lead(logits, position, 0) == pytest.approx(expected, rel=1e-6)


def test_the_estimate_tells_where_the_two_agree() -> None:
    """It ranks agreements above misses, and does so better than the token's own probability."""
    rng = np.random.default_rng(1)
    choice = shared_choice([], Sampler(WarperParams(), 5, 0))
    target = Sampler(WarperParams(), 5, 0)
    agreed, estimates, own = [], [], []
    for position in range(600):
        logits = (1.5 * rng.standard_normal(50)).astype(np.float32)
        close = (logits + 0.5 * rng.standard_normal(50)).astype(np.float32)
        token, estimate = choice(close, np.zeros(position, np.int64)) or (-1, 0.0)
        agreed.append(token == target(logits, position))
        estimates.append(estimate)
        own.append(float(torch.softmax(torch.from_numpy(close), 0)[token]))
    right = np.array(agreed)

    def ranked(scores: list[float]) -> float:
        """How often an agreement has a higher score than a miss."""
        values = np.array(scores)
        return float((values[right][:, None] > values[~right][None]).mean())

    assert ranked(estimates) > 0.75
    assert ranked(estimates) > ranked(own) + 0.15


# ---- what asks for one ------------------------------------------


def drafting(lookahead: Any = None, strategy: str | None = "draft_model", **options: Any) -> Any:
    return second_model_lookahead(lookahead, strategy=strategy, **options)


def test_what_lookahead_means_beside_a_draft_model() -> None:
    assert drafting() == LookaheadConfig("draft_model", 8)
    assert drafting("auto") == LookaheadConfig("draft_model", 8)
    assert drafting(3) == LookaheadConfig("draft_model", 3)
    assert drafting(np.int64(3)) == LookaheadConfig("draft_model", 3)
    assert drafting(0) == 0
    assert drafting(False) is False
    own = LookaheadConfig("draft_model", 5, draft_min_prob=0.1)
    assert drafting(own) == own
    assert drafting(max_step_draft=4, th_stop_draft=0.3, auto_th_stop_draft=True) == LookaheadConfig(
        "draft_model", 4, draft_min_prob=0.3, draft_min_prob_auto=True
    )
    assert drafting(3, max_step_draft=4).num_draft_tokens == 3
    assert drafting(min_step_draft=3) == LookaheadConfig("draft_model", 8, draft_min_tokens=3)
    assert drafting(min_step_draft=0).draft_min_tokens == 1


def test_a_head_that_is_asked_for_by_name_has_no_least_probability() -> None:
    """What a token costs decides how long a chain is, whether or not a number of tokens is said too."""
    for tokens, expected in (("auto", 8), (4, 4)):
        assert strategy_config("head", tokens) == LookaheadConfig("head", expected, draft_min_prob=0.0)
    assert strategy_config("head", 4, draft_min_prob=0.3).draft_min_prob == 0.3
    assert resolve_lookahead("head") == LookaheadConfig("head", 8, draft_min_prob=0.0)


def test_what_lookahead_means_with_self_speculation() -> None:
    ipex_llm = LookaheadConfig("self_speculation", 8, draft_min_prob=0.8)
    assert drafting(None, "self_speculation") == ipex_llm
    assert drafting(None, "self_speculation", th_stop_draft=0) == LookaheadConfig(
        "self_speculation", 8, draft_min_prob=0.0
    )
    assert drafting(0, "self_speculation") == 0
    assert drafting(3, "self_speculation") == 3  # an explicit lookahead is prompt lookup, as without speculative=True
    assert drafting("auto", "self_speculation") == "auto"


def test_what_lookahead_means_without_a_second_model() -> None:
    for value in (None, 0, 3, "auto", LookaheadConfig()):
        assert drafting(value, None) is value


@pytest.mark.parametrize(
    ("lookahead", "strategy", "options", "message"),
    [
        (LookaheadConfig(), "draft_model", {}, "a draft model is given, but strategy 'prompt_lookup' does not use one"),
        (None, None, {"max_step_draft": 3}, "max_step_draft, min_step_draft, th_stop_draft and auto_th_stop"),
        (3, "self_speculation", {"th_stop_draft": 0.5}, "need a draft model"),
        (None, "draft_model", {"max_step_draft": 0}, "max_step_draft is 0; it must be a whole number from 1 to"),
        (None, "draft_model", {"min_step_draft": -1}, "min_step_draft is -1; it must be a whole number from 0 to"),
        (None, "draft_model", {"max_step_draft": 2.5}, "max_step_draft is 2.5"),
        (None, "draft_model", {"th_stop_draft": 1.1}, "th_stop_draft is 1.1; it must be a number of at least 0"),
        (None, "draft_model", {"th_stop_draft": "x"}, "th_stop_draft is 'x'"),
        (None, "draft_model", {"auto_th_stop_draft": 1}, "auto_th_stop_draft.* is 1; it must be True or False"),
        ("best", "draft_model", {}, "lookahead is 'best'"),
        (MAX_DRAFT + 1, "draft_model", {}, f"lookahead is {MAX_DRAFT + 1}"),
    ],
)
def test_bad_arguments(lookahead: Any, strategy: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        second_model_lookahead(lookahead, strategy=strategy, **options)


def test_the_strategy_without_its_model(engine: ScriptedEngine) -> None:
    with pytest.raises(InputError, match="'draft_model' needs a second model; pass draft_model to generate"):
        generate(engine, [[1]], lookahead=DRAFT)
    with pytest.raises(InputError, match="cannot return its weights; self-speculation needs the native engine"):
        generate(engine, [[1]], lookahead=LookaheadConfig("self_speculation"))


# ---- through the model ------------------------------------------


def test_the_models_generate_takes_a_draft_model_by_both_names() -> None:
    target, draft = build(markov(vocab_size=259)), build(markov(vocab_size=259))
    ids = torch.tensor([[5, 6, 7]])
    plain = target.generate(ids, max_new_tokens=30)
    for name in ("draft_model", "assistant_model"):
        assert torch.equal(target.generate(ids, max_new_tokens=30, adaptive=False, **{name: draft}), plain)
        assert target.stats.acceptance_rate == 1.0
        assert target.stats.steps <= 4
    assert torch.equal(target.generate(ids, max_new_tokens=30, draft_model=draft, lookahead=0), plain)
    assert target.stats.drafted == 0
    with pytest.raises(InputError, match="both draft_model and assistant_model are given"):
        target.generate(ids, draft_model=draft, assistant_model=build(markov(vocab_size=259)))


def test_a_model_may_keep_its_draft_model() -> None:
    target, draft = build(markov(vocab_size=259)), build(markov(vocab_size=259))
    ids = torch.tensor([[5, 6, 7]])
    plain = target.generate(ids, max_new_tokens=30)
    target.use_draft_model(draft)
    for lookahead in (3, "auto", LookaheadConfig("draft_model", 5)):
        assert torch.equal(target.generate(ids, max_new_tokens=30, lookahead=lookahead, adaptive=False), plain)
        assert target.stats.acceptance_rate == 1.0
    for lookahead in (None, 0):
        assert torch.equal(target.generate(ids, max_new_tokens=30, lookahead=lookahead), plain)
        assert target.stats.drafted == 0
    seen = len(draft.engine.batches)
    assert torch.equal(target.generate(ids, max_new_tokens=30, lookahead=LookaheadConfig("prompt_lookup")), plain)
    assert len(draft.engine.batches) == seen
    with pytest.raises(InputError, match="has 260 token ids"):
        target.use_draft_model(build(markov(vocab_size=260)))
    target.use_draft_model(None)
    assert torch.equal(target.generate(ids, max_new_tokens=30, lookahead=3), plain)
    assert len(draft.engine.batches) == seen


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    target = build(markov(vocab_size=259), tokenizer=byte_tokenizer())
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(InputError, match="the draft model has 260 token ids and the target 259; a draft model needs"):
        target.generate(ids, draft_model=build(markov(vocab_size=260)))
    other = byte_tokenizer()
    other.add_tokens(["hello"])
    with pytest.raises(InputError, match="'hello' is 259 there and unknown in the target's"):
        target.generate(ids, draft_model=build(markov(vocab_size=259), tokenizer=other))
    with pytest.raises(InputError, match="draft_model is a builtins.str; load it with"):
        target.generate(ids, draft_model="some/folder")
    same = build(markov(vocab_size=259), tokenizer=byte_tokenizer())
    check_vocabulary(target, same, same.engine)
    target.generate(ids, draft_model=same, max_new_tokens=5)


def test_the_vocabularies_are_compared_once() -> None:
    target = build(markov(vocab_size=259), tokenizer=byte_tokenizer())
    draft = build(markov(vocab_size=259), tokenizer=byte_tokenizer())
    asked: list[int] = []
    known = draft.tokenizer.get_vocab
    draft.tokenizer.get_vocab = lambda: asked.append(1) or known()  # type: ignore[func-returns-value]
    for _ in range(3):
        target.generate(torch.tensor([[5]]), draft_model=draft, max_new_tokens=3)
    assert asked == [1]

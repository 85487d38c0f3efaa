"""``bench exact``: that equal answers count, that a difference is found and named, and what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.bench.exact import (
    GREEDY,
    Difference,
    answerer,
    check,
    configurations,
    sampled,
    strategies,
)
from ipex_lookahead.config import LookaheadConfig
from tests.support.generate import generate
from tests.support.numpy_engine import tiny_numpy_engine

PROMPTS = [[1, 5, 3, 5, 3, 7], [4], [2, 9, 9, 2, 9, 9, 1]]


@pytest.fixture(scope="module")
def engine():
    return tiny_numpy_engine(vocab=24, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, context=64)


def model(engine, **defaults: Any) -> Any:
    def run(ids, **options):
        return generate(engine, ids, **{"eos_token_id": None, **defaults, **options})

    return SimpleNamespace(engine=engine, generate=run)


def test_batches_with_lookahead_equal_one_by_one_without(engine):
    configs = configurations(["prompt_lookup", "jacobi"], [1, 5])
    samplings = [GREEDY, sampled(2, temperature=0.8, top_p=0.95, repetition_penalty=1.1)]
    advanced = []
    rows = list(
        check(answerer(model(engine), 20), PROMPTS, configs, samplings, batch=2, advance=lambda: advanced.append(1))
    )
    assert [(row.config, row.sampling) for row in rows] == [(c, s) for c in configs for s in ("greedy", "sampled")]
    assert len({(c.strategy, c.num_draft_tokens, c.adaptive) for c in configs}) == 8
    assert all(row.equal == row.total for row in rows)
    assert {row.sampling: row.total for row in rows} == {"greedy": 3, "sampled": 6}
    assert len(advanced) == 9 * (1 + len(configs))


def test_answers_are_those_of_the_prompts_alone(engine):
    answer = answerer(model(engine, eos_token_id=7), 30)
    (sampling,) = sampled(1, temperature=1.5).runs
    together = answer(PROMPTS, 0, sampling)
    assert together == [answer([prompt], 0, sampling)[0] for prompt in PROMPTS]
    assert len(set(map(tuple, together))) == 3
    assert all(-1 not in tokens and 1 <= len(tokens) <= 30 for tokens in together)


@pytest.mark.parametrize(
    ("wrong", "position", "got", "expected"),
    [([8, 2, 4], 1, 2, 3), ([8, 3], 2, None, 4), ([8, 3, 4, 5], 3, 5, None), ([], 0, None, 8)],
)
def test_a_difference_is_named(wrong, position, got, expected):
    def answer(prompts, lookahead, sampling):
        bad = isinstance(lookahead, LookaheadConfig) and lookahead.num_draft_tokens == 7 and sampling.get("seed") == 1
        return [wrong if bad and prompt == [2] else [8, 3, 4] for prompt in prompts]

    configs = configurations(["auto"], [3, 7], ["adaptive"])
    rows = list(check(answer, [[1], [2], [3]], configs, [GREEDY, sampled(3)], batch=2))
    assert [row.equal for row in rows] == [3, 9, 3, 8]
    assert rows[3].differences == [Difference(1, position, got, expected, 1)]


def test_what_does_not_apply_is_left_out_with_the_reason(engine):
    facts = {"low_bit": "asym_int4"}
    four_bits = SimpleNamespace(engine=SimpleNamespace(name="x", supports_tree=False, describe=lambda: facts))
    usable, absent = strategies(four_bits)
    assert set(absent) == {"draft_model", "self_speculation", "jacobi", "head"}
    assert all(absent.values())
    assert "auto" in usable
    facts["low_bit"] = "sym_int8"
    four_bits.engine.supports_tree = four_bits.engine.head = True
    usable, absent = strategies(four_bits, draft_model=object())
    assert not absent
    assert {"draft_model", "self_speculation", "jacobi", "head"} <= set(usable)


def test_a_draft_model_is_passed_to_its_strategy_alone(engine):
    seen = []

    def run(ids, **options):
        seen.append(options.pop("draft_model", None))
        options["lookahead"] = 0
        return generate(engine, ids, eos_token_id=None, **options)

    answer = answerer(SimpleNamespace(engine=engine, generate=run), 2, draft_model="small")
    for strategy in ("auto", "draft_model"):
        answer([[1]], LookaheadConfig(strategy), {})
    assert seen == [None, "small"]

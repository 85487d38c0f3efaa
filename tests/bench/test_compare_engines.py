"""``compare-engines``: speeds, agreement, engines that are not there, and a lookahead that changes tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ipex_lookahead.bench.compare_engines import compare, report
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import EngineError
from ipex_lookahead.runtime.lookahead import AUTO_TOKENS

PROMPTS = [[1, 2, 3], [4, 5]]


class Model:
    """Answers with the last token of the prompt, counted on; ``answer(prompt, lookahead)`` says otherwise."""

    def __init__(self, answer: Any = None, row_invariant: bool = True) -> None:
        self.low_bit = "sym_int4"
        self.engine = SimpleNamespace(row_invariant=row_invariant, model=Theirs(), threads=1)
        self.generation_config = SimpleNamespace(eos_token_id=2)
        self.answer = answer or (lambda prompt, lookahead: [prompt[-1] + 1, prompt[-1] + 2, prompt[-1] + 3])
        self.asked: list[Any] = []

    def generate(self, ids: torch.Tensor, *, max_new_tokens: int, lookahead: Any, do_sample: bool) -> torch.Tensor:
        assert not do_sample
        prompt = ids[0].tolist()
        self.asked.append((prompt, lookahead))
        new = self.answer(prompt, lookahead)[:max_new_tokens]
        self.stats = GenerationStats(tokens=len(new), sequence_steps=1 if lookahead else 2, decode_seconds=0.5)
        return torch.tensor([prompt + new])

    def forget(self) -> None:
        self.asked.append("forget")


class Theirs:
    """ipex-llm's own model: its lookahead emits one token more than asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def generate(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        self.asked.append(options)
        count = options["max_new_tokens"] + (1 if options.get("lookahead") else 0)
        return torch.cat([ids, torch.arange(count)[None] + 50], 1)


def test_modes_alternate_and_are_warmed_up():
    model = Model()
    found = compare(lambda engine: model, lambda _: PROMPTS, engines=["native"], lookaheads=[3, "auto"])
    auto = LookaheadConfig("auto", AUTO_TOKENS, store="memory:2")
    warm_up, asked = model.asked[:3], model.asked[4:]
    assert warm_up == [(PROMPTS[0], mode) for mode in (0, 3, auto)]
    assert model.asked[3] == "forget", "an answer of the warm-up must not be found again"
    assert asked == [(p, mode) for p in PROMPTS for mode in (0, 3, auto)]
    rows = report(found)
    assert [row["mode"] for row in rows] == ["plain", "lookahead 3", "lookahead auto"]
    assert [row["identical_to_plain"] for row in rows] == ["2/2"] * 3
    assert rows[0]["tok_s"] == pytest.approx(4.0)
    assert [row["mean_acceptance_length"] for row in rows] == [1.0, 2.0, 2.0]
    assert rows[1]["tokens"] == [[4, 5, 6], [6, 7, 8]]
    assert not found.broken()


def test_agreement_is_with_ones_own_plain_and_with_native():
    models = {
        "native": Model(),
        "torch": Model(lambda prompt, lookahead: [9, 9] if len(prompt) == 2 else [4, 5, 6], row_invariant=False),
    }
    began = []
    found = compare(models.__getitem__, lambda _: PROMPTS, engines=["native", "torch"], started=began.append)
    assert began == ["native", "torch"]
    rows = report(found)
    assert [(row["engine"], row["identical_to_plain"], row["identical_to_native"]) for row in rows] == [
        ("native", "2/2", "2/2"),
        ("native", "2/2", "2/2"),
        ("torch", "2/2", "1/2"),
        ("torch", "2/2", "1/2"),
    ]


@pytest.mark.parametrize("promised", [True, False])
def test_a_changed_token_breaks_a_promise_only_where_there_is_one(promised):
    model = Model(lambda prompt, lookahead: [7, 8] if lookahead else [7, 7], row_invariant=promised)
    found = compare(lambda engine: model, lambda _: PROMPTS, engines=["torch"])
    assert report(found)[1]["identical_to_plain"] == "0/2"
    assert report(found)[1]["identical_to_native"] is None
    assert [row.mode for row in found.broken()] == (["lookahead 3"] if promised else [])


def test_an_engine_that_is_not_there_leaves_a_sentence():
    def load(engine: str) -> Model:
        if engine == "torch":
            raise EngineError("there is no such device", hint="buy one")
        return Model()

    found = compare(load, lambda _: PROMPTS, engines=["native", "torch"])
    assert [(name, str(why), why.hint) for name, why in found.absent.items()] == [
        ("torch", "there is no such device", "buy one")
    ]
    assert {row.engine for row in found.rows} == {"native"}


def test_ipex_llms_own_generate_runs_beside_ours_on_the_same_model():
    model = Model(row_invariant=False)
    found = compare(
        lambda engine: model, lambda _: PROMPTS, engines=["ipex-llm"], lookaheads=[3, "auto"], max_new_tokens=4
    )
    rows = report(found)
    assert [row["mode"] for row in rows] == ["plain", "lookahead 3", "lookahead auto", "own plain", "own lookahead 3"]
    assert rows[4]["tokens"] == [[50, 51, 52, 53]] * 2, "no token more than was asked for"
    assert rows[4]["identical_to_plain"] == "2/2", "compared with its own plain decoding"
    assert rows[4]["tok_s"] > 0
    asked = model.engine.model.asked
    assert {options.get("lookahead") for options in asked} == {None, 3}
    assert {options["max_new_tokens"] for options in asked} == {1, 4}
    assert all(options["eos_token_id"] == 2 and not options["do_sample"] for options in asked)

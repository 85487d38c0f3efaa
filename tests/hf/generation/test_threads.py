"""Several threads generate on one model: each gets its own text, and reads its own statistics."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.hf.wrapping import wrap

PROMPTS = [torch.tensor([[3, 4, 5, 3, 4]]), torch.tensor([[9, 9, 1]]), torch.tensor([[7, 2], [2, 7]])]
LENGTHS = [17, 29, 11]


@pytest.fixture(scope="module", params=["wrapped", "native"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(1)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            initializer_range=0.4,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).eval()
    if request.param == "wrapped":
        return wrap(theirs)
    pytest.importorskip("ipex_lookahead._native")
    folder = tmp_path_factory.mktemp("tiny")
    theirs.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="sym_int8", engine="native", threads=2)


@pytest.mark.parametrize("lookahead", [0, 3, "auto"])
@pytest.mark.rotating(3)
def test_threads_do_not_see_each_other(model: Any, lookahead: Any) -> None:
    def one(number: int) -> torch.Tensor:
        return model.generate(
            PROMPTS[number], max_new_tokens=LENGTHS[number], lookahead=lookahead, adaptive=False, eos_token_id=None
        )

    alone = [one(number) for number in range(3)]
    before = model.stats
    errors: list[str] = []
    start = threading.Barrier(3)

    def work(number: int) -> None:
        if model.stats.tokens or model.stats.sequence_steps:
            errors.append("a thread that has generated nothing has statistics")
        start.wait()
        for _ in range(4):
            out = one(number)
            stats = model.stats
            if not torch.equal(out, alone[number]):
                errors.append(f"thread {number}: another text")
            if stats.tokens != LENGTHS[number] * len(PROMPTS[number]) or stats.sequences != len(PROMPTS[number]):
                errors.append(f"thread {number}: {stats.tokens} tokens in the statistics")
            if model.n_token_generated != stats.tokens:
                errors.append(f"thread {number}: ipex-llm's names tell of another generation")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert model.stats is before


def test_the_seed_that_was_drawn_repeats_the_text(model: Any) -> None:
    first = model.generate(PROMPTS[0], do_sample=True, max_new_tokens=30)
    seed = model.stats.seed
    assert isinstance(seed, int)
    again = model.generate(PROMPTS[0], do_sample=True, max_new_tokens=30, seed=seed, lookahead=4)
    assert torch.equal(first, again)
    assert model.stats.seed == seed
    model.generate(PROMPTS[0], max_new_tokens=2)
    assert model.stats.seed is None


def test_an_assistant_that_transformers_has_loaded_drafts(model: Any) -> None:
    torch.manual_seed(2)
    assistant = getattr(model.engine, "model", None)
    if assistant is None:
        assistant = LlamaForCausalLM(
            LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
        ).eval()
    plain = model.generate(PROMPTS[2], max_new_tokens=20, eos_token_id=None)
    for name in ("assistant_model", "draft_model"):
        out = model.generate(PROMPTS[2], max_new_tokens=20, eos_token_id=None, adaptive=False, **{name: assistant})
        assert torch.equal(out, plain)
        assert model.stats.drafted_by_source["draft_model"] > 0
    model.use_draft_model(assistant)
    assert model._assistant is model.runtime.draft_engine
    model.use_draft_model(None)

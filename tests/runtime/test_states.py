"""Models with recurrent layers: a conversation's next turn, ``past_key_values`` and drafts of second models read no row
twice that a state can go back over, and every bit is that of plain decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.engines.api import Batch
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from tests.support.generate import generate
from tests.support.hybrids import HYBRIDS, CountedEngine, hybrid, random_text
from tests.support.letters import text_model

DRAFT = LookaheadConfig("draft_model", 5, adaptive=False, draft_min_prob=0.0)
SELF = LookaheadConfig("self_speculation", 5, adaptive=False, draft_min_prob=0.0)
OPTIONS: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "return_dict_in_generate": True}
PLAIN = SamplingParams(temperature=0.0, max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module", params=HYBRIDS)
def engine(request: pytest.FixtureRequest) -> CountedEngine:
    return hybrid(request.param)


def after(engine: CountedEngine, tokens: list[int]) -> np.ndarray:
    """The logits after a text, read token by token."""
    return generate(
        engine, torch.tensor([tokens]), max_new_tokens=1, output_logits=True, prefill_rows=1, **OPTIONS
    ).logits[0]


@pytest.mark.parametrize("lookahead", [0, 3, "auto", "jacobi"])
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.rotating(12)
def test_a_conversation_reads_new_tokens_only(engine: CountedEngine, lookahead: Any, thinks: bool) -> None:
    """Where an answer's thinking is left out of later turns, from the end of the prompt on."""
    model, fresh = text_model(engine), text_model(engine)
    prompt, known = random_text(150), 0
    for _ in range(4):
        wanted = fresh.generate(prompt, PLAIN)
        for same in (known, len(prompt) - 1):  # the same prompt once more reads its last token
            before = engine.rows
            assert model.generate(prompt, PLAIN, lookahead=lookahead, keep=True) == wanted
            assert model.stats.cached_tokens == same
            if lookahead == 0:
                assert engine.rows - before == len(prompt) - same + len(wanted) - 1
        if thinks:
            known = len(prompt) - 4
            prompt = [*prompt[:known], 95 - prompt[known], *wanted[9:], 1, 2, 3]
        else:
            known = len(prompt) + len(wanted) - 1
            prompt = [*prompt, *wanted, 4]


def test_another_conversation_begins_with_the_same_system_prompt(
    engine: CountedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another last turn with the turns before it: what ``chat`` does after /reset and /undo."""
    model, fresh = text_model(engine), text_model(engine)
    begins: list[int] = []
    monkeypatch.setattr(model, "turns_of", lambda ids: [at for at in begins if at < len(ids)])
    system = random_text(200)
    first, second, third = ([*system, *random_text(80, seed)] for seed in (1, 2, 3))
    begins[:] = [200]
    for prompt, cached in ((first, 0), (second, 200), (third, 200)):
        assert model.generate(prompt, PLAIN, keep=True) == fresh.generate(prompt, PLAIN)
        assert model.stats.cached_tokens == cached
    model.generate(first, PLAIN, keep=True)
    turns = [*first, *fresh.generate(first, PLAIN), *random_text(70, 5)]
    begins[:] = [200, len(turns)]
    for seed, cached in ((6, len(first) + 23), (7, len(turns))):
        prompt = [*turns, *random_text(40, seed)]
        assert model.generate(prompt, PLAIN, keep=True) == fresh.generate(prompt, PLAIN)
        assert model.stats.cached_tokens == cached
    for _ in range(4):
        turns = [*turns, *model.generate(turns, PLAIN, keep=True), *random_text(70, 8)]
        begins[:] = [200, len(turns)]
    other = [*system, *random_text(80, 9)]
    assert model.generate(other, PLAIN, keep=True) == fresh.generate(other, PLAIN)
    assert model.stats.cached_tokens == 200, "after many other turns too"


def test_past_key_values_go_on_where_they_were(engine: CountedEngine) -> None:
    prompt = random_text(90)
    first = generate(engine, torch.tensor([prompt]), max_new_tokens=20, **OPTIONS)
    text = [*first.sequences[0].tolist(), 5, 6, 7]
    before = engine.rows
    second = generate(
        engine,
        torch.tensor([text]),
        max_new_tokens=8,
        past_key_values=first.past_key_values,
        output_logits=True,
        **OPTIONS,
    )
    assert engine.rows - before == 1 + 3 + 7
    assert torch.equal(second.logits[0], after(engine, text))
    past = second.past_key_values
    before = engine.rows
    past.crop(len(text) - 5)
    assert past.get_seq_length() == past.rows[0].length == len(text) - 5
    assert engine.rows == before, "the end of the prompt can be gone back over"
    past.crop(len(prompt) + 2)
    assert past.rows[0].length == len(prompt) + 2
    assert engine.rows - before == 2, "and so can the one before"
    past.crop(40)
    assert past.rows[0].length == 40
    assert engine.rows - before == 2 + 40, "what is not kept is read again"
    third = generate(
        engine, torch.tensor([text]), max_new_tokens=1, past_key_values=past, output_logits=True, **OPTIONS
    )
    assert torch.equal(third.logits[0], after(engine, text))


def test_rows_of_a_batch_that_end_apart_are_cut_alike(engine: CountedEngine) -> None:
    prompts = torch.tensor([random_text(30, 1), random_text(30, 2)])
    plain = generate(engine, prompts, max_new_tokens=12, **OPTIONS)
    end = int(plain.sequences[0, 33])
    first = generate(engine, prompts, max_new_tokens=12, **{**OPTIONS, "eos_token_id": end})
    past = first.past_key_values
    columns = past.get_seq_length()
    assert [cache.length for cache in past.rows] == [columns] * 2
    text = torch.cat([past.ids, prompts[:, :5]], 1)
    second = generate(engine, text, max_new_tokens=1, past_key_values=past, output_logits=True, **OPTIONS)
    for row in range(2):
        assert torch.equal(second.logits[0][row], after(engine, text[row].tolist())[0])


def test_self_speculation_never_changes_a_bit(engine: CountedEngine) -> None:
    prompts = torch.tensor([random_text(40, 1), random_text(40, 2)])
    asked = {**OPTIONS, "max_new_tokens": 30, "output_logits": True}
    for how in ({}, {"do_sample": True, "temperature": 0.8, "seed": 5}):
        plain = generate(engine, prompts, **asked, **how)
        for rows in (2, 1):
            out = generate(engine, prompts[:rows], lookahead=SELF, draft_engine=engine, **asked, **how)
            assert torch.equal(out.sequences, plain.sequences[:rows])
            for one, other in zip(out.logits, plain.logits, strict=True):
                assert torch.equal(one, other[:rows])


PAIRS = [(name, "dense") for name in HYBRIDS] + [("dense", name) for name in HYBRIDS]
PAIRS += [("delta net", "short convolution"), ("short convolution", "delta net"), ("delta net", "delta net")]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("how", [{}, {"do_sample": True, "temperature": 0.8, "seed": 5}], ids=["greedy", "seeded"])
@pytest.mark.rotating(9)
def test_models_with_states_and_without_draft_for_each_other(target: str, draft: str, how: dict[str, Any]) -> None:
    """In full, and with the last two of its layers, or the last alone."""
    engine = hybrid(target)
    prompts = torch.tensor([random_text(30, 1), random_text(30, 2)])
    asked = {**OPTIONS, "max_new_tokens": 30, "output_logits": True, **how}
    plain = generate(engine, prompts, **asked)
    for layers in (None, 2, 1):
        out = generate(engine, prompts, lookahead=DRAFT, draft_engine=hybrid(draft, 3, layers=layers), **asked)
        assert torch.equal(out.sequences, plain.sequences)
        assert len(out.logits) == len(plain.logits)
        assert all(torch.equal(one, other) for one, other in zip(out.logits, plain.logits, strict=True))
        assert out.stats.drafted > 0


def test_a_draft_model_reads_no_row_twice() -> None:
    """It goes back over what it drafted to where it was right, and never to the prompt."""
    target, draft = hybrid("delta net"), hybrid("delta net", 7)
    prompt = torch.tensor([random_text(200)])
    generate(target, prompt, max_new_tokens=40, lookahead=DRAFT, draft_engine=draft, **OPTIONS)
    steps = target.rows  # those of the target are the prompt's, and of each step a token and its draft
    assert draft.rows <= 200 + 2 * 40 * 6, steps
    same = hybrid("delta net")
    before = same.rows
    stats_rows = generate(target, prompt, max_new_tokens=41, lookahead=DRAFT, draft_engine=same, **OPTIONS)
    assert stats_rows.stats.acceptance_rate == 1.0
    assert same.rows - before <= 200 + 41, "every row once, the last of a draft with the next"


def test_held_rows_are_gone_back_over() -> None:
    from ipex_lookahead.engines.api import HELD, OutputRequest

    engine, text = hybrid("delta net"), np.array(random_text(60), np.int32)
    whole = generate(engine, torch.tensor([text.tolist()]), max_new_tokens=1, output_logits=True, **OPTIONS).logits[0]
    cache = engine.new_cache()
    wants = OutputRequest(logits=True)
    engine.forward(Batch([cache], [30], text[:30], np.arange(-1, 29, dtype=np.int32), wants, [30]))
    cache.keep(list(range(30)))
    for _ in range(3):
        for at in range(30, 40):
            engine.forward(Batch([cache], [1], text[at : at + 1] ^ 1, np.array([-1], np.int32), wants, [HELD]))
            cache.keep([0])
        assert cache.crop(30) == 30
    assert cache.crop(29) == 0, "a settled row is not"
    engine.forward(Batch([cache], [60], text, np.arange(-1, 59, dtype=np.int32), wants, [40]))
    cache.keep(list(range(60)))
    assert cache.crop(59) == 59
    output = engine.forward(Batch([cache], [1], text[59:], np.array([-1], np.int32), wants))
    assert output.logits is not None
    assert torch.equal(torch.from_numpy(output.logits), whole)


def test_a_service_counts_what_states_take(engine: CountedEngine) -> None:
    model = text_model(engine)
    prompt = random_text(150)
    wanted = text_model(engine).generate(prompt, PLAIN)
    with_states = Service(model, slots=2, cache_memory=4 << 20)
    try:
        for cached in (0, 149):
            events = list(with_states.stream(prompt, PLAIN))
            assert [token for event in events for token in event.tokens] == wanted
            assert events[-1].stats.cached_tokens == cached
        request = Request([*prompt, *wanted, 1, 2], PLAIN)
        events = list(with_states.stream(request.prompt, PLAIN))
        assert events[-1].stats.cached_tokens == len(prompt) + len(wanted) - 1
    finally:
        with_states.close()
    assert with_states.state_bytes >= 2 * engine.state_bytes
    assert with_states.kv_bytes >= with_states.state_bytes
    assert with_states.cached_pages > 0

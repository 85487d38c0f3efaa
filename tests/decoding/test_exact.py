"""Promise 1 at the loop: whatever the proposer and budget, the tokens and the logits are those of plain decoding."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import PROPOSERS, Proposer, make_proposer
from ipex_lookahead.drafting.draft import Draft
from tests.support.generate import generate
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.scripted_engine import ScriptedEngine, markov

module = importlib.import_module("ipex_lookahead.runtime.lookahead")

PROMPTS = [[1, 5, 3, 5, 3, 7], [4], [2, 9, 9, 2, 9, 9, 1, 0, 3, 3, 3]]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, processors": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 4, "min_new_tokens": 5},
    "sampling": {"do_sample": True, "seed": 9, "temperature": 0.8},
    "sampling, all": {"do_sample": True, "seed": 2**64 - 1, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
    "sampling, processors": {"do_sample": True, "seed": 3, "repetition_penalty": 1.2, "typical_p": 0.9},
}

Make = Callable[[LookaheadConfig], Proposer]


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Left padded ids and their mask; the padding is a token that would change the text if it were seen."""
    longest = max(map(len, prompts))
    ids = [[11] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def run(
    engine: Any,
    prompts: list[list[int]],
    make: Make | None = None,
    lookahead: Any = 5,
    adaptive: bool = False,
    **kwargs: Any,
) -> Any:
    extra = {} if make is None else {"make": make, "lookahead": lookahead, "adaptive": adaptive}
    kwargs = {"max_new_tokens": 40, "eos_token_id": 0, "pad_token_id": 0, "return_dict_in_generate": True} | kwargs
    return generate(engine, **padded(prompts), output_logits=True, output_scores=True, **extra, **kwargs)


def makers(texts: list[list[int]], vocab_size: int) -> dict[str, Make]:
    """A maker gives each sequence its own proposer, in the order of the batch."""

    def in_turn(make: Callable[[list[int]], Proposer]) -> Make:
        left = iter(texts)
        return lambda _: make(next(left))

    return {
        **{
            name: lambda config, name=name: make_proposer(LookaheadConfig(name, config.num_draft_tokens))
            for name in PROPOSERS
        },
        "random": in_turn(lambda _: RandomProposer(vocab_size)),
        "oracle": in_turn(OracleProposer),
        "trees": in_turn(lambda text: TreeProposer(vocab_size, text)),
        "wild trees": in_turn(lambda _: TreeProposer(vocab_size, seed=1)),
    }


NAMES = list(makers([], 1))


def new_tokens(out: Any, width: int) -> list[list[int]]:
    """Each row's new tokens, up to and with its end token."""
    rows = out.sequences[:, width:].tolist()
    return [row[: row.index(0) + 1] if 0 in row else row for row in rows]


def assert_same(a: Any, b: Any) -> None:
    assert torch.equal(a.sequences, b.sequences)
    for left, right in ((a.logits, b.logits), (a.scores, b.scores)):
        assert len(left) == len(right)
        assert all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return markov(vocab_size=12, order=2, seed=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.rotating(20)
def test_every_proposer_leaves_tokens_and_logits_alone(
    engine: ScriptedEngine, name: str, mode: str, batch: int
) -> None:
    prompts = PROMPTS[:batch]
    plain = run(engine, prompts, **MODES[mode])
    width = max(map(len, prompts))
    texts = [p + new for p, new in zip(prompts, new_tokens(plain, width), strict=True)]
    for budget in (1, 3, 8, 64):
        out = run(engine, prompts, makers(texts, 12)[name], budget, **MODES[mode])
        assert_same(out, plain)
        if name == "oracle":
            assert out.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.rotating(14)
def test_an_adaptive_budget_leaves_tokens_and_logits_alone(
    engine: ScriptedEngine, name: str, mode: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the clock says: it decides how much is drafted, and nothing else."""
    prompts = PROMPTS[:batch]
    plain = run(engine, prompts, **MODES[mode])
    texts = [p + new for p, new in zip(prompts, new_tokens(plain, max(map(len, prompts))), strict=True)]
    rng = np.random.default_rng(batch)
    drafted = set()
    for clock in (0.0, 1.0, 1e-9):
        now = [0.0]

        def odd_clock(now: list[float] = now, clock: float = clock) -> float:
            now[0] += clock * rng.exponential()
            return now[0]

        monkeypatch.setattr("ipex_lookahead.decoding.scheduler.perf_counter", odd_clock)
        out = run(engine, prompts, makers(texts, 12)[name], 8, adaptive=True, **MODES[mode])
        assert_same(out, plain)
        drafted.add(out.stats.drafted)
    assert name != "oracle" or max(drafted) > 0


class RandomBudgets(Controller):
    """Another budget each time, and another part of each draft."""

    def __init__(self, seed: int) -> None:
        super().__init__(0)
        self._rng = np.random.default_rng(seed)

    def budget(self, live: int) -> int:
        return int(self._rng.integers(0, 33))

    def select(self, sequences: Sequence[int], drafts: Sequence[Draft], others: int = 0) -> Sequence[Draft]:
        """All of a draft, or a part of it."""
        part = [int(self._rng.integers(0, len(d) + 1)) for d in drafts]
        ways = [(d, d.first(n)) for d, n in zip(drafts, part, strict=True)]
        return [found[int(self._rng.integers(0, 2))] for found in ways]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.rotating(10)
def test_random_budgets_leave_tokens_and_logits_alone(
    engine: ScriptedEngine, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(engine, PROMPTS, **MODES[mode])
    texts = [p + new for p, new in zip(PROMPTS, new_tokens(plain, max(map(len, PROMPTS))), strict=True)]
    for seed in range(3):
        monkeypatch.setattr(module, "Controller", lambda _, seed=seed: RandomBudgets(seed))
        assert_same(run(engine, PROMPTS, makers(texts, 12)[name], 8, **MODES[mode]), plain)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_a_batch_is_what_it_is_alone(engine: ScriptedEngine, mode: str) -> None:
    together = run(engine, PROMPTS, make_proposer, 4, **MODES[mode])
    width = max(map(len, PROMPTS))
    for row, prompt in enumerate(PROMPTS):
        alone = run(engine, [prompt], make_proposer, 3, sequence_ids=[row], **MODES[mode])
        assert new_tokens(together, width)[row] == new_tokens(alone, len(prompt))[0]
        for step, logits in enumerate(alone.logits):
            assert torch.equal(together.logits[step][row], logits[0])


@pytest.mark.parametrize("mode", ["greedy", "sampling"])
def test_greedy_without_logits_is_greedy_with_logits(engine: ScriptedEngine, mode: str) -> None:
    """Asking for logits or scores does not change a token; greedy decoding does not ask the engine for logits."""
    asked = run(engine, PROMPTS, make_proposer, 4, **MODES[mode])
    before = len(engine.batches)
    plain = run(engine, PROMPTS, make_proposer, 4, return_dict_in_generate=False, **MODES[mode])
    assert torch.equal(asked.sequences, plain)
    assert {logits for _, _, logits in engine.batches[before:]} == {mode == "sampling"}


@pytest.mark.parametrize("prefill_rows", [1, 2, 5, 7, 512])
def test_chunks_of_the_prompt_do_not_matter(engine: ScriptedEngine, prefill_rows: int) -> None:
    plain = run(engine, PROMPTS)
    before = len(engine.batches)
    assert_same(run(engine, PROMPTS, prefill_rows=prefill_rows), plain)
    prompt_rows = answers = 0
    for counts, wanted, _ in engine.batches[before:]:
        if prompt_rows == sum(map(len, PROMPTS)):
            break
        assert sum(counts) <= prefill_rows
        prompt_rows += sum(counts)
        answers += wanted
    assert answers == len(PROMPTS)


def test_the_noise_is_that_of_the_absolute_position(engine: ScriptedEngine) -> None:
    """Each token is the sampler's own answer for (seed, sequence, position), position counting the prompt unpadded."""
    out = run(
        engine, PROMPTS, make_proposer, 4, do_sample=True, seed=77, temperature=0.9, top_k=7, sequence_ids=[5, 0, 2]
    )
    for row, (number, prompt) in enumerate(zip([5, 0, 2], PROMPTS, strict=True)):
        sampler = Sampler(WarperParams(temperature=0.9, top_k=7), 77, number)
        for step, token in enumerate(new_tokens(out, 11)[row]):
            assert token == sampler(out.logits[step][row].numpy(), len(prompt) + step)


def test_what_a_step_emits_is_what_is_counted(engine: ScriptedEngine) -> None:
    stats = GenerationStats()
    out = run(engine, PROMPTS, make_proposer, 4, stats=stats)
    tokens = sum(map(len, new_tokens(out, max(map(len, PROMPTS)))))
    assert stats.tokens == tokens
    assert stats.prompt_tokens == sum(map(len, PROMPTS))
    assert stats.decode_tokens == tokens - 3
    # A step emits what it accepts and a bonus token; only a sequence that ends on an accepted token has none.
    assert 0 <= stats.sequence_steps + stats.accepted - stats.decode_tokens <= 3
    assert stats.drafted == sum(step[0] for step in stats.per_step)
    assert stats.accepted == sum(step[1] for step in stats.per_step)
    assert len(stats.per_step) == stats.steps
    for counts in (stats.drafted_by_source, stats.drafted_by_position):
        values = counts.values() if isinstance(counts, dict) else counts
        assert sum(values) == stats.drafted
    assert stats.accepted_by_source == {"prompt_lookup": stats.accepted}
    assert sum(stats.accepted_by_position) == stats.accepted > 0
    assert stats.accepted_by_position == sorted(stats.accepted_by_position, reverse=True)
    assert stats.first_token_seconds > 0
    assert stats.engine_seconds + stats.proposer_seconds <= stats.decode_seconds
    assert stats.decode_cpu_seconds > 0
    assert np.isclose(stats.mean_acceptance_length, stats.decode_tokens / stats.sequence_steps)

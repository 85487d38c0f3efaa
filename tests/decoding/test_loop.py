"""The seams of the loop: what it asks of proposers, controllers and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest, StepOutput
from ipex_lookahead.errors import EngineError, InputError
from tests.support.generate import decode, generated
from tests.support.proposers import OracleProposer, RandomProposer, TreeProposer
from tests.support.scripted_engine import scripted

PROMPT = np.array([1, 2], np.int32)
TEXT = [5, 6, 7, 8, 9, 10, 11, 12]


def sequence(
    proposer: Any, index: int = 0, accept: Callable[[int], bool] | None = None, limit: int = 10
) -> TokenSequence:
    stop = None if accept is None else lambda ids: bool(accept(int(ids[-1])))
    return TokenSequence(PROMPT, limit, stop=stop, proposer=proposer, index=index)


def test_a_draft_over_the_budget_is_refused() -> None:
    class Greedy(RandomProposer):
        def propose(self, budget: int) -> Draft:
            return super().propose(budget + 1)

    engine = scripted(TEXT, 32, 2)
    with pytest.raises(InputError, match="Greedy proposed 4 tokens with a budget of 3"):
        decode(engine, [sequence(Greedy(32))], Controller(3), GenerationStats())


def test_an_engine_without_an_answer_is_an_error() -> None:
    engine = scripted(TEXT, 32, 2)
    forward = engine.forward
    engine.forward = lambda batch: StepOutput(forward(batch).argmax * 0 - 1, None)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="logits hold NaN"):
        decode(engine, [sequence(None)], Controller(0), GenerationStats())


@pytest.mark.parametrize("bad", [31, TEXT[3]])
def test_a_drafted_token_that_the_engine_fails_on_is_not_drafted(bad: int) -> None:
    """Without lookahead its row would not have been looked at; where it would have been, the error is the same."""
    engine = scripted(TEXT, 32, 2)
    forward = engine.forward

    def failing(batch: Batch) -> StepOutput:
        if bad in batch.tokens:
            raise EngineError("the model's logits are not finite")
        return forward(batch)

    engine.forward = failing  # type: ignore[method-assign]
    told: list[list[int]] = [[], []]
    for out, proposer in zip(told, (None, TreeProposer(32, [*PROMPT.tolist(), *TEXT], scratch=False)), strict=True):
        one = sequence(proposer, accept=lambda token, out=out: bool(out.append(token)))
        if bad == 31:
            decode(engine, [one], Controller(8), GenerationStats())
        else:
            with pytest.raises(EngineError, match="not finite"):
                decode(engine, [one], Controller(8), GenerationStats())
    assert told[0] == told[1] == (TEXT if bad == 31 else TEXT[:4])


def test_an_empty_list_of_sequences_is_no_work() -> None:
    engine = scripted(TEXT, 32, 2)
    assert generated(engine, []) == []
    decode(engine, [], Controller(8), GenerationStats())
    assert not engine.batches


class Watching(Controller):
    """A controller with a script of budgets, which records its calls."""

    def __init__(self, budgets: list[int]) -> None:
        super().__init__(0)
        self.budgets = budgets
        self.asked: list[int] = []
        self.outcomes: list[tuple[int, Outcome]] = []
        self.times: list[tuple[int, int]] = []

    def budget(self, live: int) -> int:
        self.asked.append(live)
        return self.budgets[len(self.asked) - 1]

    def observe(self, sequence: int, outcome: Outcome) -> None:
        self.outcomes.append((sequence, outcome))

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        assert seconds >= 0
        assert proposing >= 0
        self.times.append((rows, length))


class Idle(Watching):
    """It leaves every step alone but the first and the fourth."""

    def __init__(self) -> None:
        super().__init__([1, 1])
        self.steps = 0

    def idle(self) -> bool:
        self.steps += 1
        return self.steps in (2, 3, 5, 6, 7)


class Listening(OracleProposer):
    """A proposer that has nothing to draft, which wants the likeliest ids and keeps what it is told."""

    wants = OutputRequest(top=2)

    def __init__(self) -> None:
        super().__init__([1, 2, *TEXT])
        self.told: list[Any] = []

    def propose(self, budget: int) -> Draft:
        self.told.append("asked")
        return Draft()

    def observe(self, outcome: Outcome) -> None:
        self.told.append((list(outcome.emitted), outcome.top is not None))


def test_of_idle_steps_a_proposer_is_told_the_tokens_at_once_and_the_controller_nothing() -> None:
    engine, controller, proposer = scripted(TEXT, 32, 2), Idle(), Listening()
    forward, tops = engine.forward, []
    engine.forward = lambda batch: tops.append(batch.wants.top) or forward(batch)  # type: ignore[method-assign]
    decode(engine, [sequence(proposer)], controller, GenerationStats())
    assert proposer.told == ["asked", ([6], True), ([7, 8], False), "asked", ([9], True)]
    assert tops == [0, 2, 0, 0, 2, 0, 0, 0], "the first one reads the prompt"
    assert [outcome.emitted for _, outcome in controller.outcomes] == [[6], [9]]
    assert len(controller.times) == 2


def test_the_controller_decides_and_is_told() -> None:
    engine = scripted(TEXT, 32, 2)
    watching = Watching([2, 0, 99])
    emitted: list[int] = []
    one = sequence(OracleProposer([1, 2, *TEXT]), accept=lambda token: emitted.append(token) or False)
    stats = GenerationStats()
    decode(engine, [one], watching, stats)
    assert emitted == TEXT
    assert one.finish == "length"
    # After the first token: 2 drafted of 7 left; none of 4; then the room of 2, the bonus token being the last.
    assert watching.asked == [1, 1, 1]
    assert [len(outcome.draft) for _, outcome in watching.outcomes] == [2, 0, 2]
    assert [outcome.emitted for _, outcome in watching.outcomes] == [[6, 7, 8], [9], [10, 11, 12]]
    assert watching.times == [(3, 6), (1, 7), (3, 10)]
    assert (stats.steps, stats.drafted, stats.accepted, stats.tokens) == (3, 4, 4, 8)


def test_a_proposer_that_was_not_asked_is_told_before_it_is_asked_again() -> None:
    class Noting(OracleProposer):
        def __init__(self) -> None:
            super().__init__([1, 2, *TEXT])
            self.calls: list[object] = []

        def propose(self, budget: int) -> Draft:
            self.calls.append(budget)
            return super().propose(budget)

        def observe(self, outcome: Outcome) -> None:
            self.calls.append(list(outcome.emitted))
            super().observe(outcome)

    engine = scripted(TEXT, 32, 2)
    proposer, watching = Noting(), Watching([1, 0, 0, 1, 0, 0])
    emitted: list[int] = []
    one = sequence(proposer, accept=lambda token: emitted.append(token) or False)
    decode(engine, [one], watching, GenerationStats())
    assert emitted == TEXT
    assert [list(outcome.emitted) for _, outcome in watching.outcomes] == [[6, 7], [8], [9], [10, 11], [12]]
    assert proposer.calls == [1, [6, 7], [8], [9], 1, [10, 11]], "of the last step there is nobody left to tell"


def test_scratch_rows_come_back_as_argmax_and_are_never_accepted() -> None:
    class Scratch(RandomProposer):
        def __init__(self) -> None:
            self.outcomes: list[Outcome] = []

        def propose(self, budget: int) -> Draft:
            return Draft([6, 7, 8], [-1, 0, 1], scratch=2) if budget >= 3 else Draft()

        def observe(self, outcome: Outcome) -> None:
            self.outcomes.append(outcome)

    engine = scripted(TEXT, 32, 2)
    proposer = Scratch()
    decode(engine, [sequence(proposer)], Controller(3), GenerationStats())
    first = proposer.outcomes[0]
    assert list(first.accepted) == [0]
    assert list(first.emitted) == [6, 7]
    assert list(first.scratch_argmax) == [8, 9]


class Learning(TreeProposer):
    """Keeps what it is shown of the target's likeliest ids."""

    def __init__(self, top: int, seed: int) -> None:
        super().__init__(32, [1, 2, *TEXT], seed)
        self.wants = OutputRequest(top=top)


def test_proposers_see_as_many_of_the_likeliest_ids_as_the_most_curious_wants() -> None:
    engine = scripted(TEXT, 32, 2)
    asked: list[int] = []
    forward = engine.forward

    def watched(batch: Batch) -> StepOutput:
        asked.append(batch.wants.top)
        return forward(batch)

    engine.forward = watched  # type: ignore[method-assign]
    proposers = [Learning(3, 0), Learning(5, 1), Learning(0, 2)]
    ends = [12, 8, 12]
    decode(
        engine,
        [
            sequence(p, i, accept=lambda token, end=end: token == end)
            for i, (p, end) in enumerate(zip(proposers, ends, strict=True))
        ],
        Controller(1),
        GenerationStats(),
    )
    assert asked[0] == 0, "the prompt's rows are nobody's"
    assert asked[1] == 5
    assert asked[-1] in (3, 0), "the one that wanted five has ended"
    for proposer in proposers[:2]:
        assert proposer.outcomes
        for outcome in proposer.outcomes:
            assert outcome.top is not None
            assert len(outcome.top) == 1 + len(outcome.draft)
            rows = [0, *(row + 1 for row in outcome.accepted)]
            assert [outcome.top[row][0] for row in rows][: len(outcome.emitted)] == list(outcome.emitted)
    assert all(outcome.top is None for outcome in proposers[2].outcomes)


def test_drafted_tokens_are_counted_by_source_and_position() -> None:
    engine = scripted(TEXT, 32, 2)
    stats = GenerationStats(strategy="oracle")
    decode(engine, [sequence(OracleProposer([1, 2, *TEXT]))], Controller(3), stats)
    assert stats.drafted_by_position == stats.accepted_by_position == [2, 2, 1]
    assert stats.accepted_by_source == {"oracle": 5}
    assert stats.origins() == [None, *["oracle"] * 3, None, *["oracle"] * 2, None]


def test_sequences_end_on_their_own_and_leave_the_batch() -> None:
    engine = scripted(TEXT, 32, 2)
    ends = [8, 6, 12]
    all_of_them = [
        sequence(TreeProposer(32, [1, 2, *TEXT], seed=i), i, accept=lambda token, end=end: token == end)
        for i, end in enumerate(ends)
    ]
    stats = GenerationStats(sequences=3)
    decode(engine, all_of_them, Controller(2), stats)
    assert [s.last for s in all_of_them] == ends
    assert [s.finish for s in all_of_them] == ["stop"] * 3
    assert stats.finish_reasons == ["stop"] * 3
    sizes = [len(counts) for counts, _, _ in engine.batches]
    assert sizes[:2] == [1, 3], "the prompt that they share is read once"
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert stats.sequence_steps == sum(sizes[1:])


class Reading(TreeProposer):
    """Keeps the hidden states that it is shown, of each committed token."""

    def __init__(self, layers: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(32, [1, 2, *TEXT], seed)
        self.wants = OutputRequest(hidden=layers, logits=True)
        self.text: list[int] = []
        self.seen: dict[int, list[tuple[float, ...]]] = {layer: [] for layer in layers}

    def begin(self, prompt: Sequence[int], hidden: Any = None) -> None:
        super().begin(prompt)
        self.text = list(prompt)
        assert set(hidden) == set(self.seen)
        for layer, states in hidden.items():
            self.seen[layer] = [tuple(row) for row in states.tolist()]

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        assert outcome.hidden is not None
        assert set(outcome.hidden) == set(self.seen)
        kept = [0, *(row + 1 for row in outcome.accepted)][: len(outcome.emitted)]
        for layer, states in outcome.hidden.items():
            assert len(states) == 1 + len(outcome.draft)
            self.seen[layer] += [tuple(row) for row in states[kept].tolist()]
        if outcome.logits is not None:
            assert outcome.logits[kept].argmax(-1).tolist() == list(outcome.emitted)
        self.text += outcome.emitted

    def check(self) -> None:
        """What was committed but for the last token has its states, at its position."""
        for layer, seen in self.seen.items():
            assert seen == [(layer, at, token) for at, token in enumerate(self.text[:-1])], layer


class Sparing(Controller):
    """It leaves every other step alone, and draws no conclusions from it."""

    def __init__(self) -> None:
        super().__init__(3)
        self.steps = 0

    def idle(self) -> bool:
        self.steps += 1
        return self.steps % 2 == 0


@pytest.mark.parametrize("prefill_rows", [1, 3, 100])
@pytest.mark.parametrize("idle", [False, True])
def test_proposers_see_the_hidden_states_of_the_prompt_and_of_every_step(prefill_rows: int, idle: bool) -> None:
    engine = scripted(TEXT, 32, 2)
    proposers = [Reading((0, 2)), Reading((1, FINAL_NORM), 1), Learning(3, 2)]
    wants: list[OutputRequest] = []
    forward = engine.forward
    engine.forward = lambda batch: wants.append(batch.wants) or forward(batch)  # type: ignore[method-assign]
    decode(
        engine,
        [sequence(proposer, number) for number, proposer in enumerate(proposers)],
        Sparing() if idle else Controller(3),
        GenerationStats(),
        prefill_rows=prefill_rows,
    )
    for proposer in proposers[:2]:
        assert isinstance(proposer, Reading)
        assert len(proposer.text) > 5
        proposer.check()
    assert wants[0].hidden == (FINAL_NORM, 0, 1, 2), "one prompt for all of them"
    assert all(outcome.hidden is None for outcome in proposers[2].outcomes)

"""Kept beginnings where layers have states: little is read again, and the bytes are those of reading all of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.cache_budget import memory_for
from ipex_lookahead.decoding.prefix_cache import APART, PAGE, RUNNING_STATES, PrefixCache
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.drafting import make_proposer
from ipex_lookahead.engines.api import position_bytes, state_bytes
from ipex_lookahead.engines.prefill import PREFILL_ROWS, TAIL
from ipex_lookahead.errors import InputError
from tests.support.proposers import RandomProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
from tests.support.hybrids import HYBRIDS, CountedEngine, hybrid, random_text

ENGINES = {name: hybrid(name) for name in HYBRIDS}
DELTA = ENGINES["delta net"]


def memory_of(engine: CountedEngine, states: float, pages: int) -> PrefixCache:
    """Room for so many states, and so many pages beside them."""
    page, state = PAGE * position_bytes(engine), state_bytes(engine)
    return PrefixCache(int(states * state) + pages * page, page=page, state=state)


def run(
    engine: CountedEngine,
    memory: PrefixCache | None,
    *wanted: Submission,
    together: bool = False,
    turns: Sequence[int] = (),
) -> list[Answer]:
    """One request after the other, or all at once; nothing runs afterwards."""
    answers = []
    scheduler = Scheduler(engine, memory=memory, slots=4)
    for number, submission in enumerate(wanted):
        group, answer = group_of(engine, submission, number)
        group.sequences[0].turns = turns
        scheduler.submit(group)
        answers.append(answer)
        while not together and scheduler.busy:
            scheduler.step()
        assert group.error is None
    while scheduler.busy:
        scheduler.step()
    if memory is not None:
        assert memory.used <= memory.budget
        assert memory._sequences == 0
    return answers


def rows_of(engine: CountedEngine, memory: PrefixCache, submission: Submission, turns: Sequence[int] = ()) -> int:
    """Rows that a request takes, its answer being what it is alone."""
    plain = alone(engine, submission)
    before = engine.rows
    assert run(engine, memory, submission, turns=turns) == [plain]
    return engine.rows - before


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_second_prompt_begins_where_the_first_ones_turns_do(name: str) -> None:
    """At its first turn, after what all conversations begin with, and at its last: at most two more states a prompt."""
    engine = ENGINES[name]
    memory = memory_of(engine, 60, 100)
    system = tuple(random_text(350))

    def asked(*texts: int) -> tuple[Submission, list[int]]:
        prompt, turns = list(system), []
        for seed in texts:
            turns.append(len(prompt))
            prompt += random_text(68, seed)
        return Submission(tuple(prompt), 4), turns

    for texts, rows in (((1,), 418), ((2,), 68), ((2, 3, 4), 2 * 68), ((2, 3, 5), 68), ((2, 3, 5), 1), ((6, 7), 136)):
        submission, turns = asked(*texts)
        kept = len(memory._order)
        assert rows_of(engine, memory, submission, turns) == rows + 3, texts
        assert len(memory._order) - kept <= 4
    small = memory_of(engine, RUNNING_STATES + 1, 12)
    for texts in ((1,), (2,), (2, 3), (2, 4)):
        submission, turns = asked(*texts)
        assert rows_of(engine, small, submission, turns) <= len(submission.prompt) + 3


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_second_turn_reads_the_new_tokens_only(name: str) -> None:
    engine = ENGINES[name]
    memory = memory_of(engine, 20, 100)
    first = Submission(tuple(random_text(300)), 20)
    (answer,) = run(engine, memory, first)
    second = (*first.prompt, *answer.tokens, 1, 2, 3)
    assert rows_of(engine, memory, Submission(second, 10)) == 1 + 3 + 9, (
        "the answer's last token, what follows, the answer"
    )
    thinking = (*first.prompt[:-4], 5, *answer.tokens[7:], 1, 2, 3)
    assert rows_of(engine, memory, Submission(thinking, 10)) == len(thinking) - 296 + 9, "the end of the prompt served"
    assert rows_of(engine, memory, Submission(first.prompt, 10)) == 1 + 9, "the same prompt: its last token"


def test_where_two_prompts_part_a_third_begins() -> None:
    memory = memory_of(DELTA, 20, 100)
    system = tuple(random_text(200))
    for number, rows in ((1, 240), (2, 240), (3, 40), (4, 40)):
        prompt = (*system, number, *random_text(39, number))
        assert rows_of(DELTA, memory, Submission(prompt, 5)) == rows + 4


def test_two_prompts_that_come_together_part_where_they_do() -> None:
    """The second waits for the first to come there, and the first goes on."""
    memory = memory_of(DELTA, 20, 100)
    system = tuple(random_text(1100))
    wanted = [Submission((*system, number, *random_text(39, number)), 5) for number in (1, 2, 3)]
    plain = [alone(DELTA, submission) for submission in wanted]
    before = DELTA.rows
    assert run(DELTA, memory, *wanted, together=True) == plain
    assert DELTA.rows - before == 1100 + 3 * (40 + 4)


def test_a_long_prompt_is_kept_every_so_many_pages() -> None:
    memory = memory_of(DELTA, 40, 200)
    page, state = PAGE * position_bytes(DELTA), state_bytes(DELTA)
    assert memory.apart % PREFILL_ROWS == 0
    assert memory.apart * page >= state * PAGE > (memory.apart - PREFILL_ROWS) * page
    text = tuple(random_text(3 * memory.apart + 100))
    run(DELTA, memory, Submission(text, 2))
    for length in (memory.apart + 70, 2 * memory.apart + 1, 3 * memory.apart + 30):
        cut = (*text[:length], *random_text(20, 5))
        assert rows_of(DELTA, memory, Submission(cut, 2)) == length % memory.apart + 20 + 1
    assert memory_of(ENGINES["no attention"], 4, 1).apart == APART


def test_what_states_take_counts() -> None:
    state, page = state_bytes(DELTA), PAGE * position_bytes(DELTA)
    memory = memory_of(DELTA, 4, 8)
    assert memory.used == memory.states == 0
    pages: list[int] = []
    assert memory.extend(pages, 1)
    assert memory.used == page + RUNNING_STATES * state
    assert memory.admits(1, 1)
    assert not memory.admits(8, 1)
    memory.release(pages)
    assert memory.used == 0
    run(DELTA, memory, Submission(tuple(random_text(100)), 3))
    assert memory.states >= state
    assert memory.used == memory.states + memory.kept * page
    for seed in range(9):
        run(DELTA, memory, Submission(tuple(random_text(100, seed)), 3))
        assert state <= memory.states <= memory.budget
    memory.clear()
    assert memory.used == memory.states == memory.kept == 0
    with pytest.raises(InputError, match=f" 0 pages .* in addition to {RUNNING_STATES * state} bytes for its states"):
        PrefixCache(RUNNING_STATES * state, page=page, state=state)
    room = memory_for(DELTA, [100, 50], kept=1)
    assert room.budget == (3 + 2 + 1) * page + (2 * RUNNING_STATES + 1) * state
    assert room.has_states


def test_the_least_recently_used_length_goes_first() -> None:
    memory = memory_of(DELTA, 4, 8)
    prompts = [(number, *random_text(99, number)) for number in range(4)]
    for prompt in prompts:
        run(DELTA, memory, Submission(prompt, 1))
    newest = rows_of(DELTA, memory, Submission(prompts[3], 1))
    assert newest == 1
    assert rows_of(DELTA, memory, Submission(prompts[0], 1)) == 100


def test_a_memory_for_one_sequence_is_enough() -> None:
    """What is kept makes way, and what ended is kept in the place of what it ran in."""
    memory = memory_of(DELTA, RUNNING_STATES, 4)
    first = Submission(tuple(random_text(90)), 30)
    wanted = [Submission(tuple(random_text(90, seed)), 30) for seed in range(3)]
    assert run(DELTA, memory, *wanted, together=True) == [alone(DELTA, one) for one in wanted]
    (answer,) = run(DELTA, memory, first)
    second = (*first.prompt, *answer.tokens, 1, 2)
    assert rows_of(DELTA, memory, Submission(second, 5)) == 1 + 2 + 4


def test_a_prompt_ends_with_rows_that_states_go_back_over() -> None:
    """Wherever its chunks would end."""
    for length in (PREFILL_ROWS + 1, PREFILL_ROWS + TAIL, 2 * PREFILL_ROWS + 3):
        memory = memory_of(DELTA, 10, 60)
        text = tuple(random_text(length))
        run(DELTA, memory, Submission(text, 3))
        again = (*text[: -TAIL + 1], *random_text(20, 9))
        assert rows_of(DELTA, memory, Submission(again, 3)) == 20 + 2


@given(st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_whatever_was_kept_or_given_up_the_bytes_are_those_of_reading_anew(data: st.DataObject) -> None:
    """Prompts that begin alike, in a tight memory, several at a time, with drafts, cancelled and preempted."""
    engine = ENGINES[data.draw(st.sampled_from(sorted(ENGINES)))]
    memory = memory_of(engine, data.draw(st.integers(RUNNING_STATES, 9)), data.draw(st.integers(6, 14)))
    stems = [random_text(length, seed) for seed, length in enumerate((20, 70, 128, 200))]
    scheduler = Scheduler(engine, memory=memory, slots=3, prefill_rows=data.draw(st.sampled_from([16, 50, 512])))
    live = []
    for number in range(data.draw(st.integers(2, 7))):
        stem = data.draw(st.sampled_from(stems))
        text = stem[: data.draw(st.integers(1, len(stem)))] + random_text(data.draw(st.integers(0, 30)), number)
        submission = Submission(tuple(text), data.draw(st.integers(1, 12)), data.draw(st.sampled_from([None, 3])))
        proposer = data.draw(st.sampled_from([None, "lookup", "random"]))
        made = make_proposer(LookaheadConfig("prompt_lookup", 4)) if proposer == "lookup" else None
        if proposer == "random":
            made = RandomProposer(96, number)
        group, answer = group_of(engine, submission, number, made, Controller(4))
        group.sequences[0].turns = sorted(data.draw(st.lists(st.integers(0, len(text) + 3), max_size=3)))
        scheduler.submit(group)
        live.append((submission, group, answer))
        for _ in range(data.draw(st.integers(0, 12))):
            scheduler.step()
            assert memory.used <= memory.budget
        if data.draw(st.integers(0, 5)) == 0:
            scheduler.cancel(group.id)
    while scheduler.busy:
        scheduler.step()
        assert memory.used <= memory.budget
    for submission, group, answer in live:
        assert group.error is None
        plain = alone(engine, submission)
        count = len(answer.tokens)
        assert (answer.tokens, answer.logits) == (plain.tokens[:count], plain.logits[:count])
        if group.stats.finish_reasons != ["cancelled"]:
            assert answer == plain
    assert memory._sequences == 0
    memory.clear()
    assert memory.used == 0

"""Forwards of several threads as one: who comes together is run together, and each gets its own answers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ipex_lookahead.decoding import shared
from ipex_lookahead.decoding.loop import decode
from ipex_lookahead.decoding.shared import SharedForwards
from ipex_lookahead.engines.base import Batch, OutputRequest, StepOutput
from ipex_lookahead.errors import EngineError
from tests.support.hashed_engine import HashedEngine
from tests.support.proposers import TreeProposer
from tests.support.sequence_groups import Answer, Submission, alone, group_of

VOCAB = 11
SECONDS = 60  # before a test gives up; nothing here takes one


def patient(engine: HashedEngine) -> SharedForwards:
    """Whoever takes part is waited for, however long it takes on a busy machine."""
    forwards = SharedForwards(engine)
    forwards._seconds = SECONDS / shared.PATIENCE
    return forwards


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run it so many times at once; what any raises is raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]


def test_threads_that_decode_share_their_forwards_and_get_their_bytes() -> None:
    engine = HashedEngine(VOCAB)
    wanted = [Submission((1, 2, number), 40, None if number % 2 else number) for number in range(3)]
    plain = [alone(engine, submission) for submission in wanted]
    forwards = patient(engine)
    answers: list[Answer] = [Answer() for _ in wanted]
    start = threading.Barrier(len(wanted))
    engine.batches.clear()

    def work(number: int) -> None:
        text = [*wanted[number].prompt, *plain[number].tokens]
        proposer = TreeProposer(VOCAB, text) if number else None
        group, answers[number] = group_of(engine, wanted[number], number, proposer)
        with forwards.taking_part() as place:
            start.wait(SECONDS)
            for _ in decode(engine, group, forward=place.forward):
                pass

    in_threads(work, len(wanted))
    assert answers == plain
    assert len(engine.batches[0]) == 3, "they go in step"


def test_each_gets_what_it_asked_for() -> None:
    engine = HashedEngine(VOCAB)
    forwards = patient(engine)
    asked: list[Batch] = []
    for number in range(3):
        parents = np.array([-1, 0, 0], np.int32)
        want = None if number == 0 else np.array([0, 2][: 3 - number], np.int32)
        tokens = np.array([1, 2, number], np.int32)
        asked.append(
            Batch(
                [engine.new_cache()],
                [3],
                tokens,
                parents,
                OutputRequest(
                    want,
                    logits=number != 1,
                    top=(0, 3, 5)[number],
                    hidden=((2, 0), (), (1,))[number],
                    hidden_rows=None if number == 0 else np.array([1], np.int32),
                ),
            )
        )
    expected = [engine.forward(batch) for batch in asked]
    got: list[StepOutput | None] = [None] * 3
    start = threading.Barrier(3)
    engine.batches.clear()

    def work(number: int) -> None:
        with forwards.taking_part() as place:
            start.wait(SECONDS)
            got[number] = place.forward(asked[number])
            start.wait(SECONDS)

    in_threads(work, 3)
    assert engine.batches == [(3, 3, 3)]
    for output, own in zip(got, expected, strict=True):
        assert output is not None
        assert output.shared
        assert np.array_equal(output.argmax, own.argmax)
        for mine, theirs in ((output.logits, own.logits), (output.top, own.top)):
            assert (mine is None) == (theirs is None)
            assert mine is None or np.array_equal(mine, theirs)
        assert (output.hidden is None) == (own.hidden is None)
        for layer, states in (own.hidden or {}).items():
            assert np.array_equal((output.hidden or {})[layer], states)
        assert set(output.hidden or {}) == set(own.hidden or {}), "and no others"


def test_a_fault_is_told_to_the_one_whose_it_is() -> None:
    engine = HashedEngine(VOCAB)
    engine.poison = 7
    forwards = patient(engine)
    start = threading.Barrier(2)
    failed: list[int] = []

    def work(number: int) -> None:
        batch = Batch([engine.new_cache()], [1], np.array([(7, 3)[number]], np.int32), np.array([-1], np.int32))
        with forwards.taking_part() as place:
            start.wait(SECONDS)
            try:
                place.forward(batch)
            except EngineError:
                failed.append(number)
            start.wait(SECONDS)

    in_threads(work, 2)
    assert failed == [0]


def test_who_does_not_come_is_not_waited_for_for_ever() -> None:
    engine = HashedEngine(VOCAB)
    forwards = SharedForwards(engine)
    with forwards.taking_part(), forwards.taking_part() as place:
        group, answer = group_of(engine, Submission((1, 2), 30))
        for _ in decode(engine, group, forward=place.forward):
            pass
    assert answer == alone(engine, Submission((1, 2), 30))


def test_alone_or_where_rows_see_their_neighbours_forwards_are_the_engines() -> None:
    engine = HashedEngine(VOCAB)
    forwards = SharedForwards(engine)
    batch = Batch([engine.new_cache()], [1], np.array([3], np.int32), np.array([-1], np.int32))
    with forwards.taking_part() as place:
        assert not place.forward(batch).shared
    engine.row_invariant = False
    with forwards.taking_part(), forwards.taking_part() as place:
        assert not place.forward(batch).shared

"""Answers in progress."""

from __future__ import annotations

import random

from ipex_lookahead.conversation.answer import RepetitionWatch
from ipex_lookahead.runtime.repetition import TAIL

VARIED = random.Random(3).choices(range(1000), k=300)


def test_a_growing_answer_is_checked_once_per_tail():
    watch = RepetitionWatch()
    assert not any(watch.put([one]) for one in VARIED)
    found = [watch.put([7]) for _ in range(3 * TAIL)]
    assert 1 <= sum(found) <= 3
    assert watch.ids == VARIED + [7] * 3 * TAIL

"""Answers that end at a limit, and loops among them."""

from __future__ import annotations

import random

import pytest

from ipex_lookahead.cli.report import ending, is_loop
from ipex_lookahead.decoding.stats import GenerationStats

VARIED = random.Random(3).choices(range(1000), k=300)


@pytest.mark.parametrize(
    ("reason", "is_one"), [("length", True), ("context", True), ("stop", False), ("cancelled", False)]
)
def test_only_what_met_a_limit_is_a_loop(reason, is_one):
    stats = GenerationStats(finish_reasons=[reason])
    assert is_loop(stats, [7] * 100) is is_one
    assert not is_loop(stats, VARIED)
    told = ending(stats, [7] * 100, limit="-n 100", setting="{} ".format)
    assert bool(told) is is_one


def test_an_answer_that_was_ended_in_a_loop():
    stats = GenerationStats(finish_reasons=["stop"])
    assert is_loop(stats, [7] * 192)
    said = "the answer repeats itself: try temperature=0.7 or a larger model"
    why = "stopped at the repetition (chat --no-stop-loops turns this off)"
    assert ending(stats, [7] * 192, limit="-n 400", setting="{}=".format) == [said, why]


def test_an_answer_that_never_began():
    assert not is_loop(GenerationStats(), [])
    assert ending(GenerationStats(), [], limit="", setting=lambda name: "") == []


def test_the_context_is_named():
    told = ending(GenerationStats(finish_reasons=["context"]), VARIED, limit="-n 9", setting=lambda name: "")
    assert told == ["stopped at the end of the model's context"]

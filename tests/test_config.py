"""Settings are checked where they are made, and say what they may be."""

from __future__ import annotations

import math

import pytest

from ipex_lookahead.config import Bounds, LookaheadConfig, bounds_of
from ipex_lookahead.errors import InputError


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "said"),
    [
        (Bounds(int, 1, 60), [1, 60], [0, 61, 1.5, True, "1", None], "a whole number from 1 to 60"),
        (Bounds(int, 0), [0, 10**12], [-1, 0.5], "a whole number of at least 0"),
        (Bounds(float, 0, 1), [0, 0.5, 1], [-0.1, 1.1, math.nan, math.inf, False], "a number from 0 to 1"),
        (Bounds(float, 0, 1, above=True), [1e-9, 1], [0, 0.0, 2], "a number above 0 and at most 1"),
    ],
)
def test_bounds(bounds, good, bad, said):
    assert all(bounds.allow(value) for value in good)
    assert not any(bounds.allow(value) for value in bad)
    assert str(bounds) == said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draft_tokens": 129}, r"num_draft_tokens is 129; it must be a whole number from 0 to 128"),
        ({"guesses": 0}, "guesses is 0; it must be a whole number from 1 to 60"),
        ({"draft_min_prob": 1.5}, r"draft_min_prob is 1.5; it must be a number from 0 to 1"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_by_its_names(settings, message):
    with pytest.raises(InputError, match=message):
        LookaheadConfig(**settings)


def test_bounds_of_a_field():
    assert bounds_of(LookaheadConfig, "ngram") == Bounds(int, 2, 16)
    assert LookaheadConfig().ngram == 5

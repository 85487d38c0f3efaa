"""Texts to stop at: whatever the pieces, the one that ends first is found, the longest of those that end together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.tokenization.stop_matcher import StopMatcher

LETTERS = st.text("ab", max_size=30)


def by_hand(text: str, stops: list[str]) -> tuple[int, str] | None:
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@given(LETTERS, st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(st.integers(0, 30), max_size=5))
def test_any_text_any_stops_any_cut(text, stops, cuts):
    matcher, before, found = StopMatcher(stops), 0, None
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    for start, end in zip(places, places[1:], strict=False):
        found = matcher.put(text[start:end])
        if found is not None:
            found = before + found[0], found[1]
            break
        before += end - start
        begun = (n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n]))
        assert matcher.begun == max(begun, default=0)
    assert found == by_hand(text, stops)


def test_a_long_text_is_looked_at_once():
    """A thousand characters that go on matching take no more steps than others: ends in time, or not at all."""
    matcher = StopMatcher([("a" * 1000) + chr(98 + i) for i in range(16)])
    assert matcher.put("a" * 20_000) is None
    assert matcher.begun == 1000
    assert matcher.put("xb" + "a" * 1000 + "c") == (1003, "a" * 1000 + "c")

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.decoding.verify import verify
from ipex_lookahead.drafting.draft import Draft


def run(draft: Draft, choices: dict[int, int], stop_after: int = 10**9) -> tuple[list[int], list[int], list[int]]:
    """Choices by row; returns accepted, emitted and the rows asked for."""
    asked: list[int] = []

    def emit(row: int) -> tuple[int, bool]:
        asked.append(row)
        return choices[row], len(asked) >= stop_after

    return (*verify(draft, emit), asked)


def test_a_chain_is_accepted_up_to_the_first_miss() -> None:
    draft = Draft.chain([3, 4, 5])
    assert run(draft, {0: 3, 1: 4, 2: 9}) == ([0, 1], [3, 4, 9], [0, 1, 2])
    assert run(draft, {0: 3, 1: 4, 2: 5, 3: 6}) == ([0, 1, 2], [3, 4, 5, 6], [0, 1, 2, 3])
    assert run(draft, {0: 8}) == ([], [8], [0])


def test_a_tree_is_walked_to_the_matching_child() -> None:
    draft = Draft([3, 4, 9, 1, 2], [-1, 0, -1, 2, 3])
    assert run(draft, {0: 9, 3: 1, 4: 2, 5: 7}) == ([2, 3, 4], [9, 1, 2, 7], [0, 3, 4, 5])
    assert run(draft, {0: 3, 1: 5}) == ([0], [3, 5], [0, 1])


def test_the_first_of_equal_siblings_is_taken() -> None:
    assert run(Draft([3, 3], [-1, -1]), {0: 3, 1: 6}) == ([0], [3, 6], [0, 1])


def test_scratch_rows_are_never_accepted() -> None:
    assert run(Draft([3, 4], [-1, 0], scratch=1), {0: 3, 1: 4}) == ([0], [3, 4], [0, 1])
    assert run(Draft([3], [-1], scratch=1), {0: 3}) == ([], [3], [0])


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 12))
    tokens = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    parents = [draw(st.integers(-1, row - 1)) for row in range(size)]
    return Draft(tokens, parents, draw(st.integers(0, size)))


@given(draft=drafts(), seed=st.integers(0, 10**6), stop_after=st.integers(1, 6))
def test_emits_what_plain_decoding_emits(draft: Draft, seed: int, stop_after: int) -> None:
    """The choice depends on the path's tokens only; the emitted tokens are a prefix of plain decoding's."""

    def choice(path: list[int]) -> int:
        return hash((seed, *path)) % 3

    def path_of(row: int) -> list[int]:
        found: list[int] = []
        node = row - 1
        while node >= 0:
            found.append(draft.tokens[node])
            node = draft.parents[node]
        return found[::-1]

    asked: list[int] = []

    def emit(row: int) -> tuple[int, bool]:
        asked.append(row)
        return choice(path_of(row)), len(asked) >= stop_after

    accepted, emitted = verify(draft, emit)
    plain: list[int] = []
    for _ in emitted:
        plain.append(choice(plain))
    assert emitted == plain
    assert asked == [0, *(i + 1 for i in accepted)][: len(emitted)]
    assert len(emitted) <= stop_after
    assert [draft.tokens[i] for i in accepted] == emitted[: len(accepted)]
    assert len(emitted) - len(accepted) in (0, 1)
    if len(emitted) == len(accepted):
        assert len(emitted) == stop_after
    if len(emitted) < stop_after:
        last = accepted[-1] if accepted else -1
        usable = range(len(draft) - draft.scratch)
        assert not any(draft.parents[i] == last and draft.tokens[i] == emitted[-1] for i in usable)

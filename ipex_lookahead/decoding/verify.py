"""Sample-and-match verification of a draft tree: pure, with no model and no random numbers.

The target's own choice after the accepted tokens decides: walk to the child that equals it, stop at the first choice
that no child equals. The emitted tokens are by construction those of plain decoding, for greedy and for sampling alike,
as long as a choice depends on its prefix and position only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipex_lookahead.drafting.draft import Draft

Emit = Callable[[int], tuple[int, bool]]
"""Row of the forward (0 = the last committed token, i + 1 = draft token i) -> the token that follows it, and whether
the sequence ends with that token."""

EmitInStep = Callable[[Sequence[int]], tuple[Sequence[int], bool]]
"""A row of each sequence of a batch -> the tokens that follow them, and whether any sequence ends there."""


def verify(draft: Draft, emit: Emit) -> tuple[list[int], list[int]]:
    """Walk the draft tree along the target's choices.

    ``emit`` is called once for each emitted token, in order, and never for a rejected row; so logits processors and
    stop criteria may keep state. Among equal siblings the first is taken. Scratch rows are never accepted.

    Returns:
        accepted: indices into ``draft.tokens``, root first.
        emitted: the chosen tokens; one more than accepted (the bonus token), or as many where an accepted token ended
            the sequence.

    Example: for ``Draft([3, 4, 9], [-1, 0, -1])`` and choices 3 after row 0, 5 after row 1, the walk accepts ``[0]``
    and emits ``[3, 5]``.
    """
    tokens, parents = draft.tokens, draft.parents
    end = len(tokens) - draft.scratch
    accepted: list[int] = []
    emitted: list[int] = []
    at = -1
    while True:
        token, ended = emit(at + 1)
        emitted.append(token)
        for child in range(at + 1, end):
            if tokens[child] == token and parents[child] == at:
                break
        else:
            return accepted, emitted
        accepted.append(child)
        if ended:
            return accepted, emitted
        at = child


def verify_in_step(drafts: Sequence[Draft], emit: EmitInStep) -> list[tuple[list[int], list[int]]]:
    """Walk several draft trees, one position of all of them after the other.

    The walk ends at the first position where the draft of any sequence is wrong, or where any sequence ends; what is
    left of the other drafts is not looked at, and may be drafted again. So ``emit`` is called once for each emitted
    position, with all sequences, and never for a rejected row.

    Returns:
        For each draft ``accepted`` and ``emitted`` as :func:`verify` has them; always one more emitted than accepted.

    Example: the drafts ``3 4`` and ``5 6``, where 3 4 8 and 5 9 would follow: both sequences emit two tokens, 3 4 and
    5 9, and the 4, whose own row is thrown away, is the last token of the next step.
    """
    at = [-1] * len(drafts)
    walks: list[tuple[list[int], list[int]]] = [([], []) for _ in drafts]
    while True:
        tokens, ended = emit([row + 1 for row in at])
        for (_, emitted), token in zip(walks, tokens, strict=True):
            emitted.append(token)
        if ended:
            return walks
        at = [_child(draft, row, token) for draft, row, token in zip(drafts, at, tokens, strict=True)]
        if min(at) < 0:
            return walks
        for (accepted, _), row in zip(walks, at, strict=True):
            accepted.append(row)


def _child(draft: Draft, at: int, token: int) -> int:
    """The first child of a row that is the token, or -1."""
    for row in range(at + 1, len(draft.tokens) - draft.scratch):
        if draft.tokens[row] == token and draft.parents[row] == at:
            return row
    return -1

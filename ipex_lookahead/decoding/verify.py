"""Sample-and-match verification of a draft tree: pure, with no model and no random numbers.

The target's own choice after the accepted tokens decides: walk to the child that equals it, stop at the first choice
that no child equals. The emitted tokens are by construction those of plain decoding, for greedy and for sampling alike,
as long as a choice depends on its prefix and position only.
"""

from __future__ import annotations

from collections.abc import Callable

from ipex_lookahead.drafting.draft import Draft

Emit = Callable[[int], tuple[int, bool]]
"""Row of the forward (0 = the last committed token, i + 1 = draft token i) -> the token that follows it, and whether
the sequence ends with that token."""


def verify(draft: Draft, emit: Emit) -> tuple[list[int], list[int]]:
    """Walk the draft tree along the target's choices.

    ``emit`` is called once for each emitted token, in order, and never for a rejected row; so logits processors and
    stop criteria may keep state. Among equal siblings the first is taken. Scratch rows are never accepted.

    Returns:
        accepted: indices into ``draft.tokens``, root first.
        emitted: the chosen tokens; one more than accepted (the bonus token), or equal to it if an accepted token ended
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

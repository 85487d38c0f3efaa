"""A user's proposer: its drafts are validated before an engine reads them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from time import perf_counter
from typing import Any

from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.engines.api import ARGMAX, MOST_TOP, Hidden, OutputRequest
from ipex_lookahead.errors import InputError

_DRAFT = (
    "a Draft (ipex_lookahead.drafting) has tokens, ids of the vocabulary, and parents, for each token the index of its"
    " parent token, or -1; Draft.chain(ids) is one path, Draft() is empty"
)
_METHODS = ("begin", "propose", "observe")


class OwnProposer:
    """Forwards all calls to a user's proposer and validates its drafts.

    Args:
        inner: made by the user's ``proposer``; see :class:`ipex_lookahead.drafting.Proposer`.
        vocab_size: ids are below it.

    Attributes:
        wants: as the inner proposer; ``ARGMAX`` if it has no ``wants``.

    Raises InputError, here and in ``propose``, for an invalid proposer or draft.
    """

    def __init__(self, inner: Any, vocab_size: int) -> None:
        self._inner = inner
        self._name = type(inner).__name__
        self._vocab_size = vocab_size
        missing = [name for name in _METHODS if not callable(getattr(inner, name, None))]
        if missing:
            raise InputError(
                f"proposer made a {self._name}, which has no {' and no '.join(missing)}",
                hint="a Proposer (ipex_lookahead.drafting) has begin(prompt), propose(budget), observe(outcome), wants",
            )
        self.wants = _checked(getattr(inner, "wants", ARGMAX), self._name)
        if getattr(inner, "top", 0) and not hasattr(inner, "wants"):
            raise InputError(
                f"{self._name}.top is {inner.top!r:.60}, but proposers have no attribute top",
                hint=f"set wants = OutputRequest(top={inner.top!r:.60}) (ipex_lookahead.drafting)",
            )

    def begin(self, prompt: Sequence[int], hidden: Hidden | None = None) -> None:
        """Start a sequence."""
        if hidden is None:
            self._inner.begin(prompt)
        else:
            self._inner.begin(prompt, hidden)

    def propose(self, budget: int) -> Draft:
        """Return the inner proposer's draft, with integers and floats converted to Python's."""
        began = perf_counter()
        draft = self._inner.propose(budget)
        seconds = perf_counter() - began
        if not isinstance(draft, Draft):
            raise self._wrong(f"returned {_shown(draft)}, not a Draft")
        try:
            tokens, parents = list(map(index, draft.tokens)), list(map(index, draft.parents))
            probs, sources = list(map(float, draft.probs)), list(draft.sources)
            scratch = index(draft.scratch)
        except (TypeError, ValueError) as error:
            raise self._wrong(f"returned a Draft with fields that are not lists of numbers: {error}") from None
        count = len(tokens)
        if count > budget:
            raise InputError(
                f"{self._name} proposed {count} tokens with a budget of {budget}; propose no more than the budget"
            )
        for at, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size:
                raise self._wrong(f"drafted the id {token} at {at}; ids go from 0 to {self._vocab_size - 1}")
        if len(parents) != count:
            raise self._wrong(f"returned {count} tokens and {len(parents)} parents")
        for at, parent in enumerate(parents):
            if not -1 <= parent < at:
                raise self._wrong(f"returned parent {parent} for token {at}; it must be from -1 to {at - 1}")
        for name, values in (("probs", probs), ("sources", sources)):
            if len(values) not in (0, count):
                raise self._wrong(f"returned {count} tokens and {len(values)} {name}")
        if not all(0 <= prob <= 1 for prob in probs):
            raise self._wrong("returned probs that are not from 0 to 1")
        if not all(isinstance(source, str) for source in sources):
            raise self._wrong("returned sources that are not strings")
        if not 0 <= scratch <= count:
            raise self._wrong(f"returned {count} tokens of which {scratch} are scratch rows")
        return Draft(tokens, parents, scratch, probs, sources, draft.match, seconds)

    def observe(self, outcome: Outcome) -> None:
        """Pass the outcome to the inner proposer."""
        self._inner.observe(outcome)

    def _wrong(self, problem: str) -> InputError:
        return InputError(f"{self._name}.propose {problem}", hint=_DRAFT)


def _checked(wants: Any, name: str) -> OutputRequest:
    """Return a proposer's ``wants``. Raises InputError if it is not an OutputRequest that steps support."""
    if not isinstance(wants, OutputRequest) or wants.rows is not None or wants.hidden_rows is not None:
        raise InputError(f"{name}.wants is {wants!r:.60}; it must be an OutputRequest for all rows")
    if isinstance(wants.top, bool) or not isinstance(wants.top, int) or not 0 <= wants.top <= MOST_TOP:
        raise InputError(f"{name}.wants.top is {wants.top!r:.60}; it must be an integer from 0 to {MOST_TOP}")
    return wants


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"

"""A model drafts for itself: the same weights in four bits put forward what the model in more bits then checks.

This is ipex-llm's ``speculative=True``. Where decoding runs at memory bandwidth, the four-bit copy of a sym_int8 model
drafts in about half its time, that of a bf16 or fp16 model in about a quarter; and it mostly chooses the same token.
Unlike ipex-llm's, the copy has no keys and values of its own: it attends to the model's (as in QuantSpec, Tiwari et
al., ICML 2025), which costs neither memory nor a second reading of the prompt, and is right more often.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.drafting.draft_model import DraftChoice, DraftModel
from ipex_lookahead.engines.api import Cache, Engine, StepOutput


class SelfSpeculation(DraftModel):
    """Drafts with a copy of the target that works on the target's own cache.

    The rows of drafted tokens go into the free room behind the committed positions, and the cache is cropped before the
    target runs, which overwrites them. So what is committed stays what the target computed, bit for bit.

    Say 5 and 6 are committed and the cache holds 5. ``propose(2)`` feeds the copy 6, which gives 7, then 7, which gives
    8; the cache holds 5 again. The target then runs 6, 7 and 8 and commits 6 and what it accepts.

    Args:
        engine: the copy; its caches must be of the target's kind.
        cache: the target's, of the sequence that is drafted for.
        choose: as for :class:`DraftModel`, and so are the other arguments.
        **options: ``min_prob``, ``adapt`` and ``end_tokens``.
    """

    def __init__(self, engine: Engine, cache: Cache, choose: DraftChoice | None = None, **options: Any) -> None:
        self._cache = cache
        super().__init__(engine, choose, **options)

    def end(self) -> None:
        """The cache is the target's."""

    def propose(self, budget: int) -> Draft:
        """As :meth:`DraftModel.propose`; afterwards the cache is what it was."""
        length = self._cache.length
        try:
            return super().propose(budget)
        finally:
            self._cache.crop(length)

    def _read_prompt(self) -> None:
        """The target has read it."""

    def _feed(self, end: int, *, answer: bool = False, held: bool = False) -> StepOutput:
        """The copy takes nothing into the target's states."""
        return super()._feed(end, answer=answer, held=True)

    def _crop(self, length: int) -> None:
        """The loop keeps the target's cache."""

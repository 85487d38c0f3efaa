"""Self-speculation: a four-bit copy of a model's weights drafts for the model.

This is ipex-llm's ``speculative=True``. If decoding is bound by memory bandwidth, the four-bit copy of a sym_int8 model
drafts in about half its time, and that of a bf16 or fp16 model in about a quarter. Unlike ipex-llm's, the copy has no
KV cache of its own: it attends to the model's (as in QuantSpec, Tiwari et al., ICML 2025), which saves memory and a
second prefill, and raises the acceptance rate.
"""

from __future__ import annotations

from typing import Any

from ipex_lookahead.drafting.draft import Draft
from ipex_lookahead.drafting.draft_model import DraftChoice, DraftModel
from ipex_lookahead.engines.api import Cache, Engine, StepOutput


class SelfSpeculation(DraftModel):
    """Drafts with a copy of the target on the target's own cache.

    The rows of draft tokens use the free slots after the committed positions, and the cache is cropped before the
    target runs, which overwrites them. So committed entries stay what the target computed, bit for bit.

    Example: 5 and 6 are committed and the cache holds 5. ``propose(2)`` feeds the copy 6, which gives 7, then 7, which
    gives 8; the cache holds 5 again. The target then runs 6, 7 and 8 and commits 6 and the accepted tokens.

    Args:
        engine: the copy; its caches must be of the target's kind.
        cache: the target's cache of the sequence.
        choose: as in :class:`DraftModel`.
        **options: ``min_prob``, ``adapt`` and ``end_tokens`` as in :class:`DraftModel`.
    """

    def __init__(self, engine: Engine, cache: Cache, choose: DraftChoice | None = None, **options: Any) -> None:
        self._cache = cache
        super().__init__(engine, choose, **options)

    def end(self) -> None:
        """Do nothing: the target owns the cache."""

    def propose(self, budget: int) -> Draft:
        """Draft as :meth:`DraftModel.propose` and restore the cache."""
        length = self._cache.length
        try:
            return super().propose(budget)
        finally:
            self._cache.crop(length)

    def _read_prompt(self) -> None:
        """Do nothing: the target has read the prompt."""

    def _feed(self, end: int, *, answer: bool = False, held: bool = False) -> StepOutput:
        """Feed rows that do not change the target's recurrent states."""
        return super()._feed(end, answer=answer, held=True)

    def _crop(self, length: int) -> None:
        """Do nothing: the loop commits the target's cache."""

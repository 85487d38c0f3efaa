"""Lookahead Decoding by the paper's own three parameters, for users who come from it."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.errors import InputError


class LookaheadDecoding:
    """A model that decodes with Lookahead Decoding (Fu, Bailis, Stoica and Zhang, ICML 2024).

    It calls ``model.generate`` with ``LookaheadConfig(strategy="jacobi", window=W, ngram=N, guesses=G)``, so the tokens
    are those of plain decoding. A step has at most ``(N - 1) * (W + G) - 1`` rows in addition to its own: those of the
    window and of the verified n-grams.

    Args:
        model: a model of ``AutoModelForCausalLM``, or one that transformers has loaded (see
            :func:`~ipex_lookahead.hf.wrapping.wrap`).
        W: columns of the window, 1 to 60.
        N: tokens per n-gram, 2 to 16.
        G: n-grams to verify per step, 1 to 60.
        adaptive: True uses the window only in steps where measured costs predict a gain; False, as in the paper, in
            every step.

    Raises:
        InputError: a parameter out of range, more rows than a step can have, or a model that does not support draft
            trees.
        UnsupportedModelError: a model that cannot be wrapped.

    Example: ``LookaheadDecoding(model, W=15, N=5, G=5).generate(input_ids, max_new_tokens=256)``.
    """

    def __init__(self, model: Any, W: int = 15, N: int = 5, G: int = 5, *, adaptive: bool = True) -> None:
        rows = LookaheadConfig(window=W, ngram=N, guesses=G)
        needed = (rows.ngram - 1) * (rows.window + rows.guesses) - 1
        if needed > MAX_DRAFT:
            raise InputError(
                f"W={W}, N={N}, G={G} take {needed} rows per step in addition to its own, and a step holds {MAX_DRAFT};"
                " choose a smaller W, N or G"
            )
        from ipex_lookahead.hf.wrapping import wrap

        self.model = wrap(model)
        if not self.model.engine.supports_tree:
            why = self.model.engine.describe().get("why_chains", "")
            raise InputError(
                f"Lookahead Decoding needs draft trees, which this model does not support: {why}; use"
                " model.generate(lookahead=...) with another strategy, such as 'auto'"
            )
        self.config = LookaheadConfig(
            strategy="jacobi", num_draft_tokens=needed, window=W, ngram=N, guesses=G, adaptive=adaptive
        )

    def generate(self, input_ids: Any, max_new_tokens: int = 256, **kwargs: Any) -> Any:
        """Call ``model.generate`` with this window. Takes its other arguments; ``model.stats`` has the statistics."""
        if kwargs.get("lookahead") is not None:
            raise InputError("LookaheadDecoding has its own lookahead; leave lookahead= out, or use model.generate")
        kwargs["lookahead"] = self.config
        return self.model.generate(input_ids, max_new_tokens=max_new_tokens, **kwargs)

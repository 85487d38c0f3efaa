"""Lookahead Decoding by the paper's own three parameters, for users who come from it."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.errors import InputError


class LookaheadDecoding:
    """A model that decodes with Lookahead Decoding (Fu, Bailis, Stoica and Zhang, ICML 2024), window and pool in full.

    It is ``model.generate`` with ``LookaheadConfig(strategy="jacobi", window=W, ngram=N, guesses=G)``: the same loop,
    the same tokens as plain decoding. A step has at most ``(N - 1) * (W + G) - 1`` rows in addition to its own:
    those of the window, and of the n-grams that are verified.

    Args:
        model: a model of ``AutoModelForCausalLM``, or one that transformers has loaded (see
            :func:`~ipex_lookahead.hf.wrapping.wrap`).
        W: columns of the window, 1 to 60.
        N: tokens of an n-gram, 2 to 16.
        G: n-grams verified at a time, 1 to 60.
        adaptive: True spends the rows only where they pay on this machine; False, the paper's way, at every step.

    Raises:
        InputError: a parameter out of range, more rows than a step can hold, or a model that takes
            no trees, which the window is.
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
                f"Lookahead Decoding's window needs trees, and this model takes none: {why}; use"
                " model.generate(lookahead=...) with another strategy, such as 'auto'"
            )
        self.config = LookaheadConfig(
            strategy="jacobi", num_draft_tokens=needed, window=W, ngram=N, guesses=G, adaptive=adaptive
        )

    def generate(self, input_ids: Any, max_new_tokens: int = 256, **kwargs: Any) -> Any:
        """``model.generate``, all of its other arguments included; the statistics are in ``model.stats``."""
        if kwargs.get("lookahead") is not None:
            raise InputError("LookaheadDecoding has its own lookahead; leave lookahead= out, or use model.generate")
        kwargs["lookahead"] = self.config
        return self.model.generate(input_ids, max_new_tokens=max_new_tokens, **kwargs)

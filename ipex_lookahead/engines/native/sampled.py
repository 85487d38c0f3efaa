"""A token sampled by the core from logits, as its drafting heads sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.native.core import native_core

Draw = tuple[float, int, float, float, int, int, int]
"""Temperature, top_k, top_p, min_p, seed, sequence, position: see ``Sampler.draw``."""


def sampled(logits: npt.NDArray[np.float32], draw: Draw) -> tuple[int, float]:
    """Return the token of a draw and the margin by which it won, 0 to 1; a negative token if no logit is finite.

    ``logits``: float32 [vocab_size], -inf for tokens that cannot be drawn.
    """
    core, (temperature, *_, seed, sequence, position) = native_core(), draw
    token = int(core.sample(logits, *draw))
    return token, float(core.lead(logits, temperature, seed, sequence, position, token)) if token >= 0 else 0.0

"""The checks of ``doctor`` for an embedding or reranking model: the same bits alone and in a batch, and the speed."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from ipex_lookahead.bench.facts import without_paths
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.errors import LookaheadError, first_line

TEXTS = 20
"""Largest number of texts that are compared, the first of the packaged prompts."""


def examine_embedding(model: str, low_bit: str | None, threads: int | None) -> dict[str, Any]:
    """Return purpose, number of texts, equal ones, texts per second of a batch, and facts; or ``problem``."""
    import numpy as np

    from ipex_lookahead.embedding.model import EmbeddingModel

    texts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS], TEXTS)]
    try:
        with EmbeddingModel.open(model, load_in_low_bit=low_bit, threads=threads) as opened:
            if opened.purpose == "reranking":
                inputs, compute = opened.pairs(texts[0], texts), opened.scores
            else:
                inputs, compute = opened.inputs(texts), opened.vectors
            began = perf_counter()
            together = compute(inputs)
            seconds = perf_counter() - began
            alone = [compute([one])[0] for one in inputs]
            equal = sum(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
            facts = opened.describe()
    except LookaheadError as error:
        return {"problem": without_paths(first_line(error))}
    return {"purpose": facts["purpose"], "texts": len(texts), "equal": equal, "texts_s": len(texts) / seconds, **facts}


def embedding_lines(found: dict[str, Any]) -> list[str]:
    """Return the checks as lines of the report."""
    if "problem" in found:
        return [f"The model cannot run: {found['problem']}"]
    what = "scores" if found["purpose"] == "reranking" else "vectors"
    return [
        f"The model is for {found['purpose']}, on the engine {found['engine']}.",
        f"{found['equal']} of {found['texts']} {what} have the same bits alone and in a batch; "
        f"{found['texts_s']:.1f} texts per second.",
    ]


def embedding_problems(found: dict[str, Any]) -> list[str]:
    """Return the problems as sentences."""
    if "problem" in found:
        return [f"the model: {found['problem']}"]
    different = found["texts"] - found["equal"]
    return [f"{different} of {found['texts']} texts give other bits in a batch than alone"] if different else []

"""What low-bit weights and int8 activations cost in quality: perplexity beside transformers in float32.

The reference runs the *same* dequantised weights: the difference is what our arithmetic adds, not what the format lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import Engine
from ipex_lookahead.engines.prefill import chain, prefill
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import dequantize

Logits = Callable[[npt.NDArray[np.int32]], Iterator[npt.NDArray[np.float32]]]
"""Token ids of a window -> float32 [some rows, vocab], in order, until every row has come."""

ROWS = 128
"""Rows whose logits are held at once; a window's all at once would be 100 MB."""


def engine_logits(engine: Engine) -> Logits:
    """A window through an engine, in chunks."""

    def logits(ids: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.float32]]:
        chains = [(engine.new_cache(), ids)]
        for _, output in prefill(engine, chains, asked=[range(len(ids))], logits=True, rows=ROWS):
            assert output.logits is not None
            yield output.logits

    return logits


def reference_model(model: Any) -> Any:
    """transformers' LlamaForCausalLM in float32 with the model's weights dequantised; about 4 bytes a weight."""
    import torch
    from transformers import LlamaForCausalLM

    reference = LlamaForCausalLM(model.config).float().eval()
    state = {name: torch.from_numpy(np.array(dequantize(weight))) for name, weight in model.engine.weights()}
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state)
    return reference


def reference_logits(reference: Any) -> Logits:
    """A window through transformers."""
    import torch

    def logits(ids: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.float32]]:
        with torch.no_grad():
            out = reference(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
        for start in range(0, len(ids), ROWS):
            yield out[start : start + ROWS].numpy()

    return logits


def perplexity(
    logits: Logits, ids: Sequence[int], window: int = 512, progress: Callable[[int, int], None] | None = None
) -> float:
    """exp of the mean negative log-likelihood (natural log) of tokens 1 ... of every window of ``window`` tokens.

    Windows do not overlap and start afresh; the first token of each is not counted. Raises InputError below 2 tokens.
    """
    tokens = np.asarray(ids, dtype=np.int32)
    total, count = 0.0, 0
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        if len(part) < 2:
            break
        at = 0
        for rows in logits(part):
            follow = part[at + 1 : at + 1 + len(rows)]
            total -= float(_log_probabilities(rows[: len(follow)], follow).sum())
            count += len(follow)
            at += len(rows)
        if progress is not None:
            progress(min(start + window, len(tokens)), len(tokens))
    if count == 0:
        raise InputError(f"perplexity needs 2 tokens in a window or more, got {len(tokens)} tokens and window {window}")
    return float(np.exp(total / count))


def _log_probabilities(logits: npt.NDArray[np.float32], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    normaliser = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    picked: npt.NDArray[np.float64] = wide[np.arange(len(ids)), ids] - normaliser
    return picked


def first_token_agreement(engine: Engine, reference: Any, prompts: Sequence[Sequence[int]]) -> int:
    """In how many prompts the most likely first token is the reference's."""
    import torch

    agree = 0
    for prompt in prompts:
        ids = np.asarray(prompt, dtype=np.int32)
        want = np.array([len(ids) - 1], dtype=np.int32)
        ours = int(engine.forward(chain(engine.new_cache(), ids, want)).argmax[0])
        with torch.no_grad():
            theirs = reference(torch.from_numpy(ids.astype(np.int64))[None], logits_to_keep=1).logits[0, -1]
        agree += ours == int(theirs.argmax())
    return agree


def run(
    model: Any,
    text: str,
    *,
    tokens: int = 20_000,
    window: int = 512,
    reference: bool = True,
    prompts: Sequence[Sequence[int]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The report: perplexity of the engine, of the reference, their ratio, and first-token agreement on ``prompts``.

    Raises InputError if the model has no tokenizer or the text is too short.
    """
    if model.tokenizer is None:
        raise InputError("measuring perplexity on text needs a tokenizer, and this checkpoint has none")
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"][:tokens]
    started = time.perf_counter()
    ours = perplexity(engine_logits(model.engine), ids, window, progress)
    report: dict[str, Any] = {
        "low_bit": model.low_bit,
        "tokens": len(ids),
        "window": window,
        "perplexity": ours,
        "seconds": time.perf_counter() - started,
    }
    if reference:
        theirs = reference_model(model)
        expected = perplexity(reference_logits(theirs), ids, window, progress)
        report |= {"reference_perplexity": expected, "ratio": ours / expected}
        if prompts:
            agree = first_token_agreement(model.engine, theirs, prompts)
            report["first_token_agreement"] = f"{agree}/{len(prompts)}"
    return report

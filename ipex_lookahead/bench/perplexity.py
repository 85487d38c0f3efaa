"""Perplexity, KL divergence and speed of a model: the measurements of ``bench quality``."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Engine, OutputRequest
from ipex_lookahead.engines.prefill import chain, prefill
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import dequantize

Floats = npt.NDArray[np.float32]
Logits = Callable[[npt.NDArray[np.int32]], Iterator[Floats]]
"""Token ids of a window -> float32 [rows, vocab] in chunks, for all rows in order."""
ROWS = 128
"""Rows of logits in memory at once; those of a whole window take 100 MB."""
PIECE = 16
"""Rows compared at once: their intermediate results fit into the cache."""
SPEED_CONTEXT, SPEED_STEPS = 128, 64
"""Positions before the timed steps, and the number of timed steps."""


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of predictions.

    Attributes:
        perplexity: exp of the mean negative log-likelihood (natural log).
        kl: Mean over the tokens of the KL divergence from the reference, in nats; 0 without a reference.
        top1: Share of the tokens with the reference's most likely token; 1 without a reference.
    """

    perplexity: float
    kl: float = 0.0
    top1: float = 1.0


class Distributions:
    """The distributions of a reference, in a temporary file that exists as long as this object.

    Log-probabilities are stored as binary16 and normalized again when they are read. The rounding changes the KL
    divergence by less than 1e-6; sym_int8 has 5e-3.

    Args:
        rows: Number of distributions.
        vocab: Size of the vocabulary.

    Raises:
        InputError: The folder for temporary files has too little space.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        folder, size = tempfile.gettempdir(), 2 * rows * vocab
        if (free := shutil.disk_usage(folder).free) < size:
            raise InputError(
                f"{folder} has {free / 1e6:,.0f} MB free; the reference's probabilities need {size / 1e6:,.0f} MB",
                hint="take fewer tokens, or set TMPDIR to a folder on another disk",
            )
        with tempfile.TemporaryFile(prefix="ipex-lookahead-") as file:  # the mapping keeps it
            self._logs: npt.NDArray[np.float16] = np.memmap(file, np.float16, "w+", shape=(rows, vocab))
        self._top = np.empty(rows, np.int32)

    def put(self, at: int, logs: Floats) -> None:
        """Store log-probabilities, float32 [n, vocab], as the rows from ``at``."""
        self._logs[at : at + len(logs)] = logs
        self._top[at : at + len(logs)] = logs.argmax(axis=1)

    def compare(self, at: int, logs: Floats) -> tuple[float, int]:
        """Return the sum of the KL divergences from the stored rows, and the number of equal most likely ids."""
        kept = self._logs[at : at + len(logs)].astype(np.float32)
        weights = np.exp(kept)  # times 1 / total the probabilities
        total = weights.sum(axis=1, dtype=np.float64)
        weights *= kept - logs
        divergences = weights.sum(axis=1, dtype=np.float64) / total - np.log(total)
        return float(divergences.sum()), int((logs.argmax(axis=1) == self._top[at : at + len(logs)]).sum())


def log_probabilities(logits: Floats) -> Floats:
    """Return log softmax over the last axis of float32 [rows, vocab], with float64 sums."""
    shifted: Floats = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    logs: Floats = shifted - np.log(total).astype(np.float32)
    return logs


def engine_logits(engine: Engine) -> Logits:
    """Return the logits function of an engine."""

    def logits(ids: npt.NDArray[np.int32]) -> Iterator[Floats]:
        chains = [(engine.new_cache(), ids)]
        for _, output in prefill(engine, chains, wanted=[range(len(ids))], rows=ROWS, wants=OutputRequest(logits=True)):
            assert output.logits is not None
            yield output.logits

    return logits


def score(
    logits: Logits,
    ids: Sequence[int],
    window: int = 512,
    *,
    keep: Distributions | None = None,
    reference: Distributions | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Score:
    """Score all tokens but the first of each window; windows do not overlap and start with an empty context.

    Args:
        logits: Logits function of the model.
        ids: Token ids of the text.
        window: Tokens of a window.
        keep: Receives the ``predicted(len(ids), window)`` distributions.
        reference: Distributions to compare with.
        advance: Called after each window.

    Raises InputError for fewer than 2 tokens.
    """
    tokens = np.asarray(ids, dtype=np.int32)
    loss, divergence, agree, done = 0.0, 0.0, 0, 0
    for start in range(0, len(tokens), window):
        part = tokens[start : start + window]
        if len(part) < 2:
            break
        at = 0
        for rows in _in_pieces(logits(part)):
            follow = part[at + 1 : at + 1 + len(rows)]
            at += len(rows)
            logs = log_probabilities(rows[: len(follow)])
            loss -= float(logs[np.arange(len(follow)), follow].sum(dtype=np.float64))
            if keep is not None:
                keep.put(done, logs)
            if reference is not None:
                more, same = reference.compare(done, logs)
                divergence, agree = divergence + more, agree + same
            done += len(follow)
        advance()
    if done == 0:
        raise InputError(f"perplexity needs 2 tokens in a window or more, got {len(tokens)} tokens and window {window}")
    perplexity = float(np.exp(loss / done))
    return Score(perplexity) if reference is None else Score(perplexity, max(0.0, divergence / done), agree / done)


def _in_pieces(chunks: Iterator[Floats]) -> Iterator[Floats]:
    for rows in chunks:
        for first in range(0, len(rows), PIECE):
            yield rows[first : first + PIECE]


def predicted(tokens: int, window: int) -> int:
    """Return the number of predicted tokens: all but the first of each window."""
    return tokens - -(-tokens // window)


def reference_model(engine: Any, config: dict[str, Any]) -> Any:
    """Return transformers' model in float32 with the dequantized weights of an engine.

    The weights are saved and loaded again, so that transformers maps their names as usual. Takes 8 bytes per weight.
    """
    import torch
    import transformers
    from safetensors.numpy import save_file

    from ipex_lookahead.system.compat import dtype_argument

    with tempfile.TemporaryDirectory(prefix="ipex-lookahead-") as folder:
        weights = {name: np.ascontiguousarray(dequantize(weight)) for name, weight in engine.weights()}
        save_file(weights, Path(folder) / "model.safetensors", {"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        del weights
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, **dtype_argument(torch.float32)
        )
    if wrong := {what: sorted(names) for what, names in info.items() if what != "error_msgs" and names}:
        raise InputError(f"transformers cannot load the weights of this model: {wrong}")
    return model.eval()


def reference_logits(reference: Any) -> Logits:
    """Return the logits function of a transformers model."""
    import torch

    def logits(ids: npt.NDArray[np.int32]) -> Iterator[Floats]:
        with torch.no_grad():
            out = reference(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
        for start in range(0, len(ids), ROWS):
            yield out[start : start + ROWS].numpy()

    return logits


def decode_speed(engine: Engine, ids: Sequence[int]) -> float:
    """Return tokens/s of steps of one row after ``SPEED_CONTEXT`` positions, from the median of ``SPEED_STEPS``."""
    text = np.resize(np.asarray(ids, dtype=np.int32), SPEED_CONTEXT + SPEED_STEPS)
    cache = engine.new_cache()
    for _ in prefill(engine, [(cache, text[:SPEED_CONTEXT])]):
        pass
    times = []
    for at in range(SPEED_CONTEXT, len(text)):
        started = perf_counter()
        engine.forward(chain(cache, text[at : at + 1]))
        times.append(perf_counter() - started)
        cache.keep([0])
    return 1 / median(times)


def weight_sizes(engine: Any) -> tuple[float, int]:
    """Return the bits per weight of the matrices, and the bytes of all weights when saved."""
    numbers = size = whole = 0
    for _, weight in engine.weights():
        whole += weight.nbytes
        if len(weight.shape) == 2:
            numbers += prod(weight.shape)
            size += weight.nbytes
    return 8 * size / numbers, whole

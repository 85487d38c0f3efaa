"""What a format costs in quality and gives in speed: perplexity, KL divergence and agreement beside float32.

The reference is the checkpoint's own weights as float32 on the same engine: of a file that is quantised already, the
values that its codes stand for. What is compared with it is one format after the other, made of the same checkpoint,
or other files of the same model as they are. Each is loaded, measured and given back before the next.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
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
"""Token ids of a window -> float32 [some rows, vocab], in order, until every row has come."""
Progress = Callable[[int, str], AbstractContextManager[Callable[[], None]]]
"""progress(steps, title) gives a function to call after each step."""

PACKAGED_TEXT = Path(__file__).with_name("quality.txt")
"""The first chapters of Tolstoy's War and Peace in the Maudes' translation, which is in the public domain."""
ROWS = 128
"""Rows whose logits are held at once; a window's all at once would be 100 MB."""
PIECE = 16
"""Rows that are compared at once: what is made of them on the way stays in the cache."""
SPEED_CONTEXT, SPEED_STEPS = 128, 64
"""Positions before the first step that is timed, and steps."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is measured.

    Attributes:
        model: a checkpoint, as commands name it.
        low_bit: what it is loaded in; None: as it is.
        name: what it is called in the report; "" is its format's name.
        kv_cache: how keys and values are held.
    """

    model: str
    low_bit: str | None = None
    name: str = ""
    kv_cache: str = "fp16"


@dataclass(frozen=True, slots=True)
class Score:
    """Of some tokens, each beside what it was expected to be.

    Attributes:
        perplexity: exp of the mean negative log-likelihood (natural log).
        kl: mean over the tokens of sum over the vocabulary of p log(p / q), p being the reference's probabilities and q
            these; in nats. 0 where there is no reference.
        top1: share of the tokens for which both have the same most likely one. 1 where there is no reference.
    """

    perplexity: float
    kl: float = 0.0
    top1: float = 1.0


class Kept:
    """A reference's distributions, in a temporary file that goes away with this object.

    Log-probabilities are kept as binary16 and made to sum to one again when they are read. What the rounding leaves of
    KL divergence is its square: below 1e-6, where sym_int8 has 5e-3.

    Args:
        rows: distributions.
        vocab: ids in each.

    Raises:
        InputError: there is no room for them in the folder for temporary files.
    """

    def __init__(self, rows: int, vocab: int) -> None:
        folder, size = tempfile.gettempdir(), 2 * rows * vocab
        if (free := shutil.disk_usage(folder).free) < size:
            raise InputError(
                f"{folder} has {free / 1e6:,.0f} MB free; the reference's probabilities need {size / 1e6:,.0f} MB",
                hint="take fewer tokens, or set TMPDIR to a folder on another disk",
            )
        with tempfile.TemporaryFile(prefix="ipex-lookahead-") as file:  # which stays for as long as it is mapped
            self._logs: npt.NDArray[np.float16] = np.memmap(file, np.float16, "w+", shape=(rows, vocab))
        self._top = np.empty(rows, np.int32)

    def put(self, at: int, logs: Floats) -> None:
        """Rows ``at``, ``at`` + 1, ... are these log-probabilities, float32 [n, vocab]."""
        self._logs[at : at + len(logs)] = logs
        self._top[at : at + len(logs)] = logs.argmax(axis=1)

    def beside(self, at: int, logs: Floats) -> tuple[float, int]:
        """Sum of the KL divergences of such rows from those that are kept, and how many have the same likeliest id."""
        kept = self._logs[at : at + len(logs)].astype(np.float32)
        weights = np.exp(kept)  # times 1 / total the probabilities
        total = weights.sum(axis=1, dtype=np.float64)
        weights *= kept - logs
        divergences = weights.sum(axis=1, dtype=np.float64) / total - np.log(total)
        return float(divergences.sum()), int((logs.argmax(axis=1) == self._top[at : at + len(logs)]).sum())


def log_probabilities(logits: Floats) -> Floats:
    """log softmax over the last axis of float32 [rows, vocab]; sums are taken in float64."""
    shifted: Floats = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    logs: Floats = shifted - np.log(total).astype(np.float32)
    return logs


def engine_logits(engine: Engine) -> Logits:
    """A window through an engine, in chunks."""

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
    keep: Kept | None = None,
    beside: Kept | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Score:
    """Tokens 1 ... of every window of ``window`` tokens; windows do not overlap and start afresh.

    Args:
        logits: the model.
        ids: the text.
        window: tokens in a window.
        keep: where the distributions are put, ``counted(len(ids), window)`` of them.
        beside: a reference's, which these are compared with.
        advance: called after each window.

    Raises InputError below 2 tokens.
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
            if beside is not None:
                more, same = beside.beside(done, logs)
                divergence, agree = divergence + more, agree + same
            done += len(follow)
        advance()
    if done == 0:
        raise InputError(f"perplexity needs 2 tokens in a window or more, got {len(tokens)} tokens and window {window}")
    perplexity = float(np.exp(loss / done))
    return Score(perplexity) if beside is None else Score(perplexity, max(0.0, divergence / done), agree / done)


def _in_pieces(chunks: Iterator[Floats]) -> Iterator[Floats]:
    for rows in chunks:
        for first in range(0, len(rows), PIECE):
            yield rows[first : first + PIECE]


def predicted(tokens: int, window: int) -> int:
    """How many of so many tokens are predicted: all but the first of each window."""
    return tokens - -(-tokens // window)


def reference_model(engine: Any, config: dict[str, Any]) -> Any:
    """transformers' model in float32 with an engine's weights dequantised; about 4 bytes a weight, twice on the way.

    It is saved and loaded again, so that whatever transformers makes of the hub's names it makes of these.
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
        made, said = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, **dtype_argument(torch.float32)
        )
    if wrong := {what: sorted(names) for what, names in said.items() if what != "error_msgs" and names}:
        raise InputError(f"transformers takes this model's weights otherwise: {wrong}")
    return made.eval()


def reference_logits(reference: Any) -> Logits:
    """A window through transformers."""
    import torch

    def logits(ids: npt.NDArray[np.int32]) -> Iterator[Floats]:
        with torch.no_grad():
            out = reference(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
        for start in range(0, len(ids), ROWS):
            yield out[start : start + ROWS].numpy()

    return logits


def decode_speed(engine: Engine, ids: Sequence[int]) -> float:
    """Tokens a second at one row, after ``SPEED_CONTEXT`` positions: the median of ``SPEED_STEPS`` steps."""
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
    """Bits a weight of the matrices, and bytes of all weights, as they are saved."""
    numbers = size = whole = 0
    for _, weight in engine.weights():
        whole += weight.nbytes
        if len(weight.shape) == 2:
            numbers += prod(weight.shape)
            size += weight.nbytes
    return 8 * size / numbers, whole


def measure(
    candidates: Sequence[Candidate],
    load: Callable[[Candidate], Any],
    text: str,
    *,
    reference: Candidate,
    tokens: int = 20_000,
    window: int = 512,
    speed: bool = True,
    same_weights: bool = False,
    progress: Progress,
    found: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """The report.

    Args:
        candidates: what is compared with the reference.
        load: gives a model with ``engine``, ``tokenizer`` and ``config``.
        text: what is predicted.
        reference: with whose probabilities all others are compared.
        tokens: the first so many tokens of the text.
        window: see :func:`score`.
        speed: also measure how fast each decodes.
        same_weights: also run transformers in float32 on each one's weights: what our arithmetic adds to the format.
        progress: see :data:`Progress`.
        found: called with each row of the report as soon as it is there.

    Raises:
        InputError: a text of fewer than 2 tokens, a candidate with another vocabulary, or no room for the reference.
    """
    model = load(reference)
    ids = model.tokenizer.encode(text, add_special_tokens=False)[:tokens]
    vocab = model.engine.vocab_size
    windows = -(-len(ids) // window)
    kept = Kept(predicted(len(ids), window), vocab) if len(ids) > 1 else None
    facts = model.engine.describe()
    with progress(windows, f"the reference, {facts['low_bit']}") as advance:
        expected = score(engine_logits(model.engine), ids, window, keep=kept, advance=advance)
    report: dict[str, Any] = {
        "tokens": len(ids),
        "window": window,
        **{key: facts.get(key) for key in ("engine", "isa", "threads")},
        "reference": {"low_bit": facts["low_bit"], "perplexity": expected.perplexity},
        "formats": [],
    }
    del model
    for number, candidate in enumerate(candidates, 1):
        model = load(candidate)
        engine = model.engine
        low_bit = engine.describe()["low_bit"]
        name = candidate.name or low_bit
        other_file = candidate.model != reference.model
        alike = not other_file or model.tokenizer.encode(text, add_special_tokens=False)[:tokens] == ids
        if engine.vocab_size != vocab or not alike:
            raise InputError(f"{name} has another vocabulary than {reference.model}; their tokens cannot be compared")
        with progress(windows, f"{name} ({number} of {len(candidates)})") as advance:
            got = score(engine_logits(engine), ids, window, beside=kept, advance=advance)
        bits, size = weight_sizes(engine)
        row: dict[str, Any] = {
            "name": name,
            "low_bit": low_bit,
            "other_file": other_file,
            "requantized_from": engine.describe().get("requantized_from"),
            "bits": bits,
            "bytes": size,
            "perplexity": got.perplexity,
            "ratio": got.perplexity / expected.perplexity,
            "kl": got.kl,
            "top1": got.top1,
            "decode_tok_s": decode_speed(engine, ids) if speed else None,
        }
        if same_weights:
            theirs = reference_logits(reference_model(engine, model.config))
            with progress(windows, f"{name} in transformers") as advance:
                other = score(theirs, ids, window, advance=advance)
            row |= {
                "same_weights_perplexity": other.perplexity,
                "same_weights_ratio": got.perplexity / other.perplexity,
            }
        report["formats"].append(row)
        found(row)
        del model, engine
    return report

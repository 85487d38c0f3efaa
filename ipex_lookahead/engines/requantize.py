"""Warnings about requantization: its loss, and how to avoid it.

A weight that a file has in one low-bit format is rounded a second time when it is loaded in another. The embedded model
in its own Q4_1 has perplexity 29.14 on WikiText-2's first 20,000 tokens, and 38.70 as ``sym_int4`` made from that
(``bench quality``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.formats import FLOATS, FORMATS

log = logging.getLogger("ipex_lookahead")


@dataclass(frozen=True, slots=True)
class Requantized:
    """Matrices that are rounded twice.

    Attributes:
        path: the checkpoint.
        source: the format in which most of it is in the file.
        target: the format it is to have.
        tensors: how many tensors are in that format.
        bits: bits that a weight of that format takes as it is loaded.
        only_head: whether it is the output layer alone.
    """

    path: Path
    source: str
    target: str
    tensors: int
    bits: float
    only_head: bool = False

    def __str__(self) -> str:
        """The sentence for people."""
        what = "the output layer is" if self.only_head else f"{self.tensors} matrices are"
        loss = (
            "a second rounding, which loses more accuracy (perplexity of the default model: 29.1 in its own asym_int4,"
            " 38.7 in sym_int4 made from it)"
            if self.target not in FORMATS or FORMATS[self.target].bits <= 4
            else "larger and not more accurate, because the first rounding cannot be undone"
        )
        already = f"{self.path}: {what} already in {self.source} ({self.bits:.1f} bits per weight)"
        return f"{already}; {self.target} made from that is {loss}"


def requantized(checkpoint: Checkpoint, plan: WeightPlan, *, kept: Collection[str] = ()) -> Requantized | None:
    """What a plan would round a second time; None for nothing. Reads no tensor.

    Args:
        checkpoint: an opened checkpoint.
        plan: the format of each matrix.
        kept: names of matrices that keep the file's format regardless of the plan: an untied embedding, routers.
    """

    def target(name: str, info: TensorInfo) -> str | None:
        wanted = () if name in kept and name != plan.embedding else plan.target(name, info.shape)
        same = "fp32" in wanted or (info.format in wanted and info.group_size in (0, plan.group_size))
        return None if same or not wanted else wanted[0]

    return _rounded_again(checkpoint, target, plan.head)


def requantized_elsewhere(checkpoint: Checkpoint, label: str) -> Requantized | None:
    """Return what a program that only takes floats would round a second time to ``label``; None for nothing."""
    return _rounded_again(checkpoint, lambda name, info: None if label in FLOATS else label, "")


def _rounded_again(
    checkpoint: Checkpoint, target_of: Callable[[str, TensorInfo], str | None], head: str
) -> Requantized | None:
    found: Counter[tuple[str, str]] = Counter()
    names = []
    for name in checkpoint.names():
        info = checkpoint.info(name)
        if info.format in FLOATS and info.decoded_from in ("", "F64") or len(info.shape) != 2:
            continue
        if (target := target_of(name, info)) is None or target in FLOATS and info.decoded_from:
            continue
        found[info.decoded_from or info.format, target] += 1
        names.append(name)
    if not found:
        return None
    source, target = found.most_common(1)[0][0]
    of_it = [info for name in names if source in ((info := checkpoint.info(name)).decoded_from, info.format)]
    bits = 8 * sum(map(packed_bytes, of_it)) / sum(prod(info.shape) for info in of_it)
    return Requantized(checkpoint.path, source, target, len(of_it), bits, names == [head])


def warn_of_requantizing(checkpoint: Checkpoint, plan: WeightPlan, *, kept: Collection[str] = ()) -> str | None:
    """Say once, through logging, that weights are rounded twice; returns the format they come from.

    A folder of this package records the fact, which is returned as well: None is for weights rounded once.
    """
    found = requantized(checkpoint, plan, kept=kept)
    if found is not None:
        log.warning("%s. Load the float original, or name no format: that keeps the file's own", found)
        return found.source
    saved = getattr(checkpoint, "low_bit", {}).get("requantized_from")
    return saved if isinstance(saved, str) else None

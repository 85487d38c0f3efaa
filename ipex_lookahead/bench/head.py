"""What a drafting head would bring: its costs are measured on random weights of a shape, its acceptance is given.

Speed without the weights: a model's tokens a step follow from how often a head's drafts are right, which is published,
and from what steps and drafts cost, which is measured here. Such figures are replayed, not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.bench.shapes import config_of
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

BLOCKS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
"""What configs call the number of blocks for drafting."""


def tokens_a_step(acceptance: Sequence[float]) -> list[float]:
    """Tokens that a step with 1, 2, ... drafted tokens emits, each being right so often where those before it are."""
    return [1 + reached for reached in accumulate(accumulate(acceptance, mul))]


def measure_head(
    shape: str,
    acceptance: Sequence[float],
    low_bit: str = "sym_int4",
    *,
    head_low_bit: str | None = None,
    context: int = 128,
    threads: int | None = None,
    kv_cache: str = "fp16",
    repeat: int = 9,
    report: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Rows of a table, by drafted tokens: tokens a step, and the speed with all of the vocabulary and with a part.

    Medians over ``repeat`` rounds, each of which measures everything once. ``shape`` is one whose family has a block
    for drafting; ``acceptance`` says how often the 1st, 2nd, ... drafted token is right where those before it are, 0 to
    1. The other arguments are those of ``bench.step.measure``.

    Raises InputError for a shape without such a block, and rates outside 0 to 1.
    """
    if not acceptance or not all(0 <= rate <= 1 for rate in acceptance):
        raise InputError(argument="acceptance", got=list(acceptance), allowed="rates from 0 to 1, one a drafted token")
    spec = spec_for({**config_of(shape), **dict.fromkeys(BLOCKS, 1)})
    if spec.mtp is None:
        raise InputError(f"{shape} has no block for drafting (MTP); shapes of Qwen3.5 and GLM-4.7 have one")
    report("making random weights")
    engine = NativeEngine.random(spec, low_bit, head_low_bit=head_low_bit, threads=threads, kv_cache=kv_cache)
    heads = {
        "full": NativeHead.random(spec.mtp, low_bit, engine, threads=threads, draft_vocab=spec.vocab),
        "cut": NativeHead.random(spec.mtp, low_bit, engine, threads=threads, draft_vocab=DRAFT_VOCAB),
    }
    most = len(acceptance)
    cache = engine.new_cache(blank=context)
    steps: dict[int, list[float]] = {rows: [] for rows in range(1, most + 2)}
    drafts: dict[tuple[str, int], list[float]] = {(name, n): [] for name in heads for n in range(1, most + 1)}
    token = np.zeros(1, np.int32)
    followed = {name: engine.new_cache() for name in heads}
    for name, head in heads.items():
        head.follow(followed[name])
        followed[name].raw.fill_blank(context)
    for done in range(repeat + 1):  # the first warms up
        report(f"round {done} of {counted(repeat, 'round')}")
        for rows, times in steps.items():
            batch = chain(cache if rows == 1 else followed["cut"], np.zeros(rows, np.int32))
            started = perf_counter()
            engine.forward(batch)
            times.append(perf_counter() - started)
        for (name, count), times in drafts.items():
            engine.forward(chain(followed[name], token))
            followed[name].keep([0])
            started = perf_counter()
            heads[name].draft(followed[name], 0, count)
            times.append(perf_counter() - started)
            followed[name].crop(context)
    one = median(steps[1][1:])
    found = []
    for count, tokens_each in enumerate(tokens_a_step(acceptance), 1):
        row = {"drafted": count, "tokens": tokens_each, "step_ms": 1e3 * median(steps[count + 1][1:])}
        for name in heads:
            took = median(drafts[name, count][1:])
            row[f"{name}_ms"] = 1e3 * took
            row[f"{name}_speed"] = tokens_each * one / (median(steps[count + 1][1:]) + took)
        found.append({**row, "one_row_ms": 1e3 * one})
    return found

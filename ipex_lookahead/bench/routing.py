"""Which experts the rows of a step choose, for measuring mixtures of experts at the routing of trained models.

The time of a step with several rows depends on the number of different experts that the rows choose. Random routers
choose nearly the same experts for all rows, which is the best case; unrelated rows are close to the worst. Rows of a
text are in between: some experts are popular in all texts, others in one text. :func:`routing_trace` generates such
choices, and :class:`Routing` makes random weights with routers that choose them.

The trace's two deviations were fitted to published routing:

- Qwen3.6-35B-A3B, 8 of 256 experts, 8,548 generated tokens of 57 prompts (GitHub, trifleen/laya-pipeline, "A 35B model
  on an 8 GB laptop GPU", October 2026, section 7): on other prompts the 8, 16, 32, 64 and 128 most popular experts of a
  layer have 10, 17, 30, 51 and 77 % of the choices; 69 % of the choices are among the 39 most recently used experts.
  The trace: 11, 19, 31, 49 and 74 %; 59 %.
- GLM-4.7-Flash, 4 of 64 experts (GitHub, ml-explore/mlx-lm #1485): consecutive positions share 25.7 % of their experts.
  The trace: 28 %.

It was not fitted to mixtures of few large experts, such as Mixtral.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.engines.load_weights import Read
from ipex_lookahead.formats import quantize
from ipex_lookahead.formats.base import PackedWeight

CASES = ("trace", "best", "worst")
"""The trace; all rows choose the same experts; no expert is chosen by two rows, as far as there are enough."""
POPULARITY = 0.85
"""Standard deviation of an expert's log-popularity over all texts."""
TOPIC = 1.5
"""Standard deviation of what a text adds to it."""
TEXT_TOKENS = 150
"""Tokens of a text, after which another one begins."""
FIRST_TOKEN = 7
"""Id of the first routed token."""
COUNTED = (1, 2, 4, 8)
"""Numbers of consecutive rows in statistics."""

_EMBEDDING = 16384.0
"""Of a routed token, at one coordinate: so large that no layer's output changes the direction of the hidden state."""
_LOGIT = 0.125

Choices = npt.NDArray[np.int32]


def routing_trace(experts: int, used: int, tokens: int, *, seed: int | Sequence[int] = 0) -> Choices:
    """Return the experts of one layer for consecutive tokens, best first: int32 [tokens, used].

    An expert's score is its log-popularity, plus that of the text, plus the token's own (Gumbel noise); the largest
    ``used`` scores are chosen.

    Args:
        experts: number of experts of the layer.
        used: number of experts per token.
        tokens: number of tokens; a new text begins every ``TEXT_TOKENS``.
        seed: a seed gives the same trace on every machine.
    """
    rng = np.random.default_rng(seed)
    popularity = POPULARITY * rng.standard_normal(experts)
    texts = -(-tokens // TEXT_TOKENS)
    topics = np.repeat(TOPIC * rng.standard_normal((texts, experts)), TEXT_TOKENS, axis=0)[:tokens]
    scores = popularity + topics + rng.gumbel(size=(tokens, experts))
    return np.argsort(-scores, axis=1, kind="stable")[:, :used].astype(np.int32)


def statistics(layers: Sequence[Choices], experts: int) -> dict[str, Any]:
    """Return statistics of choices, as means over layers.

    Args:
        layers: int32 [tokens, used] of each layer.
        experts: number of experts of a layer.

    Returns:
        ``distinct``: the number of different experts of 1, 2, 4 and 8 consecutive rows in a layer; ``shared``: the
        share of a row's experts that the row before chose; ``entropy``: of the load over the experts, 1 if it is even.
    """
    tokens, used = layers[0].shape
    shared, entropy = [], []
    for chosen in layers:
        shared += [len({*one} & {*other}) / used for one, other in zip(chosen, chosen[1:], strict=False)]
        load = np.bincount(chosen.ravel(), minlength=experts) / chosen.size
        load = load[load > 0]
        entropy.append(float(-(load * np.log(load)).sum() / np.log(experts)))
    return {
        "distinct": {
            count: float(
                np.mean([len({*c[i : i + count].ravel()}) for c in layers for i in range(0, tokens - count + 1, count)])
            )
            for count in COUNTED
            if count <= tokens
        },
        "shared": float(np.mean(shared)) if shared else 0.0,
        "entropy": float(np.mean(entropy)),
    }


def trace_experts(spec: ModelSpec, rows: int) -> float:
    """Return the mean number of experts that ``rows`` rows of the trace read, over all layers."""
    total = 0.0
    for number, mixture in enumerate(spec.mixtures):
        chosen = routing_trace(len(mixture.experts), mixture.used, TEXT_TOKENS // rows * rows, seed=(0, number))
        total += float(np.mean([len({*part.ravel()}) for part in np.split(chosen, len(chosen) // rows)]))
    return total


class Routing:
    """Tokens of a random model with chosen experts in every mixture, for the three ``CASES``.

    A token's embedding is one large value at a coordinate of its own, which remains the direction of the hidden state
    in all layers, and the column of this coordinate in a layer's router has large values for the token's experts. The
    engine needs no change: its own routers choose the experts, and steps take their usual time.

    Args:
        spec: a model with mixtures.
        windows: number of places in a text to measure.
        rows: number of rows of the largest step, except prompts.
        seed: of the trace.
    """

    def __init__(self, spec: ModelSpec, windows: int, rows: int, *, seed: int = 0) -> None:
        fit = min(spec.hidden, spec.vocab - FIRST_TOKEN) // len(CASES)
        self._spec, self._rows, self._seed = spec, min(rows, fit), seed
        self._windows = max(1, min(windows, fit // self._rows))
        self._tokens = fit if self._windows == 1 else self._windows * self._rows  # of each case
        self._layers = [
            np.concatenate([self._chosen(len(one.experts), one.used, case, (seed, number)) for case in CASES])
            for number, one in enumerate(spec.mixtures)
        ]

    def _chosen(self, experts: int, used: int, case: str, seed: tuple[int, int]) -> Choices:
        """Return the experts of a case's tokens: int32 [tokens, used]."""
        if case == "trace":  # each window is of another text
            chosen = routing_trace(experts, used, max(self._tokens, self._windows * TEXT_TOKENS), seed=seed)
            begins = np.repeat(TEXT_TOKENS * np.arange(self._windows), self._tokens // self._windows)
            return np.asarray(chosen[begins + np.arange(self._tokens) % (self._tokens // self._windows)])
        order = np.random.default_rng(seed).permutation(experts)
        windows = np.arange(self._tokens) // self._rows
        places = np.arange(self._tokens) if case == "worst" else windows
        return np.asarray(order[(used * places[:, None] + np.arange(used)) % experts], np.int32)

    def tokens(self, case: str, window: int, rows: int) -> npt.NDArray[np.int32]:
        """Return the token ids of a step, int32 [rows]. Prompts longer than the tokens of a case repeat them."""
        places = (window % self._windows * self._rows + np.arange(rows)) % self._tokens
        return (FIRST_TOKEN + CASES.index(case) * self._tokens + places).astype(np.int32)

    def experts(self, tokens: npt.NDArray[np.int32]) -> int:
        """Return the number of experts that a step with these tokens reads, over all layers."""
        return sum(len({*chosen[tokens - FIRST_TOKEN].ravel()}) for chosen in self._layers)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the trace over several texts, see :func:`statistics`."""
        first, seeds = self._spec.mixtures[0], [(self._seed, number) for number in range(len(self._spec.mixtures))]
        experts = len(first.experts)
        return statistics([routing_trace(experts, first.used, 4 * TEXT_TOKENS, seed=seed) for seed in seeds], experts)

    def weights(self, read: Read) -> Read:
        """Return a reader of ``read``'s weights, with embeddings of the routed tokens, and with routers for them."""
        routers = {one.router.weight.name: number for number, one in enumerate(self._spec.mixtures)}
        fixed = {t.name: 0 for one in self._spec.mixtures for t in (one.router.bias, one.correction) if t is not None}
        fixed |= {t.name: 1 for block in self._spec.layers if (t := block.output_scale) is not None}
        made: dict[str, PackedWeight] = {}

        def routed(tensor: Tensor) -> PackedWeight:
            if tensor.name in routers:
                return PackedWeight("fp32", tensor.shape, self._router(tensor, self._layers[routers[tensor.name]]))
            weight = read(tensor)
            if tensor.name in fixed:
                return PackedWeight("fp32", tensor.shape, np.full(tensor.shape, fixed[tensor.name], np.float32))
            if tensor.name != self._spec.embedding.name:
                return weight
            if tensor.name not in made:
                made[tensor.name] = self._embedded(weight)
            return made[tensor.name]

        return routed

    def _embedded(self, weight: PackedWeight) -> PackedWeight:
        count, width = len(self._layers[0]), weight.shape[1]
        values = np.zeros((count, width), np.float32)
        values[np.arange(count), np.arange(count)] = _EMBEDDING
        rows = quantize(PackedWeight("fp32", values.shape, values), weight.format, weight.group_size or 32)
        arrays: dict[str, Any] = {name: array.copy() for name, array in weight.arrays()}
        for name, array in rows.arrays():
            arrays[name][FIRST_TOKEN : FIRST_TOKEN + count] = array
        return replace(weight, **arrays)

    @staticmethod
    def _router(tensor: Tensor, chosen: Choices) -> npt.NDArray[np.float32]:
        count, used = chosen.shape
        values = np.zeros(tensor.shape, np.float32)
        values[:, :count] = -_LOGIT
        ranked = _LOGIT * (1 - 0.5 * np.arange(used, dtype=np.float32) / used)
        values[chosen, np.arange(count)[:, None]] = ranked
        return values

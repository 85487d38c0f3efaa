"""From the rows of a text to its vector. Sums have a fixed order that depends on the one text alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, NonFiniteError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
LEAST_NORM = 1e-12
"""Vectors that are shorter are divided by this value, as in PyTorch's ``normalize``."""


def pooled(rows: Floats, modes: Sequence[str], first: int = 0) -> Floats:
    """Return the vector of a text.

    Args:
        rows: hidden states [n, hidden], n >= 1.
        modes: names of ``settings.MODES``; the vectors of several are joined.
        first: number of rows of a prompt, which are omitted.

    Returns:
        float32 [len(modes) * hidden].
    """
    used = rows[first:]
    if not len(used):  # the text has no row of its own
        return np.zeros(len(modes) * rows.shape[1], np.float32)
    return np.concatenate([_MODES[mode](used, first) for mode in modes])


def _mean(rows: Floats, first: int) -> Floats:
    found: Floats = (_sum(rows) / len(rows)).astype(np.float32)
    return found


def _sum(rows: Floats) -> Doubles:
    total: Doubles = np.add.reduce(rows, axis=0, dtype=np.float64)
    return total


def _mean_of_root(rows: Floats, first: int) -> Floats:
    found: Floats = (_sum(rows) / math.sqrt(len(rows))).astype(np.float32)
    return found


def _weighted(rows: Floats, first: int) -> Floats:
    """Return the mean with weights 1, 2, ... by position; a prompt's rows count as positions."""
    weights = np.arange(first + 1, first + 1 + len(rows), dtype=np.float64)
    total: Doubles = np.add.reduce(rows * weights[:, None], axis=0)
    found: Floats = (total / weights.sum()).astype(np.float32)
    return found


_MODES: Mapping[str, Callable[[Floats, int], Floats]] = {
    "cls": lambda rows, first: rows[0],
    "max": lambda rows, first: rows.max(axis=0),
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_of_root,
    "weightedmean": _weighted,
    "lasttoken": lambda rows, first: rows[-1],
}


def cut(vectors: Floats, dimensions: int) -> Floats:
    """Return the first values of vectors [n, width], a Matryoshka model's shorter vectors. Raises InputError."""
    width = vectors.shape[1]
    if type(dimensions) is not int or not 1 <= dimensions <= width:
        raise InputError(argument="dimensions", got=dimensions, allowed=f"1 to {width}, the length of the model's")
    return np.ascontiguousarray(vectors[:, :dimensions])


def normalized(vectors: Floats) -> Floats:
    """Return vectors [n, width] divided by their lengths."""
    found = np.empty_like(vectors)
    for number, vector in enumerate(vectors):  # one by one: the order of a sum must not depend on other rows
        values = vector.astype(np.float64)
        found[number] = values / max(math.sqrt(float(np.add.reduce(values * values))), LEAST_NORM)
    return found


def activated(values: Floats, kind: str) -> Floats:
    """Return the activation of a dense layer, computed value by value in double precision."""
    if kind == "Identity":
        return values
    if kind == "ReLU":
        positive: Floats = np.maximum(values, np.float32(0))
        return positive
    function = _ACTIVATIONS[kind]
    flat = [function(value) for value in values.ravel().tolist()]
    return np.array(flat, np.float32).reshape(values.shape)


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)) without overflow."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


_ACTIVATIONS: Mapping[str, Callable[[float], float]] = {
    "Tanh": math.tanh,
    "GELU": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "SiLU": lambda x: x * sigmoid(x),
    "Sigmoid": sigmoid,
}


def probabilities(scores: npt.ArrayLike) -> Floats:
    """Return the probability of relevance of each score, the sigmoid; float32 of the same shape."""
    given = np.asarray(scores, np.float32)
    return np.array([sigmoid(float(one)) for one in given.ravel()], np.float32).reshape(given.shape)


def check_finite(vectors: Floats) -> Floats:
    """Return the vectors. Raises NonFiniteError."""
    if not np.isfinite(vectors).all():
        raise NonFiniteError("a vector is not finite", hint="the checkpoint's weights are damaged")
    return vectors

"""A token as a pure function of its logits, the sampling parameters and (seed, sequence, position).

Gumbel-max: the token is the argmax of ``logit / temperature + gumbel``, the noise coming from Philox4x32-10, the
counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. A counter-based
generator has no state, so a position's noise is the same whether it is reached one token at a time or inside a draft.
That is what makes lookahead exact for sampling.

Two implementations of one definition: ``csrc/sampling.cc``, and :func:`sample_reference` here in numpy. They do the
same IEEE double operations in the same order, exponential and logarithm included, so they agree bit for bit on every
machine.

The definition, for logits ``l``:

1. ``x = (l - max l) * min(1 / temperature, 1e30)`` in double; tokens with ``l = -inf`` are out.
2. top-k: tokens with a logit below the k-th largest are out; ties with it stay in (as in transformers).
3. top-p: in order of falling logit, ties by rising id, a token is out where the mass before it is at least ``top_p`` of
   the whole; the first always stays in.
4. min-p: tokens with ``exp(x) < min_p`` are out.
5. Of the tokens left, the largest ``x + gumbel`` wins, the lowest id in a tie. Token i takes words ``2 * (i % 2)``
   (low) and ``2 * (i % 2) + 1`` (high) of Philox block (i // 2, position, sequence, 0) under the key ``seed``; the 64
   bits ``w`` give ``v = ((w >> 12) + 0.5) / 2**52`` and ``gumbel = -log(-log(v))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import InputError, NonFiniteError, arg

BAD_LOGITS = -1
ALL_FORBIDDEN = -2

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_SQRT_HALF = 0.7071067811865476
_EXP_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
_LOG_COEFFICIENTS = tuple(2.0 / k for k in range(23, 0, -2))
_LOWEST_EXPONENT = -708.0
_STEEPEST = 1e30
_NEAR, _RIVALS = 6.0, 64


@dataclass(frozen=True, slots=True)
class WarperParams:
    """How logits become probabilities; the defaults change nothing. The order of use is that of the attributes."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


Ids = npt.NDArray[np.int64]
"""Token ids, int64 [n]."""
Logits = npt.NDArray[np.float32]
"""float32 [vocab_size]."""
Processor = Callable[[Ids, Logits], Logits]
"""(the sequence so far, the prompt without padding included; logits of what follows) -> logits. The first are views and
must not be changed; the second may be."""

Implementation = Callable[..., int]
"""``(logits, temperature, top_k, top_p, min_p, seed, sequence, position) -> token``, or a negative code."""


class Sampler:
    """Draws the tokens of one sequence. Two samplers with the same arguments draw the same tokens.

    Attributes:
        seed: 0 to 2**64 - 1.
    """

    def __init__(self, params: WarperParams, seed: int, sequence: int, implementation: Implementation | None = None):
        self._params = (float(params.temperature), int(params.top_k), float(params.top_p), float(params.min_p))
        self.seed = seed
        self._sequence = sequence
        self._implementation = implementation or fastest_implementation()

    @property
    def temperature(self) -> float:
        """Of what is drawn."""
        return self._params[0]

    def __call__(self, logits: npt.NDArray[np.float32], position: int) -> int:
        """The token at an absolute position.

        Args:
            logits: float32 [vocab_size], contiguous.
            position: how many tokens stand before it in its sequence.

        Raises:
            NonFiniteError: a logit is NaN or +inf.
            InputError: every token is forbidden (all logits are -inf), or a parameter is outside its range.
        """
        try:
            token = self._implementation(logits, *self._params, self.seed, self._sequence, position)
        except (ValueError, TypeError) as error:
            raise InputError(f"this cannot be sampled: {error}") from None
        if token < 0:
            raise_bad_logits(token)
        return token

    def draw(self, position: int) -> tuple[float, int, float, float, int, int, int]:
        """What a token at that position is drawn by: temperature, top_k, top_p, min_p, seed, sequence, position."""
        return (*self._params, self.seed, self._sequence, position)

    def lead(self, logits: npt.NDArray[np.float32], position: int, token: int) -> float:
        """By how much the token drawn won, 0 to 1: the softmax of ``logit / temperature + gumbel`` at it.

        It is an estimate: only tokens at least ``exp(-6)`` times as likely as the top token are looked at, of these the
        64 most likely, and of them those that the token won against (top-k, top-p and min-p have taken out the others).
        """
        near = np.flatnonzero(logits > logits.max() - np.float32(_NEAR * self._params[0]))
        if near.size > _RIVALS:
            near = near[np.argpartition(logits[near], -_RIVALS)[-_RIVALS:]]
        rivals = np.append(near[near != token], token)
        with np.errstate(over="ignore", invalid="ignore"):
            x = (logits[rivals].astype(np.float64) - float(logits[token])) * min(1.0 / self._params[0], _STEEPEST)
            scores = x + gumbel(rivals, self.seed, self._sequence, position)
            behind = scores - scores[-1]
            return float(1.0 / np.exp(behind[behind <= 0]).sum())


def raise_bad_logits(code: int) -> None:
    """Say what a negative answer means."""
    if code == ALL_FORBIDDEN:
        raise InputError(
            "the logits processors forbid every token; loosen bad_words_ids, suppress_tokens, no_repeat_ngram_size or"
            " the logits_processor"
        )
    raise NonFiniteError(
        "the logits hold NaN or infinity: the weights or a logits processor are not finite;"
        f" {arg('remove_invalid_values', True)} replaces such values"
    )


def greedy(logits: npt.NDArray[np.float32]) -> int:
    """The argmax of processed logits, the lowest id in a tie. Raises as :class:`Sampler` does, +inf being allowed."""
    token = int(logits.argmax())
    best = logits[token]
    if best != best:
        raise_bad_logits(BAD_LOGITS)
    if best == -np.inf:
        raise_bad_logits(ALL_FORBIDDEN)
    return token


def fastest_implementation() -> Implementation:
    """The compiled sampler where there is a compiled core, else the numpy one: they draw the same tokens."""
    try:
        from ipex_lookahead import _native
    except ImportError:
        return sample_reference
    native: Any = getattr(_native, "sample", sample_reference)
    return native  # type: ignore[no-any-return]


def sample_reference(
    logits: npt.NDArray[np.float32],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    sequence: int,
    position: int,
) -> int:
    """The definition in numpy: the oracle of the compiled one. Returns a token, or BAD_LOGITS or ALL_FORBIDDEN."""
    if np.isnan(logits).any() or (logits == np.inf).any():
        return BAD_LOGITS
    kept = np.flatnonzero(logits > -np.inf)
    if not kept.size:
        return ALL_FORBIDDEN
    if 0 < top_k < logits.size:
        kept = kept[logits[kept] >= np.partition(logits, -top_k)[-top_k]]
    values = logits[kept].astype(np.float64)
    with np.errstate(over="ignore"):
        x = (values - values.max()) * min(1.0 / temperature if temperature > 0 else np.inf, _STEEPEST)
    if top_p < 1.0:
        weights = _exp(x)
        order = np.lexsort((kept, -values))
        # cumsum adds one by one, left to right; np.sum would add pairwise.
        before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
        chosen = before < top_p * np.cumsum(weights)[-1]
        chosen[0] = True
        inside = np.sort(order[chosen])
        kept, x = kept[inside], x[inside]
    if min_p > 0.0:
        inside = np.flatnonzero(_exp(x) >= min_p)
        kept, x = kept[inside], x[inside]
    return int(kept[np.argmax(x + gumbel(kept, seed, sequence, position))])


def gumbel(tokens: npt.NDArray[np.integer[Any]], seed: int, sequence: int, position: int) -> npt.NDArray[np.float64]:
    """The noise of some tokens at one position, float64 like ``tokens``."""
    counter = np.zeros((4, tokens.size), np.uint64)
    counter[0] = tokens.astype(np.uint64) >> np.uint64(1)
    counter[1] = position
    counter[2] = sequence
    words = philox4x32(counter, seed)
    odd = (tokens & 1).astype(bool)
    low, high = np.where(odd, words[2:], words[:2])
    bits = high << np.uint64(32) | low
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -_log(-_log(uniform))


def philox4x32(counter: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of each column of ``counter``, uint64 [4, n] holding 32-bit words; the same shape comes back."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = counter
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (right >> shift) ^ c1 ^ np.uint64(key0),
            right & mask,
            (left >> shift) ^ c3 ^ np.uint64(key1),
            left & mask,
        )
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def _exp(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Exp for x <= 0: reduction by ln 2 and the Taylor polynomial of degree 13; 0 below -708."""
    inside = np.maximum(x, _LOWEST_EXPONENT)
    k = np.rint(inside * _LOG2_E)
    r = (inside - k * _LN2_HIGH) - k * _LN2_LOW
    p = np.full_like(r, _EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p = p * r + coefficient
    return np.where(x < _LOWEST_EXPONENT, 0.0, np.ldexp(p, k.astype(np.int64)))


def _log(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log for normal x > 0: x = m 2^k with m in [sqrt(1/2), sqrt 2), and 2 atanh((m - 1) / (m + 1)) as a series."""
    m, k = np.frexp(x)
    small = m < _SQRT_HALF
    m = np.where(small, m * 2.0, m)
    exponent = (k - small).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = np.full_like(s, _LOG_COEFFICIENTS[0])
    for coefficient in _LOG_COEFFICIENTS[1:]:
        p = p * square + coefficient
    return exponent * _LN2_HIGH + (s * p + exponent * _LN2_LOW)

"""Rotary position embedding (Su et al., arXiv 2104.09864) and its extensions to longer contexts.

Each kind is a function of the config alone, so a token's keys do not depend on the sequence length. This excludes
"dynamic" NTK scaling beyond the original context, where each new token would change all earlier keys. Such models are
limited to ``max_position_embeddings``, up to which dynamic scaling equals unscaled rope.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Rope
from ipex_lookahead.errors import UnsupportedModelError

Floats = npt.NDArray[np.float32]
_LONGROPE = {"short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"}
"""Parameters that families with longrope fill in."""


DIGITS = 40
"""Precision of decimal arithmetic, used because powers and logarithms of math libraries depend on the processor."""


def power(base: float, exponents: Floats) -> Floats:
    """Return ``base ** exponents``, each rounded to the nearest float32."""
    digits = Context(prec=DIGITS)
    log = digits.ln(Decimal(base))
    return np.array([float(digits.exp(digits.multiply(log, Decimal(float(one))))) for one in exponents], np.float32)


def _log(value: float) -> float:
    """Return the natural logarithm, rounded to the nearest float64."""
    return float(Context(prec=DIGITS).ln(Decimal(value)))


def rope(config: dict[str, Any]) -> Rope:
    """Return the rotary embedding for ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` of a config.

    Raises:
        UnsupportedModelError: if the rope type is not supported.
    """
    frequencies, factor = _rope(config)
    scaling = config.get("rope_scaling") or {}
    beta = scaling.get("llama_4_scaling_beta", 0.0)
    return Rope(frequencies, factor, beta, scaling["original_max_position_embeddings"] if beta else 0)


def ntk_theta(theta: float, alpha: float, head_dim: int) -> float:
    """Return the base after "NTK-aware" scaling by ``alpha``: theta * alpha^(d / (d - 2)) for all lengths."""
    digits = Context(prec=DIGITS)
    power = digits.divide(Decimal(head_dim), Decimal(head_dim - 2))
    return float(digits.multiply(Decimal(theta), digits.exp(digits.multiply(digits.ln(Decimal(alpha)), power))))


def local_rope(config: dict[str, Any], theta: float) -> Rope:
    """Return unscaled rope with another base, for layers with a window."""
    return rope({**config, "rope_theta": theta, "rope_scaling": None})


def ropes_by_layer(config: dict[str, Any]) -> list[Rope | None]:
    """Return the rope of each layer for the bases in ``layer_rope_theta``; None for a base of 0."""
    bases = config["layer_rope_theta"]
    made = {theta: rope({**config, "rope_theta": theta}) for theta in {*bases} if theta}
    return [made.get(theta) for theta in bases]


def rotated(config: dict[str, Any]) -> int:
    """Return the number of rotated values per head."""
    return int(config["head_dim"] * config.get("partial_rotary_factor", 1.0))


def _rope(config: dict[str, Any]) -> tuple[Floats, float]:
    theta = config["rope_theta"]
    if (config.get("rope_scaling") or {}).get("rope_type") == "proportional":
        return _proportional(config["head_dim"], theta, config["rope_scaling"]), 1.0
    head_dim = rotated(config)
    if head_dim < 2 or head_dim % 2:
        raise UnsupportedModelError(
            f"{head_dim} of a head's {config['head_dim']} values would be rotated; it must be an even number from 2"
        )
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = _plain(theta, exponents)
    kind = scaling["rope_type"]
    if kind in ("default", "dynamic"):
        return plain, 1.0
    if kind == "linear":
        return plain / np.float32(scaling["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, config, scaling)
    if kind == "longrope" and scaling.keys() >= _LONGROPE:  # the context length selects one of the two sets
        long = config["max_position_embeddings"] > scaling["original_max_position_embeddings"]
        return _divided(plain, scaling["long_factor" if long else "short_factor"]), float(scaling["attention_factor"])
    if kind == "freq_factors":  # divisors in a GGUF file
        return _divided(plain, scaling["factors"]), 1.0
    raise UnsupportedModelError(
        f"rope scaling of type {kind!r} is not supported; supported are default, linear, dynamic, llama3, yarn, and, "
        "in some families, longrope and proportional"
    )


def _plain(theta: float, exponents: Floats) -> Floats:
    """Return 1 / theta^exponents."""
    found: Floats = (np.float32(1.0) / power(float(np.float32(theta)), exponents)).astype(np.float32)
    return found


def _proportional(head_dim: int, theta: float, scaling: dict[str, Any]) -> Floats:
    """Return frequencies of which only the first share of pairs is not 0 (Gemma 4)."""
    turning = int(scaling["partial_rotary_factor"] * head_dim // 2)
    exponents = np.arange(0, 2 * turning, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.zeros(head_dim // 2, np.float32)
    frequencies[:turning] = _plain(theta, exponents) / np.float32(scaling.get("factor", 1.0))
    return frequencies


def _divided(plain: Floats, divisors: list[float]) -> Floats:
    """Divide each pair's frequency by its own divisor."""
    factors = np.asarray(divisors, dtype=np.float32)
    if factors.shape != plain.shape:
        raise UnsupportedModelError(f"rope has {len(factors)} frequency factors for {len(plain)} pairs of dimensions")
    return (plain / factors).astype(np.float32)


def _llama3(plain: Floats, scaling: dict[str, Any]) -> Floats:
    """Llama 3.1: divide low frequencies by the factor, keep high ones, interpolate in between (Meta's model card)."""
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    ramp = (original / wavelength - low) / (high - low)
    smooth = (1 - ramp) * (plain / scaling["factor"]) + ramp * plain
    scaled = np.where(wavelength > original / low, plain / scaling["factor"], plain)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(between, smooth, scaled).astype(np.float32)


def _yarn(plain: Floats, config: dict[str, Any], scaling: dict[str, Any]) -> tuple[Floats, float]:
    """YaRN (Peng et al., arXiv 2309.00071): interpolate by the number of rotations in the original context."""
    head_dim, theta, factor = rotated(config), config["rope_theta"], scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]

    def dimension(turns: float) -> float:
        """Return the (fractional) index of the pair with this number of rotations in the original context."""
        return float(head_dim) * _log(original / (turns * 2 * math.pi)) / (2 * _log(theta))

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    frequencies = plain / np.float32(factor) * ramp + plain * (1 - ramp)
    return frequencies.astype(np.float32), _yarn_attention(factor, scaling)


def magnitude(factor: float, mscale: float) -> float:
    """Return YaRN's temperature for contexts ``factor`` times longer."""
    return 0.1 * mscale * _log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_attention(factor: float, scaling: dict[str, Any]) -> float:
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)

    mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and all_dim:
        return magnitude(factor, float(mscale)) / magnitude(factor, float(all_dim))
    return magnitude(factor, 1.0)

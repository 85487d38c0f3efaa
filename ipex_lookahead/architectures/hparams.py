"""What a model's sizes may be, whichever kind of file they come from.

Every value is checked for type and range, and against the other values, before anything is computed from it. Keys that
are not in the table do not exist for this package: nothing in a config can name code, files or remote repositories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError, arg
from ipex_lookahead.files.safe_json import JsonObject

MAX_LAYERS = 512
MAX_VOCAB = 4 << 20
MAX_CONTEXT = 16 << 20
MAX_HEAD_DIM = 1024
SMALLEST_EPSILON = 1e-30
"""Below it a row of zeros would no longer be zeros after a norm in float32, but NaN."""
DIVISORS = (1e-6, 1e9)
"""What frequencies may be divided by: they stay finite in float32, and so do the angles of every position."""

FLOAT_ORIGINAL = f"use the original float checkpoint and {arg('load_in_low_bit')}, or a GGUF file"
"""The hint for weights that are quantised in a way that is not read."""

Place = tuple[str, int | None]
"""The name of a field as its file spells it, and its byte offset there."""


def _nowhere() -> Mapping[str, Place]:
    return {}


@dataclass(frozen=True, slots=True)
class Source:
    """Where values come from, so that an error can point at the field in the file.

    ``find`` gives the spelling and the offset of the keys that are in the file; it is called after a failure.
    """

    file: str | PathLike[str]
    find: Callable[[], Mapping[str, Place]] = _nowhere

    @classmethod
    def at(cls, file: str | PathLike[str], places: Mapping[str, Place]) -> Source:
        """Where places are known already."""
        return cls(file, lambda: places)

    @classmethod
    def of(cls, raw: JsonObject, file: str | PathLike[str], prefix: str = "") -> Source:
        """Where the keys of an object are that is in the file as a whole, or under ``prefix``."""
        before = f"{prefix}." if prefix else ""
        return cls(file, lambda: {key: (f"{before}{key}", at) for key, at in raw.at.items()})

    def spelling(self, key: str) -> str:
        """The key as the file spells it."""
        return self.find().get(key, (key, None))[0]

    def error(self, key: str, problem: str, *, hint: str = "") -> ModelFormatError:
        """The error to raise for ``key``."""
        name, offset = self.find().get(key, (key, None))
        return ModelFormatError(self.file, name, offset, problem, hint=hint)


Check = Callable[[Source, str, Any], Any]
"""Takes where a value comes from, its key and itself; returns it checked, or raises ModelFormatError."""


def optional(check: Check) -> Check:
    """A check that lets null pass."""
    return lambda source, key, value: None if value is None else check(source, key, value)


def integer(low: int, high: int) -> Callable[[Source, str, Any], int]:
    """A check for whole numbers from ``low`` to ``high``."""

    def check(source: Source, key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise source.error(key, f"is {shown(value)}; it must be a whole number from {low} to {high}")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Callable[[Source, str, Any], float]:
    """A check for finite numbers from ``low`` (excluded if ``above``) to ``high``."""

    def check(source: Source, key: str, value: Any) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high or (above and value == low):
            raise source.error(
                key, f"is {shown(value)}; it must be a number {'above' if above else 'from'} {low:g} to {high:g}"
            )
        return float(value)

    return check


def boolean(source: Source, key: str, value: Any) -> bool:
    """A check for true or false."""
    if not isinstance(value, bool):
        raise source.error(key, f"is {shown(value)}; it must be true or false")
    return value


def one_of(*words: str) -> Check:
    """A check for one of a few words: what a family can run."""

    def check(source: Source, key: str, value: Any) -> str:
        if value not in words:
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(value)}; this family has "
                f"{' or '.join(map(repr, words))} here"
            )
        return str(value)

    return check


def text(source: Source, key: str, value: Any) -> str:
    """A check for a short string."""
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise source.error(key, f"is {shown(value)}; it must be a string of 1 to 256 characters")
    return value


def shown(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    as_text = repr(value[:60] if isinstance(value, str | list) else value)
    return as_text if len(as_text) <= 60 else as_text[:57] + "..."


SIZES: dict[str, Callable[[Source, str, Any], Any]] = {
    "hidden_size": integer(1, 1 << 20),
    "intermediate_size": integer(1, 1 << 22),
    "num_hidden_layers": integer(1, MAX_LAYERS),
    "num_attention_heads": integer(1, 1 << 16),
    "num_key_value_heads": integer(1, 1 << 16),
    "head_dim": integer(1, MAX_HEAD_DIM),
    "vocab_size": integer(1, MAX_VOCAB),
    "max_position_embeddings": integer(1, MAX_CONTEXT),
    "rms_norm_eps": number(SMALLEST_EPSILON, 1),
    "rope_theta": number(1e-6, 1e15),
}
"""The numbers every decoder has, by their Hugging Face names."""


def divisors(source: Source, key: str, value: Any) -> list[float]:
    """A check for the frequency divisors that a GGUF file may bring, one a pair of the head's dimensions."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_HEAD_DIM // 2:
        raise source.error(key, f"is {shown(value)}; it must be a list of up to {MAX_HEAD_DIM // 2} numbers")
    return [number(*DIVISORS)(source, key, one) for one in value]


ROPE: dict[str, Callable[[Source, str, Any], Any]] = {
    "factor": number(1e-6, 1e6),
    "alpha": number(1e-6, 1e6),
    "original_max_position_embeddings": integer(1, MAX_CONTEXT),
    "low_freq_factor": number(1e-6, 1e6),
    "high_freq_factor": number(1e-6, 1e6),
    "beta_fast": number(1e-6, 1e6),
    "beta_slow": number(1e-6, 1e6),
    "attention_factor": number(1e-6, 1e6),
    "mscale": number(0, 1e6),
    "mscale_all_dim": number(0, 1e6),
    "truncate": boolean,
    "factors": divisors,
    "short_factor": divisors,
    "long_factor": divisors,
    "llama_4_scaling_beta": number(0, 1e6),
}
"""The parameters of rope scaling. ``rope_type`` itself is the architecture's to judge."""

_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": (),
    "su": (),
    "proportional": (),
    "freq_factors": ("factors",),
}
"""Kinds of rope, and what each needs; the family judges whether it has longrope, which older files call su, and
proportional."""


def check_sizes(config: dict[str, Any], source: Source) -> None:
    """Check the numbers of ``config`` one by one and against each other, in place.

    A missing ``num_key_value_heads`` or ``head_dim`` gets its usual value. Raises ModelFormatError, or
    UnsupportedModelError for a head size that is not a multiple of 8.
    """
    for key, check in SIZES.items():
        if key in config:
            config[key] = check(source, key, config[key])
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config.setdefault("num_key_value_heads", heads)
    if heads % kv_heads:
        raise source.error("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    if "head_dim" not in config:
        if hidden % heads:
            raise source.error(
                "hidden_size", f"is {hidden}, which {heads} attention heads do not divide, and no head_dim is given"
            )
        config["head_dim"] = integer(1, MAX_HEAD_DIM)(source, "head_dim", hidden // heads)
    if config["head_dim"] % 8 and "kv_lora_rank" not in config:  # around a latent sizes are the family's to check
        raise UnsupportedModelError(
            f"{source.file}: head_dim is {config['head_dim']}; this package runs head sizes that are multiples of 8"
        )


def check_rope(scaling: Any, rope_theta: float, source: Source) -> dict[str, Any] | None:
    """Rope scaling in one spelling: ``rope_type`` and its numbers, or None for plain rope.

    ``type`` (the older spelling) and a ``rope_type`` of "default" (or Qwen's "mrope") are normalised away.
    ``rope_theta`` has been checked by itself. Raises ModelFormatError.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict):
        raise source.error("rope_scaling", f"is {shown(scaling)}; it must be an object or null")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind is None:
        raise source.error("rope_scaling", "has no rope_type")
    kind = text(source, "rope_scaling", kind)
    if kind in ("default", "mrope"):  # mrope counts places of an image three ways; a text's are one and the same
        return None
    if kind not in _ROPE_NEEDS:
        raise source.error(
            "rope_scaling.rope_type" if "rope_type" in scaling else "rope_scaling.type",
            f"is {shown(kind)}; known are default, {', '.join(_ROPE_NEEDS)}",
        )
    found: dict[str, Any] = {"rope_type": kind}
    for key, check in ROPE.items():
        if scaling.get(key) is not None:
            found[key] = check(source, f"rope_scaling.{key}", scaling[key])
    for key in _ROPE_NEEDS[kind]:
        if key not in found:
            raise source.error("rope_scaling", f"of type {kind!r} has no {key}")
    if kind == "proportional":  # what other kinds have beside them is a part of this one: another share of the pairs
        key = "partial_rotary_factor"
        given = 1.0 if scaling.get(key) is None else scaling[key]
        found[key] = number(0, 1)(source, f"rope_scaling.{key}", given)
    if kind == "llama3" and found["low_freq_factor"] >= found["high_freq_factor"]:
        raise source.error(
            "rope_scaling",
            f"has low_freq_factor {found['low_freq_factor']:g}, which is not below "
            f"high_freq_factor {found['high_freq_factor']:g}",
        )
    if kind == "yarn" and rope_theta <= 1:  # it ramps over how often pairs turn: over theta's logarithm
        raise source.error("rope_theta", f"is {rope_theta:g}; rope scaling of type 'yarn' needs one above 1")
    return found


def check_rope_complete(config: Mapping[str, Any], source: Source) -> None:
    """Check that rope scaling has all that is computed with, once the family has filled in what its keys imply.

    Raises ModelFormatError for a missing parameter or divisors of two lengths, UnsupportedModelError for a kind that
    the family does not have.
    """
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    needed = ["original_max_position_embeddings"] if scaling.get("llama_4_scaling_beta") else []
    if kind in ("longrope", "su"):
        needed = ["short_factor", "long_factor", "original_max_position_embeddings"]
    if kind == "longrope":  # families that have it derive this one
        needed.append("attention_factor")
    for key in needed:
        if scaling.get(key) is None:
            raise source.error("rope_scaling", f"of type {kind!r} has no {key}")
    if kind in ("longrope", "su"):
        short, long = (len(scaling[f"{one}_factor"]) for one in ("short", "long"))
        if short != long:
            raise source.error("rope_scaling.long_factor", f"has {long} divisors, and short_factor {short}")
    if kind == "su":
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling('rope_scaling')} is of type {kind!r}, which this family does not have"
        )


def check_even_heads(config: dict[str, Any], source: Source) -> None:
    """Refuse a hidden size that the heads do not divide, where transformers' config class of the family does."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling('hidden_size')} is {hidden}, which"
            f" {heads} attention heads do not divide; transformers takes no such model, whatever its head_dim"
        )


def token_id(vocab: int) -> Callable[[Source, str, Any], int]:
    """A check for a token id of a vocabulary."""
    return integer(0, vocab - 1)


def token_ids(vocab: int) -> Callable[[Source, str, Any], int | list[int]]:
    """A check for a token id or a list of 1 to 256 of them."""

    def check(source: Source, key: str, value: Any) -> int | list[int]:
        if not isinstance(value, list):
            return token_id(vocab)(source, key, value)
        if not 0 < len(value) <= 256:
            raise source.error(key, f"is a list of {len(value)}; it must hold 1 to 256 token ids")
        return [token_id(vocab)(source, key, one) for one in value]

    return check

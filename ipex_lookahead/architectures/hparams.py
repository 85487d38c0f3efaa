"""Checks of a model's parameters, for all kinds of files.

Every value is checked for type and range, and against other values, before it is used. Unlisted keys are ignored, so a
config cannot name code, files or remote repositories.
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
"""With smaller values the norm of a zero row in float32 is NaN instead of zero."""
DIVISORS = (1e-6, 1e9)
"""Bounds of frequency divisors: frequencies and the angles of all positions remain finite in float32."""

FLOAT_ORIGINAL = f"use the original float checkpoint and {arg('load_in_low_bit')}, or a GGUF file"
"""Hint for weights in an unsupported quantization."""

Place = tuple[str, int | None]
"""Name of a field in its file, and its byte offset."""


def _no_places() -> Mapping[str, Place]:
    return {}


@dataclass(frozen=True, slots=True)
class Source:
    """Source of values, so that errors can name the field in the file.

    ``find`` returns name and offset of the keys in the file. It is called only after a failure.
    """

    file: str | PathLike[str]
    find: Callable[[], Mapping[str, Place]] = _no_places

    @classmethod
    def at(cls, file: str | PathLike[str], places: Mapping[str, Place]) -> Source:
        """Return a source with known places."""
        return cls(file, lambda: places)

    @classmethod
    def of(cls, raw: JsonObject, file: str | PathLike[str], prefix: str = "") -> Source:
        """Return the source of a JSON object's keys; ``prefix`` is the object's key in the file."""
        before = f"{prefix}." if prefix else ""
        return cls(file, lambda: {key: (f"{before}{key}", at) for key, at in raw.at.items()})

    def spelling(self, key: str) -> str:
        """Return the name of a key in the file."""
        return self.find().get(key, (key, None))[0]

    def error(self, key: str, problem: str, *, hint: str = "") -> ModelFormatError:
        """Return an error about ``key``."""
        name, offset = self.find().get(key, (key, None))
        return ModelFormatError(self.file, name, offset, problem, hint=hint)


Check = Callable[[Source, str, Any], Any]
"""Function of (source, key, value) that returns the checked value or raises ModelFormatError."""


def optional(check: Check) -> Check:
    """Return a check that also accepts null."""
    return lambda source, key, value: None if value is None else check(source, key, value)


def integer(low: int, high: int) -> Callable[[Source, str, Any], int]:
    """Return a check for whole numbers from ``low`` to ``high``."""

    def check(source: Source, key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise source.error(key, f"is {shown(value)}; it must be a whole number from {low} to {high}")
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Callable[[Source, str, Any], float]:
    """Return a check for finite numbers from ``low`` (excluded if ``above``) to ``high``."""

    def check(source: Source, key: str, value: Any) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not good or not low <= value <= high or (above and value == low):
            raise source.error(
                key, f"is {shown(value)}; it must be a number {'above' if above else 'from'} {low:g} to {high:g}"
            )
        return float(value)

    return check


def boolean(source: Source, key: str, value: Any) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise source.error(key, f"is {shown(value)}; it must be true or false")
    return value


def one_of(*words: str) -> Check:
    """Return a check for one of the strings that a family supports."""

    def check(source: Source, key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(value)}; this family supports "
                f"{' or '.join(map(repr, words))}"
            )
        return str(value)

    return check


def list_of(*words: str) -> Check:
    """Return a check for a list of the given strings."""

    def check(source: Source, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) > MAX_LAYERS or not all(one in words for one in value):
            raise source.error(key, f"is {shown(value)}; it must be a list of {' and '.join(words)}")
        return [str(one) for one in value]

    return check


def layer_numbers(source: Source, key: str, value: Any) -> list[int]:
    """Check for a list of layer numbers; return them sorted, without duplicates."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < MAX_LAYERS for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of layer numbers")
    return sorted(set(value))


def check_one_per_layer(config: Mapping[str, Any], source: Source, key: str) -> None:
    """Raise ModelFormatError unless the list ``key`` of a config is as long as the number of layers."""
    if len(config[key]) != (layers := config["num_hidden_layers"]):
        raise source.error(key, f"names {len(config[key])} layers; there are {layers}")


def text(source: Source, key: str, value: Any) -> str:
    """Check for a short string."""
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise source.error(key, f"is {shown(value)}; it must be a string of 1 to 256 characters")
    return value


def shown(value: Any) -> str:
    """Return a short representation of any value for a message."""
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
"""Parameters of every decoder, by their Hugging Face names."""


def divisors(source: Source, key: str, value: Any) -> list[float]:
    """Check for frequency divisors of a GGUF file, one per pair of dimensions."""
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
"""Parameters of rope scaling. The family checks ``rope_type``."""

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
"""Rope type -> required parameters. Each family decides whether it supports longrope (su in older files) and
proportional."""


def check_sizes(config: dict[str, Any], source: Source) -> None:
    """Check the sizes in ``config``, individually and against each other, and fill in defaults.

    Raises:
        ModelFormatError: if a size is invalid.
        UnsupportedModelError: if the head size is not a multiple of 8.
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
                "hidden_size",
                f"is {hidden}, which is not a multiple of {heads} attention heads, and head_dim is missing",
            )
        config["head_dim"] = integer(1, MAX_HEAD_DIM)(source, "head_dim", hidden // heads)
    if config["head_dim"] % 8 and "kv_lora_rank" not in config:  # families with latent attention check their own sizes
        raise UnsupportedModelError(
            f"{source.file}: head_dim is {config['head_dim']}; head sizes must be multiples of 8"
        )


def check_rope(scaling: Any, rope_theta: float, source: Source) -> dict[str, Any] | None:
    """Return rope scaling in canonical form: ``rope_type`` and its parameters, or None for unscaled rope.

    ``type`` (the older spelling) and the types "default" and "mrope" (Qwen) are normalized.

    Raises:
        ModelFormatError: if a parameter is missing or invalid.
    """
    if scaling is None:
        return None
    if not isinstance(scaling, dict):
        raise source.error("rope_scaling", f"is {shown(scaling)}; it must be an object or null")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind is None:
        raise source.error("rope_scaling", "has no rope_type")
    kind = text(source, "rope_scaling", kind)
    if kind in ("default", "mrope"):  # mrope has three indices per image position, which are equal for text
        return None
    if kind not in _ROPE_NEEDS:
        raise source.error(
            "rope_scaling.rope_type" if "rope_type" in scaling else "rope_scaling.type",
            f"is {shown(kind)}; choose one of default, {', '.join(_ROPE_NEEDS)}",
        )
    found: dict[str, Any] = {"rope_type": kind}
    for key, check in ROPE.items():
        if scaling.get(key) is not None:
            found[key] = check(source, f"rope_scaling.{key}", scaling[key])
    for key in _ROPE_NEEDS[kind]:
        if key not in found:
            raise source.error("rope_scaling", f"of type {kind!r} has no {key}")
    if kind == "proportional":  # its share of rotated pairs has another meaning than the key of this name elsewhere
        key = "partial_rotary_factor"
        given = 1.0 if scaling.get(key) is None else scaling[key]
        found[key] = number(0, 1)(source, f"rope_scaling.{key}", given)
    if kind == "llama3" and found["low_freq_factor"] >= found["high_freq_factor"]:
        raise source.error(
            "rope_scaling",
            f"has low_freq_factor {found['low_freq_factor']:g}, which is not below "
            f"high_freq_factor {found['high_freq_factor']:g}",
        )
    if kind == "yarn" and rope_theta <= 1:  # yarn divides by the logarithm of theta
        raise source.error("rope_theta", f"is {rope_theta:g}; rope scaling of type 'yarn' needs one above 1")
    return found


def check_rope_complete(config: Mapping[str, Any], source: Source) -> None:
    """Check that rope scaling is complete, after the family has filled in derived parameters.

    Raises:
        ModelFormatError: if a parameter is missing, or two lists of divisors differ in length.
        UnsupportedModelError: if the family does not support the type.
    """
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    needed = ["original_max_position_embeddings"] if scaling.get("llama_4_scaling_beta") else []
    if kind in ("longrope", "su"):
        needed = ["short_factor", "long_factor", "original_max_position_embeddings"]
    if kind == "longrope":  # families that support longrope derive the attention factor
        needed.append("attention_factor")
    for key in needed:
        if scaling.get(key) is None:
            raise source.error("rope_scaling", f"of type {kind!r} has no {key}")
    if kind in ("longrope", "su"):
        short, long = (len(scaling[f"{one}_factor"]) for one in ("short", "long"))
        if short != long:
            raise source.error("rope_scaling.long_factor", f"has {long} divisors, but short_factor has {short}")
    if kind == "su":
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling('rope_scaling')} has type {kind!r}, which this family does not support"
        )


def check_even_heads(config: dict[str, Any], source: Source) -> None:
    """Refuse a hidden size that is not a multiple of the heads, for families where transformers refuses it."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads:
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling('hidden_size')} is {hidden}, which is not a multiple of {heads} attention"
            " heads; transformers refuses such a model regardless of its head_dim"
        )


def token_id(vocab: int) -> Callable[[Source, str, Any], int]:
    """Return a check for a token id."""
    return integer(0, vocab - 1)


def token_ids(vocab: int) -> Callable[[Source, str, Any], int | list[int]]:
    """Return a check for a token id or a list of 1 to 256 token ids."""

    def check(source: Source, key: str, value: Any) -> int | list[int]:
        if not isinstance(value, list):
            return token_id(vocab)(source, key, value)
        if not 0 < len(value) <= 256:
            raise source.error(key, f"is a list of {len(value)}; it must have 1 to 256 token ids")
        return [token_id(vocab)(source, key, one) for one in value]

    return check

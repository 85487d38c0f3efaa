"""Differences between the supported releases of transformers: 4.37, which ipex-llm needs, to 5.

All other code targets the newest release, except caches (``engines/torch/cache.py``) and the tokenizers library
(``tokenization/release.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig
from transformers.generation import logits_process
from transformers.modeling_outputs import CausalLMOutputWithPast

from ipex_lookahead.errors import InputError, UnsupportedModelError

RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])
"""(major, minor) version of transformers."""

CACHE, OTHER_CACHE = ("cache", "past_key_values") if RELEASE >= (5, 24) else ("past_key_values", "cache")
"""Name of the cache in calls and outputs of this release, and in others."""

_LATER_OPTIONS = (
    "assistant_early_exit",
    "cache_implementation",
    "continuous_batching_config",
    "dola_layers",
    "guidance_scale",
    "max_matching_ngram_size",
    "min_p",
    "output_logits",
    "prompt_lookup_num_tokens",
    "speculation_type",
    "stop_strings",
    "token_healing",
    "top_h",
    "use_mtp",
    "watermarking_config",
)
"""Generation options that some supported releases lack."""


class BothCacheNames:
    """Mix-in for an output of transformers that provides its cache under both names."""

    def __getattr__(self, name: str) -> Any:
        if name == OTHER_CACHE:
            return getattr(self, CACHE)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(CACHE if key == OTHER_CACHE else key)  # type: ignore[misc]  # ModelOutput has one


class CausalOutput(BothCacheNames, CausalLMOutputWithPast):  # type: ignore[misc]
    """Output of a model's ``forward``."""


def cache_argument(forward: Any) -> str:
    """Return the name under which a model's ``forward`` takes its cache."""
    takes = inspect.signature(forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in takes), "past_key_values")


def text_config(config: Any) -> Any:
    """Return the config of a model's text part; the config itself if this release has no parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def option_defaults() -> dict[str, Any]:
    """Return every generation option with the value that a ``GenerationConfig`` has by default.

    The value is always None in transformers 5, and Hugging Face's default before.
    """
    return {**dict.fromkeys(_LATER_OPTIONS), **vars(GenerationConfig())}


def blank_settings() -> GenerationConfig:
    """Return a ``GenerationConfig`` with every option set to None."""
    settings = GenerationConfig()
    for name in option_defaults():
        if not name.startswith("_") and name != "transformers_version":
            setattr(settings, name, None)
    return settings


def generation_config(values: Mapping[str, Any]) -> GenerationConfig:
    """Return a ``GenerationConfig`` with these options, without checking their combination.

    transformers' constructor checks it, and fails for files that an argument of ``generate`` would correct.
    """
    config = GenerationConfig()
    for name, value in values.items():
        setattr(config, name, watermarking(value) if name == "watermarking_config" and value is not None else value)
    return config


def _made(kind: type[Any], values: Mapping[str, Any], checked: bool) -> Any:
    """Return a config of a transformers class; without ``checked`` values are not validated."""
    if checked:
        return kind(**values)
    config = kind()
    renamed = getattr(kind, "attribute_map", {})
    vars(config).update({renamed.get(key, key): value for key, value in values.items()})
    return config


def llama_config(
    values: Mapping[str, Any], rope: Mapping[str, Any], rope_theta: float, *, checked: bool = True
) -> LlamaConfig:
    """Return a LlamaConfig.

    Args:
        values: its fields, except those of rotary positions.
        rope: ``rope_type`` and its parameters.
        rope_theta: base of the rotary frequencies.
        checked: False to skip the class's validation.
    """
    if RELEASE >= (5, 0):
        return _made(LlamaConfig, {**values, "rope_parameters": {**rope, "rope_theta": rope_theta}}, checked)
    config = _made(LlamaConfig, {**values, "rope_theta": rope_theta}, checked)
    if rope["rope_type"] != "default":  # set afterwards, because 4.37 refuses types that it does not support
        config.rope_scaling = {**rope, "type": rope["rope_type"]}
    return config


def family_config(
    model_type: str,
    values: Mapping[str, Any],
    rope: Mapping[str, Any],
    rope_theta: float,
    local_theta: float | None = None,
    local_rope: Mapping[str, Any] | None = None,
    *,
    checked: bool = True,
) -> Any:
    """Return the config of another family.

    Args:
        model_type: the family.
        values: see :func:`llama_config`.
        rope: see :func:`llama_config`; empty: the family's default.
        rope_theta: base of the rotary frequencies.
        local_theta: base in layers with a window, for families with two bases.
        local_rope: further parameters of the rope of these layers.
        checked: see :func:`llama_config`.

    Raises:
        UnsupportedModelError: if this release of transformers does not support the family, and ``checked``.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING and not checked:  # an object with the values; transformers runs no such model
        kind = type("PretrainedConfig", (transformers.PretrainedConfig,), {"model_type": model_type})
        return _made(kind, {**values, "rope_theta": rope_theta, "rope_scaling": dict(rope) or None}, checked)
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} does not support the family {model_type!r}",
            hint="install a newer transformers",
        )
    if local_theta is not None and RELEASE >= (5, 0):
        ropes = {
            "full_attention": {**(rope or {"rope_type": "default"}), "rope_theta": rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": local_theta, **(local_rope or {})},
        }
        return _made(CONFIG_MAPPING[model_type], {**values, "rope_parameters": ropes}, checked)
    if local_theta is not None:
        values = {**values, "rope_local_base_freq": local_theta}
    scaling = {**rope, "type": rope["rope_type"]} if rope else None
    if RELEASE >= (5, 0) and not checked:  # the class would merge both into one object
        share = {key: values[key] for key in ("partial_rotary_factor",) if key in values}
        one = {**share, **(rope or {"rope_type": "default"}), "rope_theta": rope_theta}
        return _made(CONFIG_MAPPING[model_type], {**values, "rope_parameters": one}, checked)
    return _made(CONFIG_MAPPING[model_type], {**values, "rope_theta": rope_theta, "rope_scaling": scaling}, checked)


def json_schema(function: Any) -> Any:
    """Return the JSON schema of a documented function, for chat templates with tools; raise InputError before 4.43."""
    make = getattr(transformers.utils, "get_json_schema", None)
    if make is None:
        raise InputError(
            f"transformers {transformers.__version__} cannot derive schemas from functions; pass tools as JSON schemas"
        )
    return make(function)


class _MinP(logits_process.LogitsProcessor):  # type: ignore[misc]
    """Removes tokens with less than ``min_p`` times the highest probability (transformers has it from 4.39 on)."""

    def __init__(self, min_p: float) -> None:
        self.min_p = min_p

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        probs = torch.softmax(scores, dim=-1)
        return scores.masked_fill(probs < self.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)


def _absent(option: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise InputError(
            f"transformers {transformers.__version__} has no {option}; leave it out, or install a newer release"
        )

    return refuse


def watermarking(config: Any) -> Any:
    """Return a watermarking config, created from a dict of arguments if necessary; raise InputError for others."""
    made: Any = getattr(transformers.generation, "WatermarkingConfig", None)
    if made is None:
        _absent("watermarking_config")()
    if hasattr(config, "construct_processor"):
        return config
    if not isinstance(config, Mapping):
        raise InputError(
            f"watermarking_config is a {type(config).__name__}; pass a transformers.WatermarkingConfig or a dict of its"
            " arguments"
        )
    try:
        watermark = made(**config)
        watermark.validate()
    except (TypeError, ValueError) as error:
        raise InputError(f"watermarking_config {dict(config)!r} is invalid: {error}") from error
    return watermark


MinPLogitsWarper: Any = getattr(logits_process, "MinPLogitsWarper", _MinP)
TopHLogitsWarper: Any = getattr(logits_process, "TopHLogitsWarper", _absent("top_h"))


def dtype_argument(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the keyword argument of ``from_pretrained`` for a dtype, ``torch_dtype`` before 4.56."""
    return {"dtype" if RELEASE >= (4, 56) else "torch_dtype": dtype}

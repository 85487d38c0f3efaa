"""What differs between the releases of transformers that this package runs on: 4.37, which ipex-llm needs, to 5.

Everything else is written for the newest one. Caches have a file of their own, ``engines/torch/cache.py``, and so has
the tokenizers library, ``tokenization/release.py``.
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
"""(major, minor) of the library that is installed."""

CACHE, OTHER_CACHE = ("cache", "past_key_values") if RELEASE >= (5, 24) else ("past_key_values", "cache")
"""The name of a cache in the calls and outputs of this release, and its name in the others."""

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
"""Generation options that this package reads and that some release does not have yet."""


class BothCacheNames:
    """Mix-in for an output of transformers that makes its cache readable under both names."""

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
    """The config of a model's text part; itself where transformers knows no parts."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def option_defaults() -> dict[str, Any]:
    """Every generation option, and what a ``GenerationConfig`` holds where the caller has not set it.

    In transformers 5 that is always None; before, Hugging Face's defaults.
    """
    return {**dict.fromkeys(_LATER_OPTIONS), **vars(GenerationConfig())}


def blank_settings() -> GenerationConfig:
    """A ``GenerationConfig`` in which every option is there and None."""
    settings = GenerationConfig()
    for name in option_defaults():
        if not name.startswith("_") and name != "transformers_version":
            setattr(settings, name, None)
    return settings


def generation_config(values: Mapping[str, Any]) -> GenerationConfig:
    """A ``GenerationConfig`` with these options, which are not compared with each other before they are used.

    transformers' constructor compares them, and fails for files that an argument of ``generate`` may mend.
    """
    config = GenerationConfig()
    for name, value in values.items():
        setattr(config, name, watermarking(value) if name == "watermarking_config" and value is not None else value)
    return config


def _made(kind: type[Any], values: Mapping[str, Any], checked: bool) -> Any:
    """Return a config of a class of transformers'; one that is not ``checked`` holds the values whatever they are."""
    if checked:
        return kind(**values)
    config = kind()
    renamed = getattr(kind, "attribute_map", {})
    vars(config).update({renamed.get(key, key): value for key, value in values.items()})
    return config


def llama_config(
    values: Mapping[str, Any], rope: Mapping[str, Any], rope_theta: float, *, checked: bool = True
) -> LlamaConfig:
    """A LlamaConfig.

    Args:
        values: its fields, without those about rotary positions.
        rope: ``rope_type`` and the numbers that go with it.
        rope_theta: base of the rotary frequencies.
        checked: let the class check the values, and fail; False takes any.
    """
    if RELEASE >= (5, 0):
        return _made(LlamaConfig, {**values, "rope_parameters": {**rope, "rope_theta": rope_theta}}, checked)
    config = _made(LlamaConfig, {**values, "rope_theta": rope_theta}, checked)
    if rope["rope_type"] != "default":  # set, not passed: 4.37 refuses the kinds it does not know
        config.rope_scaling = {**rope, "type": rope["rope_type"]}
    return config


def family_config(
    model_type: str,
    values: Mapping[str, Any],
    rope: Mapping[str, Any],
    rope_theta: float,
    local_theta: float | None = None,
    *,
    checked: bool = True,
) -> Any:
    """The config of another family: arguments as ``llama_config`` has them; no ``rope``: the family's own default.

    ``local_theta`` is the base of rope in layers with a window, for a family whose two kinds of layers differ in that.
    Raises UnsupportedModelError for a family that this release of transformers does not know.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} does not know the family {model_type!r}",
            hint="install a newer transformers",
        )
    if local_theta is not None and RELEASE >= (5, 0):
        ropes = {
            "full_attention": {**(rope or {"rope_type": "default"}), "rope_theta": rope_theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": local_theta},
        }
        return _made(CONFIG_MAPPING[model_type], {**values, "rope_parameters": ropes}, checked)
    if local_theta is not None:
        values = {**values, "rope_local_base_freq": local_theta}
    scaling = {**rope, "type": rope["rope_type"]} if rope else None
    if RELEASE >= (5, 0) and not checked:  # the class, which is passed over, makes one object of both
        share = {key: values[key] for key in ("partial_rotary_factor",) if key in values}
        one = {**share, **(rope or {"rope_type": "default"}), "rope_theta": rope_theta}
        return _made(CONFIG_MAPPING[model_type], {**values, "rope_parameters": one}, checked)
    return _made(CONFIG_MAPPING[model_type], {**values, "rope_theta": rope_theta, "rope_scaling": scaling}, checked)


def json_schema(function: Any) -> Any:
    """The JSON schema of a documented function, for chat templates with tools. Raises InputError before 4.43."""
    make = getattr(transformers.utils, "get_json_schema", None)
    if make is None:
        raise InputError(
            f"transformers {transformers.__version__} makes no schemas from functions; pass each tool as a JSON schema"
        )
    return make(function)


class _MinP(logits_process.LogitsProcessor):  # type: ignore[misc]
    """Tokens of less than ``min_p`` times the most likely one's probability are out (transformers has it from 4.39)."""

    def __init__(self, min_p: float) -> None:
        self.min_p = min_p

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        probs = torch.softmax(scores, dim=-1)
        return scores.masked_fill(probs < self.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)


def _absent(option: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise InputError(
            f"transformers {transformers.__version__} has no {option}; leave it out, or install a newer one"
        )

    return refuse


def watermarking(config: Any) -> Any:
    """A watermarking config, also from a dict of its arguments. Raises InputError for anything else."""
    made: Any = getattr(transformers.generation, "WatermarkingConfig", None)
    if made is None:
        _absent("watermarking_config")()
    if hasattr(config, "construct_processor"):
        return config
    if not isinstance(config, Mapping):
        raise InputError(
            f"watermarking_config is a {type(config).__name__}; pass a transformers.WatermarkingConfig, or a dict of"
            " its arguments"
        )
    try:
        watermark = made(**config)
        watermark.validate()
    except (TypeError, ValueError) as error:
        raise InputError(f"watermarking_config {dict(config)!r} is not usable: {error}") from error
    return watermark


MinPLogitsWarper: Any = getattr(logits_process, "MinPLogitsWarper", _MinP)
TopHLogitsWarper: Any = getattr(logits_process, "TopHLogitsWarper", _absent("top_h"))


def dtype_argument(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The keyword with which ``from_pretrained`` takes a dtype: it was ``torch_dtype`` until 4.56."""
    return {"dtype" if RELEASE >= (4, 56) else "torch_dtype": dtype}

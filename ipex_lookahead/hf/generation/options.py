"""Hugging Face's generation arguments, resolved and checked before any work is done."""

from __future__ import annotations

import math
from typing import Any

from transformers import GenerationConfig

from ipex_lookahead.checkpoints.generation_config import REFUSED, refused
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.checks import flag, integer, number, token_ids
from ipex_lookahead.system.compat import blank_settings, option_defaults, watermarking

MOST_IDS = 2**31
"""Ids beyond the vocabulary do no harm where they are only left out."""

PENALTIES = (1e-6, 1e6)
"""Logits stay finite in float32 whether they are divided by it or multiplied."""

_DEFAULTS: dict[str, Any] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
}
"""Hugging Face's defaults for options that neither the model nor the caller sets."""

_FLAGS = ("do_sample", "return_dict_in_generate", "output_scores", "output_logits", "remove_invalid_values")


def resolve(
    model_defaults: GenerationConfig, passed: GenerationConfig | None, kwargs: dict[str, Any]
) -> tuple[GenerationConfig, dict[str, Any]]:
    """Merge the layers: keyword arguments before ``passed`` before the model's own before Hugging Face's defaults.

    A keyword argument that is None switches the option off, as in transformers.

    Returns:
        The settings, validated, and the keyword arguments that are not generation options.
    """
    if passed is not None and not isinstance(passed, GenerationConfig):
        raise InputError(f"generation_config is a {type(passed).__name__}; pass a transformers.GenerationConfig")
    settings, unset = blank_settings(), option_defaults()
    for name, value in _DEFAULTS.items():
        setattr(settings, name, value)
    for layer in (model_defaults, passed):
        for name, value in vars(layer).items() if layer is not None else ():
            if name in unset and not name.startswith("_") and value is not None and value != unset[name]:
                setattr(settings, name, value)
    left = {}
    for name, value in kwargs.items():
        if name in unset and not name.startswith("_"):
            setattr(settings, name, value)
        else:
            left[name] = value
    _refuse_unsupported(settings, model_defaults, {**(vars(passed) if passed is not None else {}), **kwargs})
    _validate(settings)
    return settings, left


def _refuse_unsupported(settings: GenerationConfig, own: GenerationConfig, said: dict[str, Any]) -> None:
    for name, refusal in REFUSED.items():
        value = getattr(settings, name, None)
        if refused(name, value):
            files = said.get(name) is None and getattr(own, name, None) is not None
            raise InputError(
                f"{name}={value!r} is not supported; {refusal.reason}",
                hint="the model's generation_config.json sets it: change or remove it there" if files else "",
            )


def _validate(settings: GenerationConfig) -> None:
    for name in _FLAGS:
        value = getattr(settings, name)
        if value is not None:
            flag(name, value)
    for name, low in (("max_new_tokens", 0), ("max_length", 1), ("min_new_tokens", 0), ("min_length", 0)):
        value = getattr(settings, name)
        if value is not None:
            setattr(settings, name, integer(name, value, low))
    integer("num_return_sequences", settings.num_return_sequences, 1)
    for name in ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"):
        integer(name, getattr(settings, name) or 0, 0)
    for name in ("repetition_penalty", "encoder_repetition_penalty"):
        if getattr(settings, name) is not None:
            number(name, getattr(settings, name), *PENALTIES)
    if settings.max_time is not None:
        number("max_time", settings.max_time, 0, math.inf)
    if settings.stop_strings is not None:
        _validate_stop_strings(settings)
    for name in ("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"):
        token_ids(name, getattr(settings, name), MOST_IDS)
    if settings.prompt_lookup_num_tokens is not None:
        integer("prompt_lookup_num_tokens", settings.prompt_lookup_num_tokens, 0, MAX_DRAFT)
    if settings.watermarking_config is not None:
        settings.watermarking_config = watermarking(settings.watermarking_config)
    if settings.do_sample:
        _validate_sampling(settings)
    elif settings.num_return_sequences > 1:
        raise InputError(
            f"num_return_sequences={settings.num_return_sequences} with greedy decoding would give the same text"
            " each time; add do_sample=True"
        )


def _validate_sampling(settings: GenerationConfig) -> None:
    if settings.temperature is not None:
        if settings.temperature == 0:
            raise InputError("temperature is 0; it must be a number above 0: for greedy decoding use do_sample=False")
        number("temperature", settings.temperature, 0, math.inf, above=True)
    if settings.top_k is not None:
        integer("top_k", settings.top_k, 0)
    if settings.top_p is not None:
        number("top_p", settings.top_p, 0, 1)
    if settings.min_p is not None:
        number("min_p", settings.min_p, 0, 1)


def _validate_stop_strings(settings: GenerationConfig) -> None:
    given = settings.stop_strings
    strings = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]
    if not all(isinstance(s, str) and s for s in strings):
        raise InputError(argument="stop_strings", got=given, allowed="a text or several, none of them empty")
    settings.stop_strings = strings or None

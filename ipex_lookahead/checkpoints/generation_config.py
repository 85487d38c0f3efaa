"""``generation_config.json``: each key of transformers' GenerationConfig is obeyed, refused or known to be neutral.

Silently ignoring a setting would change the output. Therefore each key is listed in one of three tables, which apply to
the file and to the arguments of ``generate``. A test checks that they cover transformers' attributes. Unknown keys
(``chat_format``, ``auto_map``, ...) have no effect in transformers either and are dropped.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ipex_lookahead.architectures.hparams import MAX_CONTEXT, Check, Source, boolean, integer, number, shown
from ipex_lookahead.checkpoints.config_json import read_json, read_token_ids
from ipex_lookahead.files.refusal import Refusal, same

MAX_ENTRIES = 1 << 16
_MAX_ID = 2**31 - 1

_SAMPLE_INSTEAD = "only greedy decoding and sampling are supported: leave the option out, and use sampling for variety"
_LOOKAHEAD_INSTEAD = "leave the option out and use lookahead, which needs no second model and never changes the output"

GUIDE = (
    "pass logits_processor=[UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, negative_ids)], from"
    " transformers"
)
"""Replacement for ``guidance_scale`` and related options."""


@dataclass(frozen=True, slots=True)
class Option:
    """A key that is obeyed.

    Attributes:
        check: validates the value in a file.
        by_transformers: True if transformers' own processor implements it, also for the commands and the server.
        harmless: values other than null that have no effect.
        sampling: True if the option has no effect on greedy decoding.
    """

    check: Check
    by_transformers: bool = False
    harmless: tuple[Any, ...] = ()
    sampling: bool = False


def _numbers(source: Source, key: str, value: Any, least: int = 0) -> list[int]:
    good = isinstance(value, list) and len(value) <= MAX_ENTRIES
    if not good or not all(type(i) is int and least <= i <= _MAX_ID for i in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of token ids")
    return list(value)


def _ids(source: Source, key: str, value: Any) -> list[int]:
    """Return token ids to suppress; ids beyond the vocabulary are harmless, and -1 is an old spelling of "none"."""
    return [i for i in _numbers(source, key, value, -1) if i >= 0]


def _id_or_ids(source: Source, key: str, value: Any) -> int | list[int]:
    return _numbers(source, key, value) if isinstance(value, list) else integer(0, _MAX_ID)(source, key, value)


def _words(source: Source, key: str, value: Any) -> list[list[int]]:
    if not isinstance(value, list) or len(value) > MAX_ENTRIES or [] in value:
        raise source.error(key, f"is {shown(value)}; it must be a list of lists of token ids, none of them empty")
    return [_numbers(source, key, word) for word in value]


def _biases(source: Source, key: str, value: Any) -> list[list[Any]]:
    """Parse ``[[[ids], bias], ...]``, or ``{"(1, 2)": bias}``, transformers' serialization of a dict with tuples."""
    if isinstance(value, dict):
        value = [[_tuple_of(source, key, name), bias] for name, bias in value.items()]
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise source.error(
            key, f"is {shown(value)}; it must be a list of pairs, each of a list of token ids and a bias"
        )
    words = _words(source, key, [ids for ids, _ in value])
    return [[ids, number(-1e30, 1e30)(source, key, bias)] for ids, (_, bias) in zip(words, value, strict=True)]


def _tuple_of(source: Source, key: str, name: str) -> list[Any]:
    try:
        ids = ast.literal_eval(name) if len(name) <= 10_000 else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        ids = None
    if not isinstance(ids, tuple):
        raise source.error(key, f"has the key {shown(name)}; it must be a tuple of token ids such as (1, 2)")
    return list(ids)


def _decay(source: Source, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise source.error(key, f"is {shown(value)}; it must be [a number of tokens, a factor]")
    return [integer(0, MAX_CONTEXT)(source, key, value[0]), number(1e-6, 1e6)(source, key, value[1])]


def _stop_strings(source: Source, key: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > 1024 or not all(isinstance(one, str) and one for one in texts):
        raise source.error(key, f"is {shown(value)}; it must be a string or a list of strings, none of them empty")
    return texts


_WATERMARK: Mapping[str, Check] = {
    "greenlist_ratio": number(0, 1),
    "bias": number(-1e6, 1e6),
    "hashing_key": integer(1, 2**62),
    "context_width": integer(1, 1024),
}


def _watermark(source: Source, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or (unknown := value.keys() - {*_WATERMARK, "seeding_scheme"}):
        named = f"; {min(unknown)} is unknown" if isinstance(value, dict) else ""
        raise source.error(key, f"is {shown(value)}; it must be an object of {', '.join(_WATERMARK)}{named}")
    if value.get("seeding_scheme", "lefthash") not in ("lefthash", "selfhash"):
        raise source.error(key, f"has seeding_scheme {shown(value['seeding_scheme'])}; it must be lefthash or selfhash")
    return {name: _WATERMARK[name](source, key, one) if name in _WATERMARK else one for name, one in value.items()}


OBEYED: Mapping[str, Option] = {
    # Length
    "max_new_tokens": Option(integer(1, MAX_CONTEXT)),
    "max_length": Option(integer(1, MAX_CONTEXT)),
    "min_new_tokens": Option(integer(0, MAX_CONTEXT)),
    "min_length": Option(integer(0, MAX_CONTEXT)),
    "max_time": Option(number(0, 1e9)),
    "stop_strings": Option(_stop_strings),
    # Sampling
    "do_sample": Option(boolean),
    "temperature": Option(number(0, 1e6)),
    "top_k": Option(integer(0, 2**31 - 1)),
    "top_p": Option(number(0, 1)),
    "min_p": Option(number(0, 1)),
    "top_h": Option(number(0, 1, above=True), True, (), sampling=True),
    "typical_p": Option(number(0, 1, above=True), True, (1,), sampling=True),
    "epsilon_cutoff": Option(number(0, 0.999999), True, (0,), sampling=True),
    "eta_cutoff": Option(number(0, 0.999999), True, (0,), sampling=True),
    "renormalize_logits": Option(boolean),  # shifts all logits equally: visible in `scores`, no effect on tokens
    # Constraints
    "repetition_penalty": Option(number(1e-6, 1e6)),
    "no_repeat_ngram_size": Option(integer(0, MAX_CONTEXT)),
    "encoder_repetition_penalty": Option(number(1e-6, 1e6), True, (1,)),
    "encoder_no_repeat_ngram_size": Option(integer(0, MAX_CONTEXT), True, (0,)),
    "bad_words_ids": Option(_words, True, ([],)),
    "suppress_tokens": Option(_ids),
    "begin_suppress_tokens": Option(_ids, True, ([],)),
    "sequence_bias": Option(_biases, True, ([], {})),
    "forced_bos_token_id": Option(integer(0, _MAX_ID), True),
    "forced_eos_token_id": Option(_id_or_ids, True, ([],)),
    "exponential_decay_length_penalty": Option(_decay, True),
    "remove_invalid_values": Option(boolean, True, (False,)),
    "watermarking_config": Option(_watermark, True),
    # Outputs and drafting
    "num_return_sequences": Option(integer(1, 1024)),
    "return_dict_in_generate": Option(boolean),
    "output_scores": Option(boolean),
    "output_logits": Option(boolean),
    "use_cache": Option(boolean),
    "prompt_lookup_num_tokens": Option(integer(0, 128)),
    "max_matching_ngram_size": Option(integer(1, 64)),
}
"""Keys that are obeyed, in addition to the ids of special tokens (``SPECIAL``). The commands and the server set length,
number of answers, outputs and drafting themselves; there the file only supplies defaults for options the caller may
set."""

SPECIAL = ("bos_token_id", "pad_token_id", "eos_token_id")

REFUSED: Mapping[str, Refusal] = {
    "num_beams": Refusal(_SAMPLE_INSTEAD, unless=(1,)),
    "num_beam_groups": Refusal(_SAMPLE_INSTEAD, unless=(1,)),
    "diversity_penalty": Refusal(_SAMPLE_INSTEAD, unless=(0,)),
    "constraints": Refusal(
        "leave the option out; prefix_allowed_tokens_fn or a logits_processor can constrain the output"
    ),
    "force_words_ids": Refusal("leave the option out; sequence_bias or a logits_processor can favor words"),
    "penalty_alpha": Refusal("contrastive search is not supported: " + _SAMPLE_INSTEAD, unless=(0,)),
    "dola_layers": Refusal("DoLa is not supported: " + _SAMPLE_INSTEAD),
    "guidance_scale": Refusal(f"it needs a second pass of the model: {GUIDE}", unless=(1,)),
    "token_healing": Refusal("token healing is not supported: leave the option out", unless=(False,)),
    "output_attentions": Refusal("the engine stores no attention weights: leave the option out", unless=(False,)),
    "output_hidden_states": Refusal(
        "generate returns none; call model(input_ids, output_hidden_states=True)", unless=(False,)
    ),
    "cache_implementation": Refusal(
        "the engine has its own cache with unquantized keys and values: leave the option out",
        unless=(
            "dynamic",
            "static",
            "offloaded",
            "offloaded_static",
            "sliding_window",
            "hybrid",
            "hybrid_chunked",
            "offloaded_hybrid",
            "offloaded_hybrid_chunked",
            "paged",
        ),
    ),
    "assistant_early_exit": Refusal(_LOOKAHEAD_INSTEAD),
    "assistant_ensemble_weight": Refusal("it lets a draft change the output: " + _LOOKAHEAD_INSTEAD),
    "use_mtp": Refusal(_LOOKAHEAD_INSTEAD, unless=(False,)),
    "speculation_type": Refusal(_LOOKAHEAD_INSTEAD),
    "continuous_batching_config": Refusal("each call is a separate batch: leave the option out"),
}
"""Refused keys and their harmless values (in addition to null); ``reason`` states the alternative."""

_BEAMS = "for beam search, which is refused"
_DRAFTS = "how transformers' assistants draft; here drafts never change the output, see `lookahead`"
_STORAGE = "how keys and values are stored, which changes no logit"

NEUTRAL: Mapping[str, str] = {
    "early_stopping": _BEAMS,
    "length_penalty": _BEAMS,
    "low_memory": "the order of the same search",
    "cache_config": _STORAGE,
    "max_cache_len": _STORAGE,
    "return_legacy_cache": "the type of the returned cache, which is our own",
    "prefill_chunk_size": "the chunk size of prefill, with the same result",
    "compile_config": "how torch compiles, not what",
    "disable_compile": "how torch compiles, not what",
    "decoder_start_token_id": "for encoder-decoder models",
    "is_assistant": "a mark of transformers for draft models",
    "num_assistant_tokens": _DRAFTS,
    "num_assistant_tokens_schedule": _DRAFTS,
    "assistant_confidence_threshold": _DRAFTS,
    "assistant_lookbehind": _DRAFTS,
    "target_lookbehind": _DRAFTS,
    "generation_kwargs": "a place for keys that transformers itself does not read",
    "transformers_version": "the writer of the file",
}
"""Keys without effect on the output -> reason."""


def read_generation_config(path: str | PathLike[str], vocab: int) -> dict[str, Any]:
    """Return the checked settings of ``generation_config.json``, without neutral keys; {} if there is no file.

    Refused settings are included: ``generate`` raises for them unless the caller overrides them.

    Raises:
        ModelFormatError: if a value is invalid.
    """
    if not os.path.exists(path):
        return {}
    raw = read_json(path)
    source = Source.of(raw, path)
    found = {key: one.check(source, key, raw[key]) for key, one in OBEYED.items() if raw.get(key) is not None}
    found = {key: value for key, value in found.items() if value != []}
    found |= {key: raw[key] for key in REFUSED if refused(key, raw.get(key))}
    _check_ids(found, source, vocab)
    temperature, sampled = found.get("temperature", 1.0), found.get("do_sample", False)
    if 0 < temperature < 1e-6 or (sampled and temperature == 0):
        raise source.error(
            "temperature",
            f"is {temperature:g}; it must be 1e-06 to 1e+06",
            hint="for greedy decoding set do_sample to false and leave temperature out of the file",
        )
    return found | read_token_ids(raw, source, vocab)


def refused(key: str, value: Any) -> bool:
    """Return True if ``value`` requests a feature that is not supported."""
    return key in REFUSED and value is not None and REFUSED[key].refuses(value)


def by_transformers(settings: Mapping[str, Any], *, sampled: bool) -> list[str]:
    """Return the keys with an effect that only transformers' processors implement."""
    return [
        key
        for key, option in OBEYED.items()
        if option.by_transformers
        and (value := settings.get(key)) is not None
        and not any(same(value, one) for one in option.harmless)
        and (sampled or not option.sampling)
    ]


def _check_ids(found: Mapping[str, Any], source: Source, vocab: int) -> None:
    """Raise if a token id that is forced or biased is outside the vocabulary."""
    forced = found.get("forced_eos_token_id", [])
    used = {
        "bad_words_ids": [i for word in found.get("bad_words_ids", ()) for i in word],
        "sequence_bias": [i for word, _ in found.get("sequence_bias", ()) for i in word],
        "forced_bos_token_id": [found[key]] if (key := "forced_bos_token_id") in found else [],
        "forced_eos_token_id": forced if isinstance(forced, list) else [forced],
    }
    for name, ids in used.items():
        if ids and not 0 <= min(ids) <= max(ids) < vocab:
            wrong = next(i for i in ids if not 0 <= i < vocab)
            raise source.error(name, f"has token id {wrong}; ids of this model are 0 to {vocab - 1}")

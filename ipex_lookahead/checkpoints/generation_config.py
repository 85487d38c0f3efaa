"""``generation_config.json``: every key of transformers' GenerationConfig is obeyed, refused, or without effect.

A setting that is passed over changes what a model says without a word. So each key stands in one of the three tables
here, which hold for the file and for the arguments of ``generate`` alike; a test walks transformers' own attributes for
keys that stand in none. Other keys (``chat_format``, ``auto_map``, ...) mean nothing to transformers' ``generate``
either; they are dropped.
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
_MOST_IDS = 2**31 - 1

_SAMPLE_INSTEAD = "this engine decodes greedily or by sampling: leave the option out, and sample for variety"
_LOOKAHEAD_INSTEAD = "leave the option out and use lookahead, which needs no second model and never changes the output"

GUIDE = (
    "pass logits_processor=[UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, negative_ids)], from"
    " transformers"
)
"""What to do instead of ``guidance_scale`` and its kin."""


@dataclass(frozen=True, slots=True)
class Option:
    """A key that is obeyed.

    Attributes:
        check: of its value in a file.
        by_transformers: transformers' own processor does it, behind the commands and the server too.
        harmless: values beside null that ask for nothing.
        sampling: it says nothing where the most likely token is taken.
    """

    check: Check
    by_transformers: bool = False
    harmless: tuple[Any, ...] = ()
    sampling: bool = False


def _numbers(source: Source, key: str, value: Any, least: int = 0) -> list[int]:
    good = isinstance(value, list) and len(value) <= MAX_ENTRIES
    if not good or not all(type(i) is int and least <= i <= _MOST_IDS for i in value):
        raise source.error(key, f"is {shown(value)}; it must be a list of token ids")
    return list(value)


def _ids(source: Source, key: str, value: Any) -> list[int]:
    """Ids that are only left out: those beyond the vocabulary do no harm. -1 is an old way to say "none"."""
    return [i for i in _numbers(source, key, value, -1) if i >= 0]


def _id_or_ids(source: Source, key: str, value: Any) -> int | list[int]:
    return _numbers(source, key, value) if isinstance(value, list) else integer(0, _MOST_IDS)(source, key, value)


def _words(source: Source, key: str, value: Any) -> list[list[int]]:
    if not isinstance(value, list) or len(value) > MAX_ENTRIES or [] in value:
        raise source.error(key, f"is {shown(value)}; it must be a list of lists of token ids, none of them empty")
    return [_numbers(source, key, word) for word in value]


def _biases(source: Source, key: str, value: Any) -> list[list[Any]]:
    """``[[[ids], bias], ...]``, or ``{"(1, 2)": bias}``, which is what transformers makes of its dicts with tuples."""
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
        raise source.error(key, f"has the key {shown(name)}; it must be token ids, as (1, 2)")
    return list(ids)


def _decay(source: Source, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise source.error(key, f"is {shown(value)}; it must be [a number of tokens, a factor]")
    return [integer(0, MAX_CONTEXT)(source, key, value[0]), number(1e-6, 1e6)(source, key, value[1])]


def _stop_strings(source: Source, key: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > 1024 or not all(isinstance(one, str) and one for one in texts):
        raise source.error(key, f"is {shown(value)}; it must be a text or a list of texts, none of them empty")
    return texts


_WATERMARK: Mapping[str, Check] = {
    "greenlist_ratio": number(0, 1),
    "bias": number(-1e6, 1e6),
    "hashing_key": integer(1, 2**62),
    "context_width": integer(1, 1024),
}


def _watermark(source: Source, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or (unknown := value.keys() - {*_WATERMARK, "seeding_scheme"}):
        named = f"; {min(unknown)} is not known" if isinstance(value, dict) else ""
        raise source.error(key, f"is {shown(value)}; it must be an object of {', '.join(_WATERMARK)}{named}")
    if value.get("seeding_scheme", "lefthash") not in ("lefthash", "selfhash"):
        raise source.error(key, f"has seeding_scheme {shown(value['seeding_scheme'])}; it must be lefthash or selfhash")
    return {name: _WATERMARK[name](source, key, one) if name in _WATERMARK else one for name, one in value.items()}


OBEYED: Mapping[str, Option] = {
    # how long
    "max_new_tokens": Option(integer(1, MAX_CONTEXT)),
    "max_length": Option(integer(1, MAX_CONTEXT)),
    "min_new_tokens": Option(integer(0, MAX_CONTEXT)),
    "min_length": Option(integer(0, MAX_CONTEXT)),
    "max_time": Option(number(0, 1e9)),
    "stop_strings": Option(_stop_strings),
    # sampling
    "do_sample": Option(boolean),
    "temperature": Option(number(0, 1e6)),
    "top_k": Option(integer(0, 2**31 - 1)),
    "top_p": Option(number(0, 1)),
    "min_p": Option(number(0, 1)),
    "top_h": Option(number(0, 1, above=True), True, (), sampling=True),
    "typical_p": Option(number(0, 1, above=True), True, (1,), sampling=True),
    "epsilon_cutoff": Option(number(0, 0.999999), True, (0,), sampling=True),
    "eta_cutoff": Option(number(0, 0.999999), True, (0,), sampling=True),
    "renormalize_logits": Option(boolean),  # shifts all logits alike: `scores` show it, and no token changes
    # what may be said
    "repetition_penalty": Option(number(1e-6, 1e6)),
    "no_repeat_ngram_size": Option(integer(0, MAX_CONTEXT)),
    "encoder_repetition_penalty": Option(number(1e-6, 1e6), True, (1,)),
    "encoder_no_repeat_ngram_size": Option(integer(0, MAX_CONTEXT), True, (0,)),
    "bad_words_ids": Option(_words, True, ([],)),
    "suppress_tokens": Option(_ids, True, ([],)),
    "begin_suppress_tokens": Option(_ids, True, ([],)),
    "sequence_bias": Option(_biases, True, ([], {})),
    "forced_bos_token_id": Option(integer(0, _MOST_IDS), True),
    "forced_eos_token_id": Option(_id_or_ids, True, ([],)),
    "exponential_decay_length_penalty": Option(_decay, True),
    "remove_invalid_values": Option(boolean, True, (False,)),
    "watermarking_config": Option(_watermark, True),
    # what is returned; drafting
    "num_return_sequences": Option(integer(1, 1024)),
    "return_dict_in_generate": Option(boolean),
    "output_scores": Option(boolean),
    "output_logits": Option(boolean),
    "use_cache": Option(boolean),
    "prompt_lookup_num_tokens": Option(integer(0, 128)),
    "max_matching_ngram_size": Option(integer(1, 64)),
}
"""Keys that are obeyed, besides the ids of special tokens (``SPECIAL``). In the commands and the server the caller says
how long an answer is, how many there are, what is returned and how to draft: there the file's word on these holds where
the caller says nothing and may say something."""

SPECIAL = ("bos_token_id", "pad_token_id", "eos_token_id")

REFUSED: Mapping[str, Refusal] = {
    "num_beams": Refusal(_SAMPLE_INSTEAD, unless=(1,)),
    "num_beam_groups": Refusal(_SAMPLE_INSTEAD, unless=(1,)),
    "diversity_penalty": Refusal(_SAMPLE_INSTEAD, unless=(0,)),
    "constraints": Refusal(
        "leave the option out; prefix_allowed_tokens_fn or a logits_processor can constrain the output"
    ),
    "force_words_ids": Refusal("leave the option out; sequence_bias or a logits_processor can favour words"),
    "penalty_alpha": Refusal("contrastive search is not supported: " + _SAMPLE_INSTEAD, unless=(0,)),
    "dola_layers": Refusal("DoLa is not supported: " + _SAMPLE_INSTEAD),
    "guidance_scale": Refusal(f"it needs the model beside itself: {GUIDE}", unless=(1,)),
    "token_healing": Refusal("token healing is not supported: leave the option out", unless=(False,)),
    "output_attentions": Refusal("the engine keeps no attention weights: leave the option out", unless=(False,)),
    "output_hidden_states": Refusal(
        "generate returns none; call model(input_ids, output_hidden_states=True)", unless=(False,)
    ),
    "cache_implementation": Refusal(
        "the engine has its own cache, with keys and values as they are: leave the option out",
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
    "continuous_batching_config": Refusal("each call is a batch of its own: leave the option out"),
}
"""Null asks for nothing either; ``reason`` says what to do instead."""

_BEAMS = "for beam search, which is refused"
_DRAFTS = "how transformers' assistants draft; here drafts never change the output, and `lookahead` says how"
_STORAGE = "how keys and values are stored, which changes no logit"

NEUTRAL: Mapping[str, str] = {
    "early_stopping": _BEAMS,
    "length_penalty": _BEAMS,
    "low_memory": "which order the same search takes",
    "cache_config": _STORAGE,
    "max_cache_len": _STORAGE,
    "return_legacy_cache": "the type of the cache that is returned; ours is one of its own",
    "prefill_chunk_size": "in what pieces a prompt is read, to the same end",
    "compile_config": "how torch compiles, not what",
    "disable_compile": "how torch compiles, not what",
    "decoder_start_token_id": "for encoders with decoders",
    "is_assistant": "how transformers marks a model that drafts; ours gives as many tokens as are wanted",
    "num_assistant_tokens": _DRAFTS,
    "num_assistant_tokens_schedule": _DRAFTS,
    "assistant_confidence_threshold": _DRAFTS,
    "assistant_lookbehind": _DRAFTS,
    "target_lookbehind": _DRAFTS,
    "generation_kwargs": "a place for keys that transformers itself does not read",
    "transformers_version": "who wrote the file",
}
"""Keys without effect on what is generated, and why."""


def read_generation_config(path: str | PathLike[str], vocab: int) -> dict[str, Any]:
    """What ``generation_config.json`` sets, checked, or {} where there is none; keys without effect are left out.

    What is refused stays in: ``generate`` refuses it, unless its caller says something else. Raises ModelFormatError.
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
    """Whether a value of ``key`` asks for what is not there here."""
    return key in REFUSED and value is not None and REFUSED[key].refuses(value)


def by_transformers(settings: Mapping[str, Any], *, sampled: bool) -> list[str]:
    """The keys of a generation config that only transformers' processors do, at values that ask for something."""
    return [
        key
        for key, option in OBEYED.items()
        if option.by_transformers
        and (value := settings.get(key)) is not None
        and not any(same(value, one) for one in option.harmless)
        and (sampled or not option.sampling)
    ]


def _check_ids(found: Mapping[str, Any], source: Source, vocab: int) -> None:
    """Ids that something is added to must be there."""
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
            raise source.error(name, f"holds token id {wrong}; ids go from 0 to {vocab - 1} for this model")

"""Arguments of ``generate`` outside generation options: real ones of other models, and misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from ipex_lookahead.checkpoints.generation_config import GUIDE
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.system.compat import option_defaults

_FORWARD = "generate sets it itself: leave it out"
_GUIDANCE = f"it belongs to guidance_scale: {GUIDE}"
_SOUND = "models here read text and images, but no sound: leave it out"
_IMAGES = "models here read images, but no videos: pass frames as images"
_FILES = "this model's images are read from files: pass them to ipex_lookahead.LLM, llm.chat(text, images=[path])"
_ENCODER = "there is no encoder: leave it out"

_REFUSED: Mapping[str, Refusal] = {
    "assistant_model": Refusal("pass it to the model's own generate"),
    "draft_model": Refusal("pass it to the model's own generate"),
    "assistant_tokenizer": Refusal(
        "a draft model needs the target's vocabulary, so both have one tokenizer: leave it out, and"
        " take a smaller model of the same family"
    ),
    "custom_generate": Refusal("leave it out: this model has its own decoding loop"),
    "trust_remote_code": Refusal("code from a checkpoint is never executed: leave it out"),
    "synced_gpus": Refusal(
        "it keeps the processes of a model that is split over several GPUs in step, and this model runs in"
        " one process: leave it out"
    ),
    "use_model_defaults": Refusal("the model's generation config is the default: leave it out, or pass the options"),
    "tokenizer": Refusal("pass it to the model's own generate"),
    "auto_parameters": Refusal(
        "auto_th_stop_draft follows the acceptance with ipex-llm's defaults: leave it out",
        unless=([1, 0.5, 0.9, 1e-2, 0.9],),
    ),
    "hf_adjust": Refusal("the number of drafted tokens follows measured costs and acceptance by itself: leave it out"),
    "th_batch_num": Refusal("each sequence of a batch accepts its own draft: leave it out"),
    "inputs_embeds": Refusal("pass input_ids"),
    "cache_position": Refusal("leave it out: positions follow from the attention mask"),
    "logits_to_keep": Refusal(
        "generate computes the last position's logits alone: leave it out (the model's forward takes it)", unless=(1,)
    ),
    "num_logits_to_keep": Refusal("generate computes the last position's logits alone: leave it out", unless=(1,)),
    "labels": Refusal("a loss needs the model's forward, not generate: leave it out"),
    "return_dict": Refusal("use return_dict_in_generate"),
    "negative_prompt_ids": Refusal(_GUIDANCE),
    "negative_prompt_attention_mask": Refusal(_GUIDANCE),
    "token_type_ids": Refusal("leave it out: Llama models have no token types"),
    "head_mask": Refusal("attention heads cannot be switched off: leave it out"),
    "attention_bias": Refusal("positions follow from the attention mask: leave it out"),
    "inputs_tensor": Refusal(_FORWARD),
    "next_sequence_length": Refusal(_FORWARD),
    "is_first_iteration": Refusal(_FORWARD),
    "decoder_input_ids": Refusal(_ENCODER),
    "decoder_attention_mask": Refusal(_ENCODER),
    "encoder_outputs": Refusal(_ENCODER),
    "cross_attn_head_mask": Refusal(_ENCODER),
    "decoder_head_mask": Refusal(_ENCODER),
    "pixel_values_videos": Refusal(_IMAGES),
    "video_grid_thw": Refusal(_IMAGES),
    "video_position_ids": Refusal(_IMAGES),
    "second_per_grid_ts": Refusal(_IMAGES),
    "pixel_attention_mask": Refusal(_FILES),
    "image_sizes": Refusal(_FILES),
    "spatial_shapes": Refusal(_FILES),
    "input_features": Refusal(_SOUND),
    "input_features_mask": Refusal(_SOUND),
    "input_values": Refusal(_SOUND),
    "cu_seq_lens_q": Refusal("packed sequences are not supported: pass a padded batch with its attention_mask"),
    "cu_seq_lens_k": Refusal("packed sequences are not supported: pass a padded batch with its attention_mask"),
    "max_length_q": Refusal("packed sequences are not supported: pass a padded batch with its attention_mask"),
    "max_length_k": Refusal("packed sequences are not supported: pass a padded batch with its attention_mask"),
}
"""Real arguments of transformers' generate and of its models' forward. None and False ask for nothing either."""

_OURS = (
    "inputs input_ids attention_mask position_ids past_key_values cache generation_config logits_processor"
    " stopping_criteria prefix_allowed_tokens_fn streamer lookahead max_matching_ngram_size adaptive seed"
    " sequence_ids tokenizer cancel on_prefill draft_model assistant_model max_step_draft min_step_draft"
    " th_stop_draft auto_th_stop_draft"
).split()


def check_streamer(streamer: Any) -> None:
    """Raise InputError for a streamer that is none."""
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise InputError(f"streamer is a {type(streamer).__name__}; pass an object with put(ids) and end()")


def check_callers_objects(logits_processor: Any, stopping_criteria: Any, allowed: Any) -> None:
    """Raise InputError for objects that could not be called when their turn comes."""
    for name, value in (("logits_processor", logits_processor), ("stopping_criteria", stopping_criteria)):
        if value is not None and not (isinstance(value, (list, tuple)) and all(map(callable, value))):
            raise InputError(f"{name} is a {type(value).__name__}; pass a list of functions or objects to call")
    if allowed is not None and not callable(allowed):
        raise InputError(f"prefix_allowed_tokens_fn is a {type(allowed).__name__}; pass a function")


def refuse_rest(left: dict[str, Any]) -> None:
    """Raise InputError for arguments that mean nothing here, unless they ask for nothing.

    Args:
        left: keyword arguments that neither are generation options nor were taken; None and False ask for nothing.
    """
    for name, value in left.items():
        if value is None or value is False:
            continue
        if (refusal := _REFUSED.get(name)) is not None:
            if refusal.refuses(value):
                raise InputError(f"{name} is not supported; {refusal.reason}")
            continue
        known = [*_OURS, *(option for option in option_defaults() if not option.startswith("_"))]
        near = difflib.get_close_matches(name, known, 1, 0.7)
        raise InputError(
            f"generate has no argument {name!r}; " + (f"did you mean {near[0]!r}?" if near else "check its spelling")
        )

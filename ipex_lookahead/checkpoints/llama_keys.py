"""Every key of ``config.json`` that transformers' Llama reads: honoured, without effect (and why), or refused.

A key that changes what a model computes must never be passed over: the model would answer, and wrongly. So each key
that transformers' ``LlamaConfig``, its bases, the Llama model, the rotary embedding, the masks or the caches look at
stands in one of these tables, and a test walks transformers' sources for keys that stand in none. Other keys have no
effect there, and none here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_lookahead.checkpoints.hparams import Source, shown
from ipex_lookahead.errors import UnsupportedModelError

HONOURED = frozenset({
    "architectures", "model_type", "dtype", "torch_dtype",
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
    "attention_bias", "mlp_bias", "tie_word_embeddings",
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id",
})  # fmt: skip
"""Read by ``config_json.py``, checked, and obeyed."""

NEUTRAL: Mapping[str, str] = {
    "attention_dropout": "zero outside training",
    "attn_implementation": "which kernel computes the same attention",
    "chunk_size_feed_forward": "the Llama model has no chunked feed-forward; a saving of memory elsewhere",
    "compile_config": "how torch compiles, not what",
    "default_theta": "transformers' own constant, 10000; ours too",
    "distributed_config": "where weights lie, not what they are",
    "decoder_start_token_id": "for encoders with decoders",
    "experts_implementation": "Llama has no experts",
    "finetuning_task": "where the checkpoint came from",
    "fusion_config": "which kernels are fused, not what they compute",
    "gradient_checkpointing": "training only",
    "id2label": "for classifiers",
    "initializer_range": "for weights that no file gives",
    "is_decoder": "Llama is one, whatever this says",
    "label2id": "for classifiers",
    "loss_type": "training only",
    "name_or_path": "where the checkpoint came from",
    "num_labels": "for classifiers",
    "number_of_conv_states": "Llama has no convolution layers",
    "output_attentions": "what is returned beside the logits",
    "output_hidden_states": "what is returned beside the logits",
    "pretraining_tp": "the same products in slices; the sums round a little differently",
    "prefix": "text that a pipeline puts before a prompt",
    "problem_type": "for classifiers",
    "return_dict": "the form of what is returned",
    "sep_token_id": "a warning about padding looks at it",
    "task_specific_params": "settings of pipelines",
    "tf_legacy_loss": "training only",
    "tie_encoder_decoder": "for encoders with decoders",
    "tie_last_hidden_states": "which hidden states are returned beside the logits",
    "tokenizer_class": "the tokenizer's own files say what it is",
    "torchscript": "how torch runs the model, not what it computes",
    "transformers_version": "who wrote the file",
    "use_bfloat16": "for TensorFlow",
    "use_cache": "whether keys and values are kept or computed again, to the same end",
}
"""Keys without effect on the logits, and why. Settings of generation (``max_length``, ``temperature``, ...) in
config.json have none either: they are ``generation_config.json``'s to make."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "add_cross_attention": ((None, False), "asks for attention to an encoder"),
    "attention_chunk_size": ((None,), "cuts the attention into chunks"),
    "cross_attention_hidden_size": ((None,), "asks for attention to an encoder"),
    "is_causal": ((True,), "lets every token see the ones behind it"),
    "is_encoder_decoder": ((None, False), "asks for an encoder"),
    "kv_sharing_modes": ((None,), "has layers use the keys and values of others"),
    "partial_rotary_factor": (
        (None, 1),
        "rotates a part of each head; transformers' Llama takes no notice of it or fails, by its version and the kind "
        "of rope, and other programs rotate a part",
    ),
    "per_layer_config": ((None, {}, []), "changes sizes or switches from layer to layer"),
    "pruned_heads": ((None, {}, []), "removes attention heads"),
    "quantization_config": ((None,), "says that the weights are quantised already, in a format that is not read"),
    "transformers_weights": ((None, "model.safetensors", "model.safetensors.index.json"), "names another weights file"),
}
"""Keys that change what the model computes in a way that is not there here: values that change nothing, and the words
for what the others ask. ``sliding_window`` and ``layer_types`` depend on other keys: see ``refuse_switches``."""

_HINTS = {
    "quantization_config": "use the original float checkpoint and load_in_low_bit, or a GGUF file",
}
_UNUSED_LAYER_TYPES = ("full_attention", "attention")


def refuse_switches(raw: Mapping[str, Any], source: Source) -> None:
    """Raise UnsupportedModelError for the first key of ``raw`` that asks for what is not there here."""
    for key, (harmless, meaning) in REFUSED.items():
        if key in raw and not any(_same(raw[key], value) for value in harmless):
            allowed = " or ".join("null" if value is None else str(value).lower() for value in harmless)
            raise UnsupportedModelError(
                f"{source.file}: {key} is {shown(raw[key])}, which {meaning}; it must be {allowed}, or not there",
                hint=_HINTS.get(key, ""),
            )
    window, context = raw.get("sliding_window"), raw.get("max_position_embeddings", 2048)
    if window is not None and not (type(window) is int and type(context) is int and window >= context):
        raise UnsupportedModelError(
            f"{source.file}: sliding_window is {shown(window)}, a limit on how far attention reaches back; it must be"
            f" null, or not below max_position_embeddings ({shown(context)})"
        )
    types = raw.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(one in _UNUSED_LAYER_TYPES for one in types)):
        raise UnsupportedModelError(
            f"{source.file}: layer_types is {shown(types)}; every layer must have full_attention"
        )


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; Python holds true and 1 equal, JSON does not."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)

"""Functions for rows of ``families/dense.py``: checks over several keys, and values derived from a file's tensors."""

from __future__ import annotations

import math
from typing import Any

from ipex_lookahead.architectures.dense import Config
from ipex_lookahead.architectures.hparams import (
    MAX_LAYERS,
    Source,
    check_even_heads,
    check_one_per_layer,
    number,
    optional,
    shown,
)
from ipex_lookahead.architectures.keys import LOCAL_THETA, GgufSource
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.rope import ntk_theta, rope, rotated
from ipex_lookahead.architectures.spec import Activation, GatedMlp, Place, Rope, Tensor, Xielu
from ipex_lookahead.architectures.windows import SLIDING, fill_layer_types, gguf_layer_types, window_pattern
from ipex_lookahead.errors import UnsupportedModelError

soft_cap = optional(number(1e-3, 1e6))
"""Check for the bound of scores or logits; null for none."""
GELU = "gelu_pytorch_tanh"
OLMO3_THETA = 500000.0


# ---- biases --------------------------------------------------------------------------------------------------------


def attention_bias(file: GgufSource, config: Config) -> None:
    """Set ``attention_bias`` from the tensors of a GGUF file."""
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors


def biases(file: GgufSource, config: Config) -> None:
    """Set ``attention_bias`` and ``mlp_bias`` from the tensors of a GGUF file."""
    attention_bias(file, config)
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors


# ---- Llama and similar -----------------------------------------------------------------------------------------------


_TILE_TOKENS = ("<image>", "<fake_token_around_image>")
"""Tokens of the vocabularies of Idefics 3 and SmolVLM; the first is the placeholder for a row of an image."""


def complete_llama(file: GgufSource, config: Config) -> None:
    """Set what the tensors and the vocabulary of a GGUF file show: biases, and the text part of a SmolVLM."""
    biases(file, config)
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    if isinstance(tokens, list) and all(token in tokens for token in _TILE_TOKENS):
        config["image_token_id"] = tokens.index(_TILE_TOKENS[0])


def check_llama(config: Config, source: Source) -> None:
    """Refuse other activations, and windows and layer types that would have an effect."""
    check_even_heads(config, source)
    if config["hidden_act"] != "silu":
        raise UnsupportedModelError(
            f"{source.file}: hidden_act is {shown(config['hidden_act'])}; it must be 'silu' for this family"
        )
    window, context = config.pop("sliding_window", None), config["max_position_embeddings"]
    if window is not None and not (type(window) is int and window >= context):
        raise UnsupportedModelError(
            f"{source.file}: sliding_window is {shown(window)}, which limits the attention window; it must be null, or"
            f" at least max_position_embeddings ({shown(context)})"
        )
    types = config.pop("layer_types", None)
    if types is not None and not (
        isinstance(types, list) and all(one in ("full_attention", "attention") for one in types)
    ):
        raise UnsupportedModelError(
            f"{source.file}: layer_types is {shown(types)}; every layer must have full_attention"
        )


def any_value(source: Source, key: str, value: Any) -> Any:
    """Accept any value, for keys that a check over several keys reads."""
    return value


def is_dense(file: GgufSource) -> bool:
    """Return True if a file with architecture ``llama`` has no experts; otherwise it is a Mixtral."""
    return bool(file.scalar("llama.expert_count", 0) == 0)


def has_even_heads(file: GgufSource) -> bool:
    """Return True if heads divide the hidden size, as in transformers' Llama; otherwise the file is a Mistral."""
    hidden, heads = (file.metadata.get(f"llama.{key}") for key in ("embedding_length", "attention.head_count"))
    return not (type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads)


def check_ministral3(config: Config, source: Source) -> None:
    """Require the parameters of the queries' temperature."""
    scaling = config["rope_scaling"] or {}
    if "llama_4_scaling_beta" not in scaling or "original_max_position_embeddings" not in scaling:
        raise UnsupportedModelError(
            f"{source.file}: rope_parameters of a ministral3 must have llama_4_scaling_beta and "
            "original_max_position_embeddings, which determine the queries' temperature"
        )


def complete_ministral3(file: GgufSource, config: Config) -> None:
    """Fill in yarn's ``mscale`` as in llama.cpp, or a temperature without effect."""
    scaling = config["rope_scaling"]
    if scaling is not None and "mscale_all_dim" in scaling:
        scaling["mscale"] = 1.0
    if scaling is None or "llama_4_scaling_beta" not in scaling:  # another rope type, without a temperature
        original = config["max_position_embeddings"]
        plain = {"rope_type": "linear", "factor": 1.0, "original_max_position_embeddings": original}
        config["rope_scaling"] = {**(scaling or plain), "llama_4_scaling_beta": 0.0}


def no_rope_layers(source: Source, key: str, value: Any) -> list[int]:
    """Check SmolLM3's list of layers with rope (1) and without (0)."""
    if not isinstance(value, list) or not all(type(one) is int and one in (0, 1) for one in value):
        raise source.error(key, f"is {shown(value)}; it must be a list with 0 (no rope) or 1 per layer")
    return list(value)


def check_smollm3(config: Config, source: Source) -> None:
    """Fill in the layers with rope, and give windows to the others."""
    check_even_heads(config, source)
    layers, interval = config["num_hidden_layers"], config.pop("no_rope_layer_interval")
    turned = config.setdefault("no_rope_layers", [int((i + 1) % interval != 0) for i in range(layers)])
    check_one_per_layer(config, source, "no_rope_layers")
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    fill_layer_types(config, source, lambda layer: not turned[layer])


def complete_granite(file: GgufSource, config: Config) -> None:
    """Fill in biases and the factor on scores, which files omit if it has its default."""
    biases(file, config)
    config.setdefault("attention_multiplier", config["head_dim"] ** -0.5)


def hunyuan_alpha(config: Config) -> float | None:
    """Return the factor for the rope base: in these checkpoints "dynamic" means one base for all lengths."""
    scaling = config["rope_scaling"] or {}
    alpha: float | None = scaling.get("alpha") if scaling.get("rope_type") == "dynamic" else None
    return alpha


def check_hunyuan(config: Config, source: Source) -> None:
    """Refuse heads that are too small for a scaled rope base."""
    if hunyuan_alpha(config) and config["head_dim"] <= 2:
        raise UnsupportedModelError(f"{source.file}: head_dim is {config['head_dim']}; dynamic rope needs more than 2")


def hunyuan_rope(config: Config) -> Rope:
    """Return rope with the scaled base."""
    if (alpha := hunyuan_alpha(config)) is None:
        return rope(config)
    theta = ntk_theta(config["rope_theta"], alpha, config["head_dim"])
    return rope({**config, "rope_theta": theta, "rope_scaling": None})


def check_starcoder2(config: Config, source: Source) -> None:
    """Store the norms' epsilon under its usual name."""
    check_even_heads(config, source)
    config["rms_norm_eps"] = config["norm_epsilon"]


def check_apertus(config: Config, source: Source) -> None:
    """Mark unscaled rope explicitly, because the family's default is scaled."""
    check_even_heads(config, source)
    if config["rope_scaling"] is None:
        config["rope_scaling"] = {"rope_type": "default"}


def xielu_mlp(names: Names, layer: int) -> GatedMlp:
    """Return Apertus' MLP; GGUF files have the parameters of all layers in one key."""

    def parameter(name: str) -> Tensor:
        ours = f"model.layers.{layer}.mlp.act_fn.{name}"
        shape = () if name in ("beta", "eps") else (1,)
        layers = (names.config["num_hidden_layers"],)
        return Tensor(ours, shape, Place(ours, shape), Place(f"xielu.{name}", layers, rows=(layer, 1), layout="key"))

    return names.mlp(layer, Activation("xielu"), parameters=Xielu(*map(parameter, Xielu.__slots__)))


# ---- Phi-3 -----------------------------------------------------------------------------------------------------------


def check_phi3(config: Config, source: Source) -> None:
    """Check LongRoPE's two sets of frequencies, and fill in derived parameters."""
    check_even_heads(config, source)
    scaling = config["rope_scaling"]
    original = config.pop("original_max_position_embeddings")
    if scaling is None:
        return
    if scaling["rope_type"] in ("su", "yarn"):  # earlier names of longrope in Phi-3
        scaling["rope_type"] = "longrope"
    if scaling["rope_type"] != "longrope" or not {"short_factor", "long_factor"} <= scaling.keys():
        raise UnsupportedModelError(
            f"{source.file}: rope scaling of a phi3 must have type longrope with short_factor and long_factor; it has "
            f"type {scaling['rope_type']!r}"
        )
    pairs = rotated(config) // 2
    for key in ("short_factor", "long_factor"):
        if len(scaling[key]) != pairs:
            raise source.error(f"rope_scaling.{key}", f"has {len(scaling[key])} divisors for {pairs} pairs")
    original = scaling.setdefault("original_max_position_embeddings", original)
    factor = scaling.pop("factor", None) or config["max_position_embeddings"] / original
    if "attention_factor" not in scaling:
        grown = factor > 1 and original > 1
        scaling["attention_factor"] = math.sqrt(1 + math.log(factor) / math.log(original)) if grown else 1.0


# ---- windows ---------------------------------------------------------------------------------------------------------


def check_qwen_windows(config: Config, source: Source) -> None:
    """Give windows to layers from ``max_window_layers`` on, if the config enables them."""
    first = config.pop("max_window_layers")
    if not config["use_sliding_window"]:
        config["sliding_window"] = None
    fill_layer_types(config, source, lambda layer: layer >= first)


def check_qwen2(config: Config, source: Source) -> None:
    """Check Qwen's windows, and that the heads divide the hidden size."""
    check_even_heads(config, source)
    check_qwen_windows(config, source)


def one_base(file: GgufSource, config: Config, architecture: str, has: str) -> None:
    """Refuse a GGUF file with another rope base for layers with a window; ``has`` completes the message."""
    theta = config["rope_theta"]
    if (local := config.pop(LOCAL_THETA, theta)) != theta:
        raise UnsupportedModelError(
            f"{file.path}: {architecture}.rope.freq_base_swa is {shown(local)}; {has} here, {theta:g}"
        )


def fill_query_scalar(config: Config, layers_of_27b: int) -> None:
    """Fill in the squared divisor of Gemma's scores. GGUF lacks it, and llama.cpp detects the 27B by its depth."""
    heads = config["num_attention_heads"]
    is_27b = config["num_hidden_layers"] == layers_of_27b
    config["query_pre_attn_scalar"] = config["hidden_size"] // heads if is_27b else config["head_dim"]


def gemma_scale(config: Config) -> float:
    """Return the factor on scores."""
    scale: float = config["query_pre_attn_scalar"] ** -0.5
    return scale


def gelu_mlp(names: Names, layer: int) -> GatedMlp:
    """Return Gemma's MLP."""
    return names.gated_mlp(layer, activation=Activation("gelu_tanh"))


def check_gemma(config: Config, source: Source) -> None:
    """Store the activation's exact name, which the first files call gelu."""
    config["hidden_act"] = GELU


def check_gemma2(config: Config, source: Source) -> None:
    """Give a window to every second layer."""
    check_even_heads(config, source)
    fill_layer_types(config, source, lambda layer: layer % 2 == 0)


def complete_gemma2(file: GgufSource, config: Config) -> None:
    """Fill in windows and the divisor of scores."""
    one_base(file, config, "gemma2", "a Gemma 2 has one base of rope")
    config.setdefault("sliding_window", 4096)
    gguf_layer_types(file, config, "gemma2", every=2)
    fill_query_scalar(config, 46)


def check_every_nth(config: Config, source: Source) -> None:
    """Give a window to all layers except each nth."""
    check_even_heads(config, source)
    every = config.pop("sliding_window_pattern")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)


def complete_gemma3(file: GgufSource, config: Config) -> None:
    """Fill in windows and the divisor of scores."""
    config.setdefault("sliding_window", None)
    gguf_layer_types(file, config, "gemma3", every=6)
    fill_query_scalar(config, 62)


def is_olmo3(file: GgufSource) -> bool:
    """Return True if a file with architecture ``olmo2`` has windows and therefore is an OLMo 3."""
    return bool(file.scalar("olmo2.attention.sliding_window", 0))


def check_olmo3(config: Config, source: Source) -> None:
    """Give windows to three of four layers, and require a rope base for them."""
    fill_layer_types(config, source, lambda layer: (layer + 1) % 4 != 0)
    theta = config["rope_theta"]
    if config.setdefault(LOCAL_THETA, OLMO3_THETA if theta == OLMO3_THETA else None) is None:
        raise UnsupportedModelError(
            f"{source.file}: rope_theta is {theta:g}, and the base of layers with a window is missing: it is {theta:g}"
            f" in transformers 4 and {OLMO3_THETA:g} in transformers 5",
            hint="give both in rope_parameters, as full_attention.rope_theta and sliding_attention.rope_theta",
        )


def complete_olmo3(file: GgufSource, config: Config) -> None:
    """Fill in windows, and refuse a second rope base."""
    theta = config["rope_theta"]
    if (local := config.setdefault(LOCAL_THETA, theta)) != theta:
        raise UnsupportedModelError(
            f"{file.path}: olmo2.rope.freq_base_swa is {shown(local)}, but freq_base is {theta:g}; llama.cpp uses the"
            " latter for all layers, but the former in its cache"
        )
    gguf_layer_types(file, config, "olmo2", every=4)


def exaone4_pattern(source: Source, key: str, value: Any) -> Any:
    """Check a pattern of windows: a number n (each nth layer has full attention), or letters L (window), G (full)."""
    if isinstance(value, str) and 0 < len(value) <= MAX_LAYERS and not {*value} - {*"LG"}:
        return value
    return 0 if type(value) is int and value == 0 else window_pattern(source, key, value)


def check_exaone4(config: Config, source: Source) -> None:
    """Give windows to layers by the pattern, and refuse patterns that transformers ignores."""
    every = config.pop("sliding_window_pattern")
    if config.get("layer_types") is None and config["sliding_window"] is not None and not isinstance(every, int):
        raise UnsupportedModelError(
            f"{source.file}: sliding_window_pattern is {shown(every)}, and layer_types is missing; transformers ignores"
            " such a pattern",
            hint="list the layers in layer_types",
        )
    if every == 0 and config["sliding_window"] is not None and config.get("layer_types") is None:
        raise source.error("sliding_window_pattern", "is 0, but there is a sliding_window")
    fill_layer_types(config, source, lambda layer: (layer + 1) % every != 0)


def complete_exaone4(file: GgufSource, config: Config) -> None:
    """Fill in windows, which only the 32B has; it is detected by its depth."""
    one_base(file, config, "exaone4", "an EXAONE 4 has one base")
    config.setdefault("sliding_window", 4096 if config["num_hidden_layers"] == 64 else None)
    gguf_layer_types(file, config, "exaone4", every=4)


def exaone4_has_rope(config: Config, layer: int) -> bool:
    """Return True if a layer has rope: all layers of models without windows, otherwise layers with a window."""
    return config["sliding_window"] is None or bool(config["layer_types"][layer] == SLIDING)


def check_cohere2(config: Config, source: Source) -> None:
    """Check the head size, store the norms' epsilon under its usual name, and give windows to layers."""
    check_even_heads(config, source)
    if (d := config["hidden_size"] // config["num_attention_heads"]) != config["head_dim"]:
        raise UnsupportedModelError(
            f"{source.file}: head_dim is {config['head_dim']}, but hidden_size implies heads of {d}, which transformers"
            " uses regardless of head_dim"
        )
    config["rms_norm_eps"] = config["layer_norm_eps"]
    check_every_nth(config, source)


def complete_cohere2(file: GgufSource, config: Config) -> None:
    """Fill in windows; require the window size and the factor on logits."""
    one_base(file, config, "cohere2", "a Cohere 2 has one base")
    for name, key in (("sliding_window", "attention.sliding_window"), ("logit_scale", "logit_scale")):
        if name not in config:
            raise file.error(f"cohere2.{key}", None, "is missing")
    config["layer_norm_eps"] = config["rms_norm_eps"]
    gguf_layer_types(file, config, "cohere2", every=4)

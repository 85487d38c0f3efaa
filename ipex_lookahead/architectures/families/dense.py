"""Dense families, one row each: a Llama with options. ``docs/adding_a_model.md`` explains how to write a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ipex_lookahead.architectures import granite, rules
from ipex_lookahead.architectures.dense import POST, PRE, Dense, fused_mlp, keys
from ipex_lookahead.architectures.hparams import (
    MAX_CONTEXT,
    SIZES,
    boolean,
    check_even_heads,
    integer,
    number,
    one_of,
    text,
)
from ipex_lookahead.architectures.keys import LAYER_THETA, LOCAL_THETA, GgufKeys
from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.architectures.windows import (
    layer_types,
    no_window,
    one_kind_of_layer,
    window_of,
    window_pattern,
    window_size,
)
from ipex_lookahead.files.refusal import Refusal

_SLICES = {"pretraining_tp": "the same products in slices, with slightly different rounding"}
_OWN_CACHE = {"cache_implementation": "how keys and values are cached; this package has its own cache"}
_NO_DROPOUT = "zero outside training"
_BOTH_WAYS = {"use_bidirectional_attention": Refusal("lets tokens attend to later ones", unless=(None, False))}
_MULTIMODAL = {"rope.dimension_sections": Refusal()}  # multimodal models with another order of the rows of q and k
_SHARE = number(0, 1, above=True)
_MULTIPLIER = number(1e-6, 1e6)
_QWEN = "use_sliding_window sliding_window max_window_layers layer_types"
_QWEN_DEFAULTS = {
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_GEMMA_DEFAULTS = {
    "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip
GRANITE = {
    "embedding_multiplier": "embedding_scale", "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
WINDOWS = {
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
}
GGUF_WINDOWS = {**WINDOWS, LOCAL_THETA: "rope.freq_base_swa"}
_BEFORE_AND_AFTER = {**PRE, **POST, "feed_forward_norm": ("pre_feedforward_layernorm", "ffn_norm")}
_OLMO2 = keys("hidden_act tie_word_embeddings attention_bias", {"rms_norm_eps": 1e-5}, refused=no_window("OLMo 2"))

# fmt: off
FAMILIES: Mapping[str, Dense] = {
    "llama": Dense(
        "Llama-2, Llama-3.x, TinyLlama, SmolLM2 and all other models with model type ``llama``.",
        keys(
            "tie_word_embeddings attention_bias mlp_bias", {},
            {"hidden_act": text, "sliding_window": rules.any_value, "layer_types": rules.any_value}, nullable=(),
            neutral=_SLICES, check=rules.check_llama,
        ),
        GgufKeys(
            "llama", "LlamaForCausalLM", constants={"hidden_act": "silu"}, complete=rules.complete_llama,
            claims=lambda file: rules.is_dense(file) and rules.has_even_heads(file),
        ),
        pairs=True,
    ),
    # Mistral's GGUF files have architecture llama and no window, which llama.cpp's converter omits. They are assigned
    # to this family if the heads do not divide the hidden size, which transformers' Llama does not allow.
    "mistral": Dense(
        "Mistral 7B, Mistral Nemo, Mistral Small: a Llama with a separate head size and, at first, a window.",
        keys(
            "hidden_act tie_word_embeddings sliding_window",
            {"num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, "sliding_window": 4096},
            refused=one_kind_of_layer("Mistral"),
        ),
        GgufKeys(
            "llama", "MistralForCausalLM", constants={"sliding_window": None},
            claims=lambda file: rules.is_dense(file) and not rules.has_even_heads(file),
        ),
        pairs=True,
    ),
    "ministral3": Dense(
        "Ministral 3's text model: a Mistral with a position-dependent temperature of queries.",
        keys(
            "hidden_act tie_word_embeddings sliding_window",
            {
                "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
                "rope_theta": 1000000.0,
                "rope_scaling": {
                    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
                    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
                },
                "sliding_window": None,
            },
            refused=one_kind_of_layer("Ministral 3"), check=rules.check_ministral3,
        ),
        GgufKeys(
            "mistral3", "Ministral3ForCausalLM",
            used={
                "rope_scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
                "rope_scaling.llama_4_scaling_beta": "attention.temperature_scale",
            },
            complete=rules.complete_ministral3,
        ),
        pairs=True,
    ),
    "qwen2": Dense(
        "Qwen2, Qwen2.5, Qwen2.5-Coder and their DeepSeek-R1 distillations: a Llama with biases on q, k and v.",
        keys(f"hidden_act tie_word_embeddings {_QWEN}", _QWEN_DEFAULTS, check=rules.check_qwen2),
        GgufKeys("qwen2", "Qwen2ForCausalLM"),
        bias=lambda config: "qkv",
    ),
    "qwen3": Dense(
        "Qwen3 (dense): a norm over each head of q and k before rope, and a separate head size.",
        keys(
            f"hidden_act tie_word_embeddings attention_bias {_QWEN}", {"head_dim": 128, **_QWEN_DEFAULTS},
            check=rules.check_qwen_windows,
        ),
        GgufKeys("qwen3", "Qwen3ForCausalLM", constants={"attention_bias": False}),
        qk_norm="heads",
    ),
    "smollm3": Dense(
        "SmolLM3: a Llama in which every fourth layer has no rope.",
        keys(
            "hidden_act tie_word_embeddings attention_bias mlp_bias use_sliding_window sliding_window layer_types",
            {
                "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2000000.0,
                "tie_word_embeddings": True, "no_rope_layer_interval": 4, "use_sliding_window": False,
                "sliding_window": None,
            },
            {"no_rope_layers": rules.no_rope_layers, "no_rope_layer_interval": integer(1, 1 << 16)}, neutral=_SLICES,
            check=rules.check_smollm3,
        ),
        GgufKeys("smollm3", "SmolLM3ForCausalLM"),
        pairs=True, has_rope=lambda config, layer: bool(config["no_rope_layers"][layer]),
    ),
    # In GGUF files, rope.scaling.finetuned is llama.cpp's option for a Granite without rope, and deepstack_mapping
    # inserts images into layers (Granite 4 Vision).
    "granite": Dense(
        "Granite 3, and 4 (dense) in GGUF files: a Llama with multipliers on embedding, attention, residuals and"
        " logits.",
        keys(
            "hidden_act tie_word_embeddings attention_bias mlp_bias", dict.fromkeys(GRANITE, 1.0),
            dict.fromkeys(GRANITE, _MULTIPLIER),
            refused={
                **one_kind_of_layer("Granite"),
                "sliding_window": Refusal(
                    "limits the attention window, which transformers' Granite does not do", unless=(None,),
                ),
            },
            check=check_even_heads,
        ),
        GgufKeys(
            "granite", "GraniteForCausalLM", used=GRANITE,
            refused={"rope.scaling.finetuned": Refusal(unless=(1,)), "deepstack_mapping": Refusal()},
            neutral={
                **dict.fromkeys(
                    ("ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"),
                    "for recurrent layers, which this architecture lacks; written by the converter of Granite 4",
                ),
                "expert_shared_feed_forward_length": "the MLP's own size if there are no experts",
            },
            complete=rules.complete_granite,
        ),
        pairs=True, scale=lambda config: config["attention_multiplier"],
    ),
    "granite_swa": Dense(
        "Granite with windows (granite-swash 2B): a Granite with a window in three of four layers, and sinks.",
        keys(
            "hidden_act tie_word_embeddings attention_bias mlp_bias sliding_window layer_types",
            {
                "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
                "tie_word_embeddings": True, "sliding_window": 128, **dict.fromkeys(GRANITE, 1.0),
            },
            {**dict.fromkeys(GRANITE, _MULTIPLIER), LAYER_THETA: granite.layer_theta}, check=granite.check_swa,
        ),
        GgufKeys(
            "granite_swa", "GraniteSWAForCausalLM",
            used={**GRANITE, **WINDOWS}, refused={"deepstack_mapping": Refusal()},
            neutral={
                "attention.rope_pattern": "the layers with rope; read separately",
                "expert_shared_feed_forward_length": "for experts, which this family lacks",
            },
            complete=granite.complete_swa,
            claims=lambda file: file.scalar("granite_swa.expert_count", 0) == 0,
        ),
        pairs=True, scale=lambda config: config["attention_multiplier"], sinks=True,
    ),
    # Contexts beyond the original one use a second set of frequencies (LongRoPE; Ding et al., arXiv 2402.13753). The
    # set is selected by the context for which the model was loaded, never by the current length, which would change
    # cached keys. By default this is the original context with the short set.
    "phi3": Dense(
        "Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: q, k and v in one tensor, gate and up in another; partial rotary"
        " embedding.",
        keys(
            "hidden_act tie_word_embeddings sliding_window",
            {
                "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                "sliding_window": None, "partial_rotary_factor": 1.0,
            },
            {"partial_rotary_factor": _SHARE, "original_max_position_embeddings": integer(1, MAX_CONTEXT)},
            neutral={"resid_pdrop": _NO_DROPOUT, "embd_pdrop": _NO_DROPOUT}, refused=one_kind_of_layer("Phi-3"),
            check=rules.check_phi3,
        ),
        GgufKeys("phi3", "Phi3ForCausalLM", used={"sliding_window": "attention.sliding_window"}),
        fused_qkv=True, feed_forward=fused_mlp,
    ),
    "gemma": Dense(
        "The first Gemma, and CodeGemma: a Llama with Gemma's norms, GELU, and embeddings times the square root of"
        " their size.",
        keys(
            "tie_word_embeddings attention_bias",
            {"num_key_value_heads": 16, **_GEMMA_DEFAULTS, "hidden_act": rules.GELU},
            {"hidden_act": one_of(rules.GELU, "gelu")},
            refused={
                **no_window("Gemma"),
                "hidden_activation": Refusal(
                    "names another activation, which only some releases of transformers use",
                    unless=(None, rules.GELU),
                ),
                **_BOTH_WAYS,
            },
            check=rules.check_gemma,
        ),
        GgufKeys("gemma", "GemmaForCausalLM", constants={"attention_bias": False}),
        norm_offset=1.0, feed_forward=rules.gelu_mlp, scaled_embedding=True,
    ),
    "gemma2": Dense(
        "Gemma 2: norms before and after attention and MLP, soft caps on scores and logits, a window on every second"
        " layer.",
        keys(
            "tie_word_embeddings attention_bias sliding_window layer_types",
            {
                "num_key_value_heads": 4, **_GEMMA_DEFAULTS, "hidden_activation": rules.GELU,
                "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
            {
                "hidden_activation": one_of(rules.GELU), "query_pre_attn_scalar": integer(1, 1 << 20),
                "attn_logit_softcapping": rules.soft_cap, "final_logit_softcapping": rules.soft_cap,
            },
            neutral={
                **_OWN_CACHE,
                "hidden_act": "transformers uses hidden_activation instead",
                "sliding_window_size": "transformers uses sliding_window instead",
            },
            refused=_BOTH_WAYS, check=rules.check_gemma2,
        ),
        GgufKeys(
            "gemma2", "Gemma2ForCausalLM",
            used={
                **GGUF_WINDOWS, "attn_logit_softcapping": "attn_logit_softcapping",
                "final_logit_softcapping": "final_logit_softcapping",
            },
            constants={"attention_bias": False}, complete=rules.complete_gemma2,
        ),
        norm_offset=1.0, norms=_BEFORE_AND_AFTER, scale=rules.gemma_scale,
        feed_forward=rules.gelu_mlp, scaled_embedding=True,
    ),
    # All sizes have defaults, because the text part of a larger model omits transformers' defaults.
    "gemma3_text": Dense(
        "Gemma 3 for text (270M, 1B, and the text part of the larger ones): most layers have a window and a separate"
        " rope.",
        keys(
            "tie_word_embeddings attention_bias sliding_window layer_types",
            {
                "num_key_value_heads": 4, **_GEMMA_DEFAULTS, "vocab_size": 262208, "hidden_size": 2304,
                "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                "max_position_embeddings": 131072, "rope_theta": 1e6, LOCAL_THETA: 10000.0,
                "hidden_activation": rules.GELU, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                "sliding_window_pattern": 6, "final_logit_softcapping": None,
            },
            {
                "hidden_activation": one_of(rules.GELU), "query_pre_attn_scalar": integer(1, 1 << 20),
                "sliding_window_pattern": integer(1, 1 << 16), LOCAL_THETA: SIZES["rope_theta"],
                "final_logit_softcapping": rules.soft_cap,
            },
            neutral=_OWN_CACHE,
            refused={
                "attn_logit_softcapping": Refusal(
                    "caps scores, which transformers' Gemma 3 ignores", unless=(None,),
                ),
                **_BOTH_WAYS,
            },
            check=rules.check_every_nth,
        ),
        GgufKeys(
            "gemma3", "Gemma3ForCausalLM", used={**GGUF_WINDOWS, "final_logit_softcapping": "final_logit_softcapping"},
            constants={"attention_bias": False, "image_token_index": 262144}, complete=rules.complete_gemma3,
        ),
        norm_offset=1.0, norms=_BEFORE_AND_AFTER, qk_norm="heads", scale=rules.gemma_scale, feed_forward=rules.gelu_mlp,
        scaled_embedding=True,
    ),
    "olmo2": Dense(
        "OLMo 2: a Llama with norms after attention and MLP, and over the whole of q and of k.",
        _OLMO2,
        GgufKeys(
            "olmo2", "Olmo2ForCausalLM", constants={"attention_bias": False},
            neutral={
                "attention.sliding_window_pattern": "for layers with a window, which this family lacks",
                "rope.freq_base_swa": "for layers with a window, which this family lacks",
            },
            claims=lambda file: not rules.is_olmo3(file),
        ),
        norms=POST, qk_norm="whole",
    ),
    # The converter writes Hugging Face's attention_factor; llama.cpp computes the same value.
    "olmo3": Dense(
        "OLMo 3: an OLMo 2 with a window in three of four layers, and scaled rope only in the fourth.",
        replace(
            _OLMO2,
            used={
                **_OLMO2.used, "sliding_window": window_size, "layer_types": layer_types,
                LOCAL_THETA: SIZES["rope_theta"],
            },
            defaults={**_OLMO2.defaults, "rope_theta": rules.OLMO3_THETA, "sliding_window": 4096}, flat_rope=True,
            nullable=("sliding_window",), refused={}, check=rules.check_olmo3,
        ),
        GgufKeys(
            "olmo2", "Olmo3ForCausalLM",
            used={**GGUF_WINDOWS, "rope_scaling.attention_factor": "rope.scaling.yarn_attn_factor"},
            constants={"attention_bias": False}, complete=rules.complete_olmo3, claims=rules.is_olmo3,
        ),
        norms=POST, qk_norm="whole",
    ),
    "glm4": Dense(
        "GLM-4-0414 (9B, 32B, Z1): norms before and after attention and MLP; half of a head has interleaved rope.",
        keys(
            "hidden_act tie_word_embeddings attention_bias",
            {
                "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
                "rms_norm_eps": 0.00000015625, "attention_bias": True, "partial_rotary_factor": 0.5,
            },
            {"partial_rotary_factor": _SHARE}, refused=no_window("GLM-4"),
        ),
        GgufKeys("glm4", "Glm4ForCausalLM", refused=_MULTIMODAL, complete=rules.attention_bias),
        norms={
            **PRE, "mixer_after": ("post_self_attn_layernorm", "post_attention_norm"),
            "feed_forward_after": ("post_mlp_layernorm", "post_ffw_norm"),
        },
        bias=lambda config: "qkv" if config["attention_bias"] else "", interleaved=True, feed_forward=fused_mlp,
    ),
    "exaone4": Dense(
        "EXAONE 4 (LG): norms after attention and MLP and over heads of q and k; with windows, rope in these layers"
        " only.",
        keys(
            "hidden_act tie_word_embeddings sliding_window layer_types",
            {"num_key_value_heads": 32, "rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4},
            {"sliding_window_pattern": rules.exaone4_pattern}, check=rules.check_exaone4,
        ),
        GgufKeys("exaone4", "Exaone4ForCausalLM", used=GGUF_WINDOWS, complete=rules.complete_exaone4),
        norms=POST, qk_norm="heads", has_rope=rules.exaone4_has_rope,
    ),
    "hunyuan_v1_dense": Dense(
        "Hunyuan dense (0.5B to 7B; Tencent): a Llama with norms over each head of q and k after rope.",
        keys(
            "hidden_act tie_word_embeddings attention_bias", {"rms_norm_eps": 1e-5},
            neutral={
                "eod_token_id": "the end of a document; generation_config.json lists it if it ends a generation",
                **_SLICES,
            },
            refused=no_window("Hunyuan"), check=rules.check_hunyuan,
        ),
        GgufKeys(
            "hunyuan-dense", "HunYuanDenseV1ForCausalLM", constants={"attention_bias": False}, refused=_MULTIMODAL,
        ),
        qk_norm="heads", qk_names=("query_layernorm", "key_layernorm"), norm_after_rope=True,
        make_rope=rules.hunyuan_rope,
    ),
    "ernie4_5": Dense(
        "ERNIE 4.5 (dense; Baidu): a Llama with interleaved rope.",
        keys(
            "hidden_act tie_word_embeddings",
            {
                "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False,
            },
            {"use_bias": boolean}, refused=no_window("ERNIE 4.5"),
        ),
        GgufKeys("ernie4_5", "Ernie4_5ForCausalLM", constants={"use_bias": False}, refused=_MULTIMODAL),
        interleaved=True,
    ),
    "seed_oss": Dense(
        "Seed-OSS (ByteDance): a Llama with biases on q, k and v, and a separate head size.",
        keys(
            "hidden_act tie_word_embeddings attention_bias mlp_bias",
            {
                "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288, "attention_bias": True,
                "attention_out_bias": False,
            },
            {"attention_out_bias": boolean}, neutral={**_SLICES, "residual_dropout": _NO_DROPOUT},
            refused=no_window("Seed-OSS"),
        ),
        GgufKeys(
            "seed_oss", "SeedOssForCausalLM", constants={"attention_out_bias": False, "mlp_bias": False},
            complete=rules.attention_bias,
        ),
        norms={**PRE, "feed_forward_norm": ("post_attention_layernorm", "post_attention_norm")},
        bias=lambda config: "qkv" * config["attention_bias"] + "o" * config["attention_out_bias"],
    ),
    "starcoder2": Dense(
        "StarCoder 2: layer norms, an MLP without gate, and biases.",
        keys(
            "tie_word_embeddings sliding_window",
            {
                "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "norm_epsilon": 1e-5,
                "hidden_act": rules.GELU, "tie_word_embeddings": True, "sliding_window": None, "use_bias": True,
            },
            {"hidden_act": one_of(rules.GELU), "norm_epsilon": SIZES["rms_norm_eps"], "use_bias": boolean},
            neutral={
                "embedding_dropout": _NO_DROPOUT, "residual_dropout": _NO_DROPOUT,
                "mlp_type": "the same in all models", "norm_type": "the same in all models",
            },
            refused=one_kind_of_layer("StarCoder 2"), check=rules.check_starcoder2,
        ),
        GgufKeys(
            "starcoder2", "Starcoder2ForCausalLM", used={"rms_norm_eps": "attention.layer_norm_epsilon"},
            constants={"sliding_window": None, "use_bias": True},
            complete=lambda file, config: config.update(norm_epsilon=config["rms_norm_eps"]),
        ),
        layer_norm="biased",
        feed_forward=lambda names, layer: names.mlp(layer, Activation("gelu_tanh"), ("c_fc", "c_proj")),
    ),
    "cohere2": Dense(
        "Command R7B, Command A and Tiny Aya (Cohere): parallel attention and MLP, rope only in layers with a"
        " window.",
        keys(
            "hidden_act tie_word_embeddings attention_bias sliding_window layer_types",
            {
                "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5,
                "tie_word_embeddings": True, "logit_scale": 0.0625, "sliding_window": 4096, "sliding_window_pattern": 4,
            },
            {
                "layer_norm_eps": SIZES["rms_norm_eps"], "logit_scale": _MULTIPLIER,
                "sliding_window_pattern": window_pattern,
            },
            neutral=_OWN_CACHE,
            refused={
                "rotary_pct": Refusal("rotates a part of each head, which transformers ignores", unless=(None, 1)),
                "use_gated_activation": Refusal("selects an MLP without gate", unless=(None, True)),
                "use_parallel_block": Refusal("puts the MLP after attention", unless=(None, True)),
                "use_qk_norm": Refusal(
                    "adds norms to queries and keys, which transformers' Cohere 2 ignores", unless=(None, False),
                ),
            },
            check=rules.check_cohere2,
        ),
        GgufKeys(
            "cohere2", "Cohere2ForCausalLM",
            used={"rms_norm_eps": "attention.layer_norm_epsilon", "logit_scale": "logit_scale", **GGUF_WINDOWS},
            constants={"attention_bias": False}, complete=rules.complete_cohere2,
        ),
        layer_norm="plain", norms={"mixer_norm": PRE["mixer_norm"]}, parallel=True, interleaved=True,
        has_rope=lambda config, layer: window_of(config, layer) is not None,
    ),
    "arcee": Dense(
        "Arcee's AFM: a Llama with an MLP of squared ReLU without gate.",
        keys(
            "tie_word_embeddings attention_bias mlp_bias",
            {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "relu2"},
            {"hidden_act": one_of("relu2")}, refused=no_window("Arcee"), check=check_even_heads,
        ),
        GgufKeys("arcee", "ArceeForCausalLM", constants={"mlp_bias": False}, complete=rules.attention_bias),
        pairs=True, feed_forward=lambda names, layer: names.mlp(layer, Activation("relu_squared")),
    ),
    "apertus": Dense(
        "Apertus (the Swiss AI initiative): norms over each head of q and k, and an MLP of xIELU without gate.",
        keys(
            "tie_word_embeddings attention_bias",
            {
                "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 12000000.0,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                },
                "hidden_act": "xielu",
            },
            {"hidden_act": one_of("xielu")}, refused=no_window("Apertus"), check=rules.check_apertus,
        ),
        GgufKeys("apertus", "ApertusForCausalLM", complete=rules.attention_bias),
        norms={
            "mixer_norm": ("attention_layernorm", "attn_norm"),
            "feed_forward_norm": ("feedforward_layernorm", "ffn_norm"),
        },
        qk_norm="heads", feed_forward=rules.xielu_mlp,
    ),
}
# fmt: on
"""``model_type`` -> the family."""

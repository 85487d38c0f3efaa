"""Text encoders, one row each: they compute a row for every token of a text and generate none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures import modern_bert
from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.families import dense
from ipex_lookahead.architectures.hparams import MAX_LAYERS, SIZES, Check, Source, boolean, integer, one_of
from ipex_lookahead.architectures.keys import LOCAL_THETA, ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.spec import Attention
from ipex_lookahead.architectures.text_encoder import (
    ACTIVATIONS,
    BERT,
    DENSE,
    Config,
    Parts,
    TextEncoder,
    chains,
    check_bert,
    complete_bert,
    complete_labels,
    post_norm,
)
from ipex_lookahead.architectures.windows import gguf_layer_types, layer_types
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

_log = logging.getLogger(__name__)

GEMMA = "gemma_embedding"
"""Name of EmbeddingGemma here: its ``model_type`` is that of a decoder, ``gemma3_text``."""
BOTH_WAYS = "use_bidirectional_attention"
"""Key that makes a ``gemma3_text`` an EmbeddingGemma."""

_NOT_CAUSAL: Mapping[str, Refusal] = {
    "attention.causal": Refusal("hides later tokens", unless=(0,)),
    "rope.scaling.type": Refusal(unless=("none",)),
}
_REFUSED = {
    "is_decoder": Refusal("hides later tokens", unless=(None, False)),
    "add_cross_attention": Refusal("requires attention to an encoder", unless=(None, False)),
}
_NEUTRAL = {
    "attention_probs_dropout_prob": "zero outside training",
    "classifier_dropout": "zero outside training",
    "hidden_dropout_prob": "zero outside training",
    "is_causal": "attention is never causal in this family",
    "sliding_window": "no layer of this family has a window",
    "tie_word_embeddings": "for the prediction of tokens",
}
_EPSILON = SIZES["rms_norm_eps"]
_ACTIVATION = one_of(*ACTIVATIONS)
_GGUF_NORM = {"rms_norm_eps": "attention.layer_norm_epsilon"}


def _keys(defaults: Config, own: Mapping[str, Check] | None = None, **more: Any) -> ConfigKeys:
    """Return the keys of an encoder in the order of BERT."""
    used = {
        "hidden_act": _ACTIVATION, "layer_norm_eps": _EPSILON, "type_vocab_size": integer(0, 1 << 16), **(own or {}),
    }  # fmt: skip
    first = {
        "rms_norm_eps": 1e-12, "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "type_vocab_size": 2,
    }  # fmt: skip
    position = Refusal("adds positions to scores, which transformers 5 ignores", unless=(None, "absolute"))
    more.setdefault("refused", {**_REFUSED, "position_embedding_type": position})
    return ConfigKeys(
        used=used, defaults={**first, **defaults}, neutral=_NEUTRAL, check=more.pop("check", check_bert), **more
    )


def _gguf(architecture: str, class_name: str, **more: Any) -> GgufKeys:
    """Return the keys of the GGUF files of an encoder in the order of BERT."""
    return GgufKeys(
        architecture, class_name, used=_GGUF_NORM, constants={"hidden_act": more.pop("activation", "gelu")},
        refused={"attention.causal": _NOT_CAUSAL["attention.causal"]}, complete=complete_bert, **more,
    )  # fmt: skip


# ---- BERT and RoBERTa ------------------------------------------------------------------------------------------------

_POOLER = ("pooler.dense", "classifier")
_HEAD = ("classifier.dense", "classifier.out_proj")


def _matrices(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}.weight" for name in names)


def _bert(config: Config) -> EncoderSpec:
    return post_norm(config, BERT, classifier=_POOLER, rotates=False)


def _roberta(config: Config) -> EncoderSpec:
    return post_norm(config, BERT, classifier=_HEAD, rotates=False, offset=config["pad_token_id"] + 1)


def _check_roberta(config: Config, source: Source) -> None:
    check_bert(config, source)
    if config["max_position_embeddings"] <= (first := config["pad_token_id"] + 1):
        raise source.error(
            "max_position_embeddings",
            f"is {config['max_position_embeddings']}; the first {first} rows of the table are not for tokens of a text",
        )


def _roberta_row(about: str) -> TextEncoder:
    return TextEncoder(
        about,
        # The table of positions begins with rows up to that of the token for padding.
        _keys({"pad_token_id": 1}, {"pad_token_id": integer(0, 1 << 16)}, check=_check_roberta),
        None,
        _roberta,
        ("roberta.",),
        unread=("pooler.", "lm_head.", "cls."),
        classifier=_matrices(_HEAD),
    )


# ---- DistilBERT ------------------------------------------------------------------------------------------------------

_DISTILLED = Parts(
    "transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm",
    "", "ffn.lin1", "ffn.lin2", "output_layer_norm",
)  # fmt: skip
_DISTILLED_HEAD = ("pre_classifier", "classifier")
_DISTILLED_KEYS = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim", "hidden_act": "activation",
}  # fmt: skip
"""Keys of other families -> keys of this one."""


def _distilled(config: Config) -> EncoderSpec:
    return post_norm(config, _DISTILLED, classifier=_DISTILLED_HEAD, between="relu")


def _respelled_distilled(raw: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return a config.json with the keys of other families, which take precedence in a saved folder."""
    found = dict(raw)
    for ours, theirs in _DISTILLED_KEYS.items():
        if found.get(ours) is None and found.get(theirs) is not None:
            found[ours] = SIZES.get(ours, _ACTIVATION)(source, theirs, found[theirs])
    return {**found, "type_vocab_size": 0, "layer_norm_eps": 1e-12}


# ---- Jina's BERT with ALiBi ------------------------------------------------------------------------------------------

JINA = "jina_bert"
"""Name of Jina's BERTs here: their ``model_type`` is ``bert``, with positions of the kind "alibi"."""
_JINA_V2 = replace(BERT, gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.wo", mlp_norm="mlp.layernorm", up_bias=False)


def _jina(config: Config) -> EncoderSpec:
    return post_norm(config, _JINA_V2, classifier=_POOLER, alibi=True)


# ---- rotating encoders in the order of BERT --------------------------------------------------------------------------

_NOMIC = replace(Parts(), attention_bias=False, up_bias=False, down_bias=False)
_GTE = replace(Parts(), up_bias=False)
_JINA = replace(Parts(), gate="", up="mlp.fc1", down="mlp.fc2")
_QKV = {f"self_attn.{x}_proj": ("self_attn.Wqkv", i, 3) for i, x in enumerate("qkv")}
_NOMIC_KEYS = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base",
}  # fmt: skip
"""transformers' keys -> keys of the files with the authors' own class."""
_NOMIC_FIXED = {
    "activation_function": ("swiglu",), "prenorm": (False,), "use_rms_norm": (False, None), "causal": (False,),
    "parallel_block": (False,), "rotary_emb_fraction": (1, 1.0), "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,), "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,),
    "moe_every_n_layers": (0, None), "num_experts": (0, None),
}  # fmt: skip
_TRAINED = 2048


def _respelled_nomic(raw: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return a config.json of the authors' own class with transformers' keys."""
    found = dict(raw)
    if found.get("n_embd") is None:
        return found
    for key, allowed in _NOMIC_FIXED.items():
        if key in found and not any(found[key] == one for one in allowed):
            raise UnsupportedModelError(
                f"{source.file}: {key} is {found[key]!r}; this family supports {' or '.join(map(repr, allowed))}"
            )
    for ours, theirs in _NOMIC_KEYS.items():
        if found.get(theirs) is not None:
            found[ours] = SIZES.get(ours, _EPSILON)(source, theirs, found[theirs])
    positions = integer(1, 1 << 24)(source, "n_positions", found.get("n_positions", _TRAINED))
    trained = found.get("max_trained_positions") or _TRAINED
    # Beyond the trained length, the authors' class changes the base of rope with the length of a text.
    found["max_position_embeddings"] = min(positions, integer(1, 1 << 24)(source, "max_trained_positions", trained))
    return {**found, "hidden_act": "silu", "rope_scaling": None}


def _rotating(about: str, keys: ConfigKeys, gguf: GgufKeys | None, parts: Parts, **more: Any) -> TextEncoder:
    head = more.pop("head", _POOLER)
    return TextEncoder(
        about, keys, gguf, lambda config: post_norm(config, parts, classifier=head, rotates=True),
        unread=("pooler.", "lm_head.", "cls.") if head is _HEAD else ("lm_head.", "cls."),
        classifier=_matrices(head), **more,
    )  # fmt: skip


# ---- EmbeddingGemma --------------------------------------------------------------------------------------------------

_DECODER = dense.FAMILIES["gemma3_text"]


def _gemma(config: Config) -> EncoderSpec:
    """A Gemma 3 in which rows see each other up to half a window."""
    decoder = _DECODER.spec({**config, "model_type": GEMMA, "tie_word_embeddings": True})
    layers = []
    for block in decoder.layers:
        assert isinstance(block.mixer, Attention)
        window = None if block.mixer.window is None else block.mixer.window // 2
        layers.append(replace(block, mixer=replace(block.mixer, window=window)))
    return EncoderSpec(
        model_type=GEMMA,
        hidden=decoder.hidden,
        embedding=decoder.embedding,
        embedding_multiplier=decoder.embedding_multiplier,
        chains=chains(config, tuple),
        layers=tuple(layers),
        final_norm=decoder.final_norm,
    )


def _check_gemma(config: Config, source: Source) -> None:
    _DECODER.KEYS.check(config, source)
    if not config[BOTH_WAYS]:
        raise source.error(BOTH_WAYS, "is false: the model generates text")
    if config["sliding_window"] is not None and config["sliding_window"] < 2:
        raise source.error("sliding_window", f"is {config['sliding_window']}; it must be at least 2")


def _complete_gemma(file: GgufSource, config: Config) -> None:
    config.setdefault("sliding_window", None)
    gguf_layer_types(file, config, "gemma-embedding", every=6)
    config["query_pre_attn_scalar"] = config["head_dim"]
    complete_labels(file, config)
    if not config[DENSE]:
        _log.warning(
            "%s: has no dense layers (dense_2, dense_3), so its vectors are not those of the original EmbeddingGemma;"
            " llama.cpp's converter writes them with --sentence-transformers-dense-modules",
            file.path,
        )


_GEMMA_KEYS = replace(
    _DECODER.KEYS,
    used={**_DECODER.KEYS.used, BOTH_WAYS: boolean},
    defaults={**_DECODER.KEYS.defaults, BOTH_WAYS: True},
    neutral={**_DECODER.KEYS.neutral, "is_causal": "this family's attention sees all tokens"},
    refused={key: one for key, one in _DECODER.KEYS.refused.items() if key != BOTH_WAYS},
    check=_check_gemma,
)

FAMILIES: Mapping[str, TextEncoder] = {
    "bert": TextEncoder(
        "BERT (MiniLM, bge, e5, gte, mxbai, arctic-embed), and cross-encoders of it: a table of positions, norms over"
        " sums.",
        _keys({}),
        _gguf("bert", "BertModel", rotates=False),
        _bert,
        ("bert.",),
        unread=("lm_head.", "cls."),
        classifier=_matrices(_POOLER),
    ),
    "roberta": _roberta_row("RoBERTa, and cross-encoders of it: a BERT with positions from the token for padding on."),
    "distilbert": TextEncoder(
        "DistilBERT (multi-qa-distilbert, msmarco-distilbert, distiluse): a BERT without token types.",
        replace(
            _keys({}),
            neutral={
                **_NEUTRAL,
                **dict.fromkeys(
                    ("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"), "zero outside training"
                ),
                **dict.fromkeys(_DISTILLED_KEYS.values(), "respelled as the key of other families"),
                "sinusoidal_pos_embds": "the table of positions is in the files",
            },
        ),
        None,
        _distilled,
        ("distilbert.",),
        unread=("vocab_", "qa_outputs."),
        classifier=_matrices(_DISTILLED_HEAD),
        respelled=_respelled_distilled,
    ),
    "camembert": _roberta_row("CamemBERT: a RoBERTa."),
    "xlm-roberta": _roberta_row(
        "XLM-R (bge-m3, multilingual-e5, arctic-embed-l-v2), and cross-encoders of it (bge-reranker-v2-m3): a RoBERTa."
    ),
    "nomic_bert": _rotating(
        "nomic-embed-text v1 and v1.5: a BERT with rope and gated MLPs, without biases.",
        _keys({"hidden_act": "silu", "rope_theta": 1000.0, "max_position_embeddings": _TRAINED}),
        _gguf("nomic-bert", "NomicBertModel", activation="silu"),
        _NOMIC,
        prefixes=("nomic_bert.", "bert."),
        renames=(
            ("encoder.layers.", "layers."), ("emb_ln.", "embeddings.LayerNorm."), (".attn.Wqkv.", ".self_attn.Wqkv."),
            (".attn.out_proj.", ".self_attn.o_proj."), (".fc11.", ".up_proj."), (".fc12.", ".gate_proj."),
            (".fc2.", ".down_proj."), (".norm1.", ".post_attention_layernorm."), (".norm2.", ".post_mlp_layernorm."),
        ),
        fused=_QKV,
        respelled=_respelled_nomic,
    ),
    "gte": _rotating(
        "gte-multilingual (as converted for transformers 5): a BERT with rope and gated MLPs.",
        _keys({"rope_theta": 160000.0, "max_position_embeddings": 8192, "type_vocab_size": 1}),
        None,
        _GTE,
        prefixes=("gte.", "new."),
        renames=(
            ("encoder.layer.", "layers."), (".attention.o_proj.", ".self_attn.o_proj."),
            (".attention.qkv_proj.", ".self_attn.Wqkv."), (".attn_ln.", ".post_attention_layernorm."),
            (".mlp_ln.", ".post_mlp_layernorm."),
        ),
        fused={**_QKV, "mlp.up_proj": ("mlp.up_gate_proj", 0, 2), "mlp.gate_proj": ("mlp.up_gate_proj", 1, 2)},
    ),
    "jina_embeddings_v3": _rotating(
        "jina-embeddings-v3 (as converted for transformers 5): a BERT with rope; without the adapters of its tasks.",
        _keys({
            "rope_theta": 20000.0, "max_position_embeddings": 8194, "type_vocab_size": 1, "rms_norm_eps": 1e-5,
            "layer_norm_eps": 1e-5,
        }),
        _gguf("jina-bert-v3", "JinaEmbeddingsV3Model"),
        _JINA,
        prefixes=("roberta.",),
        head=_HEAD,
    ),
    JINA: TextEncoder(
        "jina-embeddings-v2 (English, German, Spanish, Chinese; not code): a BERT with ALiBi and gated MLPs.",
        _keys(
            {"max_position_embeddings": 8192, "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
            {"position_embedding_type": one_of("alibi"), "feed_forward_type": one_of("geglu")},
            refused=_REFUSED,
        ),
        GgufKeys(
            "jina-bert-v2", "JinaBertModel", used=_GGUF_NORM, rotates=False,
            constants={"hidden_act": "gelu", "position_embedding_type": "alibi", "feed_forward_type": "geglu"},
            refused={"attention.causal": _NOT_CAUSAL["attention.causal"]},
            neutral={"attention.max_alibi_bias": "8 in this family"}, complete=complete_bert,
        ),
        _jina,
        ("bert.",),
        fused={"mlp.gate_proj": ("mlp.gated_layers", 0, 2), "mlp.up_proj": ("mlp.gated_layers", 1, 2)},
        unread=("lm_head.", "cls."),
        classifier=_matrices(_POOLER),
        foreign=("layer_norm_q", "layer_norm_k", ".layer_norm_1", ".layer_norm_2"),
    ),
    "modernbert": TextEncoder(
        "ModernBERT (gte-modernbert, granite-embedding r2, ettin, nomic modernbert-embed), and cross-encoders of it:"
        " gated MLPs, rope, windows in two of three layers.",
        ConfigKeys(
            used={
                "hidden_activation": _ACTIVATION, "norm_eps": _EPSILON, "norm_bias": boolean, "attention_bias": boolean,
                "mlp_bias": boolean, "local_attention": integer(2, 1 << 24), "layer_types": layer_types,
                "global_attn_every_n_layers": integer(1, MAX_LAYERS), LOCAL_THETA: SIZES["rope_theta"],
                "classifier_pooling": one_of("cls", "mean"), "classifier_bias": boolean,
                "classifier_activation": _ACTIVATION,
            },
            defaults={
                "rms_norm_eps": 1e-5, "rope_theta": modern_bert.GLOBAL_BASE, LOCAL_THETA: modern_bert.LOCAL_BASE,
                "max_position_embeddings": 8192, "hidden_activation": "gelu", "norm_eps": 1e-5, "norm_bias": False,
                "attention_bias": False, "mlp_bias": False, "local_attention": 128, "global_attn_every_n_layers": 3,
                "classifier_pooling": "cls", "classifier_bias": False, "classifier_activation": "gelu",
            },
            neutral={
                **_NEUTRAL,
                **dict.fromkeys(("mlp_dropout", "embedding_dropout"), "zero outside training"),
                "global_rope_theta": "respelled as rope_parameters", "local_rope_theta": "respelled as rope_parameters",
                "decoder_bias": "for the prediction of tokens", "sparse_prediction": "training only",
                "sparse_pred_ignore_index": "training only", "initializer_cutoff_factor": "training only",
                "deterministic_flash_attn": "the kernel for the same attention", "cls_token_id": "for the tokenizer",
            },
            refused=_REFUSED,
            check=modern_bert.check,
        ),
        GgufKeys(
            "modern-bert", "ModernBertModel",
            used={
                **_GGUF_NORM, "local_attention": "attention.sliding_window", LOCAL_THETA: "rope.freq_base_swa",
                "hidden_activation": "hidden_activation",
            },
            constants={
                "norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
                "classifier_activation": "gelu",
            },
            neutral={"attention.sliding_window_pattern": "read by the family"},
            refused={"attention.causal": _NOT_CAUSAL["attention.causal"]},
            complete=modern_bert.complete,
        ),
        modern_bert.spec,
        ("model.",),
        unread=("decoder.", "lm_head."),
        classifier=("head.dense.weight", "classifier.weight"),
        respelled=modern_bert.respelled,
    ),
    GEMMA: TextEncoder(
        "EmbeddingGemma: a Gemma 3 in which tokens see each other, in most layers up to half a window.",
        _GEMMA_KEYS,
        GgufKeys(
            "gemma-embedding", "Gemma3TextModel", used=dense.GGUF_WINDOWS,
            constants={"attention_bias": False, BOTH_WAYS: True},
            neutral=dict.fromkeys(
                ("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"), "sizes of tensors"
            ),
            refused={"attention.causal": _NOT_CAUSAL["attention.causal"]},
            complete=_complete_gemma,
            unused_tensors=("output.weight",),
        ),
        _gemma,
        ("language_model.model.", "model."),
        root="model.",
        unread=("lm_head.",),
    ),
}  # fmt: skip
"""Name of the family -> the family: its ``model_type``, except for EmbeddingGemma."""

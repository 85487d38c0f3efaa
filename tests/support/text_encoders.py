"""Tiny text encoders of transformers with random weights, as folders and as GGUF files.

The GGUF files have the names that llama.cpp's converter gives (``gguf.get_tensor_name_map``, from the names of the
authors' own classes) and the keys that it writes at the vendored sources of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import quantize
from safetensors.torch import save_file

from tests.support.jina_bert import JinaBertModel

VOCAB, HIDDEN, HEADS, LAYERS, INNER, POSITIONS = 101, 64, 4, 3, 96, 60
SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
    "intermediate_size": INNER, "max_position_embeddings": POSITIONS,
}  # fmt: skip
MODERN = {
    "layer_types": None, "local_attention": 8, "global_attn_every_n_layers": 3, "pad_token_id": 0, "eos_token_id": 1,
    "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 1,
}  # fmt: skip
JINA = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "type_vocab_size": 2}
GEMMA = {
    "use_bidirectional_attention": True, "sliding_window": 10, "head_dim": 16, "num_key_value_heads": 1,
    "query_pre_attn_scalar": 16, "sliding_window_pattern": 2,
}  # fmt: skip
LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
ONE_LABEL = {"id2label": {"0": "score"}, "label2id": {"score": 0}}


@dataclass(frozen=True)
class Case:
    """A tiny encoder.

    Attributes:
        model_type: of the config.
        class_name: transformers' class.
        options: further keys of the config.
        old: spells a tensor's name, and keys of the config, as the authors' own class does.
        gguf: architecture of its GGUF file; "" for none.
    """

    model_type: str
    class_name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    old: bool = False
    gguf: str = ""

    @property
    def scores(self) -> bool:
        """True for a cross-encoder."""
        return self.class_name.endswith("Classification")


CASES = {
    "bert": Case("bert", "BertModel", gguf="bert"),
    "bert-tanh": Case("bert", "BertModel", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "bert-relu": Case("bert", "BertModel", {"hidden_act": "relu", "layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "bert-score": Case("bert", "BertForSequenceClassification", ONE_LABEL),
    "bert-labels": Case("bert", "BertForSequenceClassification", LABELS),
    "bert-mlm": Case("bert", "BertForMaskedLM"),
    "roberta": Case("roberta", "RobertaModel", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "camembert": Case("camembert", "CamembertForMaskedLM", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "distilbert": Case("distilbert", "DistilBertModel", gguf="bert"),
    "distilbert-score": Case("distilbert", "DistilBertForSequenceClassification", {"activation": "relu", **ONE_LABEL}),
    "distilbert-mlm": Case("distilbert", "DistilBertForMaskedLM"),
    "xlm-roberta": Case("xlm-roberta", "XLMRobertaModel", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}, gguf="bert"),
    "xlm-roberta-pad": Case("xlm-roberta", "XLMRobertaModel", {"pad_token_id": 4}),
    "xlm-roberta-score": Case(
        "xlm-roberta", "XLMRobertaForSequenceClassification", {"type_vocab_size": 1, **ONE_LABEL}, gguf="bert"
    ),
    "nomic": Case("nomic_bert", "NomicBertModel"),
    "nomic-old": Case(
        "nomic_bert", "NomicBertModel", {"rope_parameters": {"rope_theta": 500.0}}, old=True, gguf="nomic-bert"
    ),
    "nomic-score": Case("nomic_bert", "NomicBertForSequenceClassification", ONE_LABEL),
    "gte": Case("gte", "GteModel", {"rope_parameters": {"rope_theta": 3000.0, "rope_type": "default"}}),
    "gte-old": Case("gte", "GteModel", {"type_vocab_size": 0}, old=True),
    "gte-score": Case("gte", "GteForSequenceClassification", ONE_LABEL),
    "jina-v3": Case("jina_embeddings_v3", "JinaEmbeddingsV3Model", gguf="jina-bert-v3"),
    "jina-v3-score": Case("jina_embeddings_v3", "JinaEmbeddingsV3ForSequenceClassification", ONE_LABEL),
    "jina-v2": Case("bert", "JinaBertModel", JINA, gguf="jina-bert-v2"),
    "jina-v2-heads": Case("bert", "JinaBertModel", {**JINA, "num_attention_heads": 6, "hidden_size": 48}),
    "modernbert": Case("modernbert", "ModernBertModel", MODERN, gguf="modern-bert"),
    "modernbert-mlm": Case("modernbert", "ModernBertForMaskedLM", MODERN),
    "modernbert-silu": Case(
        "modernbert", "ModernBertModel", {**MODERN, "hidden_activation": "silu"}, gguf="modern-bert"
    ),
    "modernbert-biases": Case(
        "modernbert", "ModernBertModel",
        {
            **MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "norm_eps": 1e-2,
            "global_attn_every_n_layers": 2,
            "rope_parameters": {"full_attention": {"rope_theta": 300.0}, "sliding_attention": {"rope_theta": 20.0}},
        },
    ),
    "modernbert-score": Case(
        "modernbert", "ModernBertForSequenceClassification", {**MODERN, "classifier_pooling": "cls", **ONE_LABEL},
        gguf="modern-bert",
    ),
    "modernbert-mean": Case(
        "modernbert", "ModernBertForSequenceClassification",
        {**MODERN, "classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "silu", **LABELS},
    ),
    "gemma": Case("gemma3_text", "Gemma3TextModel", GEMMA, gguf="gemma-embedding"),
}  # fmt: skip

_OLD_NAMES = {
    "nomic_bert": (
        ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), (".self_attn.o_proj", ".attn.out_proj"),
        (".self_attn.Wqkv", ".attn.Wqkv"), (".up_proj", ".fc11"), (".gate_proj", ".fc12"), (".down_proj", ".fc2"),
        (".post_attention_layernorm", ".norm1"), (".post_mlp_layernorm", ".norm2"),
    ),
    "gte": (
        ("layers.", "encoder.layer."), (".self_attn.o_proj", ".attention.o_proj"),
        (".self_attn.Wqkv", ".attention.qkv_proj"), (".post_attention_layernorm", ".attn_ln"),
        (".post_mlp_layernorm", ".mlp_ln"),
    ),
    "jina_embeddings_v3": (
        ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), (".self_attn.o_proj", ".mixer.out_proj"),
        (".self_attn.Wqkv", ".mixer.Wqkv"), (".post_attention_layernorm", ".norm1"), (".post_mlp_layernorm", ".norm2"),
    ),
}  # fmt: skip
_DISTILLED_KEYS = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
}  # fmt: skip
_OLD_KEYS = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon",
}  # fmt: skip


def build(name: str) -> Any:
    """Return transformers' model of a case in float32 with random weights: no norm is 1 and no bias is 0."""
    import transformers

    case = CASES[name]
    kind: Any = JinaBertModel if case.class_name == "JinaBertModel" else getattr(transformers, case.class_name)
    torch.manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        more = {} if kind is JinaBertModel else {"attn_implementation": "eager"}
        words = _DISTILLED_KEYS if case.model_type == "distilbert" else {}
        sizes = {words.get(key, key): value for key, value in {**SIZES, **case.options}.items()}
        model = kind(kind.config_class(**sizes, **more)).eval()
        for key, value in model.named_parameters():
            one = value.dim() == 1 and key.endswith("weight") and "gemma" not in case.model_type
            scale = 0.2 if value.dim() == 1 else (0.1 if "embeddings" in key else 1.5 * value.shape[-1] ** -0.5)
            value.copy_(torch.randn_like(value) * scale + (1.0 if one else 0.0))
    return model


def weights_of(model: Any, *, old: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors of a model as ``save_pretrained`` writes them, or as the authors' own class has them."""
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    tied = [name for name in state if name.endswith(("decoder.weight", "decoder.bias", "lm_head.weight"))]
    for name in tied:
        del state[name]
    if not old:
        return state
    kind = model.config.model_type
    fused: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        stem, _, part = name.rpartition(".")
        if stem.endswith("q_proj"):
            parts = [state[f"{stem[:-6]}{x}_proj.{part}"] for x in "qkv"]
            fused[f"{stem[:-6]}Wqkv.{part}"] = torch.cat(parts)
        elif kind == "gte" and stem.endswith("up_proj"):
            fused[f"{stem[:-7]}up_gate_proj.{part}"] = torch.cat([value, state[f"{stem[:-7]}gate_proj.{part}"]])
        elif not stem.endswith(("k_proj", "v_proj")) and not (kind == "gte" and stem.endswith("gate_proj")):
            fused[name] = value
    return {_old_name(kind, name): value for name, value in fused.items()}


def _old_name(kind: str, name: str) -> str:
    for own, other in _OLD_NAMES[kind]:
        name = name.replace(own, other)
    return name


def config_of(name: str, model: Any) -> dict[str, Any]:
    """Return the config.json of a case: the keys that the files of such models have, not transformers' defaults."""
    case = CASES[name]
    config = {**SIZES, **case.options, "model_type": case.model_type, "architectures": [case.class_name]}
    if case.model_type == "distilbert":
        config = {_DISTILLED_KEYS.get(key, key): value for key, value in config.items()}
    if case.old and case.model_type == "nomic_bert":
        config = {_OLD_KEYS.get(key, key): value for key, value in config.items()}
        config |= {
            "n_positions": config.pop("max_position_embeddings"), "activation_function": "swiglu", "prenorm": False,
            "rotary_emb_base": config.pop("rope_parameters")["rope_theta"], "rotary_emb_fraction": 1.0,
            "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "causal": False,
            "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "type_vocab_size": 2,
        }  # fmt: skip
    return config


def write_folder(
    folder: Path,
    name: str,
    model: Any,
    *,
    change: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any] = lambda config, tensors: None,
) -> Path:
    """Write a case as a Hugging Face folder; ``change`` may modify the config and the tensors before."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = config_of(name, model), weights_of(model, old=CASES[name].old)
    changed = change(config, tensors)
    tensors = tensors if changed is None else changed
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    return folder


# ---- GGUF ------------------------------------------------------------------------------------------------------------

_ARCHITECTURES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}


def write_gguf(
    file: Path,
    name: str,
    model: Any,
    *,
    quant: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, npt.NDArray[np.float32]]], Any] = lambda tensors: None,
) -> Path:
    """Write a case as a GGUF file; ``quant`` is the type of matrices with whole blocks, ``metadata`` further keys."""
    case, config = CASES[name], model.config
    writer = gguf.GGUFWriter(file, case.gguf)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_causal_attention(False)
    first = config.pad_token_id + 1 if case.model_type == "xlm-roberta" else 0
    writer.add_context_length(POSITIONS - first)
    if case.gguf != "gemma-embedding":
        writer.add_layer_norm_eps(
            config.norm_eps if case.gguf == "modern-bert" else getattr(config, "layer_norm_eps", 1e-12)
        )
    if case.gguf in ("nomic-bert", "jina-bert-v3"):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if case.gguf in ("bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3"):
        writer.add_token_type_count(getattr(config, "type_vocab_size", 1))
    if case.gguf in ("modern-bert", "gemma-embedding"):
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if case.gguf == "modern-bert":
        writer.add_sliding_window(config.local_attention)
        writer.add_sliding_window_pattern(3)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_vocab_size(VOCAB)
        writer.add_string("modern-bert.hidden_activation", config.hidden_activation)
        if case.scores:
            writer.add_uint32("modern-bert.classifier.pooling_type", {"mean": 1, "cls": 2}[config.classifier_pooling])
    if case.gguf == "gemma-embedding":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_sliding_window(GEMMA["sliding_window"])
        writer.add_sliding_window_pattern(2)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool, list: writer.add_array}
        add[type(value)](key, value)
    tensors = tensors_of(name, model, first)
    change(tensors)
    for key, value in tensors.items():
        kind = gguf.GGMLQuantizationType[quant]
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if value.ndim == 2 and value.shape[1] % block == 0 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(key, quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tensors_of(name: str, model: Any, first: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a case under llama.cpp's names."""
    case = CASES[name]
    names = gguf.get_tensor_name_map(_ARCHITECTURES[case.gguf], LAYERS)
    found: dict[str, npt.NDArray[np.float32]] = {}
    for key, value in weights_of(model, old=case.gguf in ("nomic-bert", "jina-bert-v3")).items():
        for prefix in ("bert.", "roberta.", "model.", "distilbert."):
            key = key.removeprefix(prefix)
        if key.startswith(("pooler.", "cls.", "lm_head.")) or key.endswith("position_ids"):
            continue
        if case.gguf == "modern-bert" and key.startswith("classifier."):
            key = key.replace("classifier.", "classifier.out_proj.")
        values = value.numpy()
        if key == "embeddings.position_embeddings.weight":
            values = values[first:]
        if case.gguf == "gemma-embedding" and key.endswith("norm.weight"):
            values = values + np.float32(1)
        into = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert into is not None, key
        found[into] = np.ascontiguousarray(values)
    return found

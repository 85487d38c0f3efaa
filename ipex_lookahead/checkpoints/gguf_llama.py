"""What a GGUF file of architecture ``llama`` says, in Hugging Face's words: config, tensor names, order of rows.

llama.cpp rotates neighbouring pairs of a head's values, Hugging Face rotates value i with value i + head_dim / 2. So
llama.cpp's converter reorders the rows of q and k inside each head; here whole rows are put back, which changes no bit
of any row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.gguf_keys import refuse_switches
from ipex_lookahead.checkpoints.gguf_reader import GgufFile, GgufTensor
from ipex_lookahead.checkpoints.hparams import (
    DIVISORS,
    MAX_CONTEXT,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    ROPE,
    Source,
    check_rope,
    check_sizes,
    shown,
    token_id,
    whole,
)
from ipex_lookahead.errors import UnsupportedModelError

ROPE_FREQS = "rope_freqs"
"""Name given to the tensor of per-pair frequency divisors, float32 [head_dim / 2]: how GGUF stores llama3 scaling."""

_KEYS = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.attention.key_length",
    "vocab_size": "llama.vocab_size",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "rope_scaling": "llama.rope.scaling.type",
    "rope_scaling.factor": "llama.rope.scaling.factor",
    "rope_scaling.original_max_position_embeddings": "llama.rope.scaling.original_context_length",
    "rope_scaling.attention_factor": "llama.rope.scaling.attn_factor",
    "rope_scaling.beta_fast": "llama.rope.scaling.yarn_beta_fast",
    "rope_scaling.beta_slow": "llama.rope.scaling.yarn_beta_slow",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
    "unk_token_id": "tokenizer.ggml.unknown_token_id",
    "eot_token_id": "tokenizer.ggml.eot_token_id",
    "eom_token_id": "tokenizer.ggml.eom_token_id",
}
_PER_LAYER = ("intermediate_size", "num_attention_heads", "num_key_value_heads")
_OPTIONAL = ("num_key_value_heads", "head_dim", "vocab_size", "rope_theta")

_MATRICES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class LlamaTensor:
    """A tensor under its Hugging Face name. ``rope_heads``: heads whose rows have to be put back, 0 for none."""

    source: GgufTensor
    rope_heads: int = 0

    def row_order(self) -> npt.NDArray[np.intp] | None:
        """Where each row of the file belongs, int [n_out], or None where rows stay."""
        if not self.rope_heads:
            return None
        rows = np.arange(self.source.shape[0], dtype=np.intp)
        half = self.source.shape[0] // self.rope_heads // 2
        order: npt.NDArray[np.intp] = rows.reshape(self.rope_heads, 2, half).swapaxes(1, 2).reshape(-1)
        return order


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The config of a Llama in a GGUF file whose tensor table has been read.

    Raises ModelFormatError for what is missing or out of range, UnsupportedModelError for what cannot be run.
    """
    metadata = file.metadata
    source = _source(file)
    refuse_switches(file)
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    layers = whole(1, MAX_LAYERS)(source, "num_hidden_layers", metadata.get(_KEYS["num_hidden_layers"]))
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
    ):
        value = metadata.get(_KEYS[key])
        if value is None and key not in _OPTIONAL:
            raise source.error(key, "is missing")
        if value is not None:
            if key in _PER_LAYER and isinstance(value, np.ndarray):
                value = _same_in_all_layers(source, key, value, layers)
            config[key] = _shortest(value)
    config.setdefault("rope_theta", 10000.0)
    config.setdefault("vocab_size", _embedding_rows(file))
    check_sizes(config, source)
    _check_head_sizes(file, config)
    _check_vocabulary(file, config)
    config["rope_scaling"] = _rope_scaling(file, config)
    config["hidden_act"] = "silu"
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    config.update(_token_ids(file, config))
    return config


def llama_tensors(file: GgufFile, config: dict[str, Any]) -> dict[str, LlamaTensor]:
    """Every tensor by its Hugging Face name, none missing, none left over, each of the shape ``config`` implies.

    Raises ModelFormatError for a missing tensor or a wrong shape, UnsupportedModelError for one that is unknown.
    """
    found: dict[str, LlamaTensor] = {}
    for name, gguf_name, shape, rope_heads in _expected(config):
        if gguf_name not in file.tensors:
            raise file.error(gguf_name, None, "is missing from the file")
        tensor = file.tensors[gguf_name]
        if tensor.shape != shape:
            raise file.error(
                gguf_name, tensor.entry, f"has shape {list(tensor.shape)}; the metadata asks for {list(shape)}"
            )
        if len(shape) == 1 and tensor.type.block > 1:
            raise UnsupportedModelError(
                f"{file.path}: {gguf_name} is a vector of type {tensor.type.name}; vectors must be F32, F16 or BF16"
            )
        found[name] = LlamaTensor(tensor, rope_heads)
    known = {tensor.source.name for tensor in found.values()}
    for name in file.tensors:
        # Some old converters stored the rope frequencies, which follow from the config, in every layer.
        if name not in known and not name.endswith((".attn_rot_embd.weight", ".rope_freqs.weight")):
            raise UnsupportedModelError(f"{file.path}: tensor {name} is not part of a Llama as this package knows it")
    return found


def _source(file: GgufFile) -> Source:
    return Source(file.path, {ours: (theirs, file.offsets.get(theirs)) for ours, theirs in _KEYS.items()})


def _same_in_all_layers(source: Source, key: str, values: npt.NDArray[np.generic], layers: int) -> Any:
    if len(values) != layers:
        raise source.error(key, f"has {len(values)} values for {layers} layers")
    if (values != values[0]).any():
        raise UnsupportedModelError(
            f"{source.file}: {source.places[key][0]} differs from layer to layer, which this package cannot run"
        )
    return values[0].item()


def _shortest(value: Any) -> Any:
    """A float32 as the shortest decimal that means it (1e-05, not 9.999999747378752e-06), as configs are written."""
    return float(str(np.float32(value))) if isinstance(value, float) and abs(value) < 3e38 else value


def _embedding_rows(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise file.error("token_embd.weight", None, "is missing from the file")
    return file.tensors["token_embd.weight"].shape[0]


def _check_head_sizes(file: GgufFile, config: dict[str, Any]) -> None:
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        source = Source(file.path, {key: (key, file.offsets.get(key))})
        value = whole(1, MAX_HEAD_DIM)(source, key, file.metadata.get(key, config["head_dim"]))
        if value != config["head_dim"]:
            raise UnsupportedModelError(
                f"{file.path}: {key} is {value}, not the head size {config['head_dim']}; this package cannot run that"
            )


def _check_vocabulary(file: GgufFile, config: dict[str, Any]) -> None:
    """The tokenizer's arrays fit each other and the embedding; their meaning is the tokenizer's to check."""
    offsets, vocab = file.offsets, config["vocab_size"]
    key = "tokenizer.ggml.tokens"
    if key not in file.metadata:
        return
    tokens = file.metadata[key]
    if not isinstance(tokens, list) or not 0 < len(tokens) <= vocab:
        count = len(tokens) if isinstance(tokens, list) else "no"
        raise file.error(key, offsets[key], f"has {count} tokens; it must be an array of 1 to {vocab} strings")
    for name, kind in (("scores", np.floating), ("token_type", np.integer)):
        key = f"tokenizer.ggml.{name}"
        values = file.metadata.get(key)
        if values is None:
            continue
        if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, kind):
            raise file.error(key, offsets[key], f"is not an array of {kind.__name__} numbers")
        if len(values) != len(tokens):
            raise file.error(key, offsets[key], f"has {len(values)} values for {len(tokens)} tokens")


def _token_ids(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    source, check = _source(file), token_id(config["vocab_size"])
    ids = {
        name: check(source, name, file.metadata[key])
        for name, key in _KEYS.items()
        if name.endswith("_token_id") and key in file.metadata
    }
    # A chat model's end of turn ends a generation too; Hugging Face says so with a list of end-of-sequence ids.
    ends = list(dict.fromkeys(ids[n] for n in ("eos_token_id", "eot_token_id", "eom_token_id") if n in ids))
    found: dict[str, Any] = {name: ids[name] for name in ("bos_token_id", "pad_token_id") if name in ids}
    if ends:
        found["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return found


def _rope_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any] | None:
    source = _source(file)
    kind = file.scalar("llama.rope.scaling.type", "linear")  # llama.cpp's default
    factor = file.scalar("llama.rope.scaling.factor")
    if factor is None:
        factor = file.scalar("llama.rope.scale_linear")  # the spelling before there was a type
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{file.path}: llama.rope.scaling.type is {shown(kind)}; none, linear and yarn are supported"
        )
    scaled = kind != "none" and factor not in (None, 0, 1)
    attention_factor = file.scalar("llama.rope.scaling.attn_factor", 1.0)
    if attention_factor != 1 and not (scaled and kind == "yarn"):
        # llama.cpp multiplies cos and sin by it whatever the type; Hugging Face has a word for that with yarn alone.
        raise UnsupportedModelError(
            f"{file.path}: llama.rope.scaling.attn_factor is {shown(attention_factor)} without yarn scaling, which "
            "this package cannot run; it must be 1, or not there"
        )
    if "rope_freqs.weight" in file.tensors:
        if scaled:
            raise UnsupportedModelError(f"{file.path}: both rope_freqs.weight and rope scaling of type {kind!r}")
        _check_frequency_divisors(file, config["head_dim"])
        return {"rope_type": "freq_factors"}
    if not scaled:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(factor)}
    if kind == "yarn":
        for name in ("original_max_position_embeddings", "beta_fast", "beta_slow"):
            if (value := file.scalar(_KEYS[f"rope_scaling.{name}"])) is not None:
                scaling[name] = _shortest(value)
        if attention_factor != 1:
            attention_factor = ROPE["attention_factor"](source, "rope_scaling.attention_factor", attention_factor)
            factor = ROPE["factor"](source, "rope_scaling.factor", factor)
            # llama.cpp multiplies YaRN's own factor by it, Hugging Face's attention_factor replaces that.
            scaling["attention_factor"] = attention_factor * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    scaling.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    whole(1, MAX_CONTEXT)(
        source, "rope_scaling.original_max_position_embeddings", scaling["original_max_position_embeddings"]
    )
    return check_rope(scaling, config["rope_theta"], source)


def _check_frequency_divisors(file: GgufFile, head_dim: int) -> None:
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.shape != (head_dim // 2,) or tensor.type.name != "F32":
        raise file.error(
            tensor.name,
            tensor.entry,
            f"is {tensor.type.name} {list(tensor.shape)}; it must be F32 [{head_dim // 2}], half a head",
        )
    values = np.frombuffer(file.file.read(tensor.offset, tensor.nbytes, tensor.name), np.float32)
    low, high = DIVISORS
    wrong = ~((values >= low) & (values <= high))  # NaN is neither
    if wrong.any():
        at = int(np.argmax(wrong))
        raise file.error(
            tensor.name, tensor.offset + 4 * at, f"divisor {at} is {values[at]}; it must be {low:g} to {high:g}"
        )


def _expected(config: dict[str, Any]) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Hugging Face name, GGUF name, shape and heads to reorder of every tensor that a config implies."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    query, key = heads * config["head_dim"], kv_heads * config["head_dim"]
    rope_heads = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
    shapes = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    found: list[tuple[str, str, tuple[int, ...], int]] = [
        ("model.embed_tokens.weight", "token_embd.weight", (vocab, hidden), 0)
    ]
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        found.append((f"{ours}.input_layernorm.weight", f"{theirs}.attn_norm.weight", (hidden,), 0))
        for name, gguf_name in _MATRICES.items():
            shape, turn = shapes[name], rope_heads.get(name, 0)
            found.append((f"{ours}.{name}.weight", f"{theirs}.{gguf_name}.weight", shape, turn))
            if config["attention_bias" if name.startswith("self_attn") else "mlp_bias"]:
                found.append((f"{ours}.{name}.bias", f"{theirs}.{gguf_name}.bias", shape[:1], turn))
        found.append((f"{ours}.post_attention_layernorm.weight", f"{theirs}.ffn_norm.weight", (hidden,), 0))
    found.append(("model.norm.weight", "output_norm.weight", (hidden,), 0))
    if not config["tie_word_embeddings"]:
        found.append(("lm_head.weight", "output.weight", (vocab, hidden), 0))
    if (config["rope_scaling"] or {}).get("rope_type") == "freq_factors":
        found.append((ROPE_FREQS, "rope_freqs.weight", (config["head_dim"] // 2,), 0))
    return found

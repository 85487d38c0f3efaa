"""Tiny Llama checkpoints with random weights: the same seed gives the same weights as a folder and as a GGUF file.

No tokenizer is written. The folder goes through the ``safetensors`` package and the GGUF file through the ``gguf``
package, so a reader of ours that passes on them agrees with an independent writer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats import quantize as low_bit_quantize
from ipex_lookahead.formats.base import PackedWeight

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """The sizes of a tiny model. ``rope_scaling`` is spelled as in a Hugging Face config."""

    vocab: int = 96
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    intermediate: int = 96
    tie: bool = True
    seed: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float = 10000.0
    context: int = 256

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    def config(self, dtype: str) -> dict[str, Any]:
        """The model's ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-05,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tie,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "torch_dtype": dtype,
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape by its Hugging Face name."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            found[at + "input_layernorm.weight"] = (self.hidden,)
            found[at + "post_attention_layernorm.weight"] = (self.hidden,)
            for name, shape, bias in (
                ("self_attn.q_proj", (query, self.hidden), self.attention_bias),
                ("self_attn.k_proj", (key, self.hidden), self.attention_bias),
                ("self_attn.v_proj", (key, self.hidden), self.attention_bias),
                ("self_attn.o_proj", (self.hidden, query), self.attention_bias),
                ("mlp.gate_proj", (self.intermediate, self.hidden), self.mlp_bias),
                ("mlp.up_proj", (self.intermediate, self.hidden), self.mlp_bias),
                ("mlp.down_proj", (self.hidden, self.intermediate), self.mlp_bias),
            ):
                found[f"{at}{name}.weight"] = shape
                if bias:
                    found[f"{at}{name}.bias"] = shape[:1]
        found["model.norm.weight"] = (self.hidden,)
        if not self.tie:
            found["lm_head.weight"] = (self.vocab, self.hidden)
        return found

    def weights(self) -> Weights:
        """Random weights, scaled so that activations keep their size from layer to layer."""
        rng = np.random.default_rng(self.seed)
        made: Weights = {}
        for name, shape in self.shapes().items():
            values = rng.standard_normal(shape)
            if name.endswith("norm.weight"):
                values = 1.0 + 0.1 * values
            elif name.endswith(".bias"):
                values = 0.1 * values
            elif "embed_tokens" in name or "lm_head" in name:
                values = 0.5 * values
            else:
                values = values / math.sqrt(shape[1])
            made[name] = values.astype(np.float32)
        return made


def write_tiny_llama(folder: str | Path, *, dtype: str = "float32", shards: int = 1, **sizes: Any) -> Path:
    """Write a Hugging Face folder (``config.json`` and safetensors) and return it.

    ``sizes`` are the fields of :class:`TinyLlama`: vocab, hidden, layers, heads, kv_heads, head_dim, intermediate,
    tie, seed, attention_bias, mlp_bias, rope_scaling, rope_theta, context. ``dtype`` is float32, float16 or bfloat16.
    """
    import torch
    from safetensors.torch import save_file

    tiny = TinyLlama(**sizes)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(dtype), indent=1), encoding="utf-8")
    weights = tiny.weights()
    names = sorted(weights)
    files = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    weight_map: dict[str, str] = {}
    for index, file in enumerate(files):
        part = names[index * len(names) // shards : (index + 1) * len(names) // shards]
        tensors = {name: torch.from_numpy(weights[name]).to(getattr(torch, dtype)) for name in part}
        save_file(tensors, str(folder / file), {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        total = sum(w.size for w in weights.values()) * (4 if dtype == "float32" else 2)
        index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index_json), encoding="utf-8")
    return folder


def write_tiny_gguf(
    file: str | Path,
    *,
    quant: str = "Q4_0",
    quants: Mapping[str, str] | None = None,
    split: int = 0,
    metadata: dict[str, Any] | None = None,
    **sizes: Any,
) -> Path:
    """Write the same model as :func:`write_tiny_llama` as a GGUF v3 file and return its path.

    ``quant`` is any type that is read, for every matrix whose rows it divides (others are F16, as in llama.cpp's
    converter); vectors stay F32. ``quants``: other types, by how the tensor's name in the file begins. What the gguf
    package does not make is made by this package, or random (IQ1 to IQ3). ``metadata`` are further keys, of Python's
    types. ``split``: most tensors of a part; the first part's path is returned then.
    """
    import gguf
    from gguf.quants import quantize

    tiny = TinyLlama(**sizes)
    file = Path(file)
    writer = gguf.GGUFWriter(file, "llama", split_max_tensors=split)
    writer.add_name("tiny")
    writer.add_block_count(tiny.layers)
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.hidden)
    writer.add_feed_forward_length(tiny.intermediate)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head)
    writer.add_value_length(tiny.head)
    writer.add_rope_dimension_count(tiny.head)
    writer.add_rope_freq_base(tiny.rope_theta)
    writer.add_layer_norm_rms_eps(1e-05)
    writer.add_vocab_size(tiny.vocab)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    _add_rope_scaling(writer, tiny)
    for key, value in (metadata or {}).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        (kinds | {list: writer.add_array})[type(value)](key, value)
    for name, values in tiny.weights().items():
        stored = _interleave_rope_rows(name, values, tiny)
        own = (other for start, other in (quants or {}).items() if gguf_name(name).startswith(start))
        kind = chosen = gguf.GGMLQuantizationType[next(own, quant)]
        if values.ndim == 1:
            chosen = gguf.GGMLQuantizationType.F32
        elif values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            chosen = gguf.GGMLQuantizationType.F16
        try:
            data = quantize(stored, chosen)
        except NotImplementedError:
            data = _ours(stored, chosen)
        writer.add_tensor(gguf_name(name), data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(file.parent.glob(f"{file.stem}-00001-of-*.gguf")) if split else file


def random_blocks(shape: tuple[int, ...], kind: Any, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Rows of blocks, uint8 [rows, bytes], of a type nobody here quantises to: random codes, scales 0.001 to 0.01."""
    import gguf

    rng = np.random.default_rng(seed)
    inputs, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // inputs, size), dtype=np.uint8)
    scales = (0.001 + rng.random(blocks.shape[:2], np.float32) * 0.009).astype(np.float16)
    if kind.name == "IQ1_M":  # a quarter of the scale above each of the last four words
        words = blocks[..., -8:].view(np.uint16)
        for part in range(4):
            words[..., part] = words[..., part] & 0xFFF | (scales.view(np.uint16) >> 4 * part & 15) << 12
    elif kind.name == "NVFP4":
        blocks[..., :4] = rng.integers(0, 0x7F, blocks[..., :4].shape)
    else:
        at = -2 if kind.name.startswith("TQ") else 0
        blocks[..., at : at + 2 or None] = scales[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _ours(values: npt.NDArray[np.float32], kind: Any) -> npt.NDArray[np.uint8]:
    if kind.name.startswith("IQ") and "4" not in kind.name or kind.name == "NVFP4":
        return random_blocks(values.shape, kind)
    low_bit = next(name for name, low_bit in FORMATS.items() if low_bit.gguf and low_bit.gguf.number == int(kind))
    packed = low_bit_quantize(PackedWeight("fp32", values.shape, values), low_bit)
    assert packed.scales is None  # blocks, as they are in the file
    return packed.codes  # type: ignore[return-value]


def gguf_name(name: str) -> str:
    """The GGUF name of a Llama tensor, from its Hugging Face name."""
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        name = name.replace(ours, theirs)
    return name


def llama3_frequency_divisors(head_dim: int, theta: float, scaling: dict[str, Any]) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter writes as ``rope_freqs.weight`` for ``rope_type: llama3``, float32 [head_dim / 2]."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    context = scaling["original_max_position_embeddings"]
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def _add_rope_scaling(writer: Any, tiny: TinyLlama) -> None:
    import gguf

    scaling = tiny.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_frequency_divisors(tiny.head, tiny.rope_theta, scaling))
    elif kind not in (None, "default"):
        raise ValueError(f"GGUF has no way to say rope scaling {kind!r}")


def _interleave_rope_rows(name: str, values: npt.NDArray[np.float32], tiny: TinyLlama) -> npt.NDArray[np.float32]:
    """llama.cpp pairs neighbouring rows of q and k for rope, Hugging Face pairs row i with row i + head / 2."""
    heads = tiny.heads if ".q_proj." in name else tiny.kv_heads if ".k_proj." in name else 0
    if not heads:
        return values
    split = values.reshape(heads, 2, tiny.head // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)

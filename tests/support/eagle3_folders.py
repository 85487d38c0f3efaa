"""Random EAGLE-3 heads, what they compute, and the folders that hold them.

The oracle is written from the formulas of the papers (arXiv 2503.01840; norms, residuals and what is fed back as vLLM's
and speculators' heads have them), in float32, on weights by the names of the folders that speculators writes.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import torch
from safetensors.torch import save_file

LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
EPSILON, THETA = 1e-5, 10000.0


@dataclass(frozen=True)
class Shape:
    """A head's sizes and switches; ``states`` are the target's hidden states that it reads, of so many layers each."""

    target: int = 64
    hidden: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    layers: int = 1
    vocab: int = 101
    outputs: int = 40
    states: tuple[int, ...] = (2, 3, 5)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    head_norms: bool = False
    biases: bool = False
    own_embedding: bool = False
    own_head: bool = True
    window: int | None = None
    scaling: dict[str, Any] | None = field(default=None, hash=False)


class Head:
    """Its weights, and what it computes of rows (token, features); the target gives what the head has not."""

    def __init__(self, shape: Shape, target: Any = None) -> None:
        s = self.shape = shape
        self.target = target
        self.weights: dict[str, torch.Tensor] = {}
        width = len(s.states) * s.target
        sizes: dict[str, tuple[int, ...]] = {"fc.weight": (s.hidden, width), "norm.weight": (s.hidden,)}
        sizes["layers.0.hidden_norm.weight"] = (s.hidden,)
        for layer in range(s.layers):
            read, name = 2 * s.hidden if layer == 0 else s.hidden, f"layers.{layer}"
            rows = {"q": s.heads * s.head_dim, "k": s.kv_heads * s.head_dim, "v": s.kv_heads * s.head_dim}
            linears = {f"self_attn.{x}_proj": (n, read) for x, n in rows.items()}
            linears["self_attn.o_proj"] = (s.hidden, rows["q"])
            linears |= {f"mlp.{x}_proj": (s.inner, s.hidden) for x in ("gate", "up")}
            linears["mlp.down_proj"] = (s.hidden, s.inner)
            for part, size in linears.items():
                sizes[f"{name}.{part}.weight"] = size
                if s.biases:
                    sizes[f"{name}.{part}.bias"] = size[:1]
            for part in ("input_layernorm", "post_attention_layernorm"):
                sizes[f"{name}.{part}.weight"] = (s.hidden,)
            if s.head_norms:
                sizes |= {f"{name}.self_attn.{x}_norm.weight": (s.head_dim,) for x in "qk"}
        if s.norm_before_fc:
            sizes["input_norm.weight"] = (width,)
        if s.fc_norm:
            sizes |= {f"fc_norm.{i}.weight": (s.target,) for i in range(len(s.states))}
        if s.own_embedding:
            sizes["embed_tokens.weight"] = (s.vocab, s.hidden)
        if s.own_head:
            sizes["lm_head.weight"] = (s.outputs, s.hidden)
        for name, size in sizes.items():
            chance = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(size, generator=chance)
            if "norm" in name:
                self.weights[name] = 1 + 0.3 * values
            elif name.endswith("bias"):
                self.weights[name] = 0.3 * values
            else:
                self.weights[name] = values / (1 if "embed" in name else math.sqrt(size[-1]))
        chance = torch.Generator().manual_seed(7)
        self.ids = torch.randperm(s.vocab, generator=chance)[: s.outputs].sort().values

    @property
    def embedding(self) -> torch.Tensor:
        own = self.weights.get("embed_tokens.weight")
        return self.target.get_input_embeddings().weight.detach() if own is None else own

    @property
    def lm_head(self) -> torch.Tensor:
        own = self.weights.get("lm_head.weight")
        return self.target.get_output_embeddings().weight.detach()[self.ids] if own is None else own

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weights[f"{name}.weight"]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def projected(self, features: torch.Tensor) -> torch.Tensor:
        """g [n, hidden] of the target's hidden states [n, states * target]."""
        s = self.shape
        if s.norm_before_fc:
            features = self.norm(features, "input_norm")
        if s.fc_norm:
            thirds = features.split(s.target, dim=-1)
            features = torch.cat([self.norm(one, f"fc_norm.{i}") for i, one in enumerate(thirds)], -1)
        return self.linear(features, "fc")

    def run(self, tokens: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [n], g [n, hidden] -> logits [n, outputs], and what is fed back as g of each row's successor."""
        s = self.shape
        normed = self.norm(g, "layers.0.hidden_norm")
        embedded = self.norm(self.embedding[tokens], "layers.0.input_layernorm")
        x = normed if s.norm_before_residual else g
        for layer in range(s.layers):
            name = f"layers.{layer}"
            read = torch.cat([embedded, normed], -1) if layer == 0 else self.norm(x, f"{name}.input_layernorm")
            x = x + self.attention(read, f"{name}.self_attn")
            y = self.norm(x, f"{name}.post_attention_layernorm")
            gate = torch.nn.functional.silu(self.linear(y, f"{name}.mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(y, f"{name}.mlp.up_proj"), f"{name}.mlp.down_proj")
        last = self.norm(x, "norm")
        return last @ self.lm_head.T, last if s.norm_output else x

    def attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        s, n = self.shape, len(x)
        q, k, v = (
            self.linear(x, f"{name}.{part}_proj").view(n, -1, s.head_dim).transpose(0, 1) for part in ("q", "k", "v")
        )
        if s.head_norms:
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        q, k = self.turned(q), self.turned(k)
        k, v = (one.repeat_interleave(s.heads // s.kv_heads, 0) for one in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(s.head_dim)
        at = torch.arange(n)
        seen = at[:, None] >= at
        if s.window is not None:
            seen &= at[:, None] - at < s.window
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return self.linear((weights @ v).transpose(0, 1).reshape(n, -1), f"{name}.o_proj")

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.shape.head_dim // 2
        angles = torch.arange(x.shape[1])[:, None] * self.frequencies()
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
        )

    def frequencies(self) -> torch.Tensor:
        plain = THETA ** -(torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim)
        if (scaling := self.shape.scaling) is None:
            return plain
        turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # in the original context
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return share * plain + (1 - share) * plain / scaling["factor"]

    def layer_config(self) -> dict[str, Any]:
        s = self.shape
        windows = {"layer_types": ["sliding_attention"] * s.layers, "sliding_window": s.window}
        return {
            "model_type": "qwen3" if s.head_norms else "llama", "hidden_size": s.hidden, "intermediate_size": s.inner,
            "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
            "head_dim": s.head_dim, "vocab_size": s.vocab, "rms_norm_eps": EPSILON, "rope_theta": THETA,
            "rope_scaling": s.scaling, "max_position_embeddings": 256, "hidden_act": "silu",
            "attention_bias": s.biases, "mlp_bias": s.biases, **(windows if s.window is not None else {}),
        }  # fmt: skip

    def head_config(self) -> dict[str, Any]:
        s = self.shape
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        return {
            "draft_vocab_size": s.outputs, "target_hidden_size": s.target, **{flag: getattr(s, flag) for flag in flags}
        }  # fmt: skip

    def maps(self) -> dict[str, torch.Tensor]:
        """``d2t`` and ``t2d``."""
        t2d = torch.zeros(self.shape.vocab, dtype=torch.bool)
        t2d[self.ids] = True
        return {"d2t": self.ids - torch.arange(self.shape.outputs), "t2d": t2d}

    def write_flat(self, folder: Path, **config: Any) -> Path:
        """As SpecForge and SGLang have it: ids of layers whose outputs are read."""
        ids = {"eagle_aux_hidden_state_layer_ids": [one - 1 for one in self.shape.states], "use_aux_hidden_state": True}
        named = {name.replace("layers.0.", "midlayer."): one for name, one in self.weights.items()}
        return _write(
            folder,
            {"architectures": ["LlamaForCausalLMEagle3"], **self.layer_config(), **self.head_config(),
             "eagle_config": ids, **config},
            {**named, **self.maps()},
        )  # fmt: skip

    def write_speculators(self, folder: Path, **config: Any) -> Path:
        """As speculators has it: ids of layers whose inputs are read."""
        return _write(
            folder,
            {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
             "transformer_layer_config": self.layer_config(), **self.head_config(),
             "eagle_aux_hidden_state_layer_ids": list(self.shape.states), **config},
            {**self.weights, **self.maps()},
        )  # fmt: skip

    def write_gguf(self, file: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
        """As llama.cpp's converter has it: ids of layers whose inputs are read, d2t of token ids, q and k in pairs.

        ``kind``: of matrices.
        """
        s = self.shape
        file.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(file, "eagle3")
        whole = {
            "block_count": s.layers, "context_length": 256, "embedding_length": s.hidden, "vocab_size": s.vocab,
            "feed_forward_length": s.inner, "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
            "attention.key_length": s.head_dim, "attention.value_length": s.head_dim, "target_hidden_size": s.target,
        }  # fmt: skip
        for name, value in whole.items():
            writer.add_uint32(f"eagle3.{name}", value)
        writer.add_float32("eagle3.attention.layer_norm_rms_epsilon", EPSILON)
        writer.add_float32("eagle3.rope.freq_base", THETA)
        writer.add_array("eagle3.target_layers", list(s.states))
        writer.add_bool("eagle3.norm_before_residual", s.norm_before_residual)
        writer.add_bool("eagle3.norm_before_fc", s.norm_before_fc)
        for name, values in self.weights.items():
            part, _, end = name.removeprefix("layers.").rpartition(".")
            layer, _, inner = part.partition(".")
            heads = {"self_attn.q_proj": s.heads, "self_attn.k_proj": s.kv_heads}.get(inner)
            if heads:
                values = (
                    values.reshape(heads, 2, s.head_dim // 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
                )
            named = f"blk.{layer}.{GGUF_NAMES[inner]}" if layer.isdigit() else GGUF_NAMES[part]
            if values.dim() == 2:
                data = gguf.quants.quantize(values.contiguous().numpy(), kind)
                writer.add_tensor(f"{named}.{end}", data, raw_dtype=kind)
            else:
                writer.add_tensor(f"{named}.{end}", values.contiguous().numpy())
        writer.add_tensor("d2t", self.ids.numpy())
        if s.scaling is not None:
            plain = THETA ** -(torch.arange(0, s.head_dim, 2) / s.head_dim)
            writer.add_tensor("rope_freqs.weight", (plain / self.frequencies()).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file


GGUF_NAMES = {
    "fc": "fc", "input_norm": "enc.output_norm", "norm": "output_norm", "lm_head": "output",
    "embed_tokens": "token_embd", "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}  # fmt: skip
"""What GGUF files call the parts, behind a layer's number."""


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder

"""Decoders that transformers lacks, in torch and float32, written from the formulas of the published models.

They are the oracle of ``bailing_moe_v2`` and ``minicpm``: a config with the keys of the hub's files, and parameters
with their names. They know no cache, and serve no engine.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class BailingMoeV2Config(LlamaConfig):
    """Keys of Ling and Ring 2.0."""

    model_type = "bailing_moe_v2"
    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 32768
    num_experts: int = 256
    num_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    moe_intermediate_size: int = 512
    first_k_dense_replace: int = 1
    partial_rotary_factor: float = 0.5
    routed_scaling_factor: float = 2.5
    score_function: str = "sigmoid"
    use_qk_norm: bool = True
    use_bias: bool = False
    use_qkv_bias: bool = False
    norm_topk_prob: bool = True
    moe_router_enable_expert_bias: bool = True
    num_nextn_predict_layers: int = 0


class MiniCPMConfig(LlamaConfig):
    """Keys of MiniCPM 1B, 2B and MiniCPM4."""

    model_type = "minicpm"
    tie_word_embeddings: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: float = 1.0


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight."""

    def __init__(self, n: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(n)), epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weight


class Mlp(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return made


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of [heads, n, d]; key heads are shared by consecutive query heads."""
    k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def turned(x: torch.Tensor, frequencies: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """Rotate value i of [heads, n, d] with value i + pairs, by the position times its frequency."""
    pairs = len(frequencies)
    angles = torch.arange(x.shape[1])[:, None].float() * frequencies
    cos, sin = angles.cos() * factor, angles.sin() * factor
    one, two, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1)


def frequencies_of(config: Any, size: int) -> torch.Tensor:
    """Float32 [size / 2], radians per position."""
    theta = config.rope_parameters["rope_theta"]
    return 1.0 / (theta ** (torch.arange(0, size, 2).float() / size))


class Gate(nn.Module):
    """The router of Ling: experts [n, used] and their weights, of the best groups by their two best experts."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        self.expert_bias = nn.Parameter(torch.zeros(config.num_experts))
        self.num_group, self.topk_group, self.top_k = config.n_group, config.topk_group, config.num_experts_per_tok
        self.scale = config.routed_scaling_factor

    @property
    def e_score_correction_bias(self) -> torch.Tensor:
        """The name that other families have for it."""
        return self.expert_bias

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = x @ self.weight.T
        scores = logits.sigmoid()
        wanted = scores + self.expert_bias
        groups = wanted.view(len(x), self.num_group, -1)
        best = groups.topk(2, -1).values.sum(-1).topk(self.topk_group, -1).indices
        kept = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best, True)
        wanted = groups.masked_fill(~kept[..., None], -math.inf).view(len(x), -1)
        chosen = wanted.topk(self.top_k, -1).indices
        weights = scores.gather(1, chosen)
        if self.top_k > 1:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * self.scale, chosen


class Mixture(nn.Module):
    """A router, experts, and shared ones as one MLP."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = Gate(config)
        self.experts = nn.ModuleList(Mlp(hidden, inner) for _ in range(config.num_experts))
        if config.num_shared_experts:
            self.shared_experts = Mlp(hidden, inner * config.num_shared_experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, weights, chosen = self.gate(x)
        rows = [
            sum(weight * self.experts[int(e)](row) for weight, e in zip(*of_row, strict=True))
            for row, *of_row in zip(x, weights, chosen, strict=True)
        ]
        made = torch.stack(rows)  # type: ignore[arg-type]
        return made + self.shared_experts(x) if hasattr(self, "shared_experts") else made


class FusedAttention(nn.Module):
    """Ling's attention: q, k and v in one matrix, norms over heads, a part of each rotated."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, hidden, d = config, config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.query_key_value = nn.Linear(hidden, (heads + 2 * kv_heads) * d, bias=False)
        self.dense = nn.Linear(heads * d, hidden, bias=False)
        if config.use_qk_norm:
            self.query_layernorm, self.key_layernorm = (RmsNorm(d, config.rms_norm_eps) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads, kv_heads, d = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        split = self.query_key_value(x).view(len(x), -1, d).transpose(0, 1)
        q, k, v = split[:heads], split[heads : heads + kv_heads], split[heads + kv_heads :]
        if self.config.use_qk_norm:
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        turn = frequencies_of(self.config, int(d * self.config.partial_rotary_factor))
        made = attend(turned(q, turn), turned(k, turn), v)
        out: torch.Tensor = self.dense(made.transpose(0, 1).reshape(len(x), -1))
        return out


class PlainAttention(nn.Module):
    """Llama's attention, with LongRoPE for the whole context."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, hidden = config, config.hidden_size
        heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(hidden, heads * d, bias=bias)
        self.k_proj, self.v_proj = (nn.Linear(hidden, kv_heads * d, bias=bias) for _ in range(2))
        self.o_proj = nn.Linear(heads * d, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        d, rope, factor = self.config.head_dim, self.config.rope_parameters, 1.0
        q, k, v = (one(x).view(len(x), -1, d).transpose(0, 1) for one in (self.q_proj, self.k_proj, self.v_proj))
        turn = frequencies_of(self.config, d)
        if rope["rope_type"] == "longrope":
            original, whole = rope["original_max_position_embeddings"], self.config.max_position_embeddings
            turn = turn / torch.tensor(rope["long_factor" if whole > original else "short_factor"])
            factor = math.sqrt(1 + math.log(whole / original) / math.log(original)) if whole > original else 1.0
        made = attend(turned(q, turn, factor), turned(k, turn, factor), v)
        out: torch.Tensor = self.o_proj(made.transpose(0, 1).reshape(len(x), -1))
        return out


class Layer(nn.Module):
    """x + scale * f(norm(x)) for attention and MLP."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.scale = 1.0
        if config.model_type == "minicpm":
            self.self_attn, self.mlp = PlainAttention(config), Mlp(config.hidden_size, config.intermediate_size)
            self.scale = config.scale_depth / math.sqrt(config.num_hidden_layers)
        else:
            dense = layer < config.first_k_dense_replace
            self.attention = FusedAttention(config)
            self.mlp = Mlp(config.hidden_size, config.intermediate_size) if dense else Mixture(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixer = self.self_attn if hasattr(self, "self_attn") else self.attention
        x = x + self.scale * mixer(self.input_layernorm(x))
        return x + self.scale * self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        table = nn.Embedding(config.vocab_size, config.hidden_size)
        setattr(self, "embed_tokens" if config.model_type == "minicpm" else "word_embeddings", table)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.scale = config.scale_emb if config.model_type == "minicpm" else 1.0

    @property
    def table(self) -> nn.Embedding:
        """The embedding, of either name."""
        found: nn.Embedding = self.embed_tokens if hasattr(self, "embed_tokens") else self.word_embeddings
        return found

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = [self.table(ids) * self.scale]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return (*states[:-1], self.norm(states[-1]))


class Reference(PreTrainedModel):
    """A decoder with its head, called as transformers' models are."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.divisor = config.hidden_size / config.dim_model_base if config.model_type == "minicpm" else 1.0
        self.post_init()

    @classmethod
    def from_config(cls, config: Any, **_: Any) -> Reference:
        """Return a model of ``config``, as transformers' automatic classes do."""
        return cls(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.table

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, output_hidden_states: bool = False, **_: Any) -> CausalLMOutput:
        states = [self.model(row) for row in input_ids]
        by_layer = tuple(torch.stack(one) for one in zip(*states, strict=True))
        return CausalLMOutput(
            logits=self.lm_head(by_layer[-1] / self.divisor), hidden_states=by_layer if output_hidden_states else None
        )


class BailingMoeV2ForCausalLM(Reference):
    """Ling and Ring 2.0."""

    config_class = BailingMoeV2Config
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.word_embeddings.weight"}


class MiniCPMForCausalLM(Reference):
    """MiniCPM."""

    config_class = MiniCPMConfig


MODELS: dict[str, type[Reference]] = {
    "bailing_moe_v2": BailingMoeV2ForCausalLM,
    "minicpm": MiniCPMForCausalLM,
}
"""``model_type`` -> the reference; of families that transformers lacks."""

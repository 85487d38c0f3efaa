"""Jina's BERT with ALiBi in torch, after the formulas of its paper (arXiv 2310.19923), with its folders' names."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class JinaBertModel(nn.Module):
    """The model; ``config_class`` takes the keys of a config.json."""

    config_class = SimpleNamespace
    base_model_prefix = "bert"

    def __init__(self, config: Any) -> None:
        super().__init__()
        config.model_type, config.layer_norm_eps, config.pad_token_id = "bert", 1e-12, 0
        config.type_vocab_size = getattr(config, "type_vocab_size", 2)
        self.config = config
        hidden = config.hidden_size
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, hidden)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, hidden)
        self.embeddings.LayerNorm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, ids: torch.Tensor, token_type_ids: torch.Tensor | None = None) -> Any:
        types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
        e = self.embeddings
        x = e.LayerNorm(e.word_embeddings(ids) + e.token_type_embeddings(types))
        at = torch.arange(ids.shape[1])
        distances = (at[None, :] - at[:, None]).abs()
        bias = -torch.tensor(slopes(self.config.num_attention_heads))[:, None, None] * distances
        for layer in self.encoder.layer:
            x = layer(x, bias)
        return SimpleNamespace(last_hidden_state=x)


class Layer(nn.Module):
    """Attention and a gated MLP, each with a norm over the sum."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, nn.Linear(hidden, hidden))
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(hidden, hidden)
        self.attention.output.LayerNorm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.mlp = nn.Module()
        self.mlp.gated_layers = nn.Linear(hidden, 2 * inner, bias=False)
        self.mlp.wo = nn.Linear(inner, hidden)
        self.mlp.layernorm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        inner: Any = self.attention.self
        q, k, v = (
            one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (inner.query, inner.key, inner.value)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + bias
        merged = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        output: Any = self.attention.output
        x = output.LayerNorm(x + output.dense(merged))
        mlp: Any = self.mlp
        gate, up = mlp.gated_layers(x).chunk(2, -1)
        return mlp.layernorm(x + mlp.wo(nn.functional.gelu(gate) * up))


def slopes(heads: int) -> list[float]:
    """The factors of a power of 2 of heads, then every second one of twice as many."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 / power * (i + 1)) for i in range(power)]
    second = [2 ** (-4 / power * (i + 1)) for i in range(2 * power)]
    return (first + second[0::2])[:heads]

"""An EAGLE-3 head of one layer in torch, in float32: the reference that the readers of heads are compared with.

Source: Li et al., EAGLE-3, 2025 (arXiv 2503.01840), with the names and the config of SpecForge's folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

FEATURES = 3
"""Hidden states of the target that a row is made of."""

Past = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of the steps so far, each [batch, kv heads, rows, head size]."""


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """Sizes of a head.

    Attributes:
        hidden: of its residual stream, and of the embedding.
        target_hidden: of the hidden states that it reads.
        layers: of which the target's hidden states are read, ascending: i = those after i layers.
        intermediate, heads, kv_heads, head_dim, eps, rope_theta, max_context: of its layer, as Llama's.
        vocab: of the target.
        draft_vocab: how many of these tokens it can say.
    """

    hidden: int
    target_hidden: int
    layers: tuple[int, int, int]
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    max_context: int
    vocab: int
    draft_vocab: int


class Norm(nn.Module):
    """RMS norm in float32, [..., size] -> [..., size]."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Llama's, but for its inputs, which are twice as wide."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        self.frequencies: torch.Tensor
        self.register_buffer("frequencies", shape.rope_theta**-half, persistent=False)

    def forward(self, x: torch.Tensor, past: Past) -> torch.Tensor:
        """Rows [batch, rows, 2 * hidden] of step len(past), whose keys and values are added to ``past``.

        Row P of a step sees rows 0 .. P of the first step, and the rows P of those since: the tokens of its own chain.
        """
        batch, rows, _ = x.shape
        q, k, v = (
            proj(x).view(batch, rows, -1, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        turns = (torch.arange(rows, dtype=torch.float64) + len(past))[:, None] * self.frequencies
        q, k = _turned(q, turns), _turned(k, turns)
        past.append((k, v))
        groups = self.heads // self.kv_heads
        keys = [k.repeat_interleave(groups, 1) for k, _ in past]
        values = [v.repeat_interleave(groups, 1) for _, v in past]
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(later, float("-inf"))]
        scores += [(q * own).sum(-1, keepdim=True) for own in keys[1:]]
        weights = (torch.cat(scores, -1) * self.head_dim**-0.5).softmax(-1)
        out = weights[..., :rows] @ values[0]
        for number, own in enumerate(values[1:]):
            out = out + weights[..., rows + number, None] * own
        found: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, rows, -1))
        return found


class Mlp(nn.Module):
    """Llama's, [..., hidden] -> [..., hidden]."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        found: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Layer(nn.Module):
    """The layer: the embedding of the known token beside what is known of the position before it."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, embedded: torch.Tensor, g: torch.Tensor, past: Past) -> torch.Tensor:
        """Embeddings and g, each [batch, rows, hidden], of step len(past) -> [batch, rows, hidden], not normed."""
        x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(g)], -1)
        y = g + self.self_attn(x, past)
        found: torch.Tensor = y + self.mlp(self.post_attention_layernorm(y))
        return found


class Eagle3(nn.Module):
    """A head. Its parameters and buffers have the names of SpecForge's files; the embedding is the target's.

    Args:
        shape: its sizes.
        embedding: float32 [vocab, hidden], the target's; not a part of the state.
        ids: int64 [draft_vocab], the token that each output stands for, ascending.
    """

    def __init__(self, shape: Eagle3Shape, embedding: torch.Tensor, ids: torch.Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.embedding: torch.Tensor
        self.d2t: torch.Tensor
        self.t2d: torch.Tensor
        self.register_buffer("embedding", embedding, persistent=False)
        self.fc = nn.Linear(FEATURES * shape.target_hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)
        self.register_buffer("d2t", ids - torch.arange(shape.draft_vocab))
        said = torch.zeros(shape.vocab, dtype=torch.bool)
        said[ids] = True
        self.register_buffer("t2d", said)

    @property
    def ids(self) -> torch.Tensor:
        """int64 [draft_vocab], the token that each output stands for."""
        return self.d2t + torch.arange(len(self.d2t))

    def step(self, tokens: torch.Tensor, g: torch.Tensor, past: Past) -> torch.Tensor:
        """One token more for each row's chain.

        Args:
            tokens: int64 [batch, rows]; of the first step the token after each position, then what was said last.
            g: float32 [batch, rows, hidden]; of the first step ``fc`` of the features, then what this gave last.
            past: of the steps so far; this one's keys and values are added.

        Returns:
            float32 [batch, rows, hidden], not normed: ``logits`` reads it, and the next step.
        """
        found: torch.Tensor = self.midlayer(functional.embedding(tokens, self.embedding), g, past)
        return found

    def logits(self, out: torch.Tensor) -> torch.Tensor:
        """float32 [..., draft_vocab] of [..., hidden]."""
        found: torch.Tensor = self.lm_head(self.norm(out))
        return found


def same(out: torch.Tensor) -> torch.Tensor:
    """What goes into the next step as it is: SpecForge's and SGLang's reading."""
    return out


@torch.no_grad()
def chains(
    head: Eagle3,
    tokens: torch.Tensor,
    features: torch.Tensor,
    depth: int,
    feed_back: Callable[[torch.Tensor], torch.Tensor] = same,
) -> torch.Tensor:
    """What the head drafts behind each token of a text, greedily.

    Args:
        head: the head.
        tokens: int64 [n], a text.
        features: float32 [n, 3 * target_hidden], the target's at each of its positions.
        depth: tokens of a chain.
        feed_back: what of a step's output goes into the next; another one is a wrong reading.

    Returns:
        int64 [n - 1, depth]: row P is drafted where tokens 0 .. P + 1 are known, and stands for those from P + 2 on.
    """
    said, g, past = tokens[None, 1:], head.fc(features[None, :-1]), Past()
    drafted = []
    for _ in range(depth):
        out = head.step(said, g, past)
        said = head.ids[head.logits(out).argmax(-1)]
        drafted.append(said[0])
        g = feed_back(out)
    return torch.stack(drafted, -1)


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """RoPE of halves: x [batch, heads, rows, head size] by the angles ``turns`` [rows, head size / 2]."""
    one, other = x.chunk(2, -1)
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Chains of a head along texts, each begun where the last one's accepted tokens and the target's own end.

    Attributes:
        drafted: number of chains that had a token at each depth.
        accepted: number of chains in which that token and those before it were the target's.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Accepted share of the drafted tokens, 0 to 1."""
        return sum(self.accepted) / max(1, sum(self.drafted))

    @property
    def by_depth(self) -> tuple[float, ...]:
        """Share of the chains that were accepted to each depth, 0 to 1."""
        return tuple(yes / max(1, of) for yes, of in zip(self.accepted, self.drafted, strict=True))


def walked(texts: Iterable[tuple[torch.Tensor, torch.Tensor, int]], depth: int) -> Acceptance:
    """Walk along texts as decoding does.

    Args:
        texts: for each text its tokens, int64 [n]; the drafts, int64 [n - 1, depth], as :func:`chains` returns them;
            and the number of prompt tokens.
        depth: tokens of a chain.
    """
    drafted, accepted = [0] * depth, [0] * depth
    for tokens, drafts, prompt in texts:
        row = prompt - 1
        while row + 1 + depth < len(tokens):
            said = tokens[row + 2 : row + 2 + depth]
            right = (drafts[row, : len(said)] == said).long().cumprod(0)
            taken = int(right.sum())
            for at in range(depth):
                drafted[at] += 1
                accepted[at] += at < taken
            row += 1 + taken
    return Acceptance(tuple(drafted), tuple(accepted))


def load_head(folder: Path, embedding: torch.Tensor) -> Eagle3:
    """Load the head of a SpecForge folder in float32, with the target's embedding [vocab, hidden]."""
    config = json.loads((folder / "config.json").read_text())
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    shape = Eagle3Shape(
        hidden=config["hidden_size"],
        target_hidden=config["target_hidden_size"],
        layers=(ids[0] + 1, ids[1] + 1, ids[2] + 1),
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        max_context=config["max_position_embeddings"],
        vocab=config["vocab_size"],
        draft_vocab=config["draft_vocab_size"],
    )
    tensors = load_file(folder / "model.safetensors")
    head = Eagle3(shape, embedding, tensors["d2t"] + torch.arange(shape.draft_vocab))
    head.load_state_dict({name: one.float() if one.is_floating_point() else one for name, one in tensors.items()})
    return head.eval()

"""The head in torch, beside one put together of transformers' layers, which reads one chain a time as any text."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="5", reason="the oracle is put together of transformers 5's layers")
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

from ipex_lookahead.training.eagle3 import Eagle3, Eagle3Shape, chains

SHAPE = Eagle3Shape(
    hidden=32,
    target_hidden=32,
    layers=(1, 2, 3),
    intermediate=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    eps=1e-5,
    rope_theta=10_000.0,
    max_context=64,
    vocab=50,
    draft_vocab=20,
)


def random_head(seed: int = 0) -> Eagle3:
    torch.manual_seed(seed)
    ids = torch.randperm(SHAPE.vocab)[: SHAPE.draft_vocab].sort().values
    head = Eagle3(SHAPE, torch.randn(SHAPE.vocab, SHAPE.hidden), ids, torch.randn(SHAPE.draft_vocab, SHAPE.hidden))
    with torch.no_grad():
        for name, one in head.named_parameters():
            one.copy_(1 + 0.2 * torch.randn_like(one) if "norm" in name else 0.3 * torch.randn_like(one))
    return head.eval()


def theirs(head: Eagle3) -> tuple[llama.LlamaAttention, llama.LlamaMLP, llama.LlamaRotaryEmbedding]:
    config = LlamaConfig(
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.intermediate,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        rms_norm_eps=SHAPE.eps,
        vocab_size=SHAPE.vocab,
        attn_implementation="eager",
    )
    attention, mlp = llama.LlamaAttention(config, 0), llama.LlamaMLP(config)
    for name, size in (("q_proj", SHAPE.heads), ("k_proj", SHAPE.kv_heads), ("v_proj", SHAPE.kv_heads)):
        setattr(attention, name, nn.Linear(2 * SHAPE.hidden, size * SHAPE.head_dim, bias=False))
    attention.load_state_dict(head.midlayer.self_attn.state_dict())
    mlp.load_state_dict(head.midlayer.mlp.state_dict())
    return attention.eval(), mlp.eval(), llama.LlamaRotaryEmbedding(config)


def norm(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = llama.LlamaRMSNorm(SHAPE.hidden, SHAPE.eps)
    made.weight = nn.Parameter(weight)
    return made(x)


@torch.no_grad()
def one_chain(head: Eagle3, tokens: torch.Tensor, features: torch.Tensor, depth: int) -> list[int]:
    """What follows ``tokens``, of which all but the last have features: rows as a text, read again for each token."""
    attention, mlp, rope = theirs(head)
    layer = head.midlayer
    said = tokens[1:].tolist()
    g = head.fc(features[: len(tokens) - 1])
    for _ in range(depth):
        e = head.embedding[torch.tensor(said)]
        x = torch.cat([norm(layer.input_layernorm.weight, e), norm(layer.hidden_norm.weight, g)], -1)[None]
        rows = x.shape[1]
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        y = g + attention(x, rope(x, torch.arange(rows)[None]), mask)[0][0]
        out = y + mlp(norm(layer.post_attention_layernorm.weight, y))
        logits = norm(head.norm.weight, out[-1:]) @ head.lm_head.weight.T
        said.append(int(head.ids[logits.argmax()]))
        g = torch.cat([g, out[-1:]])
    return said[len(tokens) - 1 :]


@pytest.mark.parametrize("seed", range(3))
def test_all_chains_of_a_text_are_those_of_transformers_layers_one_by_one(seed: int) -> None:
    head = random_head(seed)
    tokens, features = torch.randint(0, SHAPE.vocab, (12,)), torch.randn(12, 3 * SHAPE.target_hidden)
    drafts = chains(head, tokens, features, 4)
    assert drafts.shape == (11, 4)
    for row in range(11):
        assert drafts[row].tolist() == one_chain(head, tokens[: row + 2], features, 4)
    assert len({tuple(row.tolist()) for row in drafts}) > 3  # they are not the same chain eleven times


def test_what_is_fed_back_matters() -> None:
    head = random_head()
    tokens, features = torch.randint(0, SHAPE.vocab, (12,)), torch.randn(12, 3 * SHAPE.target_hidden)
    right, wrong = chains(head, tokens, features, 4), chains(head, tokens, features, 4, head.norm)
    assert (right[:, 0] == wrong[:, 0]).all()
    assert (right != wrong).any()


def test_the_lm_head_says_the_words_it_was_given_and_is_not_taught() -> None:
    head = random_head()
    assert head.ids.tolist() == sorted(head.ids.tolist())
    assert head.t2d.nonzero().flatten().tolist() == head.ids.tolist()
    assert not head.lm_head.weight.requires_grad
    assert "embedding" not in head.state_dict()

"""What a head takes of the model it drafts for: sizes, which hidden states, words, and the weights that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.architectures.spec import Attention, GatedMlp, ModelSpec
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.linear import plain
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.formats import dequantize
from ipex_lookahead.training.eagle3 import Eagle3, Eagle3Shape

HEAD_DIM = 64
"""Of a head whose target has no attention like Llama's."""
EPSILON = 1e-5
MOST_WORDS, LEAST_WORDS = 32_768, 8_192
"""Bounds of a head's vocabulary where none is asked for, which is a quarter of the target's."""


def layers_of(count: int) -> tuple[int, int, int]:
    """Of which layers a head reads the hidden states, i = those after i of ``count``.

    EAGLE-3's are 2, the middle one and the last but 3, which are three different ones from 7 layers on. Smaller models
    give those after the first, the middle and the last but one. Raises UnsupportedModelError below 4 layers.
    """
    if count < 4:
        raise UnsupportedModelError(f"the model has {count} layers; a head reads three different ones of 4 or more")
    return (2, count // 2, count - 3) if count >= 7 else (1, count // 2, count - 1)


def words_of(vocab: int, asked: int | None) -> int:
    """How many tokens a head can say."""
    if asked is not None:
        return min(asked, vocab)
    return min(vocab, max(LEAST_WORDS, min(MOST_WORDS, vocab // 4)))


def shape_of(spec: ModelSpec, config: Mapping[str, Any], words: int) -> Eagle3Shape:
    """A head whose layer has the sizes of the target's, where that has layers like Llama's."""
    attention = next((b.mixer for b in reversed(spec.layers) if isinstance(b.mixer, Attention)), None)
    dense = next((b.feed_forward for b in reversed(spec.layers) if isinstance(b.feed_forward, GatedMlp)), None)
    heads = max(1, spec.hidden // HEAD_DIM)
    return Eagle3Shape(
        hidden=spec.hidden,
        target_hidden=spec.hidden,
        layers=layers_of(len(spec.layers)),
        intermediate=3 * spec.hidden if dense is None else dense.down.weight.shape[1],
        heads=heads if attention is None else attention.heads,
        kv_heads=heads if attention is None else attention.kv_heads,
        head_dim=HEAD_DIM if attention is None else attention.head_dim,
        eps=EPSILON,
        rope_theta=float(config.get("rope_theta") or 10_000.0),
        max_context=spec.max_context,
        vocab=spec.vocab,
        draft_vocab=words,
    )


def most_frequent(counts: npt.NDArray[np.int64], words: int) -> npt.NDArray[np.int64]:
    """The ``words`` most frequent tokens, ascending ids; the lower id first among equals, as merges are numbered.

    Args:
        counts: int64 [vocab].
        words: how many.
    """
    return np.sort(np.argsort(-counts, kind="stable")[:words])


def new_head(engine: NativeEngine, shape: Eagle3Shape, ids: npt.NDArray[np.int64], seed: int) -> Eagle3:
    """A head that nothing has been taught: random, but for the target's embedding, norm and rows of its lm_head."""
    embedding = dequantize(plain(engine.decoder.export_matrix("embedding")))
    rows = embedding if engine.spec.tied else dequantize(plain(engine.decoder.export_matrix("head.weight")))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3(shape, torch.from_numpy(embedding), torch.from_numpy(ids), torch.from_numpy(rows[ids]))
    with torch.no_grad():
        head.norm.weight.copy_(torch.from_numpy(engine.decoder.export_vector("final_norm.weight")))
    return head

"""What an EAGLE-3 head accepts in torch, read rightly and in each wrong way that no error tells.

Readers of heads are compared with this: whoever is within a point of the right reading reads as it was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.native.linear import plain
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.formats import dequantize
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.eagle3_torch import Acceptance, Eagle3, chains, load_head, same, walked

WRONG = ("ids one low", "ids one high", "final norm", "fed back normed", "one position off", "no prompt")
"""Readings that lose acceptance: hidden states of the layers before or behind, those of the final norm laid over all,
the output normed before it goes back in, features of the position before, and no keys of the prompt."""


@dataclass(frozen=True)
class Reference:
    """A target on the native engine, and its head in float32."""

    model: TextModel
    head: Eagle3

    @classmethod
    def load(cls, target: Path, folder: Path) -> Reference:
        """Of a target's folder and a head's."""
        model = load_text_model(str(target), progress=False)
        return cls(model, load_head(folder, embedding_of(model)))

    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """The target's hidden states after these layers, float32 [n, layers * hidden]."""
        engine = self.model.engine
        wants = OutputRequest(hidden=tuple(sorted({*layers})))
        found = engine.forward(chain(engine.new_cache(), np.array(ids, np.int32), wants)).hidden
        assert found is not None
        return torch.from_numpy(np.concatenate([found[layer] for layer in layers], -1))


def embedding_of(model: TextModel) -> torch.Tensor:
    """float32 [vocab, hidden]."""
    return torch.from_numpy(dequantize(plain(model.engine.decoder.export_matrix("embedding"))))


def greedy_texts(model: TextModel, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[list[int], int]]:
    """Each prompt with the model's answer of the most likely tokens, and how long the prompt is."""
    rules = SamplingParams(tokens, temperature=0.0)
    return [([*prompt, *model.generate(prompt, rules)], len(prompt)) for prompt in prompts]


def acceptance(
    reference: Reference, texts: Sequence[tuple[Sequence[int], int]], reading: str = "right", depth: int = 4
) -> Acceptance:
    """Chains along texts (all token ids, and how many of them are the prompt), read rightly or as one of ``WRONG``."""
    found = []
    for ids, prompt in texts:
        drafts, first = drafted(reference, ids, prompt, reading, depth), prompt - 1 if reading == "no prompt" else 0
        found.append((torch.tensor(ids[first:]), drafts, prompt - first))
    return walked(found, depth)


def drafted(reference: Reference, ids: Sequence[int], prompt: int, reading: str, depth: int) -> torch.Tensor:
    """int64 [n - 1, depth], as ``eagle3.chains`` gives it; of "no prompt" the answer's rows alone."""
    head = reference.head
    moved = {"ids one low": -1, "ids one high": 1}.get(reading, 0)
    features = reference.hidden(ids, [layer + moved for layer in head.shape.layers])
    tokens, feed_back = torch.tensor(ids), same
    if reading == "final norm":
        weight = torch.from_numpy(reference.model.engine.decoder.export_vector("final_norm.weight"))
        features = torch.cat([_normed(part, head.norm.eps) * weight for part in features.chunk(3, -1)], -1)
    elif reading == "fed back normed":
        feed_back = head.norm
    elif reading == "one position off":
        features = torch.cat([torch.zeros_like(features[:1]), features[:-1]])
    elif reading == "no prompt":
        tokens, features = tokens[prompt - 1 :], features[prompt - 1 :]
    return chains(head, tokens, features, depth, feed_back)


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)

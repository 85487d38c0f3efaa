"""Generations in a row, a fifth of them ended by an exception in a caller's callback, take no more and more memory."""

from __future__ import annotations

import gc
import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.engines.native.engine import NativeEngine
from tests.gates import cases, seed
from tests.support.generate import generate

GENERATIONS = cases(140, 1_000)
WARM_UP = cases(70, 200)
LOOK_EVERY = cases(2, 10)
MOST_GROWTH_BYTES = 4 << 20
"""A cache of this model takes 8 MiB when it is full, a generation makes and drops up to four, and the allocator keeps
some of them for the next: from one moment to another there are 12 MiB more or less. What leaks raises the lowest."""


class Aborted(Exception):
    """What a caller's own code raises."""


class Abort:
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise Aborted
        return torch.zeros(len(input_ids), dtype=torch.bool)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc to read the resident memory from")
def test_resident_memory_stays_level() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 105,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    engine = NativeEngine.random(spec_for(config), "sym_int4", threads=2)
    chance = random.Random(seed())
    strategies = ("auto", "prompt_lookup", "recycling", "jacobi")
    aborted = 0
    resident: list[int] = []
    gc.freeze()  # what pytest and torch have made is not looked through again each time
    for i in range(GENERATIONS):
        if i >= WARM_UP and i % LOOK_EVERY == 0:
            resident.append(resident_bytes())
        prompts = torch.tensor([[chance.randrange(105) for _ in range(12)]] * chance.choice((1, 1, 2, 4)))
        criteria = [Abort(chance.randint(1, 6))] if i % 5 == 4 else None
        how = LookaheadConfig(chance.choice(strategies), 8) if chance.random() < 0.7 else None
        try:
            generate(
                engine,
                prompts,
                max_new_tokens=chance.choice((8, 60)),
                eos_token_id=None,
                lookahead=how,
                stopping_criteria=criteria,
            )
        except Aborted:
            aborted += 1
    gc.unfreeze()
    half = len(resident) // 2
    growth = min(resident[half:]) - min(resident[:half])
    print({"generations": GENERATIONS, "aborted": aborted, "growth_kb": growth // 1024})
    assert aborted == GENERATIONS // 5
    assert growth < MOST_GROWTH_BYTES

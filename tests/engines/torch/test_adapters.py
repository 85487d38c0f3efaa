"""Low-rank adapters on the torch engine. Their values are compared with transformers in tests/hf/modeling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, LowRank
from ipex_lookahead.engines.api import Batch, OutputRequest, TakesAdapters
from ipex_lookahead.engines.ipex_llm.engine import IpexLlmEngine
from ipex_lookahead.engines.torch.engine import TorchEngine
from ipex_lookahead.errors import InputError, UnsupportedModelError
from tests.support.adapters import random_adapter
from tests.support.family_table import variants
from tests.support.native import chain
from tests.support.tiny_families import build, write_folder

TOKENS = np.array([5, 9, 33, 2, 17, 60], np.int32)


@pytest.fixture(scope="module", params=["llama", "phi3"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("torch") / request.param
    return write_folder(root, build(request.param, variants(request.param)[0]))


def engine_of(folder: Path, **options: Any) -> TorchEngine:
    options = {"engine": "torch", "threads": 1, "progress": False, **options}
    engine = AutoModelForCausalLM.from_pretrained(folder, **options).engine
    assert isinstance(engine, TorchEngine)
    return engine


def logits(engine: TorchEngine, *uses: AppliedAdapter | None) -> list[bytes]:
    """Logits of one text with each adapter, in one batch."""
    ids, parents = np.tile(TOKENS, len(uses)), np.tile(chain(len(TOKENS)), len(uses))
    caches = [engine.new_cache() for _ in uses]
    wants = OutputRequest(logits=True)
    found = engine.forward(Batch(caches, [len(TOKENS)] * len(uses), ids, parents, wants, (), uses)).logits
    assert found is not None
    return [part.tobytes() for part in np.split(found, len(uses))]


@pytest.mark.parametrize("low_bit", [None, "sym_int4"])
def test_each_sequence_of_a_batch_has_its_own_adapter(folder: Path, low_bit: str | None) -> None:
    engine = engine_of(folder, dtype="float32", load_in_low_bit=low_bit)
    assert isinstance(engine, TakesAdapters)
    plain = logits(engine, None)[0]
    one, two = (random_adapter(engine.adapter_spec, seed) for seed in (0, 1))
    zero = Adapter("zero", {name: LowRank(a.a, 0 * a.b, a.scale) for name, a in one.matrices.items()})
    for adapter in (one, two, zero, Adapter("again", one.matrices)):
        engine.load_adapter(adapter)
    assert engine.adapter_bytes == one.nbytes + two.nbytes + zero.nbytes
    assert engine.describe()["adapters"] == 3
    uses = [AppliedAdapter(one), None, AppliedAdapter(two), AppliedAdapter(zero), AppliedAdapter(one, 0.5)]
    together = logits(engine, *uses)
    assert together == [logits(engine, use)[0] for use in uses]
    assert together[1] == together[3] == plain
    assert len(set(together)) == 4
    for adapter in (one, two, zero):
        engine.unload_adapter(adapter)
    assert "adapters" not in engine.describe()
    assert not any(module._forward_hooks for module in engine.model.modules())
    with pytest.raises(InputError, match="adapter a is not loaded"):
        logits(engine, AppliedAdapter(one))
    assert logits(engine, None)[0] == plain


def test_ipex_llm_refuses_adapters() -> None:
    engine = IpexLlmEngine.__new__(IpexLlmEngine)  # without ipex-llm
    with pytest.raises(UnsupportedModelError, match="adapter a: the ipex-llm engine takes no adapters"):
        engine.load_adapter(Adapter("a", {}))


def test_a_family_without_a_description_is_refused() -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32)
    torch.manual_seed(0)
    engine = TorchEngine(GPT2LMHeadModel(config))
    with pytest.raises(UnsupportedModelError, match="the torch engine takes no adapters for this gpt2 model"):
        engine.load_adapter(Adapter("a", {}))

"""GGUF files in K-quants, mixed as llama-quantize mixes them: the native engine's logits and answers, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import AutoModelForCausalLM, LookaheadConfig
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.load import load as load_opencl
from tests.support.native import ids_of, one_by_one, run
from tests.support.tiny import write_tiny_gguf

MIXTURES: dict[str, tuple[str, dict[str, str]]] = {
    "Q2_K": (
        "Q2_K",
        {"blk.0.attn_v": "Q4_K", "blk.0.ffn_down": "Q4_K", "blk.1.attn_v": "Q3_K", "blk.1.ffn_down": "Q3_K"},
    ),
    "Q3_K_M": (
        "Q3_K",
        {"blk.0.attn_v": "Q5_K", "blk.0.ffn_down": "Q5_K", "blk.1.attn_v": "Q4_K", "blk.1.ffn_down": "Q4_K"},
    ),
    "Q4_K_M": ("Q4_K", {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K"}),
    "Q5_K_M": ("Q5_K", {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K"}),
    "Q6_K": ("Q6_K", {}),
}
"""What most tensors are in, and which are in more bits than these, beside lm_head in Q6_K."""


def write(folder: Path, name: str) -> Path:
    quant, more = MIXTURES[name]
    sizes = {"hidden": 256, "intermediate": 512, "heads": 4, "kv_heads": 2, "layers": 2, "tie": False, "seed": 3}
    return write_tiny_gguf(folder / f"{name}.gguf", quant=quant, quants={**more, "output.": "Q6_K"}, **sizes)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("gpu_layers", [None, 1])
def test_prompts_and_rows_one_by_one(tmp_path: Path, name: str, kv_cache: str, gpu_layers: int | None) -> None:
    file = write(tmp_path, name)
    native = load_native(LoadRequest(file, kv_cache=kv_cache, threads=1)).engine
    engine = load_opencl(LoadRequest(file, kv_cache=kv_cache, threads=1, gpu_layers=gpu_layers)).engine
    formats = {name: weight.format for name, weight in engine.weights()}
    assert formats == {name: weight.format for name, weight in native.weights()}
    assert {"q6_k", *(MIXTURES[name][0].lower(),), *map(str.lower, MIXTURES[name][1].values())} <= {*formats.values()}
    tokens = ids_of(native, 90)
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert run(engine, engine.new_cache(), tokens).tobytes() == expected
    assert one_by_one(engine, tokens).tobytes() == expected


@pytest.mark.parametrize("name", MIXTURES)
def test_answers_with_and_without_lookahead(tmp_path: Path, name: str) -> None:
    """Greedy and sampled; drafts of a repeated prompt are taken and refused."""
    file = str(write(tmp_path, name))
    native, ours = (
        AutoModelForCausalLM.from_pretrained(file, engine=engine, threads=1, progress=False)
        for engine in ("native", "opencl")
    )
    ids = torch.tensor([[1, *range(20, 60), *range(20, 50)]])
    for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8, "seed": 5}):
        expected = native.generate(ids, max_new_tokens=32, **sampling)
        for lookahead in (None, LookaheadConfig("prompt_lookup", 3, adaptive=False), LookaheadConfig("auto", 4)):
            found = ours.generate(ids, max_new_tokens=32, lookahead=lookahead, **sampling)
            assert torch.equal(found, expected), lookahead

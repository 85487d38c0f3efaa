"""Folders of GPTQ, AWQ, compressed-tensors, bitsandbytes and fp8 on the engines: logits, exactness, saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.formats import FLOATS
from tests.support.native import chain, ids_of, load, one_by_one, run
from tests.support.quantized_float_folders import compressed_fp8, fp8, mxfp4, nvfp4
from tests.support.quantized_folders import (
    ORDERED,
    SIZES,
    Kind,
    awq,
    bnb4,
    bnb8,
    compressed,
    gptq,
    write_quantized,
)
from tests.support.tiny import TinyLlama

KINDS = [
    gptq(4, 32, True), gptq(4, 128, False), gptq(8, -1, False), gptq(8, 64, True), gptq(4, 16, True, format="fp32"),
    awq(64), compressed(4, "group", 32, False), compressed(8, "channel", -1, True, packed=False),
    bnb4("nf4", nested=True), bnb4("fp4"), bnb8(), *ORDERED, gptq(2, 32, True), gptq(2, 64, False), gptq(3, 32, True),
    gptq(3, -1, False), awq(32, layout="gemv"), awq(32, "asym_int4", layout="gemv_fast"),
    fp8(), fp8(16, 32, dtype="exponents"), compressed_fp8("channel"), nvfp4(), mxfp4(),
]  # fmt: skip
EACH = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def transformers_logits(values: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = TinyLlama(**SIZES).config("float32")
    model = LlamaForCausalLM(
        LlamaConfig(**{k: v for k, v in sizes.items() if k not in ("architectures", "torch_dtype")})
    )
    model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    with torch.no_grad():
        return model.eval()(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


@EACH
@pytest.mark.rotating(8)
def test_logits_are_those_of_transformers_with_the_dequantised_weights(tmp_path: Path, kind: Kind) -> None:
    """In float32. Activations in eight bits cost whole-number formats 1.5 %; a wrong layout is off by 100 %."""
    values = write_quantized(tmp_path, kind)
    engine = load(tmp_path)
    ids = ids_of(engine, 60)
    expected = transformers_logits(values, ids)
    got = run(engine, engine.new_cache(), ids)
    whole = kind.format not in FLOATS and kind.format not in ("bnb_nf4", "bnb_fp4", "fp8_e4m3", "fp8_e4m3_fp32")
    assert np.linalg.norm(got - expected) < (0.03 if whole else 0.001) * np.linalg.norm(expected)


@EACH
@pytest.mark.rotating(8)
def test_rows_together_are_rows_alone(tmp_path: Path, kind: Kind) -> None:
    write_quantized(tmp_path, kind)
    engine = load(tmp_path, threads=2)
    ids = ids_of(engine, 40)
    alone = one_by_one(engine, ids)
    assert run(engine, engine.new_cache(), ids).tobytes() == alone.tobytes()
    cache = engine.new_cache()
    for start in range(0, 40, 7):
        part = ids[start : start + 7]
        assert run(engine, cache, part, chain(len(part))).tobytes() == alone[start : start + 7].tobytes()
        cache.keep(list(range(len(part))))


@EACH
@pytest.mark.rotating(8)
def test_a_saved_folder_is_the_same_model(tmp_path: Path, kind: Kind) -> None:
    write_quantized(tmp_path / "theirs", kind)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", threads=1, progress=False)
    model.save_low_bit(tmp_path / "ours")
    again = AutoModelForCausalLM.load_low_bit(tmp_path / "ours", threads=1, progress=False)
    ids = ids_of(model.engine, 20)
    logits = [run(one.engine, one.engine.new_cache(), ids).tobytes() for one in (model, again)]
    assert logits[0] == logits[1]
    assert "requantized_from" not in again.engine.describe()


@EACH
@pytest.mark.rotating(8)
def test_the_torch_engine_computes_the_same(tmp_path: Path, kind: Kind) -> None:
    values = write_quantized(tmp_path, kind)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, engine="torch", threads=1, progress=False)
    ids = ids_of(model.engine, 20)
    got = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
    expected = transformers_logits(values, ids)
    assert np.linalg.norm(got - expected) < 0.03 * np.linalg.norm(expected)

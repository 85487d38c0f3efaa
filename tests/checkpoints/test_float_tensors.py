"""Floats of 64 and of 8 bits in safetensors: every value, models that run, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints.float_tensors import same_values
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.checkpoints.safetensors_reader import SafetensorsFile
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.engines.requantize import requantized
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import dequantize
from tests.support.family_table import variants
from tests.support.native import ids_of, load, one_by_one, run
from tests.support.tiny import TinyLlama
from tests.support.tiny_families import build

DTYPES = {"float64": "fp32", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
EACH = pytest.mark.parametrize("dtype", DTYPES)
UP = "model.layers.0.mlp.up_proj.weight"


def write(folder: Path, dtype: str, change: Callable[[dict[str, torch.Tensor]], Any] = lambda tensors: None) -> Any:
    """A tiny Llama of 40 inputs, which 32 does not divide, all of it in that dtype; its tensors."""
    from safetensors.torch import save_file

    tiny = TinyLlama(hidden=40, heads=5, kv_heads=5, tie=False)
    tensors = {name: torch.from_numpy(value).to(getattr(torch, dtype)) for name, value in tiny.weights().items()}
    if dtype == "float64":  # with digits that float32 has not
        tensors = {name: value + value.abs() * 2e-9 for name, value in tensors.items()}
    change(tensors)
    folder.mkdir(exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(tiny.config("float32")), encoding="utf-8")
    return tensors


@EACH
def test_every_value_is_torchs(tmp_path: Path, dtype: str) -> None:
    tensors = write(tmp_path, dtype)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    for name, tensor in tensors.items():
        info, weight = checkpoint.info(name), checkpoint.read(name)
        vectors = "fp32" if dtype == "float64" else "bf16"
        assert (info.format, weight.format) == 2 * (DTYPES[dtype] if tensor.ndim == 2 else vectors,)
        assert info.shape == weight.shape == tuple(tensor.shape)
        assert np.array_equal(dequantize(weight), tensor.float().numpy()), name


@EACH
def test_the_model_runs_and_is_said(tmp_path: Path, dtype: str) -> None:
    write(tmp_path, dtype)
    engine = load(tmp_path, threads=2)
    ids = ids_of(engine, 20)
    assert run(engine, engine.new_cache(), ids).tobytes() == one_by_one(engine, ids).tobytes()
    facts = describe(tmp_path)
    assert facts.get("decoded", []) == (["F64 as fp32"] if dtype == "float64" else [])
    found = requantized(SafetensorsCheckpoint(tmp_path), WeightPlan("sym_int4"))
    assert (None if found is None else found.source) == (None if dtype == "float64" else DTYPES[dtype])


@EACH
def test_the_torch_engine_computes_with_the_same_values(tmp_path: Path, dtype: str) -> None:
    write(tmp_path, dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, engine="torch", threads=1, progress=False)
    engine = load(tmp_path)
    ids = ids_of(engine, 20)
    got = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()
    expected = run(engine, engine.new_cache(), ids)
    assert np.linalg.norm(got - expected) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", ["float64", "float8_e4m3fn"])
def test_rows_and_experts_of_a_tensor(tmp_path: Path, dtype: str) -> None:
    """Phi-3's fused rows."""
    from safetensors.torch import save_file

    model = build("phi3", variants("phi3")[0])
    tensors = {name: value.to(getattr(torch, dtype)).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, str(tmp_path / "model.safetensors"), {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict()), encoding="utf-8")
    checkpoint, parts = SafetensorsCheckpoint(tmp_path), 0
    for tensor in checkpoint.spec.tensors():
        expected = tensors[tensor.hf.name].float().numpy()
        if tensor.hf.rows is not None:
            first, step = tensor.hf.rows
            expected, parts = expected[first::step][: tensor.shape[0]], parts + 1
        assert np.array_equal(dequantize(checkpoint.read(tensor.name)), expected), tensor.name
    assert parts > 0


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("float64", 1e300, "value 83 is NaN or infinite, or beyond float32"),
        ("float64", float("nan"), "value 83 is NaN"),
        ("float8_e4m3fn", float("nan"), "value 83 is NaN"),
        ("float8_e5m2", float("inf"), "value 83 is NaN or infinite"),
    ],
)
def test_what_is_no_number_is_found(tmp_path: Path, dtype: str, value: float, says: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[UP][2, 3] = value

    write(tmp_path, dtype, change)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    file, stored = checkpoint.stored(UP)
    with pytest.raises(ModelFormatError, match=says) as caught:
        checkpoint.read(UP)
    assert caught.value.field == UP
    assert caught.value.offset == stored.offset + 83 * (8 if dtype == "float64" else 1)
    assert caught.value.file == str(file.path)


@pytest.mark.parametrize("beside", ["weight_scale_inv", "weight_scale", "scale"])
def test_floats_of_eight_bits_with_scales_that_nobody_reads_are_refused(tmp_path: Path, beside: str) -> None:
    """Without its scales such a matrix would be another, without a word."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[UP.removesuffix("weight") + beside] = torch.tensor([0.5])

    write(tmp_path, "float8_e4m3fn", change)
    with pytest.raises(UnsupportedModelError, match="up_proj.weight is F8_E4M3 with a tensor of scales"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("other", ["float32", "bfloat16", "float8_e4m3fn"])
def test_equal_values_of_unlike_dtypes_are_seen(tmp_path: Path, other: str) -> None:
    from safetensors.torch import save_file

    values = torch.linspace(-400, 400, 999).to(torch.float8_e4m3fn)
    changed = values.double()
    changed[998] = 3.1
    tensors = {"a": values, "b": values.to(getattr(torch, other)).clone(), "c": values.double(), "d": changed}
    save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    found = {name: (file, stored) for name, stored in file.tensors.items()}
    assert same_values(found["a"], found["b"])
    assert same_values(found["b"], found["c"])
    assert not same_values(found["a"], found["d"])
    file.close()

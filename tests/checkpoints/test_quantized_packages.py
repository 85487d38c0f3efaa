"""Folders that the compressed-tensors and bitsandbytes packages write, against the values that they read back.

Neither is needed otherwise: where one is not installed its tests are skipped, and say so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.formats import dequantize
from tests.support.quantized_folders import SIZES
from tests.support.tiny import TinyLlama

TINY = TinyLlama(**{**SIZES, "intermediate": 256})
"""Blocks do not go across rows: there the CPU's dequantisation of bitsandbytes 0.50.2 is wrong (docs/dev/LOG.md)."""


def write(folder: Path, tensors: dict[str, torch.Tensor], settings: Any) -> None:
    """The tiny model with these tensors in the place of its projections'."""
    from safetensors.torch import save_file

    floats = {name: torch.from_numpy(value) for name, value in TINY.weights().items() if "_proj" not in name}
    save_file({k: v.contiguous() for k, v in {**floats, **tensors}.items()}, str(folder / "model.safetensors"))
    config = {**TINY.config("float32"), "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def projections() -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in TINY.weights().items() if "_proj" in name}


def check(folder: Path, expected: dict[str, torch.Tensor], form: str) -> None:
    checkpoint = open_checkpoint(folder)
    for name, values in expected.items():
        assert checkpoint.info(name).format == form
        assert np.array_equal(dequantize(checkpoint.read(name)), values.numpy()), name


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("strategy", "group"), [("group", 32), ("group", 64), ("channel", None)])
@pytest.mark.parametrize(("bits", "form"), [(4, "pack"), (8, "pack"), (8, "int")])
def test_compressed_tensors(
    tmp_path: Path, bits: int, form: str, strategy: str, group: int | None, symmetric: bool
) -> None:
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    arguments: dict[str, Any] = {
        "num_bits": bits, "group_size": group, "symmetric": symmetric, "strategy": strategy, "type": "int"
    }  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
    name_of_form = f"{form}-quantized"
    compressor = BaseCompressor.get_value_from_registry(name_of_form)
    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in projections().items():
        parts = values.reshape(len(values), -1, group or values.shape[1])
        scale, zero = calculate_qparams(parts.amin(dim=2), parts.amax(dim=2), scheme.weights)
        scale = scale.bfloat16().float()  # as a model in bfloat16 has them
        state = {"weight": values, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
        made = compressor.compress(dict(state), scheme)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in made.items()}
        expected[name] = compressor.decompress(dict(made), scheme)["weight"].float()
    settings = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=name_of_form, quantization_status="compressed"
    ).model_dump(mode="json")
    write(tmp_path, tensors, settings)
    check(tmp_path, expected, f"{'sym' if symmetric else 'zero'}_int{bits}")


@pytest.mark.parametrize(
    ("form", "arguments", "held"),
    [
        ("float-quantized", {"strategy": "tensor"}, "fp8_e4m3_fp32"),
        ("float-quantized", {"strategy": "channel"}, "fp8_e4m3_fp32"),
        ("float-quantized", {"strategy": "block", "block_structure": [64, 64]}, "fp8_e4m3_fp32"),
        ("mxfp8-quantized", {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}, "fp8_e4m3"),
        ("mxfp4-pack-quantized", {"strategy": "group", "group_size": 32, "num_bits": 4}, "mxfp4"),
        ("nvfp4-pack-quantized", {"strategy": "tensor_group", "group_size": 16, "num_bits": 4}, "bf16"),
    ],
)
def test_floats_of_compressed_tensors(tmp_path: Path, form: str, arguments: dict[str, Any], held: str) -> None:
    """Bit for bit; scales in float32, since the library rounds to the dtype that they have."""
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme

    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**{"num_bits": 8, "type": "float", "symmetric": True, **arguments})
    )
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in projections().items():
        n_out, n_in = values.shape
        rows, columns = {
            "tensor": (n_out, n_in), "channel": (1, n_in), "block": (64, 64)
        }.get(arguments["strategy"], (1, arguments.get("group_size", 0)))  # fmt: skip
        largest = values.reshape(n_out // rows, rows, n_in // columns, columns).abs().amax(dim=(1, 3))
        most = 6.0 if form.endswith("4-pack-quantized") else 448.0
        state = {"weight": values, "weight_scale": largest / most}
        if form.startswith("mx"):
            state["weight_scale"] = torch.exp2(torch.ceil(torch.log2(largest / most)))
        if form.startswith("nvfp4"):
            state["weight_global_scale"] = most * 448 / largest.max().reshape(1)
            state["weight_scale"] = (largest / most * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if arguments["strategy"] == "tensor":
            state["weight_scale"] = state["weight_scale"].reshape(1)
        made = compressor.compress(dict(state), scheme)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in made.items()}
        back = dict(made)
        if form == "mxfp8-quantized":  # in float32 instead of the bfloat16 that scales of bytes become
            back["weight_scale"] = torch.exp2(made["weight_scale"].float() - 127)
            expected[name] = BaseCompressor.get_value_from_registry("naive-quantized").decompress(back, scheme)[
                "weight"
            ]
        else:
            expected[name] = compressor.decompress(back, scheme)["weight"].float()
    settings = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format=form, quantization_status="compressed"
    ).model_dump(mode="json")
    write(tmp_path, tensors, settings)
    check(tmp_path, expected, held)


def test_fp8_of_transformers(tmp_path: Path) -> None:
    """What transformers makes of a folder with blocks of 128 x 128 where there is no GPU."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in projections().items():
        n_out, n_in = values.shape
        rows, columns = min(n_out, 64), 64
        largest = values.reshape(n_out // rows, rows, n_in // columns, columns).abs().amax(dim=(1, 3))
        scales = largest / 448
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        tensors[name] = (values / spread).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
        expected[name] = Fp8Dequantize(None)._dequantize_one(tensors[name], scales, torch.float32)
    write(tmp_path, tensors, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]})
    check(tmp_path, expected, "fp8_e4m3_fp32")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("blocksize", [64, 128])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_bitsandbytes_of_four_bits(tmp_path: Path, quant_type: str, blocksize: int, nested: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional", reason="the bitsandbytes package is not installed")
    from transformers import BitsAndBytesConfig

    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in projections().items():
        packed, state = functional.quantize_4bit(
            values, blocksize=blocksize, compress_statistics=nested, quant_type=quant_type
        )
        expected[name] = functional.dequantize_4bit(packed, state)
        tensors[name] = packed
        tensors |= {f"{name}.{part}": tensor for part, tensor in state.as_dict(packed=True).items()}
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=quant_type, bnb_4bit_use_double_quant=nested
    ).to_dict()
    write(tmp_path, tensors, settings)
    check(tmp_path, expected, f"bnb_{quant_type}")


def test_bitsandbytes_of_eight_bits(tmp_path: Path) -> None:
    """The library rounds code * SCB, then divides: the last bits of float32 differ."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="the bitsandbytes package is not installed")
    from transformers import BitsAndBytesConfig

    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for name, values in projections().items():
        codes, stats, _ = functional.int8_vectorwise_quant(values.half())
        tensors |= {name: codes, f"{name.removesuffix('weight')}SCB": stats.float()}
        tensors[f"{name.removesuffix('weight')}weight_format"] = torch.tensor(0, dtype=torch.uint8)
        expected[name] = functional.int8_vectorwise_dequant(codes, stats.float())
    write(tmp_path, tensors, BitsAndBytesConfig(load_in_8bit=True).to_dict())
    checkpoint = open_checkpoint(tmp_path)
    for name, values in expected.items():
        got, theirs = dequantize(checkpoint.read(name)), values.float().numpy()
        assert np.allclose(got, theirs, rtol=3e-7, atol=0), name

"""Folders of fp8, NVFP4 and MXFP4, and the float32 values that they define, by torch's own dtypes and the definition.

Shares nothing with the readers, as ``quantized_folders.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.quantized_folders import Array, Kind, Packed

MOST = 448.0
"""Of e4m3."""
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def blocked(values: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest magnitude of each block [blocks of rows, of columns], and of each value's block [n_out, n_in]."""
    n_out, n_in = values.shape
    largest = torch.zeros(-(-n_out // rows), -(-n_in // columns))
    spread = torch.zeros_like(values)
    for i in range(largest.shape[0]):
        for j in range(largest.shape[1]):
            block = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            largest[i, j] = values[block].abs().max()
            spread[block] = largest[i, j]
    return largest, spread


def eight_bits(values: Array, rows: int, columns: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor, Array]:
    """Codes, scales as the file has them, and values; ``dtype``: of the scales, "exponents" are powers of two."""
    wide = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    n_out, n_in = wide.shape
    rows, columns = rows if rows > 0 else n_out, columns if columns > 0 else n_in

    def scale_of(largest: torch.Tensor) -> torch.Tensor:
        scale = largest.clamp(min=1e-6) / MOST
        if dtype == "exponents":
            return torch.exp2(torch.ceil(torch.log2(scale)))
        return scale.to(getattr(torch, dtype)).float() if dtype != "float32" else scale

    largest, spread = blocked(wide, rows, columns)
    scales, of_values = scale_of(largest), scale_of(spread)
    codes = (wide / of_values).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    product = (codes.double() * of_values.double()).float()
    if dtype == "exponents":
        return codes, (torch.log2(scales) + 127).to(torch.uint8), product.numpy()
    return codes, scales.to(getattr(torch, dtype)), product.numpy()


def fp8(
    rows: int = 128, columns: int = 128, *, dtype: str = "float32", static: bool = False,
    name: str = "weight_scale_inv", **sizes: Any,
) -> Kind:  # fmt: skip
    """DeepSeek's, Qwen's and MiniMax's; ``rows`` and ``columns`` -1: a scale for all, as AutoFP8 has it."""

    def pack(values: Array, rng: np.random.Generator) -> Packed:
        codes, scales, product = eight_bits(values, rows, columns, dtype)
        scales = scales.reshape(()) if columns == -1 else scales
        if dtype == "exponents":
            scales = scales.view(torch.float8_e8m0fnu)
        tensors: dict[str, Any] = {"weight": codes, name: scales}
        if static:
            tensors["input_scale"] = torch.tensor(0.02)
        return Packed(tensors, product)

    blocks = {"weight_block_size": [rows, columns]} if columns != -1 else {}
    settings = {
        "quant_method": "fp8", "activation_scheme": "static" if static else "dynamic", "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"], **blocks, **({"scale_fmt": "ue8m0"} if dtype == "exponents" else {}),
    }  # fmt: skip
    if columns == -1 or columns % 64 == 0:
        held = "fp8_e4m3_fp32"
    else:
        held = "fp8_e4m3" if dtype != "float32" and columns % 32 == 0 else "fp32"
    label = f"fp8-{rows}x{columns}-{dtype}{'-static' * static}"
    return Kind(label + "".join(f"-{key}{n}" for key, n in sizes.items()), pack, settings, held, sizes)


def compressed_fp8(
    strategy: str, *, rows: int = 1, columns: int = -1, dtype: str = "bfloat16", form: str = "float-quantized",
    static: bool = False,
) -> Kind:  # fmt: skip
    def pack(values: Array, rng: np.random.Generator) -> Packed:
        height = -1 if strategy == "tensor" else rows
        codes, scales, product = eight_bits(values, height, columns, dtype)
        tensors: dict[str, Any] = {
            "weight": codes,
            "weight_scale": scales.reshape(1) if strategy == "tensor" else scales,
        }
        if static:
            tensors["input_scale"] = torch.tensor([0.02])
        return Packed(tensors, product)

    weights = {
        "num_bits": 8, "strategy": strategy, "group_size": columns if strategy == "group" else None,
        "block_structure": [rows, columns] if strategy == "block" else None,
    }  # fmt: skip
    activations = {"num_bits": 8, "strategy": "tensor" if static else "token", "dynamic": not static}
    held = "fp8_e4m3" if strategy == "group" and columns % 64 else "fp8_e4m3_fp32"
    label = f"ct-{form}-{strategy}-{rows}x{columns}-{dtype}{'-static' * static}"
    return Kind(label, pack, compressed_settings(form, weights, activations), held)


def compressed_settings(form: str, weights: dict[str, Any], activations: dict[str, Any]) -> dict[str, Any]:
    """Settings as the library writes them, with all its keys."""
    rest = {
        "type": "float", "symmetric": True, "dynamic": False, "group_size": None, "actorder": None,
        "block_structure": None, "observer": "minmax", "observer_kwargs": {}, "scale_dtype": None, "zp_dtype": None,
    }  # fmt: skip
    group = {
        "targets": ["Linear"], "weights": {**rest, **weights}, "input_activations": {**rest, **activations},
        "output_activations": None, "format": form,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "global_compression_ratio": None, "sparsity_config": {}, "transform_config": {}, "version": "0.20.0",
    }  # fmt: skip


def packed_e2m1(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest codes to values [n_out, n_in], two a byte, the first in the low nibble; and their numbers."""
    codes = (wide[..., None] - E2M1).abs().argmin(dim=-1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]


def nvfp4(**sizes: Any) -> Kind:
    """code * (scale / global scale), rounded to bfloat16."""

    def pack(values: Array, rng: np.random.Generator) -> Packed:
        wide = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        divisor = (6 * MOST / wide.abs().max()).reshape(1)
        largest, _ = blocked(wide, 1, 16)
        scales = (largest / 6 * divisor).clamp(max=MOST).to(torch.float8_e4m3fn)
        of_values = (scales.float() / divisor).repeat_interleave(16, dim=1)
        packed, numbers = packed_e2m1(wide / of_values.clamp(min=1e-30))
        tensors = {
            "weight_packed": packed, "weight_scale": scales, "weight_global_scale": divisor,
            "input_global_scale": torch.tensor([100.0]),
        }  # fmt: skip
        return Packed(tensors, (numbers * of_values).bfloat16().float().numpy())

    weights = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
    settings = compressed_settings("nvfp4-pack-quantized", weights, {**weights, "dynamic": "local"})
    return Kind("ct-nvfp4" + "".join(f"-{key}{n}" for key, n in sizes.items()), pack, settings, "bf16", sizes)


def mxfp4() -> Kind:
    def pack(values: Array, rng: np.random.Generator) -> Packed:
        wide = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        largest, _ = blocked(wide, 1, 32)
        exponents = torch.floor(torch.log2(largest.clamp(min=1e-9))) - 2
        of_values = torch.exp2(exponents).repeat_interleave(32, dim=1)
        packed, numbers = packed_e2m1(wide / of_values)
        scales = (exponents + 127).to(torch.uint8)
        return Packed({"weight_packed": packed, "weight_scale": scales}, (numbers * of_values).numpy())

    weights = {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    return Kind(
        "ct-mxfp4", pack, compressed_settings("mxfp4-pack-quantized", weights, {**weights, "dynamic": True}), "mxfp4"
    )


FLOAT_KINDS = [
    fp8(),
    fp8(dtype="bfloat16"),
    fp8(dtype="exponents"),
    fp8(32, 64),
    fp8(intermediate=176, hidden=144, heads=3, kv_heads=3),
    fp8(-1, -1, static=True, name="weight_scale"),
    fp8(16, 32, dtype="bfloat16"),
    fp8(1, 32, dtype="exponents"),
    fp8(16, 32),
    fp8(16, 16, dtype="bfloat16"),
    compressed_fp8("tensor", static=True),
    compressed_fp8("tensor", dtype="float32", form="naive-quantized"),
    compressed_fp8("channel"),
    compressed_fp8("channel", dtype="float32"),
    compressed_fp8("block", rows=128, columns=128),
    compressed_fp8("block", rows=128, columns=128, dtype="float32"),
    compressed_fp8("group", columns=128),
    compressed_fp8("group", columns=32, dtype="exponents", form="mxfp8-quantized"),
    nvfp4(),
    nvfp4(hidden=144, intermediate=176, heads=3, kv_heads=3),
    mxfp4(),
]

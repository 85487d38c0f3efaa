"""Folders of HQQ, and the values that they define; shares nothing with the reader, as ``quantized_folders.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.quantized_folders import Array, Kind, Packed


def packed_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [rows, columns]: parts of the rows beside each other in an element, the first on top."""
    parts = 10 if bits == 3 else 8 // bits
    rows = -(-codes.shape[0] // parts) * parts
    filled = torch.zeros(rows, codes.shape[1], dtype=torch.int64)
    filled[: codes.shape[0]] = codes
    packed = torch.zeros(rows // parts, codes.shape[1], dtype=torch.int64)
    for part, piece in enumerate(filled.chunk(parts)):
        packed |= piece << bits * (parts - 1 - part)
    return packed.to(torch.int32 if bits == 3 else torch.uint8)


def said(value: Any) -> torch.Tensor:
    """How the library writes what is no tensor."""
    if isinstance(value, str):
        return torch.tensor([ord(one) for one in value], dtype=torch.uint8)
    return torch.tensor(value, dtype=torch.uint8 if isinstance(value, bool) else torch.int32)


def hqq(
    bits: int, group: int, *, axis: int = 1, whole: bool = False, dtype: str = "float16", format: str = "", **sizes: Any
) -> Kind:
    kind = getattr(torch, dtype)

    def pack(values: Array, rng: np.random.Generator) -> Packed:
        wide = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        grouped = wide.reshape(-1, group) if axis == 1 else wide.reshape(group, -1)
        low, high = (getattr(grouped, end)(dim=axis, keepdim=True) for end in ("amin", "amax"))
        most = 2**bits - 1
        scale = ((high - low) / most).clamp(min=1e-3).to(kind)
        zero = (-low / scale.float()).clamp(0, most)
        zero = zero.round().to(kind) if whole else zero.to(kind)
        codes = (grouped / scale.float() + zero.float()).round().clamp(0, most).to(torch.int64)
        product = (codes.to(kind) - zero) * scale  # each rounded to the dtype
        if format:  # held before it is rounded
            product = (codes.double() - zero.double()) * scale.double()
        tensors = {
            "W_q": packed_rows(codes, bits), "scale": scale, "zero": zero, "nbits": said(bits),
            "group_size": said(group), "axis": said(axis), "shape": torch.tensor(wide.shape), "optimize": said(True),
            "packing": said("3bit_32" if bits == 3 else f"{bits}bit_u8"), "view_as_float": said(False),
            "unpack_view_dtype": said("torch.uint8"), "compute_dtype": said(f"torch.{dtype}"),
            "channel_wise": said(True), "quant_scale": said(False), "quant_zero": said(False),
            "round_zero": said(whole), "offload_meta": said(False), "stores_quant_config": said(True),
            "encoded_state_dict": said(True),
        }  # fmt: skip
        made: dict[str, Any] = dict(tensors)
        return Packed(made, product.float().reshape(wide.shape).numpy())

    weights = {
        "nbits": bits, "group_size": group, "axis": axis, "channel_wise": True, "optimize": True, "round_zero": whole,
        "view_as_float": False,
    }  # fmt: skip
    config = {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None}
    settings = {"quant_method": "hqq", "quant_config": {**config, "offload_meta": False}, "skip_modules": ["lm_head"]}
    name = f"hqq-{bits}-{group}-axis{axis}{'-whole' * whole}-{dtype}"
    held = format or {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[dtype]
    return Kind(name + "".join(f"-{key}{n}" for key, n in sizes.items()), pack, settings, held, sizes)


HQQ_KINDS = [
    *(hqq(bits, 64) for bits in (1, 2, 3, 4, 8)),
    hqq(4, 64, dtype="bfloat16"),
    hqq(3, 32, dtype="float32"),
    hqq(4, 64, axis=0),
    hqq(3, 64, axis=0, dtype="bfloat16"),
    hqq(4, 32, whole=True, format="zero_int4"),
    hqq(8, 64, whole=True, format="zero_int8"),
    hqq(2, 32, whole=True, format="sym_int3"),
    hqq(3, 64, whole=True, format="sym_int4"),
    hqq(4, 48, whole=True, intermediate=160, hidden=96, heads=3, kv_heads=3),
]

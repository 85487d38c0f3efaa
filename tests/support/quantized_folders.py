"""Folders as GPTQ, AWQ, compressed-tensors and bitsandbytes write them, and the float32 values that they define.

Written from each scheme's published definition, word by word, and sharing nothing with the readers: codes, scales and
zero points are chosen here, packed one way, and multiplied out another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.tiny import TinyLlama

Array = npt.NDArray[Any]
Tensors = dict[str, Array]
BF16 = np.dtype(np.uint16)
"""An array of this dtype is written as bfloat16's bits."""

NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
FP4 = np.concatenate([FP4, -FP4])
FP4[[1, 9]] = np.float32(0.005208333333), -np.float32(0.005208333333)


@dataclass(frozen=True)
class Packed:
    """A matrix as a scheme has it: tensors by what follows the module's name, and the values they define."""

    tensors: Tensors
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """A way to write a folder.

    Attributes:
        name: for test ids.
        pack: a float matrix and a generator -> the matrix as the scheme has it.
        settings: the ``quantization_config``.
        format: the format that the matrices have when they are read.
    """

    name: str
    pack: Callable[[Array, np.random.Generator], Packed]
    settings: Mapping[str, Any]
    format: str
    sizes: Mapping[str, Any] = field(default_factory=dict)


def words(codes: Array, bits: int) -> Array:
    """Codes [..., n] as int32 words [..., n * bits / 32], the first in the lowest bits; filled up with zeros."""
    if bits == 3:  # one stream of bits: 32 codes in three words
        assert codes.shape[-1] % 32 == 0
        stream = (codes[..., None].astype(np.uint8) >> np.arange(3, dtype=np.uint8)) & 1
        data = np.packbits(stream.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
        return np.ascontiguousarray(data).view(np.int32)
    a_word = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % a_word)]).astype(np.uint64)
    parts = codes.reshape(*codes.shape[:-1], -1, a_word) << (np.arange(a_word, dtype=np.uint64) * np.uint64(bits))
    return parts.sum(axis=-1).astype(np.uint32).view(np.int32)


@dataclass(frozen=True)
class Groups:
    """Codes [n_out, n_in], scales and zero points [n_out, groups], and the group of each input."""

    codes: Array
    scales: Array
    zeros: Array
    group_of: Array

    def values(self) -> npt.NDArray[np.float32]:
        scales = self.scales if self.scales.dtype != BF16 else widened(self.scales)
        product = scales.astype(np.float64)[:, self.group_of] * (
            self.codes.astype(np.int64) - self.zeros.astype(np.int64)[:, self.group_of]
        )
        return product.astype(np.float32)


def widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def grouped(
    values: Array, rng: np.random.Generator, *, bits: int, group: int, symmetric: bool, ordered: str = "",
    scale_dtype: Any = np.float16, one_scale: bool = False,
) -> Groups:  # fmt: skip
    """Rounded to the nearest; ``ordered``: inputs are put into groups at random, as act order does.

    "shared": matrices with as many inputs alike, as those that are given the same inputs are; "apart": each anew.
    """
    n_in = values.shape[1]
    size = n_in if group == -1 else group
    group_of = np.arange(n_in) // size
    if ordered:
        group_of = (np.random.default_rng(n_in) if ordered == "shared" else rng).permutation(group_of)
    middle, most = 1 << (bits - 1), (1 << bits) - 1
    count = int(group_of.max()) + 1
    low = np.stack([np.minimum(values[:, group_of == g].min(axis=1), 0) for g in range(count)], axis=1)
    high = np.stack([np.maximum(values[:, group_of == g].max(axis=1), 0) for g in range(count)], axis=1)
    scales = np.maximum(-low, high) / (middle - 1) if symmetric else (high - low) / most
    if one_scale:
        scales = np.full_like(scales, scales.max())
    scales = np.maximum(scales, 2.0**-14).astype(np.float32)
    if scale_dtype is BF16:
        scales = (scales.view(np.uint32) >> 16).astype(np.uint16)
        wide = widened(scales)
    else:
        scales = scales.astype(scale_dtype)
        wide = scales.astype(np.float32)
    zeros = np.full(scales.shape, middle) if symmetric else np.clip(np.rint(-low / wide), 0, most).astype(np.int64)
    codes = np.clip(np.rint(values / wide[:, group_of]) + zeros[:, group_of], 0, most).astype(np.int64)
    return Groups(codes, scales, zeros, group_of)


def gptq(
    bits: int, group: int, symmetric: bool, *, ordered: str = "", version: int = 1, index: bool = True,
    scale_dtype: Any = np.float16, format: str = "",
) -> Kind:  # fmt: skip
    def pack(values: Array, rng: np.random.Generator) -> Packed:
        made = grouped(
            values, rng, bits=bits, group=group, symmetric=symmetric, ordered=ordered, scale_dtype=scale_dtype
        )
        stored = words(made.zeros.T if version == 2 or bits != 3 else made.zeros.T - 1 & 7, bits)
        if version == 1 and bits != 3:  # as GPTQModel does it: 1 less in every code of a word, with borrows
            ones = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[bits]
            stored = (stored.view(np.uint32).astype(np.int64) - ones & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        tensors = {
            "qweight": words(made.codes, bits).T,
            "qzeros": stored,
            "scales": made.scales.T,
            **({"g_idx": made.group_of.astype(np.int32)} if index else {}),
        }
        return Packed(tensors, made.values())

    settings = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": bool(ordered),
        "damp_percent": 0.01, "true_sequential": True, "static_groups": False, "model_name_or_path": None,
        **({"checkpoint_format": "gptq_v2"} if version == 2 else {}),
    }  # fmt: skip
    kind = "sym" if symmetric else "zero"
    name = f"gptq-{bits}-{group}-{kind}-v{version}{f'-{ordered}' if ordered else ''}{'' if index else '-no-index'}"
    name += "" if scale_dtype is np.float16 else "-bf16"
    held = {(2, False): "sym_int3", (3, False): "sym_int4"}.get((bits, symmetric), f"{kind}_int{bits}")
    return Kind(name, pack, settings, format or held)


def awq(group: int, format: str = "zero_int4", *, old_names: bool = False, layout: str = "gemm", **sizes: Any) -> Kind:
    def pack(values: Array, rng: np.random.Generator) -> Packed:
        made = grouped(values, rng, bits=4, group=group, symmetric=False)
        if layout != "gemm":
            return awq_gemv(made, group) if layout == "gemv" else awq_gemv_fast(made, group)
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def packed(codes: Array) -> Array:
            return words(codes.reshape(len(codes), -1, 8)[:, :, order].reshape(codes.shape), 4)

        tensors = {"qweight": packed(made.codes.T), "qzeros": packed(made.zeros.T), "scales": made.scales.T}
        return Packed(tensors, made.values())

    names = ("w_bit", "q_group_size") if old_names else ("bits", "group_size")
    settings = {
        "quant_method": "awq", names[0]: 4, names[1]: group, "zero_point": True,
        "version": layout.upper() if old_names else layout, "modules_to_not_convert": None, "do_fuse": False,
    }  # fmt: skip
    name = f"awq-{group}{'-old' * old_names}{'' if layout == 'gemm' else '-' + layout}"
    return Kind(name + "".join(f"-{key}{n}" for key, n in sizes.items()), pack, settings, format, sizes)


def zeros_width(n_in: int, group: int) -> int:
    """Words in a row of zero points: 8 groups a word, and 2 words at a time for groups of 64, 4 for 32."""
    at_a_time = {32: 4, 64: 2}.get(group, 1)
    count = (n_in // (n_in if group == -1 else group) + 7) // 8
    return (count + at_a_time - 1) // at_a_time * at_a_time


def awq_gemv(made: Groups, group: int) -> Packed:
    width = zeros_width(made.codes.shape[1], group)
    scales, zeros = (np.pad(a, ((0, 0), (0, 8 * width - a.shape[1]))) for a in (made.scales, made.zeros))
    return Packed({"qweight": words(made.codes, 4), "qzeros": words(zeros, 4), "scales": scales}, made.values())


def awq_gemv_fast(made: Groups, group: int) -> Packed:
    """Word by word: of which output and which inputs its four codes are."""
    n_out, n_in = made.codes.shape
    packed = np.zeros((n_out // 4, n_in), np.int64)
    for word in range(n_in):
        block, row, start = word // 64, word % 64 // 16, word % 16 * 4
        for nibble in range(4):
            half, place = divmod(start + nibble, 32)
            pair, rest = divmod(place, 8)
            column = 64 * block + 32 * half + 8 * (rest % 4) + 2 * pair + rest // 4
            packed[:, word] |= made.codes[row::4, column] << 4 * nibble
    minimums = (-made.scales.astype(np.float32) * made.zeros.astype(np.float32)).astype(np.float16)
    values = (
        made.scales.astype(np.float32)[:, made.group_of] * made.codes + minimums.astype(np.float32)[:, made.group_of]
    )
    rows = 8 * zeros_width(n_in, group) - made.scales.shape[1]
    tensors = {
        "qweight": packed.astype(np.uint16).view(np.int16),
        "qzeros": np.pad(minimums.T, ((0, rows), (0, 0))),
        "scales": np.pad(made.scales.T, ((0, rows), (0, 0))),
    }
    return Packed(tensors, values.astype(np.float32))


def compressed(
    bits: int, strategy: str, group: int, symmetric: bool, *, packed: bool = True, packed_zeros: bool = True,
    ordered: str = "", dynamic: bool = False, scale_dtype: Any = BF16, format: str = "",
) -> Kind:  # fmt: skip
    middle = 1 << (bits - 1)

    def pack(values: Array, rng: np.random.Generator) -> Packed:
        made = grouped(
            values, rng, bits=bits, group=group, symmetric=symmetric, ordered=ordered, scale_dtype=scale_dtype,
            one_scale=strategy == "tensor",
        )  # fmt: skip
        n_out, n_in = values.shape
        tensors: Tensors = {"weight_scale": made.scales if strategy != "tensor" else made.scales[:1, 0]}
        if packed:
            tensors |= {"weight_packed": words(made.codes, bits), "weight_shape": np.array([n_out, n_in], np.int64)}
        else:
            tensors["weight"] = (made.codes - middle).astype(np.int8)
        if not symmetric:
            signed = (made.zeros - middle).astype(np.int8)
            tensors["weight_zero_point"] = words(made.zeros.T, bits).T if packed and packed_zeros else signed
        if ordered:
            tensors["weight_g_idx"] = made.group_of.astype(np.int32)
        return Packed(tensors, made.values())

    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "dynamic": False,
        "group_size": group if strategy == "group" else None, "actorder": "group" if ordered else None,
        "block_structure": None, "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    activations = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None,
        "actorder": None, "block_structure": None, "observer": None, "observer_kwargs": {},
    }  # fmt: skip
    form = "pack-quantized" if packed else "int-quantized"
    settings = {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": activations if dynamic else None,
                "output_activations": None, "format": form,
            }
        },
        "ignore": ["lm_head"], "kv_cache_scheme": None, "global_compression_ratio": None, "sparsity_config": {},
        "transform_config": {}, "version": "0.13.0",
    }  # fmt: skip
    kind = "sym" if symmetric else "zero"
    name = f"ct-{form}-{bits}-{strategy}-{group}-{kind}{f'-{ordered}' if ordered else ''}{'-dynamic' * dynamic}"
    name += f"{'' if packed_zeros else '-zeros8'}{'' if scale_dtype is BF16 else '-' + np.dtype(scale_dtype).name}"
    return Kind(name, pack, settings, format or f"{kind}_int{bits}")


def bnb4(quant_type: str, *, blocksize: int = 64, nested: bool = False, format: str = "", **sizes: Any) -> Kind:
    table = NF4 if quant_type == "nf4" else FP4

    def pack(values: Array, rng: np.random.Generator) -> Packed:
        n_out, n_in = values.shape
        flat = np.pad(values.reshape(-1), (0, -values.size % blocksize)).reshape(-1, blocksize)
        absmax = np.abs(flat).max(axis=1).astype(np.float32)
        tensors: Tensors = {}
        state: dict[str, Any] = {
            "quant_type": quant_type, "blocksize": blocksize, "dtype": "bfloat16", "shape": [n_out, n_in]
        }  # fmt: skip
        if nested:
            offset = np.float32(absmax.mean())
            outer_map = np.sort(rng.uniform(-1, 1, 256).astype(np.float32))
            count = -(-absmax.size // 256)
            outer = rng.uniform(0.1, 0.3, count).astype(np.float32)
            codes = rng.integers(100, 156, absmax.size).astype(np.uint8)
            absmax = outer_map[codes] * np.repeat(outer, 256)[: absmax.size] + offset
            tensors |= {"weight.absmax": codes, "weight.nested_absmax": outer, "weight.nested_quant_map": outer_map}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        else:
            tensors["weight.absmax"] = absmax
        chosen = np.abs(flat[:, :, None] / np.maximum(absmax, 1e-9)[:, None, None] - table).argmin(axis=2)
        dense = (table[chosen] * absmax[:, None]).astype(np.float32).reshape(-1)[: values.size].reshape(values.shape)
        order = chosen.reshape(-1)[: values.size]
        tensors["weight"] = (order[::2] << 4 | order[1::2]).astype(np.uint8)[:, None]
        tensors["weight.quant_map"] = table
        said = json.dumps(state).encode()
        tensors[f"weight.quant_state.bitsandbytes__{quant_type}"] = np.frombuffer(said, np.uint8)
        return Packed(tensors, dense)

    settings = {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "_load_in_4bit": True,
        "_load_in_8bit": False, "bnb_4bit_quant_type": quant_type, "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "llm_int8_threshold": 6.0,
        "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_skip_modules": None,
    }  # fmt: skip
    name = f"bnb-{quant_type}-{blocksize}{'-nested' * nested}{''.join(f'-{key}{n}' for key, n in sizes.items())}"
    return Kind(name, pack, settings, format or f"bnb_{quant_type}", sizes)


def bnb8() -> Kind:
    def pack(values: Array, rng: np.random.Generator) -> Packed:
        stats = np.abs(values).max(axis=1).astype(np.float32)
        codes = np.clip(np.rint(values / stats[:, None] * 127), -127, 127).astype(np.int8)
        tensors = {"weight": codes, "SCB": stats, "weight_format": np.array(0, np.uint8)}
        return Packed(tensors, (codes * (stats / np.float32(127))[:, None]).astype(np.float32))

    return Kind(
        "bnb-int8",
        pack,
        {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True, "llm_int8_threshold": 6.0},
        "sym_int8_fp32",
    )


KINDS = [
    *(gptq(4, group, symmetric) for group in (32, 64, 128, -1) for symmetric in (True, False)),
    *(gptq(8, group, symmetric, version=2) for group in (64, -1) for symmetric in (True, False)),
    *(gptq(bits, group, symmetric) for bits in (2, 3) for group in (32, 128, -1) for symmetric in (True, False)),
    *(gptq(bits, 64, symmetric, version=2) for bits in (2, 3) for symmetric in (True, False)),
    gptq(3, 16, False, format="fp32"),
    gptq(4, 32, False, version=2),
    gptq(8, 32, False),
    gptq(4, 32, True, index=False),
    gptq(4, 16, False, format="fp32"),
    gptq(4, 64, True, scale_dtype=BF16),
    *(awq(group) for group in (32, 64, -1)),
    awq(64, old_names=True),
    *(awq(group, layout="gemv", intermediate=256) for group in (32, 64, 128, -1)),
    *(awq(group, "asym_int4", layout="gemv_fast", intermediate=256) for group in (32, 64, 128, -1)),
    awq(64, "asym_int4", layout="gemv_fast", old_names=True, hidden=640, intermediate=704, heads=5, kv_heads=5),
    awq(64, layout="gemv", old_names=True, hidden=640, intermediate=704, heads=5, kv_heads=5),
    *(compressed(bits, "group", 32, symmetric) for bits in (4, 8) for symmetric in (True, False)),
    *(compressed(bits, "channel", -1, symmetric) for bits in (4, 8) for symmetric in (True, False)),
    compressed(4, "group", 64, False, packed_zeros=False),
    compressed(4, "group", 64, True, scale_dtype=np.float16),
    compressed(4, "group", 64, True, scale_dtype=np.float32, format="fp32"),
    compressed(8, "channel", -1, True, packed=False, dynamic=True),
    compressed(8, "channel", -1, False, packed=False),
    compressed(8, "tensor", -1, True, packed=False),
    *(bnb4(quant_type, nested=nested) for quant_type in ("nf4", "fp4") for nested in (False, True)),
    bnb4("nf4", blocksize=128),
    bnb4("nf4", blocksize=256, nested=True),
    bnb4("nf4", format="fp32", hidden=96, intermediate=144, heads=3, kv_heads=3),
    bnb8(),
]
ORDERED = [
    gptq(4, 32, True, ordered="shared"),
    gptq(4, 64, False, ordered="shared"),
    gptq(8, 32, False, ordered="shared", version=2),
    gptq(2, 32, False, ordered="shared"),
    gptq(3, 32, True, ordered="shared"),
    compressed(4, "group", 32, True, ordered="shared"),
    compressed(8, "group", 64, False, ordered="shared"),
    gptq(4, 32, False, ordered="apart"),
]
SIZES = {"hidden": 128, "intermediate": 192, "heads": 4, "kv_heads": 2, "layers": 2, "tie": False, "vocab": 96}
_QUANTISED = re.compile(r"model\.layers\.\d+\..*(_proj|\.w[123])\.weight")


def write_quantized(folder: Path, kind: Kind, **sizes: Any) -> dict[str, npt.NDArray[np.float32]]:
    """A tiny Llama in that way; returns the values of all its tensors by their Hugging Face names."""
    tiny = TinyLlama(**{**SIZES, **kind.sizes, **sizes})
    return write_tensors(folder, kind, tiny.config("float16"), tiny.weights())


def write_tensors(
    folder: Path, kind: Kind, config: Mapping[str, Any], weights: Mapping[str, Array], seed: int = 0
) -> dict[str, npt.NDArray[np.float32]]:
    """A model's config and weights as a folder whose layers' projections are quantised; returns what they then are."""
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(seed)
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, npt.NDArray[np.float32]] = {}
    for name, weight in weights.items():
        if not _QUANTISED.fullmatch(name):
            tensors[name] = torch.from_numpy(np.asarray(weight, np.float32)).to(torch.float16)
            values[name] = tensors[name].float().numpy()
            continue
        made = kind.pack(np.asarray(weight, np.float32), rng)
        values[name] = made.values
        for part, array in made.tensors.items():
            if isinstance(array, torch.Tensor):
                tensors[name.removesuffix("weight") + part] = array
                continue
            kept = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape).copy())
            tensors[name.removesuffix("weight") + part] = kept.view(torch.bfloat16) if array.dtype == BF16 else kept
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    made_config = {**config, "quantization_config": dict(kind.settings)}
    (folder / "config.json").write_text(json.dumps(made_config), encoding="utf-8")
    return values

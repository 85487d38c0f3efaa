"""Folders as ipex-llm's ``save_low_bit`` writes them, without ipex-llm; and its blocks decoded one value at a time.

The decoder is the layout's definition in its slowest form, and shares nothing with the reader of this package.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.tiny import TinyLlama

Block = bytes
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
       0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
NF3 = (-1.0, -0.4786292016506195, -0.2171417921781540, 0.0, 0.16093020141124725, 0.33791524171829224,
       0.5626170039176941, 1.0)  # fmt: skip
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

SIZES = {"sym_int4": (64, 34), "asym_int4": (64, 36), "sym_int5": (64, 42), "asym_int5": (64, 44), "sym_int8": (64, 68),
         "nf4": (64, 34), "nf3": (64, 26), "fp4": (64, 34), "fp6": (64, 50), "fp8_e4m3": (64, 68), "fp8_e5m2": (64, 68),
         "q2_k": (256, 84), "q4_k": (256, 148), "q5_k": (256, 176), "q6_k": (256, 210)}  # fmt: skip
"""Inputs and bytes of a block."""


def half(data: Block, at: int) -> float:
    return float(struct.unpack_from("<e", data, at)[0])


def nibble(data: Block, at: int, i: int) -> int:
    """Code i of 64 in 32 bytes: the first 32 low, the others high."""
    return data[at + i % 32] >> 4 * (i // 32) & 15


def bit(data: Block, at: int, i: int) -> int:
    return data[at + i // 8] >> i % 8 & 1


def half_bits(code: int, bits: int) -> float:
    """A code of a sign and ``bits`` - 1 bits as the binary16 that has these bits where its mantissa begins."""
    magnitude, sign = code & (1 << bits - 1) - 1, code >> bits - 1
    exponent = {6: 3, 8: 4}[bits]
    (value,) = struct.unpack("<e", struct.pack("<H", magnitude << (10 - (bits - 1 - exponent))))
    return -value if sign else float(value)


def fp6_code(data: Block, i: int) -> int:
    byte = (1, 3, 0, 2)[i % 4]
    low = data[4 * (i // 8) + byte] >> (0 if i % 8 >= 4 else 4) & 15
    return low | (data[32 + 4 * (i // 16) + byte] >> 6 - 2 * (i % 16 // 4) & 3) << 4


def e5m2(code: int) -> float:
    return float(struct.unpack("<e", bytes([0, code]))[0])


def nf4_code(data: Block, i: int) -> int:
    return data[2 + i % 32] >> (4 if i < 32 else 0) & 15


DECODE: dict[str, Callable[[Block, int], tuple[float, float, float]]] = {
    "sym_int4": lambda b, i: (half(b, 0), nibble(b, 2, i) - 8, 0),
    "asym_int4": lambda b, i: (half(b, 0), nibble(b, 4, i), half(b, 2)),
    "sym_int5": lambda b, i: (half(b, 0), (nibble(b, 10, i) | bit(b, 2, i) << 4) - 16, 0),
    "asym_int5": lambda b, i: (half(b, 0), nibble(b, 12, i) | bit(b, 4, i) << 4, half(b, 2)),
    "sym_int8": lambda b, i: (*struct.unpack_from("<f", b), struct.unpack_from("<b", b, 4 + i)[0], 0),
    "nf4": lambda b, i: (half(b, 0), NF4[nf4_code(b, i)], 0),
    "nf3": lambda b, i: (half(b, 0), NF3[b[10 + i // 4] >> 6 - 2 * (i % 4) & 3 | bit(b, 2, i) << 2], 0),
    "fp4": lambda b, i: (half(b, 0), FP4[nibble(b, 2, i) & 7] * (-1 if nibble(b, 2, i) > 7 else 1), 0),
    "fp6": lambda b, i: (half(b, 48), half_bits(fp6_code(b, i), 6), 0),
    "fp8_e4m3": lambda b, i: (*struct.unpack_from("<f", b), half_bits(b[4 + i], 8), 0),
    "fp8_e5m2": lambda b, i: (*struct.unpack_from("<f", b), e5m2(b[4 + i]), 0),
}  # fmt: skip
"""Name -> scale, code and minimum of input i: the value is scale * code + minimum, each rounded to float32."""


def decoded(name: str, data: bytes, rows: int, n_in: int) -> npt.NDArray[np.float32]:
    """The values of rows of blocks, float32 [rows, n_in]; the K formats by the ``gguf`` package."""
    inputs, size = SIZES[name]
    if inputs == 256:
        return _by_gguf(name, data, rows, n_in)
    values = np.zeros((rows, n_in), np.float32)
    blocks = n_in // inputs
    for row in range(rows):
        for b in range(blocks):
            block = data[(row * blocks + b) * size :][:size]
            for i in range(inputs):
                scale, code, minimum = map(np.float32, DECODE[name](block, i))
                values[row, b * inputs + i] = scale * code + minimum if minimum else scale * code
    return values


def _by_gguf(name: str, data: bytes, rows: int, n_in: int) -> npt.NDArray[np.float32]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if name == "q4_k":
        data = b"".join(_ggml_q4_k(data[at : at + 148]) for at in range(0, len(data), 148))
    values = dequantize(np.frombuffer(data, np.uint8).reshape(rows, -1), GGMLQuantizationType[name.upper()])
    return np.ascontiguousarray(values.reshape(rows, n_in), np.float32)


def _ggml_q4_k(block: Block) -> bytes:
    """There a byte for each step, scale and minimum by turns, and sub-blocks of 16 bytes; here llama.cpp's own."""
    steps, minimums = block[4:20:2], block[5:20:2]
    packed = [steps[j] | steps[j + 4] >> 4 << 6 for j in range(4)]
    packed += [minimums[j] | minimums[j + 4] >> 4 << 6 for j in range(4)]
    packed += [steps[j + 4] & 15 | (minimums[j + 4] & 15) << 4 for j in range(4)]
    codes = [block[20 + 16 * (i // 32) + i % 16] >> 4 * (i % 32 // 16) & 15 for i in range(256)]
    nibbles = [codes[64 * (k // 32) + k % 32] | codes[64 * (k // 32) + 32 + k % 32] << 4 for k in range(128)]
    return block[:4] + bytes(packed) + bytes(nibbles)


def random_blocks(name: str, count: int, rng: np.random.Generator) -> bytes:
    """Blocks of any codes, with scales and minimums that weights may have."""
    inputs, size = SIZES[name]
    data = rng.integers(0, 256, (count, size), np.uint8)

    def put(at: int, values: Any) -> None:
        data[:, at : at + values.itemsize] = values.view(np.uint8).reshape(count, -1)

    size_of = rng.standard_normal((2, count)) * 0.05
    if name in ("sym_int8", "fp8_e4m3"):
        put(0, size_of[0].astype(np.float32))
    elif name == "fp8_e5m2":
        put(0, np.ones(count, np.float32))
        data[:, 4:] &= 0xBF  # neither NaN nor infinity
    else:
        at = {"fp6": 48, "q2_k": 80, "q6_k": 208}.get(name, 0)
        put(at, size_of[0].astype(np.float16))
        if name in ("asym_int4", "asym_int5", "q2_k", "q4_k", "q5_k"):
            put(at + 2, size_of[1].astype(np.float16))
    if name == "q4_k":
        data[:, 4:20] &= 63
    return data.tobytes()


def write_ipex_llm(
    folder: Path,
    name: str,
    *,
    saved_as: str = "",
    merged: bool = True,
    settings: bool = False,
    shards: int = 1,
    seed: int = 0,
    **sizes: Any,
) -> dict[str, npt.NDArray[np.float32]]:
    """Write a folder with a pickle, and give the values of its tensors by the model's names.

    Args:
        folder: where to.
        name: the format of all matrices but the embedding, one of ``SIZES``.
        saved_as: what the config calls it; ``name`` if not given.
        merged: q, k and v are one matrix.
        settings: the format stands in ``bigdl_config.json``, as ``optimize_model``'s models have it.
        shards: files of weights.
        seed: of the weights.
        sizes: see ``TinyLlama``; matrices whose inputs are no whole blocks stay floats.
    """
    import torch

    tiny = TinyLlama(tie=False, **sizes)
    rng = np.random.default_rng(seed)
    inputs, size = SIZES[name]
    stored: dict[str, Any] = {}
    values: dict[str, npt.NDArray[np.float32]] = {}
    for tensor, weights in tiny.weights().items():
        if weights.ndim == 1 or "embed" in tensor or weights.shape[1] % inputs:
            values[tensor] = weights.astype(np.float16).astype(np.float32)
            stored[tensor] = torch.from_numpy(weights.astype(np.float16))
            continue
        rows, n_in = weights.shape
        data = random_blocks(name, rows * n_in // inputs, rng)
        values[tensor] = decoded(name, data, rows, n_in)
        stored[tensor] = torch.frombuffer(bytearray(data), dtype=torch.bfloat16 if name == "nf4" else torch.uint8)
    if merged:
        for layer in range(tiny.layers):
            at = f"model.layers.{layer}.self_attn."
            for kind in ("weight", "bias") if tiny.attention_bias else ("weight",):
                parts = [stored.pop(f"{at}{x}_proj.{kind}") for x in "qkv"]
                stored[f"{at}qkv_proj.{kind}"] = torch.cat(parts)
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny.config("float16")
    marker = {"bigdl_transformers_low_bit": saved_as or name}
    if settings:
        (folder / "bigdl_config.json").write_text(json.dumps(marker), encoding="utf-8")
        config["tie_word_embeddings"] = True  # of such a model the config is left as it was
    else:
        config |= marker
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_pickles(folder, stored, shards)
    return values


def write_pickles(folder: Path, stored: dict[str, Any], shards: int = 1) -> None:
    """``pytorch_model.bin``, or so many parts and their index, by torch."""
    import torch

    names = list(stored)
    if shards == 1:
        torch.save(stored, folder / "pytorch_model.bin")
        return
    places: dict[str, str] = {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"pytorch_model-{number + 1:05}-of-{shards:05}.bin"
        torch.save({name: stored[name].clone() for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")

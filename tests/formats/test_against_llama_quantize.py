"""Our quantisers beside llama.cpp's, at equal bits: less squared error, with importance less as it is weighted here.

Runs where the program is found, on the path or in ``IPEX_LOOKAHEAD_LLAMA_QUANTIZE``.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import gguf
import numpy as np
import pytest

from ipex_lookahead.checkpoints.imatrix import read_imatrix, write_imatrix
from ipex_lookahead.formats import PackedWeight, dequantize, quantize
from tests.support.tiny import write_tiny_gguf

PROGRAM = os.environ.get("IPEX_LOOKAHEAD_LLAMA_QUANTIZE") or shutil.which("llama-quantize")
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="llama.cpp's llama-quantize is not on the path, nor named by IPEX_LOOKAHEAD_LLAMA_QUANTIZE"
)
KINDS = {
    "sym_int4": ("Q4_0", "Q4_0"), "asym_int4": ("Q4_1", "Q4_1"), "sym_int5": ("Q5_0", "Q5_0"),
    "asym_int5": ("Q5_1", "Q5_1"), "sym_int8": ("Q8_0", "Q8_0"), "q2_k": ("Q2_K", "Q2_K"), "q3_k": ("Q3_K_M", "Q3_K"),
    "q4_k": ("Q4_K_M", "Q4_K"), "q5_k": ("Q5_K_M", "Q5_K"), "q6_k": ("Q6_K", "Q6_K"), "iq4_nl": ("IQ4_NL", "IQ4_NL"),
    "iq4_xs": ("IQ4_XS", "IQ4_XS"),
}  # fmt: skip
"""Format -> what the program calls a file of it, and the type."""
NAME = "blk.0.ffn_down.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    file = write_tiny_gguf(folder / "m.gguf", quant="F32", hidden=256, intermediate=512, layers=1)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    sizes = {name: int(one.shape[0]) for name, one in tensors.items() if len(one.shape) == 2}
    rng = np.random.default_rng(0)
    sums = {name: rng.standard_normal(n) ** 2 * np.exp(rng.standard_normal(n)) for name, n in sizes.items()}
    write_imatrix(folder / "i.gguf", sums, dict.fromkeys(sums, 1), dataset="x", chunks=1, chunk=1)
    return file, np.array(tensors[NAME].data), folder / "i.gguf"


@pytest.mark.parametrize("important", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_no_more_is_lost(original, name, important, tmp_path):
    file, weight, matrix = original
    kind, stored = KINDS[name]
    out = tmp_path / "o.gguf"
    how = ["--imatrix", str(matrix)] if important else []
    subprocess.run(
        [str(PROGRAM), "--pure", *how, str(file), str(out), kind, "1"], check=True, capture_output=True, timeout=400
    )
    theirs = next(one for one in gguf.GGUFReader(out).tensors if one.name == NAME)
    assert theirs.tensor_type.name == stored
    importance = read_imatrix(matrix).means[NAME] if important else None
    ours = dequantize(quantize(PackedWeight("fp32", weight.shape, weight), name, importance=importance))
    weights = np.ones(weight.shape)
    if importance is not None:
        parts = weight.reshape(len(weight), -1, 32)
        mean = np.repeat(np.sqrt(np.square(parts, dtype=np.float64).mean(axis=-1)), 32, axis=-1)
        weights = importance * (mean + np.abs(weight))

    def lost(values: np.ndarray) -> float:
        return float((np.square(values - weight, dtype=np.float64) * weights).sum())

    ratio = lost(ours) / lost(gguf.quants.dequantize(theirs.data, theirs.tensor_type))
    print(f"{name}: {ratio:.3f} of llama.cpp's squared error")
    assert ratio <= 1

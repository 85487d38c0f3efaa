"""Types of GGUF that are decoded when loaded: kept where the error is least, said, and refused when broken."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_types import DECODED_TYPES
from ipex_lookahead.cli.info import fact_rows
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.engines.requantize import requantized
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.formats import dequantize, quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.packed_values import values_of
from tests.support.tiny import random_blocks, write_tiny_gguf

CANDIDATES = ("fp16", "bf16", "sym_int8")


@pytest.mark.parametrize("quant", [kind.name for kind in DECODED_TYPES.values()])
def test_decoded_types_are_kept_where_the_error_is_least_and_said(
    tmp_path: Path, quant: str, caplog: pytest.LogCaptureFixture
) -> None:
    import gguf
    from gguf import quants

    kind = gguf.GGMLQuantizationType[quant]
    kept = next(known.format for known in DECODED_TYPES.values() if known.name == quant)
    values = quants.dequantize(random_blocks((32, 2048), kind), kind)
    floats = PackedWeight("fp32", values.shape, np.ascontiguousarray(values, np.float32))
    if kept != "q6_k":  # whose own search would not find the steps that are there
        errors = {name: np.square(dequantize(quantize(floats, name)) - values).mean() for name in (kept, *CANDIDATES)}
        assert errors[kept] == min(errors.values())
        assert (errors[kept] == 0) == (not quant.startswith("IQ"))
    file = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, hidden=256)
    facts = describe(file)
    assert facts["decoded"] == [f"{quant} as {kept}"]
    assert quant in facts["formats"]
    assert f"matrices of type {quant} are decoded to {kept}" in caplog.text
    assert ("decoded when loaded", f"{quant} as {kept}") in fact_rows(facts)
    found = requantized(GgufCheckpoint(file), WeightPlan("sym_int4"))
    assert found is not None
    assert found.source == quant


@pytest.mark.parametrize("scale", [0.25, -0.25])
def test_the_fourth_code_of_tq2_0_is_what_the_gguf_package_reads(tmp_path: Path, scale: float) -> None:
    """Nobody writes it; a reader that took it for the third would load other weights without a word."""
    import gguf
    from gguf import quants

    file = write_tiny_gguf(tmp_path / "m.gguf", quant="TQ2_0", hidden=256)
    source = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_up.weight")
    blocks = random_blocks((source.n_elements // 256, 256), source.tensor_type, seed=3)
    blocks[:, -2:] = np.array([scale], np.float16).view(np.uint8)
    blocks[0, :32] = 0xFF  # nothing but fours in some blocks, fours and zeros in others
    blocks[1, :32] = 0xDD
    data = bytearray(file.read_bytes())
    data[int(source.data_offset) : int(source.data_offset) + blocks.size] = blocks.tobytes()
    file.write_bytes(data)
    expected = quants.dequantize(blocks, source.tensor_type)
    assert expected.max() - expected.min() == 0.75
    found = GgufCheckpoint(file).read("model.layers.1.mlp.up_proj.weight")
    np.testing.assert_array_equal(values_of(found).reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("quant", "smallest"), [("IQ1_S", 2**-11), ("IQ1_M", 2**-11), ("IQ3_XXS", 2**-13), ("IQ3_S", 0)]
)
def test_six_bits_hold_scales_of_some_size(
    tmp_path: Path, quant: str, smallest: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One block of one matrix with a scale that is 0, negative or small: every bit is kept; or the next smaller one."""
    import gguf
    from gguf import quants

    kind = gguf.GGMLQuantizationType[quant]
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, hidden=256)
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    size = gguf.GGML_QUANT_SIZES[kind][1]

    def read_with(scale: np.float16) -> tuple[PackedWeight, np.ndarray]:
        block, bits = np.array(stored.data).reshape(-1, size)[5], int(scale.view(np.uint16))
        if quant == "IQ1_M":
            words = block[-8:].view(np.uint16)
            words[...] = words & 0xFFF | np.array([bits >> 4 * part & 15 for part in range(4)], np.uint16) << 12
        else:
            block[:2] = np.frombuffer(struct.pack("<H", bits), np.uint8)
        data = bytearray(path.read_bytes())
        at = stored.data_offset + 5 * size
        data[at : at + size] = block.tobytes()
        path.write_bytes(data)
        other = next(t for t in gguf.GGUFReader(path).tensors if t.name == stored.name)
        checkpoint = GgufCheckpoint(path)
        weight = checkpoint.read("model.layers.0.mlp.up_proj.weight")
        assert weight.format == checkpoint.info("model.layers.0.mlp.up_proj.weight").format
        return weight, quants.dequantize(other.data, kind)

    for scale in (np.float16(0), np.float16(-0.004), np.float16(smallest), np.float16(-0.0)):
        weight, expected = read_with(scale)
        assert weight.format == "q6_k"
        assert dequantize(weight).tobytes() == np.ascontiguousarray(expected, np.float32).tobytes()
    odd = np.nextafter(np.float16(smallest), np.float16(0)) if smallest else np.float16(6e-8)
    weight, expected = read_with(odd)
    if quant == "IQ3_S":
        assert weight.format == "q6_k"
        assert dequantize(weight).tobytes() == np.ascontiguousarray(expected, np.float32).tobytes()
    else:
        assert weight.format == "fp16"
        np.testing.assert_array_equal(values_of(weight), expected.astype(np.float16).astype(np.float32))
        assert "to fp16, because its scales are too small for q6_k" in caplog.text


@pytest.mark.parametrize("quant", ["TQ1_0", "IQ1_S", "NVFP4"])
def test_a_block_that_decodes_to_no_number_is_found(tmp_path: Path, quant: str) -> None:
    import gguf

    file = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, hidden=256)
    source = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_up.weight")
    _, size = gguf.GGML_QUANT_SIZES[source.tensor_type]
    at = int(source.data_offset) + 5 * size
    data = bytearray(file.read_bytes())
    if quant == "NVFP4":  # has no NaN and no infinity: every byte is a number
        data[at : at + size] = b"\xff" * size
        file.write_bytes(data)
        assert np.isfinite(dequantize(GgufCheckpoint(file).read("model.layers.1.mlp.up_proj.weight"))).all()
        return
    field = at + (size - 2 if quant == "TQ1_0" else 0)
    data[field : field + 2] = b"\xff\x7e"
    file.write_bytes(data)
    with pytest.raises(ModelFormatError, match="a value of this block is nan") as caught:
        GgufCheckpoint(file).read("model.layers.1.mlp.up_proj.weight")
    assert (caught.value.field, caught.value.offset) == ("blk.1.ffn_up.weight", at)

"""NaN and infinity are found wherever they are, and named with their place in the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.checkpoints import open_checkpoint, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.formats import float_base
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite
from tests.support.gguf_bytes import llama_bytes, write
from tests.support.tiny import TinyLlama, write_tiny_llama

NAN16, INF16 = struct.pack("<H", 0x7E00), struct.pack("<H", 0xFC00)


@given(st.lists(st.integers(0, 2**16 - 1), max_size=40), st.integers(1, 9))
def test_against_numpy(bits: list[int], piece: int) -> None:
    values = np.array(bits, np.uint16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float_base, "_AT_ONCE", piece)
        for format, floats in (
            ("fp16", values.view(np.float16)),
            ("bf16", (values.astype(np.uint32) << 16).view(np.float32)),
        ):
            wrong = np.flatnonzero(~np.isfinite(floats))
            assert first_not_finite(values, format) == (int(wrong[0]) if wrong.size else None)


@pytest.mark.parametrize(
    ("name", "ours", "value", "shift", "words"),
    [
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", NAN16, 2 * 18, "scale 2"),  # Q4_0
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", INF16, 3 * 20, "scale 3"),  # Q4_1
        ("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", NAN16, 3 * 20 + 2, "minimum 3"),
        ("token_embd.weight", "model.embed_tokens.weight", NAN16, 34, "scale 1"),  # Q8_0
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight", INF16, 10, "value 5"),  # F16
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", b"\x80\x7f", 0, "value 0"),  # BF16
        ("output_norm.weight", "model.norm.weight", struct.pack("<f", np.nan), 4, "value 1"),  # F32
    ],
)
def test_gguf(tmp_path: Path, name: str, ours: str, value: bytes, shift: int, words: str) -> None:
    made = llama_bytes(quantised=True)
    at = made.at[f"{name}:data"] + shift
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", made.patched(at, value)))
    with pytest.raises(ModelFormatError, match=f"{words} is NaN or infinite") as caught:
        checkpoint.read(ours)
    assert (caught.value.field, caught.value.offset) == (name, at)


def test_safetensors(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", dtype="bfloat16")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = b"\xc0\x7f"
    path.write_bytes(data)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ModelFormatError, match="is NaN or infinite") as caught:
        checkpoint.read(checkpoint.names()[-1])
    assert caught.value.offset == len(data) - 2


def test_saved_scales(tmp_path: Path) -> None:
    scales = np.ones((2, 2), np.uint16)
    scales[1, 0] = 0x7C00
    weight = PackedWeight("sym_int4", (2, 64), np.zeros((2, 32), np.uint8), 32, scales)
    arguments: dict[str, Any] = {"config": TinyLlama().config("float32"), "generation_config": {}}
    folder = save(
        tmp_path / "m",
        infos={"w": TensorInfo((2, 64), "sym_int4", 32)},
        weights=[("w", weight)],
        low_bit={"low_bit": "sym_int4", "group_size": 32, "mixed_precision": False},
        **arguments,
    )
    with pytest.raises(ModelFormatError, match="scale 2 is NaN or infinite") as caught:
        open_checkpoint(folder).read("w")
    assert caught.value.offset == (folder / "model.safetensors").stat().st_size - 4

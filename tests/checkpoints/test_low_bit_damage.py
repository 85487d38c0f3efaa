"""Saved folders that were changed after the save: refused, with the file and the tensor that are wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import LowBitCheckpoint, open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.low_bit_folders import WEIGHTS, same, saved, weight
from tests.support.safetensors_attacks import without_checksums


def rewritten(folder: Path, change: Any) -> Path:
    """Change the header of the weights file in place, keeping its length."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return folder


BAD_LINES = ["", "sym_int4", "sym_int4 32 5x172x1", "sym_int4 16 5x172", "fp32 0 5x172", "sym_int4 32 0x172",
             "nf4 64 5x172",
             "sym_int4 32 5x172\n", "sym_int4 32 5x99999999999999", "sym_int4 32 5x" + "9" * 13]  # fmt: skip


SUM = "sha256:" + "0" * 64


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_descriptions(tmp_path: Path, line: str) -> None:
    described = {"ragged.weight": f"{line} {SUM}"}
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].update(described))
    with pytest.raises(ModelFormatError, match="must be FORMAT GROUP_SIZE ROWSxCOLUMNS") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "ragged.weight"
    assert caught.value.offset is not None


@pytest.mark.parametrize("line", ["sym_int4 32 5x172", "sym_int8 64 5x172", "sym_int4 64 6x172", "sym_int4 64 5x200"])
def test_descriptions_that_the_arrays_contradict(tmp_path: Path, line: str) -> None:
    described = {"ragged.weight": f"{line} {SUM}"}
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].update(described))
    with pytest.raises(ModelFormatError, match="it must be") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field.startswith("ragged.weight.")


def test_missing_and_left_over_arrays(tmp_path: Path) -> None:
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].pop("ragged.weight"))
    with pytest.raises(UnsupportedModelError, match=r"ragged\.weight\.codes has dtype U8"):
        LowBitCheckpoint(folder)
    folder = rewritten(
        saved(tmp_path / "out2"), lambda h: h["__metadata__"].update({"other.weight": f"sym_int4 32 5x172 {SUM}"})
    )
    with pytest.raises(ModelFormatError, match="missing from the file") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "other.weight.codes"


def test_folders_without_checksums_are_read(tmp_path: Path) -> None:
    checkpoint = LowBitCheckpoint(without_checksums(saved(tmp_path / "out")))
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_names_file_and_tensor(tmp_path: Path, bit: int) -> None:
    folder = saved(tmp_path / "out")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    checkpoint = LowBitCheckpoint(folder)  # it reads by position: what is written below is what it sees
    for stored in checkpoint._file.tensors.values():
        name = next(name for name in WEIGHTS if stored.name.startswith(name))
        for at in {stored.offset, stored.offset + stored.nbytes // 2, stored.offset + stored.nbytes - 1}:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1 << bit]))
            with pytest.raises(ModelFormatError, match="its checksum differs|is NaN or infinite") as caught:
                checkpoint.read(name)
            assert (caught.value.file, caught.value.field) == (str(path), name)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data[at : at + 1])
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


@pytest.mark.parametrize("name", ["ragged.weight", "half.weight"])
def test_a_checksum_is_of_the_name_and_must_be_there(tmp_path: Path, name: str) -> None:
    twin = {**WEIGHTS, "other": weight(*[getattr(WEIGHTS[name], key) for key in ("format", "shape", "group_size")], 9)}

    def exchange(header: dict[str, Any]) -> None:
        for table in (header, header["__metadata__"]):
            for suffix in ("", ".codes", ".scales"):
                if name + suffix in table:
                    table[name + suffix], table["other" + suffix] = table["other" + suffix], table[name + suffix]

    checkpoint = LowBitCheckpoint(rewritten(saved(tmp_path / "exchanged", twin), exchange))
    with pytest.raises(ModelFormatError, match="its checksum differs"):
        checkpoint.read(name)
    with pytest.raises(ModelFormatError, match="must end with sha256:"):
        LowBitCheckpoint(rewritten(saved(tmp_path / "none"), lambda h: h["__metadata__"].update({name: "sym_int4"})))
    if name == "half.weight":
        with pytest.raises(ModelFormatError, match="has no checksum"):
            LowBitCheckpoint(rewritten(saved(tmp_path / "gone"), lambda h: h["__metadata__"].pop(name)))


def test_a_part_of_a_damaged_tensor_is_not_read_either(tmp_path: Path) -> None:
    """Phi-3's q, k and v are one tensor where transformers saves them: what is damaged may lie in another part."""
    config = {"model_type": "phi3", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 64, "original_max_position_embeddings": 64}  # fmt: skip
    fused = weight("sym_int8", (192, 64), 32, 1)
    kinds = {"model.layers.0.self_attn.qkv_proj.weight": fused, "model.norm.weight": weight("fp32", (64,), 0, 2)}
    folder = saved(tmp_path / "out", kinds, config=config)
    path = folder / "model.safetensors"
    q, k, v = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
    assert np.array_equal(LowBitCheckpoint(folder).read(k).codes, fused.codes[64:128])
    data = bytearray(path.read_bytes())
    data[LowBitCheckpoint(folder)._file.tensors["model.layers.0.self_attn.qkv_proj.weight.codes"].offset] ^= 1  # of q
    path.write_bytes(data)
    for name in (k, v, q):
        with pytest.raises(ModelFormatError, match="its checksum differs") as caught:
            LowBitCheckpoint(folder).read(name)
        assert caught.value.field == "model.layers.0.self_attn.qkv_proj.weight"


def test_one_name_twice_and_no_tensor(tmp_path: Path) -> None:
    def rename(header: dict[str, Any]) -> None:
        header["ragged.weight"] = header.pop("half.weight")

    with pytest.raises(ModelFormatError, match="is missing from the file") as caught:
        LowBitCheckpoint(rewritten(saved(tmp_path / "renamed"), rename))
    assert caught.value.field == "half.weight"
    folder = rewritten(without_checksums(saved(tmp_path / "out")), rename)
    with pytest.raises(ModelFormatError, match="both as a float and as a low-bit tensor") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "ragged.weight"
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelFormatError, match="has no tensors"):
        LowBitCheckpoint(folder)


def edit_config(folder: Path, change: Any) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", 0, "whole number"), ("version", "1", "whole number"), ("version", None, "whole number"),
        ("low_bit", 4, "string"), ("group_size", -1, "whole number"), ("mixed_precision", "no", "true or false"),
    ],
)  # fmt: skip
def test_bad_marker(tmp_path: Path, key: str, value: Any, words: str) -> None:
    folder = edit_config(saved(tmp_path / "out"), lambda c: c["ipex_lookahead"].update({key: value}))
    with pytest.raises(ModelFormatError, match=words) as caught:
        open_checkpoint(folder)
    assert caught.value.field == f"ipex_lookahead.{key}"


def test_a_newer_version_and_no_marker(tmp_path: Path) -> None:
    folder = edit_config(saved(tmp_path / "out"), lambda c: c["ipex_lookahead"].update({"version": 3}))
    with pytest.raises(UnsupportedModelError, match="version 3 of the format; this release supports versions up to 2"):
        open_checkpoint(folder)
    edit_config(folder, lambda c: c.update({"ipex_lookahead": []}))
    with pytest.raises(ModelFormatError, match="it must be an object"):
        open_checkpoint(folder)
    edit_config(folder, lambda c: c.pop("ipex_lookahead"))
    with pytest.raises(UnsupportedModelError, match="supported dtypes are F32, F16, BF16"):
        open_checkpoint(folder)


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out")
    checkpoint = LowBitCheckpoint(folder)
    os.truncate(folder / "model.safetensors", 1500)
    with pytest.raises(ModelFormatError, match="became shorter"):
        checkpoint.read("model.norm.weight")
    with pytest.raises(ModelFormatError, match="no tensor has this name"):
        checkpoint.info("nope")

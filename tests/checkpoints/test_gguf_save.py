"""GGUF files that are written: our reader and the gguf package find the weights, bits and metadata that went in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints import GgufCheckpoint, LowBitCheckpoint
from ipex_lookahead.checkpoints.gguf_save import GGUF_FORMATS, save_gguf
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.convert import convert
from ipex_lookahead.engines.gguf_export import export_gguf
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.weights import WeightPlan, read_matrix
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError
from ipex_lookahead.formats import dequantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny import write_tiny_gguf, write_tiny_llama
from tests.support.tiny_families import build

SIZES: dict[str, Any] = {"quant": "F32", "hidden": 256, "seed": 4}
OWN = ("general.file_type", "general.quantization_version")


def same_bits(one: PackedWeight, two: PackedWeight) -> None:
    assert (one.format, one.shape, one.group_size) == (two.format, two.shape, two.group_size)
    for (name, ours), (other, theirs) in zip(one.arrays(), two.arrays(), strict=True):
        assert name == other
        np.testing.assert_array_equal(ours, theirs)


def expected(checkpoint: GgufCheckpoint, written: GgufCheckpoint, name: str, low_bit: str) -> PackedWeight:
    """What a weight must be in the written file, by the format that it has there."""
    found = written.info(name).format
    tensor = next(tensor for tensor in checkpoint.spec.tensors() if tensor.name == name)
    if not tensor.is_matrix or tensor.name in checkpoint.spec.kept():
        return checkpoint.read(name)
    assert found in (low_bit, "sym_int8", checkpoint.info(name).format)
    return read_matrix(checkpoint, tensor, WeightPlan(found))


@pytest.mark.parametrize("low_bit", GGUF_FORMATS)
def test_every_format_comes_back_bit_for_bit(tmp_path: Path, low_bit: str) -> None:
    import gguf
    from gguf import quants

    source = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", tie=False, **SIZES))
    target = tmp_path / "out.gguf"
    export_gguf(source, target, WeightPlan(low_bit))
    written = GgufCheckpoint(target)
    assert (written.config, written.names()) == (source.config, source.names())
    assert {key: value for key, value in written.metadata.items() if key not in OWN} == source.metadata
    assert written.info("model.layers.0.self_attn.q_proj.weight").format == low_bit
    for name in source.names():
        same_bits(written.read(name), expected(source, written, name, low_bit))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    up = theirs["blk.1.ffn_up.weight"]
    np.testing.assert_array_equal(
        quants.dequantize(up.data, up.tensor_type), dequantize(written.read("model.layers.1.mlp.up_proj.weight"))
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf"]


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(model_type, variant) for model_type in FAMILIES for variant in variants(model_type)[:1] if variant.gguf],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.rotating(14)
def test_every_familys_places_are_the_files(tmp_path: Path, model_type: str, variant: Any) -> None:
    source = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build(model_type, variant)))
    target = tmp_path / "out.gguf"
    export_gguf(source, target, WeightPlan("sym_int8"))
    written = GgufCheckpoint(target)
    assert (written.config, written.names()) == (source.config, source.names())
    assert "sym_int8" in {written.info(name).format for name in written.names()}
    for name in source.names():
        same_bits(written.read(name), expected(source, written, name, "sym_int8"))


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [(model_type, variant) for model_type in FAMILIES for variant in variants(model_type) if variant.gguf],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.rotating(27)
def test_a_folder_made_of_a_file_becomes_one_again(tmp_path: Path, model_type: str, variant: Any) -> None:
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", build(model_type, variant)))
    ragged = any(tensor.shape[-1] % 32 for tensor in file.spec.tensors() if tensor.is_matrix)
    convert(LoadRequest(file.path, "bf16" if ragged else "sym_int8"), tmp_path / "folder")
    folder = LowBitCheckpoint(tmp_path / "folder")
    export_gguf(folder, tmp_path / "out.gguf", WeightPlan(None))
    written = GgufCheckpoint(tmp_path / "out.gguf")
    assert (written.config, written.names()) == (file.config, file.names())
    assert {*written.metadata} - {*OWN} == {*file.metadata} - {*OWN}
    assert all(np.array_equal(written.metadata[key], value) for key, value in file.metadata.items() if key not in OWN)
    for name in file.names():
        if name.endswith(".A_log"):  # of which a file has -e^x: the last bit may be lost
            np.testing.assert_allclose(written.read(name).codes, folder.read(name).codes, rtol=1e-6)
        else:
            same_bits(written.read(name), folder.read(name))
    assert {one.name: one.shape for one, _ in written.stored()} == {one.name: one.shape for one, _ in file.stored()}


def test_what_a_folder_cannot_become(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", **SIZES)
    convert(LoadRequest(file, "nf4"), tmp_path / "nf4")
    with pytest.raises(InputError, match=r"is in nf4, in rows of 256, which GGUF has no blocks for"):
        export_gguf(LowBitCheckpoint(tmp_path / "nf4"), tmp_path / "out.gguf", WeightPlan(None))
    convert(LoadRequest(file, "sym_int4", 64), tmp_path / "wide")
    with pytest.raises(InputError, match=r"is in sym_int4 with group size 64"):
        export_gguf(LowBitCheckpoint(tmp_path / "wide"), tmp_path / "out.gguf", WeightPlan(None))
    convert(LoadRequest(file, "sym_int4"), tmp_path / "edited")
    config = json.loads((tmp_path / "edited" / "config.json").read_text())
    (tmp_path / "edited" / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    with pytest.raises(InputError, match=r"config.json does not say what the GGUF file said .*\(rope_theta\)"):
        export_gguf(LowBitCheckpoint(tmp_path / "edited"), tmp_path / "out.gguf", WeightPlan(None))
    (tmp_path / "edited" / "metadata.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match="metadata.gguf"):
        export_gguf(LowBitCheckpoint(tmp_path / "edited"), tmp_path / "out.gguf", WeightPlan(None))
    (tmp_path / "edited" / "metadata.gguf").unlink()
    with pytest.raises(InputError, match="was not made of a GGUF file"):
        export_gguf(LowBitCheckpoint(tmp_path / "edited"), tmp_path / "out.gguf", WeightPlan(None))
    assert not (tmp_path / "out.gguf").exists()


def test_a_folder_of_a_folder_keeps_the_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_tiny_gguf(
        tmp_path / "m.gguf", split=3, intermediate=512, metadata={"other.numbers": list(range(5000))}, **SIZES
    )
    for source, out in ((file, tmp_path / "one"), (tmp_path / "one", tmp_path / "two")):
        assert run(["quantize", str(source), str(out), "--low-bit", "q6_k"]) == 0
    assert run(["quantize", str(tmp_path / "two"), "--to", str(tmp_path / "out.gguf")]) == 0
    assert "in the formats of the file" in capsys.readouterr().out
    written = GgufCheckpoint(tmp_path / "out.gguf")
    assert written.info("model.layers.0.mlp.up_proj.weight").format == "q6_k"
    assert written.metadata["other.numbers"].dtype == GgufCheckpoint(file).metadata["other.numbers"].dtype
    assert not any(key.startswith("split.") for key in written.metadata)
    assert run(["quantize", str(tmp_path / "two"), "--to", str(tmp_path / "x.gguf"), "--low-bit", "q4_k"]) == 2
    assert "in q6_k already" in capsys.readouterr().err


def test_what_is_not_asked_for_is_copied_and_parts_become_one_file(tmp_path: Path) -> None:
    source = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", quant="IQ2_XS", hidden=256, split=5))
    export_gguf(source, tmp_path / "out.gguf", WeightPlan(None))
    written = GgufCheckpoint(tmp_path / "out.gguf")
    assert not any(key.startswith("split.") for key in written.metadata)
    for (one, _), (two, _) in zip(source.stored(), written.stored(), strict=True):
        assert (one.name, one.type, one.shape) == (two.name, two.type, two.shape)
        assert one.file.read(one.offset, one.nbytes, one.name) == two.file.read(two.offset, two.nbytes, two.name)


def test_long_arrays_and_tokens_are_copied(tmp_path: Path) -> None:
    import gguf

    metadata = {"other.numbers": list(range(5000)), "other.flag": True, "other.word": "é", "other.x": 0.1}
    source = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata, **SIZES))
    export_gguf(source, tmp_path / "out.gguf", WeightPlan("q4_k"))
    one, two = (gguf.GGUFReader(tmp_path / name).fields for name in ("m.gguf", "out.gguf"))
    for key, field in one.items():
        if not key.startswith("GGUF."):
            assert (two[key].types, two[key].contents()) == (field.types, field.contents()), key


def test_rows_that_are_no_whole_blocks_take_a_larger_type_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", quant="F32"))
    export_gguf(source, tmp_path / "out.gguf", WeightPlan("q4_k"))
    assert "matrices have rows that are no whole blocks; they are in sym_int8" in caplog.text
    written = GgufCheckpoint(tmp_path / "out.gguf")
    assert {written.info(name).format for name in written.names()} == {"sym_int8", "fp32"}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", **SIZES))
    target = tmp_path / "out.gguf"
    target.write_bytes(b"before")

    def broken(tensor: Tensor) -> PackedWeight:
        raise OSError(28, "No space left on device")

    formats = {"model.layers.0.mlp.up_proj.weight": "q4_k"}
    with pytest.raises(SaveError, match="No space left on device; nothing that was there"):
        save_gguf(target, source, formats, broken)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf"]
    with pytest.raises(InputError, match="nf4 is no type of GGUF's"):
        save_gguf(target, source, dict.fromkeys(formats, "nf4"), broken)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write_tiny_gguf(tmp_path / "m.gguf", **SIZES), tmp_path / "out.gguf"
    assert run(["quantize", str(file), "--to", str(out), "--low-bit", "q6_k"]) == 0
    assert f"saved {out}" in capsys.readouterr().out
    assert GgufCheckpoint(out).info("model.layers.0.mlp.up_proj.weight").format == "q6_k"
    folder = write_tiny_llama(tmp_path / "folder")
    for arguments, said in (
        ([file, "--to", out], "is there already"),
        ([file, "--to", tmp_path / "x.gguf", "--low-bit", "nf4"], "nf4 is no type of GGUF's"),
        ([file, "--to", tmp_path / "x.gguf", "--low-bit", "sym_int4", "--group-size", "64"], "group size 64"),
        ([file, "--to", tmp_path / "no" / "x.gguf"], "no such folder"),
        ([out, "--to", tmp_path / "x.gguf", "--low-bit", "q4_k"], "in q6_k already"),
        ([folder, "--to", tmp_path / "x.gguf"], "convert_hf_to_gguf.py"),
        ([file], "either OUT, a folder, or --to"),
        ([file, tmp_path / "o", "--to", tmp_path / "x.gguf"], "either OUT, a folder, or --to"),
    ):
        assert run(["quantize", *map(str, arguments)]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not os.path.exists(tmp_path / "x.gguf")
    assert run(["quantize", str(file), "--to", str(out), "--low-bit", "q4_k", "--overwrite"]) == 0
    assert GgufCheckpoint(out).info("model.layers.0.mlp.up_proj.weight").format == "q4_k"

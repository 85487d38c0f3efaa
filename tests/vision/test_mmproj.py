"""Vision towers of GGUF files: the features of the folder that they are from, pairing with models, and refusals."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.vision.mmproj import MmprojFile, mmproj_of
from ipex_lookahead.vision.model import VisionModel
from ipex_lookahead.vision.tiling import TilesAndOverview, TokenBudget
from tests.vision.folders import FAMILIES
from tests.vision.mmproj_files import write
from tests.vision.test_towers import features_of, file_of, made  # noqa: F401


def opened(path, hidden: int = 32) -> VisionModel:
    return VisionModel.open_mmproj(path, hidden, threads=2)


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_those_of_the_folder(made, tmp_path, kind):  # noqa: F811
    folder, ours, _ = made(kind)
    other = opened(write(folder, tmp_path / "mmproj.gguf"))
    image = ours.prepare(file_of(33, 90))
    wanted, found = features_of(ours, image), features_of(other, image)
    assert np.array_equal(found.values, wanted.values)
    assert len(found.deepstack) == len(wanted.deepstack)
    assert all(map(np.array_equal, found.deepstack, wanted.deepstack))


def test_low_bit_weights_are_decoded(made, tmp_path):  # noqa: F811
    folder, ours, _ = made("qwen3_vl")
    path = write(folder, tmp_path / "mmproj.gguf", quantized=True)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert {stored[name].tensor_type.name for name in ("mm.0.weight", "v.blk.0.ffn_up.weight")} == {"Q8_0", "F16"}
    file = MmprojFile(path)
    tensors = {tensor.gguf.name: tensor for _, tensor in file.tower.spec(file.config, 32).named_tensors()}
    for name in ("mm.0.weight", "v.blk.0.ffn_up.weight"):
        read, raw = file.read_tensor(tensors[name]), stored[name]
        values = gguf.quants.dequantize(raw.data, raw.tensor_type)
        assert np.array_equal(read.codes if read.format == "fp32" else read.codes.view(np.float16), values)
    file.close()
    image = ours.prepare(file_of(33, 90))
    wanted, found = features_of(ours, image).values, features_of(opened(path), image).values
    assert 0 < np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()


def test_what_the_file_does_not_have_is_that_of_the_family(made, tmp_path):  # noqa: F811
    gemma = opened(write(made("gemma4")[0], tmp_path / "a.gguf"))
    assert gemma.preparation.sizing == TokenBudget(280)
    qwen = opened(write(made("qwen3_5")[0], tmp_path / "b.gguf"))
    assert (qwen.preparation.sizing.least, qwen.preparation.sizing.most) == (65536, 2048 * 8 * 8)  # 2,048 tokens
    assert qwen.preparation.mean == (0.5, 0.5, 0.5)
    folder, ours, _ = made("smolvlm")
    smol = opened(write(folder, tmp_path / "c.gguf"))
    assert smol.preparation == ours.preparation
    lfm2 = opened(write(made("lfm2_vl")[0], tmp_path / "d.gguf"))
    assert lfm2.preparation.sizing == TilesAndOverview(64, 256, 512, 2, 10, 2.0)
    assert made("gemma3")[1].preparation == opened(write(made("gemma3")[0], tmp_path / "e.gguf")).preparation


def test_a_file_is_paired_by_folder_name_and_size(made, tmp_path):  # noqa: F811
    folder = made("gemma4")[0]
    model = tmp_path / "model-Q4_K_M.gguf"
    assert mmproj_of(model, 32) is None
    write(folder, tmp_path / "mmproj-Q8_0.gguf", quantized=True)
    assert mmproj_of(model, 32) == tmp_path / "mmproj-Q8_0.gguf"
    write(folder, tmp_path / "model-mmproj-F32.gguf")
    (tmp_path / "mmproj-damaged.gguf").write_bytes(b"GGUF")
    assert mmproj_of(model, 32) == tmp_path / "model-mmproj-F32.gguf"
    assert mmproj_of(model, 64) is None


def test_the_file_of_another_model_is_refused(made, tmp_path):  # noqa: F811
    path = write(made("gemma4")[0], tmp_path / "mmproj.gguf")
    with pytest.raises(InputError, match="hidden size 32; this model has 64"):
        opened(path, 64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"embedding_length": 40}, r"v\.patch_embd\.weight.*has shape \[48, 3, 4, 4\]; the metadata imply \[40"),
        ({"feed_forward_length": 0}, "intermediate_size"),
        ({"attention.head_count": 6}, r"attn_q\.weight.*has shape"),
        ({"patch_size": 300}, "patch_size"),
    ],
)
def test_contradictions_are_refused(made, tmp_path, changed, message):  # noqa: F811
    with pytest.raises(ModelFormatError, match=message):
        opened(write(made("gemma4")[0], tmp_path / "mmproj.gguf", **changed))


def test_missing_tensors_and_other_projectors_are_refused(tmp_path):
    for kind, error, message in (
        ("gemma4uv", ModelFormatError, "patch_norm.1.weight"),
        ("pixtral", UnsupportedModelError, "supported projectors are gemma4v"),
    ):
        writer = gguf.GGUFWriter(tmp_path / f"{kind}.gguf", "clip")
        writer.add_string("clip.projector_type", kind)
        for key in ("projection_dim", "embedding_length", "patch_size"):
            writer.add_uint32(f"clip.vision.{key}", 16)
        writer.add_tensor("v.x", np.zeros(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(error, match=message):
            opened(tmp_path / f"{kind}.gguf", 16)

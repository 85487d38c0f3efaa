"""``mmproj`` files that llama.cpp's own converter writes from tiny folders have the folders' features.

`make test-peers` runs it: ``IPEX_LOOKAHEAD_LLAMA_CPP_SOURCE`` names a folder with llama.cpp's sources.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23")

from safetensors.numpy import load_file, save_file

from ipex_lookahead.vision.model import VisionModel
from tests.vision.folders import FAMILIES, lfm2_vl, saved
from tests.vision.test_towers import features_of, file_of, processor

SOURCE = "IPEX_LOOKAHEAD_LLAMA_CPP_SOURCE"
if SOURCE not in os.environ:
    pytest.skip(f"{SOURCE} names no sources of llama.cpp; make test-peers does", allow_module_level=True)

PATCHES_OF_16 = {"lfm2_vl": False, "lfm2_vl_plain": True}
"""The converter reads patches of 16 x 16 pixels, and more than 2 layers; True: no norm and biases in the projector."""


def as_published(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """Bring a folder that transformers has saved into the form that the converter expects."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    if config["model_type"] in ("gemma3", "lfm2_vl"):
        tensors = {name.replace("vision_tower.", "vision_tower.vision_model.", 1): t for name, t in tensors.items()}
    for name in [name for name in tensors if name.endswith("mm_input_projection_weight")]:  # always F16 in the file
        tensors[name] = tensors[name].astype(np.float16).astype(np.float32)
    if kind == "gemma4_unified":  # a part for sound, which the converter requires
        config["audio_config"] = {"audio_embed_dim": 1}
    mean, std = (0.0, 1.0) if kind.startswith("gemma4") else (0.5, 0.5)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [mean] * 3, "image_std": [std] * 3, "image_seq_length": 16, **settings})
    )


def converted(folder: Path, into: Path, kind: str) -> Path:
    source = Path(os.environ[SOURCE])
    done = subprocess.run(
        [sys.executable, source / "convert_hf_to_gguf.py", folder, "--mmproj", "--outfile", into, "--outtype", kind],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(source / "gguf-py")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return into


@pytest.mark.parametrize("kind", FAMILIES)
def test_files_of_the_converter_have_the_folders_features(kind, tmp_path, monkeypatch):
    settings = processor(kind)
    if kind in PATCHES_OF_16:
        plain = {"projector_use_layernorm": False, "projector_bias": False} if PATCHES_OF_16[kind] else {}
        monkeypatch.setitem(FAMILIES, kind, lambda: lfm2_vl(patch_size=16, layers=3, **plain))
        settings = {"encoder_patch_size": 16, "min_image_tokens": 9, "max_image_tokens": 30, "tile_size": 64}
    folder = tmp_path / "model"
    saved(kind, folder, settings)
    as_published(folder, kind, settings)
    ours = VisionModel.open(folder, threads=2)
    image = ours.prepare(file_of(33, 90))
    wanted = features_of(ours, image)
    largest = np.abs(wanted.values).max()
    for outtype, tolerance in (("f32", 0.0), ("q8_0", 0.05)):
        other = VisionModel.open_mmproj(converted(folder, tmp_path / f"{outtype}.gguf", outtype), 32, threads=2)
        found = features_of(other, image)
        assert np.abs(found.values - wanted.values).max() <= tolerance * largest, outtype
        assert len(found.deepstack) == len(wanted.deepstack)
        if not tolerance:
            assert all(map(np.array_equal, found.deepstack, wanted.deepstack))
        if kind in ("gemma3", "idefics3", "smolvlm"):
            assert other.preparation == ours.preparation

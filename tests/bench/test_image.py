"""``bench image``: times of a tiny model and of a program that prints llama.cpp's lines, and the towers of shapes."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23")

from tokenizers import AddedToken

from ipex_lookahead.architectures.images import with_images
from ipex_lookahead.bench import image
from ipex_lookahead.bench.shapes import config_of, shape_of
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines.native.encoder import NativeEncoder
from ipex_lookahead.errors import InputError
from ipex_lookahead.vision.images import ImageReader
from ipex_lookahead.vision.model import TOWERS, VisionModel
from ipex_lookahead.vision.tiling import whole
from tests.support.chat_tokenizer import chat_tokenizer
from tests.vision.folders import saved
from tests.vision.test_towers import processor


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("smolvlm")
    saved("smolvlm", made, processor("smolvlm"))
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([AddedToken("<image>", special=True)], special_tokens=True)
    tokenizer.save_pretrained(made)
    return made


def reported(capsys, *given: str) -> dict:
    assert run(["bench", "image", *given, "--threads", "1", "--repeat", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_model_is_measured_by_size(folder, capsys):
    found = reported(capsys, "-m", str(folder), "--sizes", "64x64,90x40")
    assert [(one["width"], one["height"], one["tiles"], one["tokens"]) for one in found["images"]] == [
        (64, 64, 10, 40),
        (90, 40, 7, 28),
    ]
    assert all(one[name] > 0 for one in found["images"] for name in ("decode_ms", "encode_ms", "read_ms"))
    assert found["random_weights"] is False
    assert found["threads"] == 1


def program(tmp_path: Path, lines: str, status: int = 0) -> Path:
    """A program that checks its image and prints lines of llama.cpp."""
    made = tmp_path / "llama-mtmd-cli"
    made.write_text(f'#!/bin/sh\nfor one in "$@"; do case "$one" in *.bmp) test -s "$one" || exit 9;; esac; done\n'
                    f"cat >&2 <<'END'\n{lines}\nEND\nexit {status}\n")  # fmt: skip
    made.chmod(0o755)
    return made


def test_times_of_llama_cpp_are_those_that_it_prints(tmp_path):
    lines = "image slice encoded in 120 ms\nimage decoded (batch 1/2) in 30 ms\nimage decoded (batch 2/2) in 12 ms"
    lines += "\nimage slice encoded in 3 ms"
    file = tmp_path / "a.bmp"
    file.write_bytes(image.picture(3, 2, 0))
    assert image.llama_cpp([str(program(tmp_path, lines))])(file) == (0.123, 0.042)
    for wrong in (program(tmp_path, "no image"), program(tmp_path, lines, 3), tmp_path / "missing"):
        with pytest.raises(InputError, match="llama-mtmd-cli|missing"):
            image.llama_cpp([str(wrong)])(file)


def test_another_program_reads_the_same_file_after_each_measurement(folder):
    vision, seen = VisionModel.open(folder, threads=1), []
    engine = image_engine(folder)
    found = image.measure(engine, vision, [(20, 10)], 2, lambda path: (len(seen), seen.append(path.read_bytes()) or 1))
    assert seen == [image.picture(20, 10, seed) for seed in range(3)]
    assert (found[0]["other_encode_ms"], found[0]["other_read_ms"]) == (1500.0, 1000.0)


def image_engine(folder: Path):
    from tests.support.family_engines import load

    return load(folder)


def test_pictures_are_files_of_random_pixels():
    reader = ImageReader()
    assert reader.size(image.picture(33, 20, 1)) == (33, 20)
    (pixels,) = reader.tiles(image.picture(33, 20, 1), whole(33, 20), 3)
    assert 100 < pixels.mean() < 155
    assert image.picture(33, 20, 1) != image.picture(33, 20, 2)


@pytest.mark.parametrize(("shape", "millions"), [("gemma4-e4b", 167), ("gemma4-31b", 570), ("qwen3.5-0.8b", 100),
                                                 ("qwen3.5-4b", 330), ("qwen3.5-9b", 455)])  # fmt: skip
def test_shapes_have_the_towers_of_the_published_models(shape, millions):
    kind, given = image.TOWERS[shape]
    tower, defaults = TOWERS[kind]
    config = {name: key.default for name, key in {**tower.KEYS, **tower.OUTER}.items()} | defaults | given
    text = with_images(shape_of(shape), {**config_of(shape), **image._TEXT[kind]})
    assert text.images is not None
    tensors = [tensor for _, tensor in tower.spec(config, text.hidden).named_tensors()]
    assert sum(prod(one.shape) for one in tensors) / 1e6 == pytest.approx(millions, rel=0.1)


@pytest.mark.parametrize("kind", ["gemma4", "qwen3_5"])
def test_random_towers_have_finite_features(kind):
    tower, _ = TOWERS[kind]
    config = {name: key.default for name, key in {**tower.KEYS, **tower.OUTER}.items()}
    layers = {"num_hidden_layers": 1, "use_clipped_linears": True} if kind == "gemma4" else {"depth": 1}
    config |= {**layers, "hidden_size": 48, "intermediate_size": 64}
    config |= (
        {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 24} if kind == "gemma4" else {"num_heads": 2}
    )
    encoder = NativeEncoder(tower.spec(config, 32), image.random_weight(), threads=1)
    vision = VisionModel(tower, config, tower.preparation("", {}, config), encoder, b"")
    (tile,) = vision.prepare(image.picture(70, 50, 0)).tiles
    found = vision.features(tile).values
    assert np.isfinite(found).all()
    assert found.std() > 0.01


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "either --shape or --model"),
        (["--shape", "qwen3.5-4b", "--mmproj", "a.gguf"], "need --model"),
        (["--shape", "qwen3.5-4b", "--sizes", "20"], "such as 640x480"),
        (["--shape", "llama2-7b"], "gemma4-e4b"),
    ],
)
def test_wrong_options_are_refused(given, message, capsys):
    assert run(["bench", "image", *given]) == 2
    assert message in capsys.readouterr().err


def test_llama_cpp_needs_a_gguf_file(folder, tmp_path, capsys):
    given = ["-m", str(folder), "--llama-mtmd-cli", str(program(tmp_path, "")), "--threads", "1"]
    assert run(["bench", "image", *given]) != 0
    assert "needs a GGUF file" in capsys.readouterr().err

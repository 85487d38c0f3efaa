"""Sizes, token counts and patches: equal to the image processors of transformers, and to the bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.vision import preparation
from ipex_lookahead.vision.preparation import PixelRange, TokenBudget, gemma4, qwen3_vl

SIZES = [(224, 224), (640, 480), (1920, 1080), (1, 30000), (30000, 1), (37, 1000), (4000, 3000), (5, 7), (48, 48)]
QWEN = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("width", "height"), [(224, 224), (320, 200), (10, 130), (2, 200)])
@pytest.mark.parametrize("tokens", [70, 280])
def test_patches_of_gemma_4_are_those_of_transformers(width, height, tokens):
    prepared = gemma4("", {"max_soft_tokens": tokens})
    given = image(width, height)
    found = prepared.patches(np.asarray(given.resize(prepared.size(width, height), Image.Resampling.BICUBIC)))
    theirs = Gemma4ImageProcessorPil(max_soft_tokens=tokens)(images=[given], return_tensors="np")
    columns, rows = prepared.grid(width, height)
    assert found.grid == (3 * columns, 3 * rows)
    assert columns * rows == theirs["num_soft_tokens_per_image"][0]
    at = found.places[:, 1] * found.grid[0] + found.places[:, 0]
    assert np.array_equal(found.values, theirs["pixel_values"][0][at])
    assert np.array_equal(found.places, theirs["image_position_ids"][0][at])
    tokens_of = found.places // 3  # nine patches of a token follow each other, tokens row by row
    assert np.array_equal(tokens_of[:, 1] * columns + tokens_of[:, 0], np.arange(len(at)) // 9)


@pytest.mark.parametrize(("width", "height"), [(224, 224), (320, 200), (10, 130), (80, 80), (112, 48)])
def test_patches_of_qwen_are_those_of_transformers(width, height):
    prepared = qwen3_vl("", QWEN)
    given = image(width, height)
    found = prepared.patches(np.asarray(given.resize(prepared.size(width, height), Image.Resampling.BICUBIC)))
    theirs = Qwen2VLImageProcessorPil(**QWEN)(images=[given], return_tensors="np")
    assert np.array_equal(found.values, theirs["pixel_values"])
    assert (1, *found.grid[::-1]) == tuple(theirs["image_grid_thw"][0])
    columns, rows = prepared.grid(width, height)
    assert (2 * columns, 2 * rows) == found.grid


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_sizes_are_those_of_transformers(width, height):
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size as theirs

    for tokens in preparation.BUDGETS:
        fitted = TokenBudget(tokens).fit(width, height, 48)
        assert fitted[::-1] == theirs(height, width, 16, 9 * tokens, 3)
    for least, most in ((65536, 16777216), (4096, 200_000)):
        if max(width, height) > 200 * min(width, height):
            with pytest.raises(InputError, match="200 times"):
                PixelRange(least, most).fit(width, height, 32)
        else:
            assert PixelRange(least, most).fit(width, height, 32)[::-1] == smart_resize(height, width, 32, least, most)


def test_token_counts_of_a_full_hd_image():
    gemma, qwen = gemma4("", {}), qwen3_vl("", QWEN)
    assert gemma.grid(1920, 1080) == (22, 12)
    assert gemma.with_tokens(1120).grid(1920, 1080) == (44, 25)
    assert qwen.grid(1920, 1080) == (60, 34)
    assert np.prod(qwen.with_tokens(1024).grid(1920, 1080)) <= 1024
    assert np.prod(qwen.grid(4000, 3000)) == 11750
    assert 2000 < np.prod(qwen.capped(2048).grid(4000, 3000)) <= 2048
    assert qwen.capped(2048).grid(1920, 1080) == (60, 34)
    assert gemma.capped(2048) is gemma


def test_settings_of_both_files(tmp_path):
    assert preparation.settings(tmp_path)[1] == {}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"max_soft_tokens": 560}}))
    assert gemma4(*preparation.settings(tmp_path)).sizing == TokenBudget(560)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_soft_tokens": 70}))
    assert gemma4(*preparation.settings(tmp_path)).sizing == TokenBudget(70)


@pytest.mark.parametrize(
    ("read", "given", "field"),
    [
        (gemma4, {"max_soft_tokens": 300}, "max_soft_tokens"),
        (gemma4, {"do_normalize": True}, "do_normalize"),
        (gemma4, {"patch_size": 0}, "patch_size"),
        (qwen3_vl, {"resample": 2}, "resample"),
        (qwen3_vl, {"image_std": [0, 1, 1]}, "image_std"),
        (qwen3_vl, {"image_mean": [0.5]}, "image_mean"),
        (qwen3_vl, {"size": {"shortest_edge": 9, "longest_edge": 8}}, "size"),
        (qwen3_vl, {"rescale_factor": 1.0}, "rescale_factor"),
    ],
)
def test_other_settings_are_refused(read, given, field):
    with pytest.raises(ModelFormatError, match=field):
        read("preprocessor_config.json", given)

"""Sizes, token counts and patches: equal to the image processors of transformers, and to the bit."""

from __future__ import annotations

import ast
import json
import math
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.vision import preparation
from ipex_lookahead.vision.preparation import Preparation, gemma3, gemma4, idefics3, lfm2_vl, qwen3_vl
from ipex_lookahead.vision.tiling import BUDGETS, PixelRange, Plan, TokenBudget
from ipex_lookahead.vision.towers import idefics3 as idefics3_tower
from ipex_lookahead.vision.towers import lfm2_vl as lfm2_vl_tower

SIZES = [(224, 224), (640, 480), (1920, 1080), (1, 30000), (30000, 1), (37, 1000), (4000, 3000), (5, 7), (48, 48)]
QWEN = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def image(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def tiles_of(given: Image.Image, prepared: Preparation) -> tuple[Plan, list[np.ndarray]]:
    """The pixels of an image's tiles, resized with Pillow."""
    plan, made = prepared.plan(*given.size), []
    for step in plan.steps:
        source = given if step.source is None else made[step.source]
        made.append(source.resize((step.width, step.height), Image.Resampling(prepared.resample)))
    boxes = [(t.left, t.top, t.left + t.width, t.top + t.height) for t in plan.tiles]
    return plan, [np.asarray(made[t.step].crop(box)) for t, box in zip(plan.tiles, boxes, strict=True)]


def grid_of(prepared: Preparation, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of the tokens of an image with one tile."""
    (tile,) = prepared.plan(width, height).tiles
    return prepared.grid(tile)


@pytest.mark.parametrize(("width", "height"), [(224, 224), (320, 200), (10, 130), (2, 200)])
@pytest.mark.parametrize("tokens", [70, 280])
def test_patches_of_gemma_4_are_those_of_transformers(width, height, tokens):
    prepared = gemma4("", {"max_soft_tokens": tokens})
    given = image(width, height)
    found = prepared.patches(*tiles_of(given, prepared)[1])
    theirs = Gemma4ImageProcessorPil(max_soft_tokens=tokens)(images=[given], return_tensors="np")
    rows, columns = grid_of(prepared, width, height)
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
    found = prepared.patches(*tiles_of(given, prepared)[1])
    theirs = Qwen2VLImageProcessorPil(**QWEN)(images=[given], return_tensors="np")
    assert np.array_equal(found.values, theirs["pixel_values"])
    assert (1, *found.grid[::-1]) == tuple(theirs["image_grid_thw"][0])
    rows, columns = grid_of(prepared, width, height)
    assert (2 * columns, 2 * rows) == found.grid


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_sizes_are_those_of_transformers(width, height):
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size as theirs

    for tokens in BUDGETS:
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
    assert grid_of(gemma, 1920, 1080) == (12, 22)
    assert [gemma.detailed(detail).tokens(1920, 1080) for detail in ("low", "high", "auto")] == [66, 1100, 264]
    assert gemma.limited(2048) == gemma
    assert grid_of(qwen, 1920, 1080) == (34, 60)
    assert [qwen.detailed(detail).tokens(1920, 1080) for detail in ("low", "high", "auto")] == [252, 2040, 2040]
    assert qwen.tokens(4000, 3000) == 11750
    assert 2000 < qwen.limited(2048).tokens(4000, 3000) <= 2048
    square = gemma3("", {}, 14, 4, 896)
    assert {square.detailed(detail).tokens(1920, 1080) for detail in ("low", "high", "auto")} == {256}
    smol = idefics3("", {"size": {"longest_edge": 2048}}, 16, 4, 512)
    assert [smol.detailed(detail).tokens(1920, 1080) for detail in ("low", "high", "auto")] == [64, 832, 832]
    assert [smol.limited(most).tokens(1920, 1080) for most in (4096, 1000, 500, 300)] == [832, 448, 320, 64]
    lfm2 = lfm2_vl("", {}, 16, 2)
    assert [lfm2.detailed(detail).tokens(1920, 1080) for detail in ("low", "high", "auto")] == [252, 2300, 2300]
    assert [lfm2.limited(most).tokens(1920, 1080) for most in (4096, 2000, 768, 700, 100)] == [2300, 764, 764, 252, 91]


SMOL = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}}


@pytest.mark.parametrize(("width", "height"), [*SIZES[:2], (1, 300), (300, 1), (37, 1000), (5, 7), (31, 129), (32, 32)])
@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("longest", [128, 100, 20])
def test_tiles_of_idefics_3_are_those_of_transformers(width, height, splits, longest):
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil as Theirs

    settings = {**SMOL, "size": {"longest_edge": longest}, "do_image_splitting": splits}
    prepared = idefics3("", settings, 4, 2, 32)
    given = image(width, height)
    theirs = Theirs(**settings, return_row_col_info=True)(images=[given], return_tensors="np")
    plan, tiles = tiles_of(given, prepared)
    assert (plan.rows, plan.columns, plan.overview) == (
        (theirs["rows"][0][0], theirs["cols"][0][0], True) if theirs["rows"][0][0] else (1, 1, False)
    )
    pixels = theirs["pixel_values"][0]
    assert len(pixels) == len(tiles)
    for tile, wanted in zip(tiles, pixels, strict=True):
        found = prepared.patches(tile)
        patches = wanted.reshape(3, 8, 4, 8, 4).transpose(1, 3, 0, 2, 4).reshape(64, -1)
        assert np.array_equal(found.values, patches[found.places[:, 1] * 8 + found.places[:, 0]])


@pytest.mark.parametrize(("width", "height"), [(1000, 3), (4000, 9000)])
def test_sides_of_idefics_3_are_at_most_4096(width, height):
    from transformers.models.idefics3 import image_processing_pil_idefics3 as theirs

    first = idefics3("", {"size": {"longest_edge": 8192}}, 16, 4, 512).plan(width, height).steps[0]
    wanted = theirs.get_resize_output_image_size(np.empty((3, height, width), np.uint8), 8192)
    assert (first.height, first.width) == wanted


def test_pixels_of_gemma_3_are_those_of_transformers():
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil as Theirs

    prepared, given = gemma3("", {}, 4, 4, 32), image(90, 31)
    wanted = Theirs(size={"height": 32, "width": 32}, do_pan_and_scan=False)(images=[given], return_tensors="np")
    found = prepared.patches(*tiles_of(given, prepared)[1])
    patches = wanted["pixel_values"][0].reshape(3, 8, 4, 8, 4).transpose(1, 3, 0, 2, 4).reshape(64, -1)
    assert np.array_equal(found.values, patches[found.places[:, 1] * 8 + found.places[:, 0]])


def lfm2_functions() -> dict[str, Any]:
    """Transformers' functions for sizes and grids of LFM2-VL: its module cannot be imported without torchvision."""
    path = Path(transformers.__file__).parent / "models" / "lfm2_vl" / "image_processing_lfm2_vl.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = ("round_by_factor", "find_closest_aspect_ratio", "smart_resize", "_is_image_too_large", "_target_ratios")
    found = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name in names]
    space: dict[str, Any] = {"math": math, "lru_cache": lru_cache}
    exec(compile(ast.Module(found, []), str(path), "exec"), space)
    assert set(names) <= space.keys()
    return space


@pytest.mark.parametrize("shape", [(2, 10, 512, 64, 256), (1, 4, 256, 16, 64), (1, 1, 512, 64, 256), (3, 7, 64, 1, 9)])
def test_sizes_of_lfm2_are_those_of_transformers(shape):
    theirs = lfm2_functions()
    least_tiles, most_tiles, tile, least, most = shape
    settings = {"min_tiles": least_tiles, "max_tiles": most_tiles, "tile_size": tile, "min_image_tokens": least}
    prepared = lfm2_vl("", {**settings, "max_image_tokens": most}, 16, 2)
    split = 0
    for width, height in [(w, h) for w in (20, 33, 300, 724, 1100, 2000) for h in (17, 256, 725, 1450, 3333)]:
        plan = prepared.plan(width, height)
        small = theirs["smart_resize"](None, height, width, 2, least, most, 16)
        last = plan.steps[-1]
        large = theirs["_is_image_too_large"](None, height, width, most, 16, 2, 2.0)
        if not large or most_tiles == 1:
            assert (plan.rows, plan.columns, last.width, last.height) == (1, 1, *small)
            continue
        split += 1
        ratios = theirs["_target_ratios"](None, least_tiles, most_tiles)
        grid = theirs["find_closest_aspect_ratio"](width / height, ratios, width, height, tile)
        assert (plan.columns, plan.rows) == grid
        assert (plan.steps[0].width, plan.steps[0].height) == (grid[0] * tile, grid[1] * tile)
        assert plan.overview == (grid != (1, 1))
        assert len(plan.tiles) == grid[0] * grid[1] + plan.overview
        assert not plan.overview or (last.width, last.height) == small
    assert split or most_tiles == 1


def test_patches_of_lfm2_are_by_row_column_and_channel():
    prepared, given = lfm2_vl("", {"max_image_tokens": 64, "tile_size": 64}, 4, 2), image(120, 300)
    plan, tiles = tiles_of(given, prepared)
    assert plan.overview
    for tile in tiles:
        found = prepared.patches(tile)
        rows, columns = (side // 4 for side in tile.shape[:2])
        levels = ((np.arange(256) / 255).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)
        patches = levels[tile].reshape(rows, 4, columns, 4, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 48)
        assert np.array_equal(found.values, patches[found.places[:, 1] * columns + found.places[:, 0]])


def spelled(pieces: tuple[tuple[Any, ...], ...]) -> str:
    return "<image>".join("".join(map(str, one)) for one in pieces)


@pytest.mark.parametrize(("width", "height"), [(64, 64), (30, 90), (300, 20), (300, 280)])
def test_texts_around_tiles_are_those_of_transformers(width, height):
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    plan = idefics3("", {**SMOL, "size": {"longest_edge": 96 if width != height else 32}}, 4, 2, 32).plan(width, height)
    rows, columns = (plan.rows, plan.columns) if plan.overview else (0, 0)
    found = spelled(idefics3_tower.pieces({}, plan))
    marks = ("<fake_token_around_image>", "<image>", "<global-img>")
    ours = SimpleNamespace(fake_image_token=marks[0], image_token=marks[1], global_image_tag=marks[2], image_seq_len=1)
    assert found == Idefics3Processor.replace_image_token(ours, {"rows": [[rows]], "cols": [[columns]]}, 0)
    assert found == get_image_prompt_string(
        rows, columns, 1, fake_token_around_image=marks[0], image_token=marks[1], global_image_token=marks[2]
    )
    for thumbnail in (True, False):
        sizes = {"max_image_tokens": 16, "min_image_tokens": 1, "tile_size": 32, "use_thumbnail": thumbnail}
        plan = lfm2_vl("", sizes, 4, 2).plan(width, height)
        ours = SimpleNamespace(
            image_start_token="<|image_start|>",
            image_end_token="<|image_end|>",
            image_thumbnail_token="<|img_thumbnail|>",
            image_token="<image>",
        )
        wanted = Lfm2VlProcessor._build_image_tokens(ours, plan.rows, plan.columns, 1, 1, thumbnail, True)
        assert spelled(lfm2_vl_tower.pieces({}, plan)) == wanted


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
        (gemma3, {"resample": 3}, "resample"),
        (gemma3, {"do_pan_and_scan": True}, "do_pan_and_scan"),
        (gemma3, {"size": {"height": 224, "width": 224}}, "size"),
        (idefics3, {"resample": 3}, "resample"),
        (idefics3, {"size": {"height": 32}}, "size"),
        (idefics3, {"max_image_size": {"longest_edge": 20}}, "max_image_size"),
        (idefics3, {"do_image_splitting": 2}, "do_image_splitting"),
        (lfm2_vl, {"encoder_patch_size": 8}, "encoder_patch_size"),
        (lfm2_vl, {"max_tiles": 1}, "min_tiles"),
        (lfm2_vl, {"max_tiles": 65}, "max_tiles"),
        (lfm2_vl, {"tile_size": 500}, "tile_size"),
        (lfm2_vl, {"max_image_tokens": 0}, "max_image_tokens"),
        (lfm2_vl, {"max_pixels_tolerance": 0}, "max_pixels_tolerance"),
        (lfm2_vl, {"use_thumbnail": None}, "use_thumbnail"),
    ],
)
def test_other_settings_are_refused(read, given, field):
    sizes = {gemma3: (4, 4, 32), idefics3: (4, 2, 32), lfm2_vl: (4, 2)}.get(read, ())
    with pytest.raises(ModelFormatError, match=field):
        read("preprocessor_config.json", given, *sizes)

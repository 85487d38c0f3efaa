"""Features of every tower, compared with transformers in float32, and mutants that the comparison catches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_tensors
from safetensors.torch import save_file as save_torch

from ipex_lookahead.architectures.encoder import EncoderSpec
from ipex_lookahead.architectures.keys import NEUTRAL
from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.native.core import ISA_VARIABLE, available_isas
from ipex_lookahead.engines.native.encoder import NativeEncoder
from ipex_lookahead.errors import ModelFormatError, NonFiniteError, UnsupportedModelError
from ipex_lookahead.vision import model as models
from ipex_lookahead.vision.model import TOWERS, Prepared, PreparedImage, VisionModel
from ipex_lookahead.vision.preparation import Patches, Preparation
from ipex_lookahead.vision.towers import base, gemma3, gemma4, gemma4_unified, idefics3, lfm2_vl, qwen3_vl, siglip
from ipex_lookahead.vision.towers.base import Features
from tests.vision.folders import FAMILIES, saved
from tests.vision.test_images import noise
from tests.vision.test_images import saved as saved_image

_TILES = {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}
PROCESSORS = {
    "gemma4": {"max_soft_tokens": 70, "patch_size": 4},
    "qwen3": {"size": {"shortest_edge": 1024, "longest_edge": 9000}, "patch_size": 4},
    "gemma3": {"size": {"height": 32, "width": 32}},
    "idefics3": _TILES,
    "smolvlm": _TILES,
    "lfm2": {"encoder_patch_size": 4, "min_image_tokens": 9, "max_image_tokens": 30, "tile_size": 32, "max_tiles": 6},
}
ONE_TILE = ("gemma4", "qwen3", "gemma3")


def processor(kind: str) -> dict[str, Any]:
    return next(one for name, one in PROCESSORS.items() if kind.startswith(name))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], tuple[Path, VisionModel, Any]]:
    """Return a kind's folder, our model and transformers' model."""
    found: dict[str, tuple[Path, VisionModel, Any]] = {}

    def make(kind: str) -> tuple[Path, VisionModel, Any]:
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            theirs = saved(kind, folder, processor(kind))
            found[kind] = folder, VisionModel.open(folder, threads=2), theirs
        return found[kind]

    return make


def file_of(width: int, height: int) -> bytes:
    return saved_image(Image.fromarray(noise(height, width)), "PNG")


def expected(kind: str, theirs: Any, ours: VisionModel, file: bytes) -> tuple[np.ndarray, list[np.ndarray]]:
    """Transformers' features for our patches, brought into its order."""
    image = ours.prepare(file)
    if not kind.startswith(("gemma4", "qwen3")):
        with torch.no_grad():
            return np.concatenate([of_tile(kind, theirs, ours, tile.pixels) for tile in image.tiles]), []
    patches = ours.preparation.patches(image.tiles[0].pixels)
    with torch.no_grad():
        if kind.startswith("qwen3"):
            grid = torch.tensor([[1, patches.grid[1], patches.grid[0]]])
            found = theirs.model.get_image_features(torch.from_numpy(patches.values), grid)
            values = found.pooler_output
            values = torch.cat(list(values)) if isinstance(values, tuple | list) else values
            deepstack = getattr(found, "deepstack_features", None) or ()
            parts = [torch.cat(list(one)) if isinstance(one, tuple | list) else one for one in deepstack]
            return values.numpy(), [one.numpy() for one in parts]
        values, places = torch.from_numpy(patches.values)[None], torch.from_numpy(patches.places).long()[None]
        if kind != "gemma4_unified":  # row by row
            order = torch.argsort(places[0, :, 1] * patches.grid[0] + places[0, :, 0])
            values, places = values[:, order], places[:, order]
        found = theirs.model.get_image_features(values, places).pooler_output
        found = torch.cat(list(found)) if isinstance(found, tuple | list) else found
        return found.reshape(-1, found.shape[-1]).numpy(), []


def tile_of(ours: VisionModel, file: bytes) -> Prepared:
    """The only tile of an image."""
    (tile,) = ours.prepare(file).tiles
    return tile


def features_of(ours: VisionModel, image: PreparedImage) -> Features:
    """The features of all tiles of an image."""
    parts = [ours.features(tile) for tile in image.tiles]
    return parts[0] if len(parts) == 1 else Features(np.concatenate([part.values for part in parts]))


def of_tile(kind: str, theirs: Any, ours: VisionModel, tile: np.ndarray) -> np.ndarray:
    """Transformers' features for a tile's pixels, by its own patch embeddings."""
    levels = np.arange(256, dtype=np.float64) * ours.preparation.scale
    pixels = ((levels.astype(np.float32) - np.float32(0.5)) / np.float32(0.5))[tile]
    if kind.startswith("lfm2"):
        side, rows, columns = ours.preparation.patch, *(one // ours.preparation.patch for one in tile.shape[:2])
        values = pixels.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(1, rows * columns, -1)
        shapes, mask = torch.tensor([[rows, columns]]), torch.ones(1, rows * columns, dtype=torch.int32)
        found = theirs.model.get_image_features(torch.from_numpy(values), shapes, mask).pooler_output
    else:
        values = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
        found = theirs.model.get_image_features(values if kind == "gemma3" else values[None]).pooler_output
    found = found[0] if isinstance(found, list) else found
    return found.reshape(-1, found.shape[-1]).numpy()


TOLERANCE = 1e-5
CLIPPED_TOLERANCE = 1e-4
"""With limits both results are within 2.5e-5 of float64, without them within 3e-6, relative to the largest value."""


def close(found: np.ndarray, wanted: np.ndarray, kind: str = "") -> bool:
    tolerance = CLIPPED_TOLERANCE if kind == "gemma4_clipped" else TOLERANCE
    return float(np.abs(found - wanted).max()) <= tolerance * float(np.abs(wanted).max())


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("width", "height"), [(120, 60), (33, 90), (64, 64)])
def test_features_are_those_of_transformers(made, kind, width, height):
    _, ours, theirs = made(kind)
    file = file_of(width, height)
    image = ours.prepare(file)
    found = features_of(ours, image)
    wanted, deepstack = expected(kind, theirs, ours, file)
    assert image.layout == ours.layout(file)
    one = kind.startswith(ONE_TILE) or (kind.startswith("lfm2") and width * height < 3840)
    assert (len(image.tiles) == 1) == one
    assert found.values.shape == (image.layout.tokens, 32) == wanted.shape
    assert close(found.values, wanted, kind)
    assert len(found.deepstack) == len(deepstack) == (2 if kind == "qwen3_vl" else 0)
    assert all(close(one, other) for one, other in zip(found.deepstack, deepstack, strict=True))


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[Patches], Patches]) -> None:
    original = Preparation.patches
    monkeypatch.setattr(Preparation, "patches", lambda self, pixels, *_: change(original(self, pixels)))


def with_value(monkeypatch: pytest.MonkeyPatch, spec: Any, change: Callable[[EncoderSpec], EncoderSpec]) -> None:
    """Change what a tower's module describes."""
    original = spec.spec
    monkeypatch.setattr(spec, "spec", lambda *given: change(original(*given)))


def with_norm(monkeypatch: pytest.MonkeyPatch, tower: Any, number: int, **changed: Any) -> None:
    """Change a norm of a tower's chain of features."""

    def change(spec: EncoderSpec) -> EncoderSpec:
        *others, last = spec.chains
        norm = replace(last[number], **changed)
        return replace(spec, chains=(*others, (*last[:number], norm, *last[number + 1 :])))

    with_value(monkeypatch, tower, change)


def uncentered(name: str, *given: Any) -> Any:
    made = base.layer_norm(name, *given)
    return replace(made, centered=False, bias=None) if name.endswith("post_layernorm") else made


def with_epsilon(spec: EncoderSpec) -> EncoderSpec:
    """Another epsilon in all blocks."""

    def norm(one: Any) -> Any:
        return replace(one, epsilon=1e-3)

    blocks = (
        replace(b, mixer_norm=norm(b.mixer_norm), feed_forward_norm=norm(b.feed_forward_norm)) for b in spec.layers
    )
    return replace(spec, layers=tuple(blocks))


def swapped(patches: Patches) -> Patches:
    return replace(patches, places=patches.places[:, ::-1], grid=patches.grid[::-1])


def row_by_row(patches: Patches) -> Patches:
    order = np.lexsort((patches.places[:, 0], patches.places[:, 1]))
    return replace(patches, values=patches.values[order], places=patches.places[order])


def with_other_parts(spec: EncoderSpec, *given: Any, **named: Any) -> NativeEncoder:
    return NativeEncoder(replace(spec, rope_parts=3 - spec.rope_parts), *given, **named)


SIGLIPS = ("gemma3", "idefics3", "smolvlm", "lfm2_vl")
MUTANTS = {
    "x and y swapped": (("gemma4", "gemma4_unified", "qwen3_vl", *SIGLIPS), lambda m: changed(m, swapped)),
    "another order of patches": (("gemma4", "qwen3_vl", *SIGLIPS), lambda m: changed(m, row_by_row)),
    "epsilon of blocks": (
        SIGLIPS,
        lambda m: [with_value(m, tower, with_epsilon) for tower in (gemma3, idefics3, lfm2_vl)],
    ),
    "another epsilon before the projection": (("gemma3",), lambda m: with_norm(m, gemma3, 0, epsilon=1e-2)),
    "layer norm epsilon of the projector": (("lfm2_vl",), lambda m: m.setattr(lfm2_vl, "LAYER_NORM_EPSILON", 1e-2)),
    "an RMS norm after the tower": (SIGLIPS, lambda m: m.setattr(siglip, "layer_norm", uncentered)),
    "tanh in the projector": (
        ("lfm2_vl",),
        lambda m: m.setattr(lfm2_vl, "Activation", lambda kind: Activation("gelu_tanh")),
    ),
    "2 p - 1": (
        ("gemma4", "gemma4_unified"),
        lambda m: changed(m, lambda patches: replace(patches, values=2 * patches.values - 1)),
    ),
    "rope parts": (("gemma4", "qwen3_vl"), lambda m: m.setattr(models, "NativeEncoder", with_other_parts)),
    "layer norm epsilon": (("gemma4_unified",), lambda m: m.setattr(gemma4_unified, "LAYER_NORM_EPSILON", 1e-3)),
    "epsilon": (("qwen3_vl",), lambda m: m.setattr(qwen3_vl, "EPSILON", 1e-4)),
    "no limits": (
        ("gemma4_clipped",),
        lambda m: m.setattr(gemma4, "Clip", lambda *limits: None),
    ),
}


@pytest.mark.parametrize(("mutant", "kind"), [(name, kind) for name, (kinds, _) in MUTANTS.items() for kind in kinds])
def test_mutants_differ(made, monkeypatch, mutant, kind):
    folder, ours, theirs = made(kind)
    file = file_of(33, 90)
    wanted, _ = expected(kind, theirs, ours, file)
    MUTANTS[mutant][1](monkeypatch)
    other = VisionModel.open(folder, threads=2)
    assert not close(features_of(other, other.prepare(file)).values, wanted, kind)


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_do_not_depend_on_threads_and_instruction_sets(made, monkeypatch, kind):
    folder, ours, _ = made(kind)
    image = ours.prepare(file_of(100, 100))
    wanted = features_of(ours, image)
    for isa in available_isas():
        monkeypatch.setenv(ISA_VARIABLE, isa)
        for threads in (1, 3):
            found = features_of(VisionModel.open(folder, threads=threads), image)
            assert np.array_equal(found.values, wanted.values), (isa, threads)
            assert all(map(np.array_equal, found.deepstack, wanted.deepstack))


def test_equal_pixels_have_one_digest_and_are_encoded_once(made, monkeypatch):
    folder, ours, _ = made("gemma4")
    image = tile_of(ours, file_of(50, 70))
    assert tile_of(ours, file_of(50, 70)).digest == image.digest != tile_of(ours, file_of(70, 50)).digest
    assert tile_of(VisionModel.open(folder), file_of(50, 70)).digest == image.digest
    assert tile_of(made("gemma4_clipped")[1], file_of(50, 70)).digest != image.digest
    found = ours.features(image)
    assert ours.features(tile_of(ours, file_of(50, 70))) is found
    monkeypatch.setattr(models, "KEPT_BYTES", 1)
    ours.features(tile_of(ours, file_of(20, 20)))
    assert ours.features(image) is not found


def test_work_is_done_in_slices(made):
    _, ours, _ = made("qwen3_5")
    pauses: list[int] = []
    image = tile_of(ours, file_of(95, 95))
    ours.features(image, lambda: pauses.append(1))
    patches, slice_rows, layers = 4 * image.tokens, 128, 4
    slices = -(-patches // slice_rows)
    tokens = -(-image.tokens // slice_rows)
    between = 1 + 5 + 2 * (slices - 1) + (tokens - 1)  # after the patches, for the positions, of chains
    assert between <= len(pauses) <= between + 2 * layers * slices - 1  # one slice may have all layers of a small tower


def test_bfloat16_weights_are_read_exactly(made, tmp_path):
    folder, _, theirs = made("gemma4_clipped")
    tensors = {name: values.bfloat16() for name, values in torch_tensors(folder / "model.safetensors").items()}
    save_torch(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    rounded = type(theirs).from_pretrained(tmp_path, dtype=torch.float32).eval()
    file = file_of(33, 90)
    ours = VisionModel.open(tmp_path, threads=1)
    wanted, _ = expected("gemma4_clipped", rounded, ours, file)
    assert close(ours.features(tile_of(ours, file)).values, wanted, "gemma4_clipped")


NOT_OF_A_TOWER = {"_name_or_path", "architectures", "dtype", "model_type", "is_encoder_decoder"}


def test_the_config_keys_of_transformers_are_known():
    import transformers

    for name, tower in {
        "Gemma4VisionConfig": gemma4,
        "Gemma4UnifiedVisionConfig": gemma4_unified,
        "Qwen3VLVisionConfig": qwen3_vl,
        "Qwen3_5VisionConfig": qwen3_vl,
        "SiglipVisionConfig": gemma3,
        "Idefics3VisionConfig": idefics3,
        "SmolVLMVisionConfig": idefics3,
        "Siglip2VisionConfig": lfm2_vl,
    }.items():
        keys = set(getattr(transformers, name)().to_dict()) - NOT_OF_A_TOWER
        assert keys - set(tower.KEYS) - set(tower.NEUTRAL) - set(NEUTRAL) == set(), name


def rewritten(folder: Path, to: Path, change: Callable[[Any, Any, Any], Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    change(config, config["vision_config"], tensors)
    (to / "config.json").write_text(json.dumps(config))
    save_file(tensors, to / "model.safetensors")
    (to / "preprocessor_config.json").write_text((folder / "preprocessor_config.json").read_text())
    return to


NORM = "model.vision_tower.encoder.layers.0.input_layernorm.weight"
WRONG: dict[str, tuple[Callable[[Any, Any, Any], Any], type[Exception], str]] = {
    "missing": (lambda c, v, t: t.pop(NORM), ModelFormatError, "input_layernorm.weight: the vision tower's tensor"),
    "shape": (lambda c, v, t: t.update({NORM: np.ones(3, np.float32)}), ModelFormatError, r"has shape \[3\]"),
    "nan": (lambda c, v, t: t[NORM].fill(np.nan), ModelFormatError, "NaN or infinite"),
    "integers": (lambda c, v, t: t.update({NORM: np.ones(48, np.int32)}), UnsupportedModelError, "dtype I32"),
    "key": (lambda c, v, t: v.update(hidden_size=-1), ModelFormatError, "vision_config.hidden_size"),
    "activation": (lambda c, v, t: v.update(hidden_activation="relu"), UnsupportedModelError, "relu"),
    "rope": (lambda c, v, t: v.update(rope_parameters={"rope_type": "yarn"}), ModelFormatError, "axial"),
    "heads": (lambda c, v, t: v.update(num_key_value_heads=2), UnsupportedModelError, "multiple of kv_heads"),
    "no vision": (lambda c, v, t: c.pop("vision_config"), UnsupportedModelError, "without vision_config"),
    "family": (lambda c, v, t: c.update(model_type="llava"), UnsupportedModelError, "takes no images here"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_folders_are_refused(made, tmp_path, case):
    change, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        VisionModel.open(rewritten(made("gemma4")[0], tmp_path, change))


def test_values_that_overflow_are_an_error(made, tmp_path):
    def change(config: Any, vision: Any, tensors: Any) -> None:
        tensors["model.vision_tower.encoder.layers.1.post_attention_layernorm.weight"].fill(3e38)

    ours = VisionModel.open(rewritten(made("gemma4")[0], tmp_path, change))
    with pytest.raises(NonFiniteError):
        ours.features(tile_of(ours, file_of(20, 20)))


def test_every_family_of_the_table_is_covered():
    assert {tower for tower, _ in TOWERS.values()} == {gemma3, gemma4, gemma4_unified, idefics3, lfm2_vl, qwen3_vl}

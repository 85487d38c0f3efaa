"""Prompts with images of random features, for tiny families here and for transformers' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.images import ImageRows, PromptImage
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import prefill
from tests.support.family_table import VOCAB, Variant
from tests.support.tiny_families import config_of

PLACEHOLDER = 7
Ids = npt.NDArray[np.int32]


def seeing(model_type: str, values: dict[str, Any], **inside: Any) -> Any:
    """The config of a tiny model that takes images, with ``inside`` in its text part."""
    key = "image_token_index" if model_type == "gemma3" else "image_token_id"
    config = config_of(model_type, Variant("seeing", {**values, key: PLACEHOLDER}))
    for name, value in inside.items():
        setattr(config.text_config, name, value)
    return config


def picture(start: int, grid: tuple[int, int], hidden: int, *, deepstack: int = 0, seed: int = 0) -> PromptImage:
    """An image of random features, with a digest that follows from its seed."""
    chance = np.random.default_rng(seed)
    parts = [chance.standard_normal((grid[0] * grid[1], hidden)).astype(np.float32) for _ in range(1 + deepstack)]
    return PromptImage(start, parts[0], grid, f"picture {seed}".encode().ljust(32), tuple(parts[1:]))


def prompt(length: int, images: Sequence[PromptImage], seed: int = 1) -> Ids:
    """Random token ids with placeholders where the images are."""
    ids = np.random.default_rng(seed).integers(8, VOCAB, length).astype(np.int32)
    for image in images:
        ids[image.start : image.end] = PLACEHOLDER
    return ids


def rows_of(engine: NativeEngine, images: Sequence[PromptImage], kind: type[ImageRows] = ImageRows) -> ImageRows | None:
    """The images as an engine's model takes them."""
    assert engine.images is not None
    return kind(images, grid_positions=engine.images.grid_positions, spans=engine.spans) if images else None


def ours(
    engine: NativeEngine,
    ids: Ids,
    images: Sequence[PromptImage],
    rows: int = 512,
    cache: Any = None,
    kind: type[ImageRows] = ImageRows,
) -> Any:
    """The logits [rows, vocab] of a text's rows behind those of the cache, read in chunks."""
    cache = engine.new_cache() if cache is None else cache
    left = ids[cache.length :]
    steps = prefill(
        engine,
        [(cache, left)],
        wanted=[range(len(left))],
        wants=OutputRequest(logits=True),
        rows=rows,
        images=[rows_of(engine, images, kind)],
    )
    return np.concatenate([output.logits for _, output in steps])


def theirs(model: Any, ids: Ids, images: Sequence[PromptImage]) -> Any:
    """Transformers' logits [rows, vocab], with our features in place of its vision part's."""
    kind = model.config.model_type
    features = [torch.from_numpy(image.features) for image in images]
    stacked: Any = torch.cat(features) if kind == "gemma3" else features
    deepstack = [[torch.from_numpy(one.deepstack[i]) for one in images] for i in range(len(images[0].deepstack))]
    types = torch.from_numpy((ids == PLACEHOLDER).astype(np.int64))[None]
    given: dict[str, Any] = {"token_type_ids" if kind == "gemma3" else "mm_token_type_ids": types}
    if kind in ("smolvlm", "lfm2_vl"):
        given = {}
    if kind.startswith("qwen"):
        merge = model.config.vision_config.spatial_merge_size
        given["image_grid_thw"] = torch.tensor([[1, merge * one.grid[0], merge * one.grid[1]] for one in images])
        model.model.rope_deltas = None
    if kind == "gemma4_unified":  # its forward alone would show images in full layers too, generate does not
        embedded = torch.zeros(1, len(ids), model.config.text_config.hidden_size)
        given["attention_mask"] = model.create_masks_for_generate(
            model.config, embedded, torch.ones(1, len(ids), dtype=torch.long), None, torch.arange(len(ids))[None], types
        )
    encoded = SimpleNamespace(pooler_output=stacked, deepstack_features=deepstack, to_tuple=tuple)
    with torch.no_grad():
        output = model(
            input_ids=torch.from_numpy(ids.astype(np.int64))[None],
            mm_encoder_outputs={"image": encoded},
            use_cache=False,
            **given,
        )
    return output.logits[0].numpy()


def unencoded(
    image: PromptImage, log: list[str], *, name: str = "", slices: int = 3, error: Exception | None = None
) -> PromptImage:
    """Return the image without its features, and a function that makes them in slices; ``log`` gets each slice."""
    assert image.features is not None
    features, deepstack = image.features, image.deepstack

    def encode(pause: Callable[[], None]) -> tuple[Any, Any]:
        log.append(f"begin {name}")
        try:
            for _ in range(slices):
                log.append(f"slice {name}")
                pause()
            if error is not None:
                raise error
        except BaseException as stopped:
            log.append(f"{'failed' if stopped is error else 'closed'} {name}")
            raise
        log.append(f"end {name}")
        return features, deepstack

    return replace(image, features=None, deepstack=(), encode=encode)

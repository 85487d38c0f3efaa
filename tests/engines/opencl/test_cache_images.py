"""Images of caches on a device: an imported cache goes on with the same bytes, and damaged images are harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.api import ExportsCache, ImportsCache
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import InputError, NonFiniteError
from tests.gates import cases, seed
from tests.support.cache_images import PAGE, CacheImage, flipped, image_of, misfits
from tests.support.hybrids import random_text
from tests.support.image_walks import export_while_decoding, feed, grow, walk, walk_with_head
from tests.support.native import run
from tests.support.recurrences import ODD, recurrent_spec
from tests.support.specs import NAMED, make_spec, random_weights, reader

SPECS: dict[str, Callable[[], Any]] = {
    "llama": lambda: make_spec(**NAMED["llama"]),
    "windows": lambda: make_spec(**NAMED["gpt_oss_attention"]),
    "latent": lambda: make_spec(latent=(32, 16, 8, 24, None)),
    "delta": lambda: recurrent_spec("delta", "attention", "delta"),
    "mamba, odd": lambda: recurrent_spec("mamba", "attention", "mamba", **ODD),
    "short": lambda: recurrent_spec("short", "short", "attention"),
    "recurrent layers alone": lambda: recurrent_spec("mamba", "delta"),
}


def engine_of(device: Device, kind: str, kv_cache: str = "fp16", layers: int = 0) -> Any:
    """A tiny model, whole or with its last ``layers`` layers on the device."""
    spec = SPECS[kind]()
    read = reader(random_weights(spec))
    if layers:
        return SplitEngine.build(spec, "fp32", read, device, layers, kv_cache)
    return OpenClEngine.build(spec, "fp32", read, device, kv_cache)


@pytest.mark.parametrize("layers", [0, 1], ids=["whole", "divided"])
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.rotating(8)
def test_an_imported_cache_goes_on_with_the_same_bytes(device: Device, kind: str, kv_cache: str, layers: int) -> None:
    engine = engine_of(device, kind, kv_cache, layers)
    assert isinstance(engine.new_cache(), ExportsCache)
    assert isinstance(engine, ImportsCache)
    for number in range(cases(1, 10)):
        walk(engine, seed() + number)


def test_pages_are_a_function_of_the_tokens_before_their_end(device: Device) -> None:
    engine, found = engine_of(device, "llama"), []
    for more in (7, 100):
        cache = engine.new_cache()
        feed(engine, cache, random_text(130))
        feed(engine, cache, random_text(more, seed=more))
        found.append(cache.export_pages(64, 128).tobytes())
    assert found[0] == found[1]


def test_layouts_of_engines_differ(device: Device) -> None:
    """The native engine's pages hold all layers; a device's have one buffer for each layer."""
    engines = [engine_of(device, "llama"), engine_of(device, "llama", "int8"), engine_of(device, "llama", layers=1)]
    layouts = {one.cache_layout for one in engines}
    assert len(layouts) == 3
    assert not any(layout.startswith("native") for layout in layouts)


@pytest.mark.parametrize("layers", [0, 1], ids=["whole", "divided"])
@pytest.mark.parametrize("kind", ["llama", "delta"])
def test_damaged_images_are_refused_or_harmless(device: Device, kind: str, layers: int) -> None:
    engine, rng = engine_of(device, kind, layers=layers), np.random.default_rng(seed())
    cache = engine.new_cache()
    feed(engine, cache, random_text(150))
    grow(engine, rng, [cache], 200, kind)
    image = image_of(cache, [64])
    for wrong in misfits(image):
        with pytest.raises(InputError):
            wrong.into(engine)
    for first, last in ((0, 0), (0, 301), (1, 64), (64, 64)):
        with pytest.raises(InputError, match="export_pages"):
            cache.export_pages(first, last)
    for _ in range(cases(10, 300)):
        try:
            twin = flipped(image, rng).into(engine)
            run(engine, twin, np.array([1, 2], np.int32))
            twin.keep([0])
        except (InputError, NonFiniteError):
            continue
        assert twin.length == cache.length + 1
    assert image_of(image.into(engine), [64]) == image


def test_a_fork_is_exported_and_imported_while_others_run(device: Device) -> None:
    export_while_decoding(engine_of(device, "delta"), 100, 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path | None]]:
    """Where a kind's model and head are."""
    pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")
    from tests.support.heads import write  # noqa: PLC0415

    made: dict[str, tuple[Path, Path | None]] = {}

    def paths(kind: str) -> tuple[Path, Path | None]:
        if kind not in made:
            made[kind] = write(kind, tmp_path_factory.mktemp("head"), context=700)
        return made[kind]

    return paths


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "eagle3 with a window", "gemma4_assistant ordered"])
def test_a_heads_drafts_go_on_with_the_same_bytes(device: Device, folder: Callable[[str], Any], kind: str) -> None:
    from tests.engines.opencl.test_heads import pair  # noqa: PLC0415

    _, engine = pair(device, folder(kind), **({"draft_vocab": 32} if kind == "mtp" else {}))
    assert sum(walk_with_head(engine, seed() + number) for number in range(cases(2, 20)))


def test_damaged_images_of_heads_are_refused_or_harmless(device: Device, folder: Callable[[str], Any]) -> None:
    """Pages without the head's rows too: the head then starts anew."""
    from tests.engines.opencl.test_heads import pair  # noqa: PLC0415

    _, engine = pair(device, folder("eagle3"))
    images, rng = [], np.random.default_rng(seed())
    for follows in (True, False):
        cache = engine.new_cache()
        if follows:
            engine.head.follow(cache)
        feed(engine, cache, random_text(150))
        images.append(image_of(cache, [PAGE]))
    image = images[0]
    mixed = CacheImage(150, [images[1].pages[0], image.pages[1]], image.state).into(engine)
    assert engine.head.draft(mixed, 4, 4)
    for wrong in misfits(image):
        with pytest.raises(InputError):
            wrong.into(engine)
    for _ in range(cases(10, 300)):
        try:
            twin = flipped(image, rng).into(engine)
            engine.head.draft(twin, 5, 4)
            feed(engine, twin, [1, 2])
        except (InputError, NonFiniteError):
            continue

"""Images of caches: an imported cache goes on with the same bytes, and a damaged image never harms the process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.api import ExportsCache, ImportsCache
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import InputError, NonFiniteError
from tests.gates import cases, seed
from tests.support.cache_images import PAGE, CacheImage, flipped, image_of, misfits
from tests.support.family_engines import step
from tests.support.hybrids import HYBRIDS, hybrid, random_text
from tests.support.image_walks import export_while_decoding, feed, grow, walk, walk_with_head
from tests.support.native import chain, run
from tests.support.recurrences import ODD, recurrent_spec
from tests.support.specs import NAMED, make_spec, native_engine, random_weights

NOT_HYBRID: dict[str, dict[str, Any]] = {
    "llama": NAMED["llama"],
    "windows": NAMED["gpt_oss_attention"],
    "windows and heads of 40": NAMED["gemma3"],
    "latent": {"latent": (32, 16, 8, 24, None)},
    "mixture": NAMED["qwen3_moe"],
}
RECURRENT: dict[str, dict[str, Any]] = {"mamba": {}, "mamba and delta, odd": ODD}
KINDS = [*NOT_HYBRID, *HYBRIDS, *RECURRENT, "shared keys"]


def engine_of(kind: str, kv_cache: str = "fp16") -> NativeEngine:
    """A tiny model of a kind with a context of at least 2,048."""
    if kind in RECURRENT:
        spec = recurrent_spec("mamba", "attention", "delta" if "delta" in kind else "mamba", **RECURRENT[kind])
    elif kind in NOT_HYBRID:
        spec = make_spec(**NOT_HYBRID[kind], context=2048)
    else:
        return hybrid(kind, kv_cache=kv_cache)
    return native_engine(spec, random_weights(spec), kv_cache=kv_cache)


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_cache_goes_on_with_the_same_bytes(kind: str, kv_cache: str) -> None:
    """At any length, after crops, forks, checkpoints and steps that were dropped, with accepted rows pending."""
    engine = engine_of(kind, kv_cache)
    assert isinstance(engine, ImportsCache)
    assert isinstance(engine.new_cache(), ExportsCache)
    for number in range(cases(2, 30)):
        walk(engine, seed() + number)


@pytest.mark.parametrize("kind", ["windows", "shared keys"])
def test_windows_are_exported_without_what_they_have_passed(kind: str) -> None:
    engine, rng = engine_of(kind), np.random.default_rng(0)
    cache = engine.new_cache()
    feed(engine, cache, random_text(1500))
    long, short = image_of(cache), engine.new_cache()
    feed(engine, short, random_text(1500 - 10 * PAGE))
    assert len(long.state) == len(image_of(short).state)  # while pages grow
    twin = long.into(engine)
    assert image_of(twin) == long
    assert twin.crop(1500 - PAGE) == 1500 - PAGE  # as far as the image allows at least
    cache.crop(1500 - PAGE)
    grow(engine, rng, [cache, twin], 2000, kind)


def test_pages_are_a_function_of_the_tokens_before_their_end() -> None:
    """So that files of different texts share the pages of a common prefix."""
    for kind in ("llama", "windows", "delta net"):
        engine, found = engine_of(kind), []
        for more, pieces in ((7, [130]), (100, [1, 60, 30, 39])):
            cache, text = engine.new_cache(), random_text(130)
            for piece in pieces:
                feed(engine, cache, text[:piece])
                text = text[piece:]
            feed(engine, cache, random_text(more, seed=more))
            found.append([cache.export_pages(0, 64).tobytes(), cache.export_pages(64, 128).tobytes()])
        assert found[0] == found[1]


def test_layouts_are_those_of_what_is_computed() -> None:
    """Another context or file is the same layout; another shape, rope, or format of keys is another one."""
    weights = random_weights(make_spec())
    same = [native_engine(make_spec(context=context), weights).cache_layout for context in (512, 1024)]
    assert same[0] == same[1]
    others = [
        native_engine(make_spec(), weights, kv_cache="int8").cache_layout,
        native_engine(make_spec(rope="half"), weights).cache_layout,
        native_engine(make_spec(epsilon=1e-6), weights).cache_layout,
        native_engine(make_spec(window=[7, None]), weights).cache_layout,
    ]
    assert len({same[0], *others}) == 5


def test_ranges_outside_the_cache_are_refused() -> None:
    engine = engine_of("llama")
    cache = engine.new_cache()
    feed(engine, cache, random_text(100))
    for first, last in ((0, 0), (0, 101), (1, 64), (-64, 64), (64, 64), (128, 130), (0, 1 << 62)):
        with pytest.raises(InputError, match="export_pages"):
            cache.export_pages(first, last)
    for length in (0, 1):
        empty = engine.new_cache()
        feed(engine, empty, random_text(length)) if length else None
        assert image_of(image_of(empty).into(engine)) == image_of(empty)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_images_are_refused_or_harmless(kind: str) -> None:
    """Other sizes are refused; flipped bytes may give another content, but no access outside of memory."""
    engine, rng = engine_of(kind), np.random.default_rng(seed())
    cache = engine.new_cache()
    feed(engine, cache, random_text(150))
    step(engine, [cache], [np.array([1, 2, 3], np.int32)], [chain(3)])
    cache.keep([0, 1])
    image = image_of(cache, [64])
    for wrong in misfits(image):
        with pytest.raises(InputError):
            wrong.into(engine)
    for _ in range(cases(40, 2000)):
        try:
            twin = flipped(image, rng).into(engine)
            run(engine, twin, np.array([1, 2], np.int32))
            twin.keep([0])
        except (InputError, NonFiniteError):
            continue
        assert twin.length == cache.length + 1
    run(engine, cache, np.array([5], np.int32))


def test_errors_of_the_pages_pass_through() -> None:
    def pages() -> Any:
        yield image.pages[0]
        raise ValueError("the disk")

    engine = engine_of("llama")
    cache = engine.new_cache()
    feed(engine, cache, random_text(100))
    image = image_of(cache, [64])
    with pytest.raises(ValueError, match="the disk") as error:
        engine.import_cache(100, pages(), image.state)
    assert not isinstance(error.value, InputError)


@pytest.mark.parametrize("kind", ["llama", "delta net"])
def test_a_fork_is_exported_and_imported_while_others_run(kind: str) -> None:
    export_while_decoding(engine_of(kind), 190, 60)


# ---- heads -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path | None]]:
    """Where a kind's model and head are."""
    pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")
    from tests.support.heads import write  # noqa: PLC0415

    made: dict[str, tuple[Path, Path | None]] = {}

    def paths(kind: str) -> tuple[Path, Path | None]:
        if kind not in made:
            made[kind] = write(kind, tmp_path_factory.mktemp("head"))
        return made[kind]

    return paths


HEADS = ("mtp", "eagle3", "eagle3 with a window", "gemma4_assistant", "gemma4_assistant ordered")


def with_head(paths: tuple[Path, Path | None], **options: Any) -> NativeEngine:
    from tests.support.heads import opened  # noqa: PLC0415

    return opened(paths, threads=1, **options)


@pytest.mark.parametrize("kind", HEADS)
def test_a_heads_drafts_go_on_with_the_same_bytes(folder: Callable[[str], Any], kind: str) -> None:
    """Before and after drafts, with features pending, after crops and other tokens, followed late, with open chains."""
    engine = with_head(folder(kind), **({"draft_vocab": 32} if kind == "mtp" else {}))
    assert sum(walk_with_head(engine, seed() + number) for number in range(cases(3, 60)))


def test_pages_with_and_without_a_heads_rows_may_be_mixed(folder: Callable[[str], Any]) -> None:
    """The model's bytes are the same; the head then starts anew."""
    engine = with_head(folder("eagle3"))
    text, images = random_text(200), []
    for follows in (True, False):
        cache = engine.new_cache()
        if follows:
            engine.head.follow(cache)
        feed(engine, cache, text)
        images.append(image_of(cache, [64, 128]))
    (with_rows, without) = images
    for number in range(3):
        pages = [*with_rows.pages]
        pages[number] = without.pages[number]
        assert len(pages[number][2]) <= len(with_rows.pages[number][2])
        twin = CacheImage(200, pages, with_rows.state).into(engine)
        assert run(engine, twin, np.array([4], np.int32)).tobytes() == expected_row(engine, without)
        engine.head.draft(twin, 4, 4)
    alone = CacheImage(200, with_rows.pages, without.state).into(engine)
    with pytest.raises(InputError, match="follow"):
        engine.head.draft(alone, 4, 4)
    assert run(engine, alone, np.array([4], np.int32)).tobytes() == expected_row(engine, without)


def expected_row(engine: Any, image: CacheImage) -> bytes:
    """The logits of a token after an image's text."""
    return run(engine, image.into(engine), np.array([4], np.int32)).tobytes()


def test_a_heads_state_at_a_page_boundary_is_small(folder: Callable[[str], Any]) -> None:
    """Without features: a text that starts there reads the pages, and one row of the head."""
    engine = with_head(folder("eagle3"))
    cache = engine.new_cache()
    engine.head.follow(cache)
    feed(engine, cache, random_text(200))
    engine.head.draft(cache, 5, 4)
    cache.crop(128)
    image = image_of(cache, [64])
    assert len(image.state) < engine.head.position_bytes + 128
    assert engine.head.draft(image.into(engine), 5, 4) == engine.head.draft(cache, 5, 4)


@pytest.mark.parametrize("kind", ["mtp", "eagle3", "gemma4_assistant ordered"])
def test_damaged_images_of_heads_are_refused_or_harmless(folder: Callable[[str], Any], kind: str) -> None:
    engine, rng = with_head(folder(kind)), np.random.default_rng(seed())
    cache = engine.new_cache()
    engine.head.follow(cache)
    feed(engine, cache, random_text(130))
    engine.head.draft(cache, 5, 4)
    feed(engine, cache, random_text(30))
    image = image_of(cache, [64])
    for wrong in misfits(image):
        with pytest.raises(InputError):
            wrong.into(engine)
    for _ in range(cases(60, 3000)):
        try:
            twin = flipped(image, rng).into(engine)
            if twin.export_state()[0]:
                engine.head.draft(twin, 5, 4)
            feed(engine, twin, [1, 2])
            reached = twin.crop(100)
            feed(engine, twin, [3])
        except (InputError, NonFiniteError):
            continue
        assert twin.length == reached + 1

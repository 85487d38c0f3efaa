"""Random walks on a cache next to imports of its images: every step gives the same bytes on both."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ipex_lookahead.engines.api import HELD, state_bytes
from tests.support.cache_images import PAGE, CacheImage, image_of, some_cuts
from tests.support.family_engines import step
from tests.support.hybrids import random_text
from tests.support.native import chain, run

ROWS = (1, 1, 2, 3, 5, 9, 17, 70)
"""Rows of a step: of decoding, of drafts and of prompts."""


def walk(engine: Any, seed: int, steps: int = 14, longest: int = 260) -> None:
    """Grow, keep, crop, fork and checkpoint a cache; after each, import its image, and step on both."""
    rng = np.random.default_rng(seed)
    cache = engine.new_cache()
    for number in range(steps):
        where = f"seed {seed}, step {number}"
        action = rng.choice(["grow"] * 5 + ["crop", "fork", "checkpoint"])
        if action == "grow":
            grow(engine, rng, [cache], longest, where)
        elif action == "crop":
            cache.crop(int(rng.integers(0, cache.length + 1)))
        elif action == "fork":
            cache = cache.fork()
        elif state_bytes(engine):
            cache.checkpoint()
        image = image_of(cache, some_cuts(rng, cache.length))
        twin = image.into(engine)
        assert twin.length == cache.length, where
        assert image_of(twin, [first for first, _, _ in image.pages]) == image, where
        grow(engine, rng, [cache, twin], longest, where)
        if rng.random() < 0.5:
            cache = twin


def grow(engine: Any, rng: np.random.Generator, caches: list[Any], longest: int, where: str) -> None:
    """A step of equal rows on caches that are equal; a path of it is kept, or nothing."""
    count = int(rng.choice(ROWS))
    if caches[0].length + count > longest:
        for cache in caches:
            cache.crop(0)
    tokens = rng.integers(0, engine.vocab_size, count).astype(np.int32)
    tree = count < 16 and rng.random() < 0.6
    above = np.asarray([int(rng.integers(-1, i)) for i in range(count)] if tree else chain(count), np.int32)
    settled = 0 if tree else int(rng.choice((HELD, 0, 1, count)))
    rows = [step(engine, [cache], [tokens], [above], settled=[settled])[0] for cache in caches]
    assert all(one.tobytes() == rows[0].tobytes() for one in rows), where
    path = [int(rng.integers(count))]
    while above[path[0]] >= 0:
        path.insert(0, int(above[path[0]]))
    path = path[: int(rng.integers(0, len(path) + 1))]
    if path and len(path) >= settled:  # else the whole step is dropped
        for cache in caches:
            cache.keep(path)


def feed(engine: Any, cache: Any, tokens: list[int]) -> None:
    """Commit tokens, settled as a prompt's."""
    ids = np.array(tokens, np.int32)
    for first in range(0, len(ids), 256):
        part = ids[first : first + 256]
        step(engine, [cache], [part], [chain(len(part))], settled=[len(part)])
        cache.keep(list(range(len(part))))


def walk_with_head(engine: Any, seed: int, deeds: int = 12, longest: int = 350) -> int:
    """The same with a head that follows, at times late, and equal drafts. Return the number of drafted tokens."""
    rng, head, drafted = np.random.default_rng(seed), engine.head, 0
    cache, follows = engine.new_cache(), False
    for number in range(deeds):
        deed = rng.choice(["follow", "feed"] if number < 2 else ["feed", "feed", "draft", "look", "crop", "allow"])
        token = int(rng.integers(engine.vocab_size))
        if cache.length > longest - 80:
            cache.crop(int(rng.integers(longest - 80)))
        if deed == "feed":
            feed(engine, cache, rng.integers(0, engine.vocab_size, int(rng.choice((1, 2, 9, 70)))).tolist())
        elif deed == "crop":
            cache.crop(int(rng.integers(max(cache.length - 70, 0), cache.length + 1)))
        elif deed == "follow":
            head.follow(cache)
            follows = True
        elif deed == "allow":
            head.allow_tokens(cache, rng.integers(0, engine.vocab_size, 3).astype(np.int32))
        elif follows and deed == "draft":
            head.draft(cache, token, 3)
        elif follows and head.next_logits(cache, token, first=True) is not None:
            head.next_logits(cache, token, first=False)
        image = image_of(cache, [PAGE, 3 * PAGE])
        twin = image.into(engine)
        assert image_of(twin, [PAGE, 3 * PAGE]) == image, (seed, number)
        if follows:
            expected = head.draft(cache, token, 4)
            assert head.draft(twin, token, 4) == expected, (seed, number)
            drafted += len(expected[0])
        grow(engine, rng, [cache, twin], longest, f"seed {seed}, deed {number}")
        cache = twin
    return drafted


def export_while_decoding(engine: Any, length: int, steps: int) -> None:
    """Export and import a fork in a thread while its sibling decodes: neither changes the other."""

    def decode(of: Any) -> list[bytes]:
        rows = []
        for token in random_text(steps, seed=1):
            rows.append(run(engine, of, np.array([token], np.int32)).tobytes())
            of.keep([0])
        return rows

    def export() -> None:
        while not over.is_set() or not images:
            images.append(image_of(fork.fork()))
            images.append(image_of(images[-1].into(engine)))

    cache, over = engine.new_cache(), threading.Event()
    images: list[CacheImage] = []
    feed(engine, cache, random_text(length))
    expected, fork = decode(cache.fork()), cache.fork()
    thread = threading.Thread(target=export)
    thread.start()
    found = decode(cache)
    over.set()
    thread.join()
    assert found == expected
    assert all(image == images[0] for image in images)

"""Images of caches: exporting them in pieces, and importing them into a new cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = 64
Bytes = npt.NDArray[np.uint8]


@dataclass
class CacheImage:
    """An image as files have it."""

    length: int
    pages: list[tuple[int, int, Bytes]]
    state: Bytes

    def into(self, engine: Any) -> Any:
        """The cache that an engine makes of it."""
        return engine.import_cache(self.length, self.pages, self.state)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, CacheImage)
        mine, theirs = ([(*one[:2], one[2].tobytes()) for one in image.pages] for image in (self, other))
        return (self.length, mine, self.state.tobytes()) == (other.length, theirs, other.state.tobytes())


def image_of(cache: Any, cuts: Sequence[int] = ()) -> CacheImage:
    """The image of a cache, its pages divided at the page boundaries in ``cuts``."""
    length = cache.length
    ends = [0, *sorted({cut for cut in cuts if 0 < cut < length}), length]
    ranges = [(first, last) for first, last in zip(ends, ends[1:], strict=False) if first < last]
    return CacheImage(length, [(*one, cache.export_pages(*one)) for one in ranges], cache.export_state())


def some_cuts(rng: np.random.Generator, length: int) -> list[int]:
    """Random page boundaries."""
    pages = length // PAGE
    return [PAGE * int(cut) for cut in rng.choice(pages + 1, int(rng.integers(0, pages + 1)), replace=False)]


def misfits(image: CacheImage) -> list[CacheImage]:
    """Images with ranges, sizes or lengths that do not belong together."""
    (first, middle, head), (_, last, tail) = image.pages
    long = np.append(tail, np.zeros(1, np.uint8))
    pages: list[list[Any]] = [
        [], image.pages[:1], image.pages[1:], [image.pages[1], image.pages[0]], [*image.pages, image.pages[1]],
        [(first, middle - 1, head), (middle - 1, last, tail)], [(first, middle, head), (middle, last - 1, tail)],
        [(first, middle, head), (middle, last + 1, tail)],
        [(first, middle, tail), (middle, last, tail)] if len(tail) else [],
        [(first, middle, head[:0]), (middle, last, tail)] if len(head) else [],
        [(first, middle, head), (middle, last, tail[:-1])] if len(tail) else [],
        [(first, middle, head), (middle, last, long)],
        [(first, middle, head.astype(np.int8)), (middle, last, tail)],
        [(first, middle, head), (middle, last, tail.tobytes())],
    ]  # fmt: skip
    wrong = [CacheImage(image.length, each, image.state) for each in pages]
    for state in (image.state[:0], image.state[:-1], np.append(image.state, np.zeros(3, np.uint8))):
        wrong.append(CacheImage(image.length, image.pages, state))
    return wrong + [CacheImage(length, image.pages, image.state) for length in (0, -1, 1 << 40, image.length - 1)]


def flipped(image: CacheImage, rng: np.random.Generator) -> CacheImage:
    """An image with a few flipped bits, half of them in the numbers at the start of its parts."""

    def damaged(data: Any) -> Any:
        data = data.copy()
        for _ in range(int(rng.integers(1, 4)) if len(data) else 0):
            end = min(len(data), 64) if rng.random() < 0.5 else len(data)
            data[int(rng.integers(end))] ^= 1 << int(rng.integers(8))
        return data

    pages = [(first, last, damaged(data) if rng.random() < 0.3 else data) for first, last, data in image.pages]
    return CacheImage(image.length, pages, damaged(image.state))

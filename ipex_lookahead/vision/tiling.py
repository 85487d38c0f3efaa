"""How an image becomes tiles: the sizes it is resized to, and the parts that the tower reads one by one.

Most families have one tile, the resized image. SmolVLM, Idefics 3 and LFM2-VL cut large images into a grid of tiles,
and add the whole image at a small size as the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from ipex_lookahead.errors import InputError

MAX_RATIO = 200
"""Greatest ratio of the sides of an image for Qwen and LFM2-VL."""
LOW_TOKENS = 256
"""Tokens of an image with the detail "low", for families without a token budget."""
MAX_SIDE = 4096
"""Longest side in pixels that Idefics 3 and SmolVLM resize to."""


@dataclass(frozen=True, slots=True)
class Step:
    """A resize of the image, or of the result of an earlier step.

    Attributes:
        width, height: size of the result.
        source: index of the earlier step; None: the image.
    """

    width: int
    height: int
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a step's result.

    Attributes:
        step: index of the step.
        left, top, width, height: the part.
    """

    step: int
    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The tiles of an image, in the order of the prompt.

    Attributes:
        steps: resizes in order.
        tiles: the parts that the tower reads.
        rows, columns: grid of tiles; 1 x 1: the only tile is the whole image.
        overview: True if the whole image is the last tile, after the grid.
    """

    steps: tuple[Step, ...]
    tiles: tuple[Tile, ...]
    rows: int = 1
    columns: int = 1
    overview: bool = False


def whole(width: int, height: int, *before: Step) -> Plan:
    """Return the plan of one tile of this size, after other steps of which each reads the one before it."""
    last = Step(width, height, len(before) - 1 if before else None)
    return Plan((*before, last), (Tile(len(before), 0, 0, width, height),))


def grid(step: int, rows: int, columns: int, side: int) -> tuple[Tile, ...]:
    """Return square tiles of a step's result, row by row."""
    return tuple(Tile(step, c * side, r * side, side, side) for r in range(rows) for c in range(columns))


class Sizing(Protocol):
    """A family's rule for the tiles of an image."""

    def plan(self, width: int, height: int, unit: int) -> Plan:
        """Return the plan; sizes of tiles are multiples of ``unit``, the side of a token in pixels, or rounded down.

        Raises InputError for an image that the family cannot represent.
        """

    def limited(self, tokens: int, unit: int) -> Sizing:
        """Return the rule with at most this number of tokens for an image, as far as the family has a choice."""

    def low(self, unit: int) -> Sizing:
        """Return the rule for images with the detail "low"."""

    def high(self, unit: int) -> Sizing:
        """Return the rule for images with the detail "high"."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Gemma 4: the largest size of about the same ratio with at most ``tokens`` tokens; small images are enlarged."""

    tokens: int

    def plan(self, width: int, height: int, unit: int) -> Plan:
        return whole(*self.fit(width, height, unit))

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to."""
        factor = math.sqrt(self.tokens * unit * unit / (width * height))
        columns, rows = int(factor * width / unit), int(factor * height / unit)
        if rows == 0:
            rows, columns = 1, min(width // height, self.tokens)
        elif columns == 0:
            columns, rows = 1, min(height // width, self.tokens)
        return columns * unit, rows * unit

    def limited(self, tokens: int, unit: int) -> TokenBudget:
        return TokenBudget(min(self.tokens, tokens))

    def low(self, unit: int) -> TokenBudget:
        return TokenBudget(BUDGETS[0])

    def high(self, unit: int) -> TokenBudget:
        return TokenBudget(BUDGETS[-1])


BUDGETS = (70, 140, 280, 560, 1120)
"""Numbers of tokens per image that Gemma 4 was trained with."""


@dataclass(frozen=True, slots=True)
class PixelRange:
    """Qwen: both sides rounded half to even, then scaled if there are more or fewer pixels than allowed."""

    least: int
    most: int

    def plan(self, width: int, height: int, unit: int) -> Plan:
        return whole(*self.fit(width, height, unit))

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        """Return the width and height that an image is resized to. Raises InputError for a narrow image."""
        check_ratio(width, height)
        sides = [round(side / unit) * unit for side in (width, height)]
        if sides[0] * sides[1] > self.most:
            ratio = math.sqrt(width * height / self.most)
            sides = [max(unit, math.floor(side / ratio / unit) * unit) for side in (width, height)]
        elif sides[0] * sides[1] < self.least:
            ratio = math.sqrt(self.least / (width * height))
            sides = [math.ceil(side * ratio / unit) * unit for side in (width, height)]
        return sides[0], sides[1]

    def limited(self, tokens: int, unit: int) -> PixelRange:
        most = min(self.most, tokens * unit * unit)
        return PixelRange(min(self.least, most), most)

    def low(self, unit: int) -> PixelRange:
        return self.limited(LOW_TOKENS, unit)

    def high(self, unit: int) -> PixelRange:
        return self


@dataclass(frozen=True, slots=True)
class Square:
    """Gemma 3: a square of this side, whatever the ratio of the image."""

    side: int

    def plan(self, width: int, height: int, unit: int) -> Plan:
        return whole(self.side, self.side)

    def limited(self, tokens: int, unit: int) -> Square:
        return self

    def low(self, unit: int) -> Square:
        return self

    def high(self, unit: int) -> Square:
        return self


@dataclass(frozen=True, slots=True)
class LongestSide:
    """Idefics 3 and SmolVLM: tiles of the image with this longest side, enlarged to whole tiles; and the whole image.

    Attributes:
        longest: longest side after the first resize; smaller images are enlarged.
        tile: side of a tile.
        splits: False: one tile, the whole image.
    """

    longest: int
    tile: int
    splits: bool = True

    def plan(self, width: int, height: int, unit: int) -> Plan:
        first = Step(*self.fit(width, height))
        if not self.splits:
            return whole(self.tile, self.tile, first)
        second = Step(*self._to_tiles(first), 0)
        rows, columns = second.height // self.tile, second.width // self.tile
        if rows == columns == 1:
            return whole(self.tile, self.tile, first)
        overview = Tile(2, 0, 0, self.tile, self.tile)
        tiles = (*grid(1, rows, columns, self.tile), overview)
        return Plan((first, second, Step(self.tile, self.tile, 1)), tiles, rows, columns, overview=True)

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of the first resize: the longest side as required, then at most ``MAX_SIDE``."""
        ratio, (w, h) = width / height, (self.longest, self.longest)
        if width >= height:
            h = int(w / ratio)
            h += h % 2
        else:
            w = int(h * ratio)
            w += w % 2
        w, h = max(w, 1), max(h, 1)
        ratio = w / h
        if w >= h and w > MAX_SIDE:
            w, h = MAX_SIDE, int(MAX_SIDE / ratio)
        elif h > w and h > MAX_SIDE:
            w, h = int(MAX_SIDE * ratio), MAX_SIDE
        return max(w, 1), max(h, 1)

    def _to_tiles(self, of: Step) -> tuple[int, int]:
        """Return the next multiples of a tile's side, the ratio kept before the second side is rounded up."""
        ratio, side = of.width / of.height, self.tile
        if of.width >= of.height:
            width = math.ceil(of.width / side) * side
            return width, math.ceil(int(width / ratio) / side) * side
        height = math.ceil(of.height / side) * side
        return math.ceil(int(height * ratio) / side) * side, height

    def limited(self, tokens: int, unit: int) -> LongestSide:
        most = tokens // (self.tile // unit) ** 2  # tiles
        sides = min(math.isqrt(max(most - 1, 0)), -(-self.longest // self.tile))
        if sides < 2:
            return replace(self, splits=False)
        return replace(self, longest=min(self.longest, sides * self.tile))

    def low(self, unit: int) -> LongestSide:
        return replace(self, splits=False)

    def high(self, unit: int) -> LongestSide:
        return self


@dataclass(frozen=True, slots=True)
class TilesAndOverview:
    """LFM2-VL: an image of few pixels is one tile; others are stretched to the grid of tiles with the nearest ratio.

    Attributes:
        least, most: tokens of the whole image.
        tile: side of a tile of a grid.
        least_tiles, most_tiles: numbers of tiles in a grid; 1 and 1: no grids.
        tolerance: an image has a grid if it has more than ``most * tolerance`` tokens.
        overview: whether the whole image follows the grid.
    """

    least: int
    most: int
    tile: int
    least_tiles: int
    most_tiles: int
    tolerance: float
    overview: bool = True

    def plan(self, width: int, height: int, unit: int) -> Plan:
        small = self.fit(width, height, unit)
        rounded = [max(unit // 2, round(side / unit) * unit) for side in (width, height)]
        if self.most_tiles == 1 or rounded[0] * rounded[1] <= self.most * unit * unit * self.tolerance:
            return whole(*small)
        columns, rows = self._grid(width, height)
        steps = (Step(columns * self.tile, rows * self.tile), Step(*small))
        tiles = grid(0, rows, columns, self.tile)
        if not self.overview or len(tiles) == 1:
            return Plan(steps[:1], tiles, rows, columns)
        return Plan(steps, (*tiles, Tile(1, 0, 0, *small)), rows, columns, overview=True)

    def fit(self, width: int, height: int, unit: int) -> tuple[int, int]:
        """Return the width and height of the whole image. Raises InputError for a narrow image."""
        check_ratio(width, height)
        least, most = self.least * unit * unit, self.most * unit * unit
        sides = [max(unit, round(side / unit) * unit) for side in (width, height)]
        if sides[0] * sides[1] > most:
            ratio = math.sqrt(width * height / most)
            sides = [max(unit, math.floor(side / ratio / unit) * unit) for side in (width, height)]
        elif sides[0] * sides[1] < least:
            ratio = math.sqrt(least / (width * height))
            sides = [math.ceil(side * ratio / unit) * unit for side in (width, height)]
        return sides[0], sides[1]

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Return columns and rows of the allowed grid with the nearest ratio, of equal ones the largest that fits."""
        low, high = self.least_tiles, self.most_tiles
        shapes = {(w, h) for w in range(1, high + 1) for h in range(1, high + 1) if low <= w * h <= high}
        best, least = (1, 1), math.inf
        for columns, rows in sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape)):
            difference = abs(width / height - columns / rows)
            enough = width * height > 0.5 * self.tile * self.tile * columns * rows
            if difference < least or (difference == least and enough):
                best, least = (columns, rows), difference
        return best

    def limited(self, tokens: int, unit: int) -> TilesAndOverview:
        most = min(self.most, tokens)
        tiles = (tokens - most) // (self.tile // unit) ** 2
        if tiles < max(self.least_tiles, 2):
            return replace(self.low(unit), least=min(self.least, most), most=most)
        return replace(self, most_tiles=min(self.most_tiles, tiles))

    def low(self, unit: int) -> TilesAndOverview:
        return replace(self, least_tiles=1, most_tiles=1)

    def high(self, unit: int) -> TilesAndOverview:
        return self


def check_ratio(width: int, height: int) -> None:
    """Raise InputError if one side is more than ``MAX_RATIO`` times the other."""
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InputError(
            f"the image cannot be used: it has {width:,} x {height:,} pixels; one side may be at most {MAX_RATIO} "
            "times the other",
            hint="crop it",
        )

"""The state of a drafting head for one sequence on a device; ``csrc/model/head_state.h`` is the CPU implementation.

It holds features of the target's rows that the head has not read, and the head's own keys for the rows that it has
read. Row p of the head is computed from the features of the target's row p and the token at p + 1, which the next row
brings. A head that shares its target's keys has none of its own and reads the last position only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipex_lookahead.engines.cache_images import PAGE, Bytes, ImageReader, joined
from ipex_lookahead.engines.opencl.cache import OpenClCache
from ipex_lookahead.engines.opencl.head_decoder import MOST_TILES, HeadDecoder, Seen
from ipex_lookahead.engines.opencl.linear import LANES
from ipex_lookahead.errors import InputError

ROWS_AT_ONCE = 512
MOST_PENDING = 64
"""From this number of rows on, features are read between steps: they take more memory than keys."""
ROWS_HELD = 129
"""Most rows of the last step with a buffer that remains allocated: a token and the longest draft."""


class FeatureRows:
    """Rows of features in a buffer that grows by doubling.

    Attributes:
        buffer: float32 [rows][width].
        first, count: the rows in use.
    """

    def __init__(self, device: Any, width: int) -> None:
        self._device, self._bytes = device, 4 * width
        self.buffer, self.first, self.count = device.empty(0), 0, 0

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer."""
        return int(self.buffer.size)

    def append(self, source: Any, at: int, rows: int) -> None:
        """Append copies of the rows of ``source`` from ``at`` on."""
        size, end = self._bytes, self.first + self.count + rows
        if self.buffer.size < end * size:
            grown = self._device.empty(max(self.count + rows, 2 * self.count) * size)
            if self.count:
                self._device.copy(self.buffer, grown, self.count * size, self.first * size, 0)
            self.buffer, self.first = grown, 0
        self._device.copy(source, self.buffer, rows * size, at * size, (self.first + self.count) * size)
        self.count += rows

    def drop_first(self, rows: int) -> None:
        """Drop the first rows."""
        self.first, self.count = self.first + rows, self.count - rows
        if self.count == 0:
            self.first = 0

    def clear(self) -> None:
        """Drop all rows."""
        self.first = self.count = 0

    def release(self) -> None:
        """Drop all rows and their memory."""
        self.clear()
        self.buffer = self._device.empty(0)


class HeadState:
    """A head's state for one sequence, one more state of the target's cache.

    Args:
        head: the head.
        length: length of the target's cache.
    """

    def __init__(self, head: HeadDecoder, length: int) -> None:
        self.head = head
        self.layers: tuple[int, ...] = head.layers
        self._own = not head.spec.target_keys
        self._length = self._end = length
        """Length of the target's cache, and one more than the last position with features that were read."""
        self._pending, self._stepped = (FeatureRows(head.device, head.width) for _ in range(2))
        self._step_tokens: list[int] = []
        self._tokens: list[int] = []  # the tokens behind the pending rows, except the last
        self.keys = OpenClCache(head.pages) if self._own else None
        self._read: list[int] = []  # tokens of the keys
        self._aligned = 0  # number of leading rows with their index as position; others follow a gap
        self.tiles: list[int] = []
        """Tiles of the whole lm_head with allowed tokens."""
        self.chain: tuple[Any, int] | None = None
        """The cache and the position of the next row of a chain in single steps."""

    # ---- steps of the target -----------------------------------------------------------------------------------------

    def step(self, tokens: Sequence[int], features: Any, first: int) -> None:
        """Take over a step's tokens, and their features from row ``first`` of a buffer on."""
        self._stepped.clear()
        self._stepped.append(features, first, len(tokens))
        self._step_tokens = [int(token) for token in tokens]

    def keep(self, rows: Sequence[int]) -> None:
        """Commit rows of the last step, which are a path."""
        added: list[int] = []
        for i, row in enumerate(rows):
            token, position = self._step_tokens[row], self._length + i
            if not self._own:
                self._pending.clear()
                added.clear()
            elif self._pending.count or added:
                self._tokens.append(token)
            elif self._end == position and self._read and token != self._read[-1]:
                self._forget(position - 1)  # another text than the one that it drafted for
            elif self._end + 1 < position:
                continue  # beyond the end of its context
            added.append(row)
            self.allow_tokens([token])
        for first, count in _runs(added):
            self._pending.append(self._stepped.buffer, first, count)
        self._length += len(rows)
        if self.keys is not None and self.keys.length + self._pending.count >= self.head.spec.max_context:
            self._pending.release()  # its context is full
            self._tokens.clear()
        if self._stepped.count > ROWS_HELD:
            self._stepped.release()
        if len(self._tokens) >= MOST_PENDING:
            self._catch_up(0)

    def crop(self, length: int) -> None:
        """Return to a length. Features that were read are gone; ``keep`` finds out whether the token there changes."""
        first = self._length - self._pending.count
        if length > first:  # a head on its target's keys has the last position only
            self._pending.count = length - first
            del self._tokens[max(length - first - 1, 0) :]
        elif length < self._length:
            self._pending.clear()
            self._tokens.clear()
            if length < self._end:
                self._forget(length)
        self._length = length

    def fill_blank(self, length: int) -> None:
        """Set an empty state to ``length`` positions of zeros."""
        if self.keys is not None:
            self.keys.fill_blank(min(length, self.head.spec.max_context))
            self._read = [-1] * self.keys.length
            self._aligned = self.keys.length
        self._length = self._end = length

    def fork(self) -> HeadState:
        """Return the same state for another sequence."""
        other = HeadState(self.head, self._length)
        other._end, other._tokens, other._read = self._end, [*self._tokens], [*self._read]
        other.tiles, other._aligned = [*self.tiles], self._aligned
        if self._pending.count:
            other._pending.append(self._pending.buffer, self._pending.first, self._pending.count)
        if self.keys is not None:
            other.keys = self.keys.fork()
        return other

    # ---- images ------------------------------------------------------------------------------------------------------

    def export_pages(self, first: int, last: int) -> Bytes:
        """Return the rows [first - 1, last - 1), which depend on the tokens before ``last``, as far as they were read.

        Each has its token, int32, and then all have their keys and values.
        """
        begin, end = max(first - 1, 0), min(last - 1, self._aligned)
        if self.keys is None or begin >= end:
            return joined()
        return joined(np.array(self._read[begin:end], np.int32), self.head.pages.slots(self.keys.held, begin, end))

    def import_pages(self, first: int, last: int, image: ImageReader) -> None:
        """Continue an import. Rows after missing ones, in pages without the head's rows, are skipped."""
        if self.keys is None or not image.left:
            return
        begin, each = max(first - 1, 0), 4 + sum(self.head.pages.sizes) // PAGE
        rows, rest = divmod(image.left, each)
        most = min(last - 1, self.head.spec.max_context) - begin
        if rest or rows > most:
            raise InputError(
                f"the image has {image.left} bytes for the drafting head; it must have up to {most} rows of {each}"
            )
        if len(self._read) == begin:
            self._import_rows(begin, begin + rows, image)
        else:
            image.take((image.left,))

    def _import_rows(self, first: int, last: int, image: ImageReader) -> None:
        assert self.keys is not None
        self._read[first:] = image.take((last - first,), np.int32).tolist()
        self.keys.held += self.head.pages.take(max(-(-last // PAGE) - len(self.keys.held), 0))
        self.head.pages.set_slots(self.keys.held, first, last, image)

    def export_state(self) -> Bytes:
        """Return the features and the rows that no pages have."""
        pending, width = self._pending, 4 * self.head.width
        features = np.empty(0, np.uint8)
        if pending.count:
            features = self.head.device.read(pending.buffer, (pending.count * width,), np.uint8, pending.first * width)
        ids = np.array([*self._tokens, *self.tiles], np.int32)
        state = joined(self._end, pending.count, len(self.tiles), features, ids)
        if self.keys is None:
            return state
        rows, in_pages = len(self._read), min(self._aligned, max(self._length - 1, 0))
        read = np.array(self._read[in_pages:], np.int32)
        return joined(state, rows, self._aligned, read, self.head.pages.slots(self.keys.held, in_pages, rows))

    def import_state(self, length: int, image: ImageReader) -> None:
        """Finish an import. Raises InputError for an image of other sizes or with invalid numbers."""
        spec, width = self.head.spec, 4 * self.head.width
        self._length, self._end = length, image.number(0, length, "number of positions with read features")
        most = length - self._end if self._own else min(length, 1)
        count = image.number(0, most, "number of features")
        tiles = image.number(0, MOST_TILES if self.head.outputs.whole else 0, "number of tiles")
        features = image.take((count, width))
        self._tokens = image.ids(max(count - 1, 0) if self._own else 0, spec.vocab, "token id")
        self.tiles = image.ids(tiles, -(-spec.vocab // LANES), "tile")
        if count:
            self._pending.append(self.head.device.upload(features), 0, count)
        if self.keys is None:
            return
        rows = image.number(0, min(self._end, spec.max_context), "number of the drafting head's rows")
        aligned = image.number(0, rows, "number of aligned rows")
        in_pages = min(aligned, max(length - 1, 0))
        if len(self._read) < in_pages:  # some pages are those of caches that did not follow the head
            image.take((image.left,))
            self._read.clear()
            self.keys.crop(0)
            return
        self._import_rows(in_pages, rows, image)
        self.keys.length, self._aligned = rows, aligned

    @property
    def feature_bytes(self) -> int:
        """The bytes of the pending features and of the last step's."""
        return self._pending.nbytes + self._stepped.nbytes

    def allow_tokens(self, tokens: Sequence[int]) -> None:
        """Allow drafts of these tokens even if the head's part of the lm_head lacks them."""
        if not self.head.outputs.whole:
            return
        for token in tokens:
            if not 0 <= token < self.head.spec.vocab or self.head.drafts(token):
                continue
            tile = token // LANES
            if tile in self.tiles:
                self.tiles.remove(tile)
            elif len(self.tiles) == MOST_TILES:
                del self.tiles[0]
            self.tiles.append(tile)

    # ---- drafts ------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True if there are features of the last position."""
        return self._pending.count > 0

    def begin(self, target: Any, last: int, more: int) -> tuple[Any, int] | None:
        """Enqueue the pending rows and the one of ``last``, the last token of the text.

        Args:
            target: the target's cache.
            last: the token.
            more: number of rows that may follow.

        Returns:
            The cache of the rows that follow and the position of the first one, or None at the context's end.
        """
        self.head.allow(self.tiles)
        limit = self.head.spec.max_context
        if self.keys is None:
            if target.length >= limit:
                return None
            seen = Seen(target)
            self.head.feed(seen, [last], self._pending.buffer, self._pending.first)
            return seen, seen.length
        if self.keys.length + len(self._tokens) + 1 >= limit:
            return None
        self._tokens.append(last)
        try:
            self._catch_up(min(more, limit - self.keys.length - len(self._tokens)))
        except BaseException:
            if self._tokens:
                self._tokens.pop()
            raise
        return self.keys, self.keys.length

    def room(self, position: int) -> int:
        """Return the number of rows that a chain may add from a position on."""
        return MOST_TILES if self.keys is None else max(0, self.head.spec.max_context - 1 - position)

    def _catch_up(self, more: int) -> None:
        """Read the pending rows with known tokens; none beyond the end of the head's context."""
        assert self.keys is not None
        rows, length = len(self._tokens), self.keys.length
        if length + rows >= self.head.spec.max_context:
            return
        try:
            for first in range(0, rows, ROWS_AT_ONCE):
                some = self._tokens[first : first + ROWS_AT_ONCE]
                last = first + len(some) == rows
                self.head.feed(self.keys, some, self._pending.buffer, self._pending.first + first, more if last else 0)
                self.keys.length += len(some)
        except BaseException:
            self.keys.crop(length)
            raise
        first = self._length - self._pending.count
        self._aligned += rows if self._aligned == length == first else 0
        self._end = first + rows
        self._read += self._tokens
        self._pending.drop_first(rows)
        if rows > ROWS_HELD:
            self._shrink()
        self._tokens.clear()

    def _shrink(self) -> None:
        pending = self._pending
        self._pending = FeatureRows(self.head.device, self.head.width)
        if pending.count:
            self._pending.append(pending.buffer, pending.first, pending.count)

    def _forget(self, length: int) -> None:
        """Drop what was read from a position on. There may be fewer rows than positions."""
        if self.keys is not None:
            rows = len(self._read)
            del self._read[self.keys.crop(max(0, rows - (self._end - length))) :]
            self._aligned = min(self._aligned, len(self._read))
        self._end = length


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending rows as runs of neighbors: the first and the number of each."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and sum(found[-1]) == row:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((row, 1))
    return found

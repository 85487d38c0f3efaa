"""The cache of a sequence on a device: keys and values, in pages of 64 positions that sequences may share, and states.

A layer's pages are one buffer, and a page has the same number in all layers. Slot s of a sequence is position s once
committed. The rows of a step are written to the slots after ``length``; the next step overwrites rows that were not
committed. Unlike the native core's, layers with a window keep every page: they can be cropped to any length.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.cache_images import PAGE, Bytes, ImageReader, check_range, joined
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import LANES
from ipex_lookahead.engines.opencl.pool import Pool
from ipex_lookahead.engines.opencl.programs import KV_INT8, LATENT_QUERIES, OF_LATENTS, OF_ROWS, QUERIES
from ipex_lookahead.engines.opencl.states import RecurrentState
from ipex_lookahead.errors import BusyError, InputError


@dataclass(frozen=True, slots=True)
class Layout:
    """A page of a layer: for each of ``kv_heads`` heads, keys of ``head_dim`` and values of ``value_dim`` numbers."""

    kv_heads: int
    head_dim: int
    value_dim: int

    def page_bytes(self, kv_cache: str) -> int:
        """Return the bytes of a page."""
        both = self.head_dim + self.value_dim
        return self.kv_heads * PAGE * (2 * both if kv_cache == "fp16" else both + 8)

    @property
    def queries(self) -> int:
        """The most values of the queries of a work-group of attention."""
        return QUERIES if self.head_dim == self.value_dim else LATENT_QUERIES


class Pages(Pool):
    """The pages of one model.

    Attributes:
        layouts: one for each layer with keys and values; ``sizes`` has the bytes of their pages.
    """

    def __init__(self, device: Device, layouts: Sequence[Layout], kv_cache: str) -> None:
        super().__init__(device, [layout.page_bytes(kv_cache) for layout in layouts])
        self.layouts = layouts
        latents = OF_LATENTS if any(layout.queries == LATENT_QUERIES for layout in layouts) else ()
        self._orders = [_slot_order(layout, kv_cache) for layout in layouts]
        self.options = latents if kv_cache == "fp16" else (*KV_INT8, *latents)

    @property
    def program(self) -> Any:
        """The program of kernels over rows and heads, for the format of these pages."""
        return self.device.program(*OF_ROWS, options=self.options)

    def move(self, moves: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots in order; each move is (page, slot in page, target page, slot in target page)."""
        device = self.device
        listed = device.upload(np.array(moves, np.int32))
        with self.lock:
            for buffer, layout in zip(self.buffers, self.layouts, strict=True):
                sizes = map(np.int32, (layout.kv_heads, layout.head_dim, layout.value_dim))
                kernel = device.kernel(self.program, "move_slots", buffer, *sizes, listed, np.int32(len(moves)))
                device.enqueue_plain(kernel, (max(layout.head_dim, layout.value_dim), layout.kv_heads))

    def slots(self, held: Sequence[int], first: int, last: int) -> Bytes:
        """Return the keys and values of slots [first, last) of a sequence with the pages ``held``, uint8 [bytes]."""
        places = _pieces(first, last)
        contents = self.read([held[page] for page, _, _ in places])
        return joined(
            *(
                content[i] if stop - start == PAGE else content[i][order[start:stop]]
                for i, (_, start, stop) in enumerate(places)
                for content, order in zip(contents, self._orders, strict=True)
            )
        )

    def set_slots(self, held: Sequence[int], first: int, last: int, image: ImageReader) -> None:
        """Set slots [first, last) of pages that no other sequence shares. Raises InputError for other sizes."""
        places = _pieces(first, last)
        own = [held[page] for page, _, _ in places]
        partial = [i for i, (_, start, stop) in enumerate(places) if stop - start < PAGE]
        contents = [np.empty((len(places), size), np.uint8) for size in self.sizes]
        for i in partial:
            for content, (before,) in zip(contents, self.read([own[i]]), strict=True):
                content[i] = before
        for i, (_, start, stop) in enumerate(places):
            for content, order, size in zip(contents, self._orders, self.sizes, strict=True):
                piece = image.take(((stop - start) * size // PAGE,))
                if i in partial:
                    content[i][order[start:stop].reshape(-1)] = piece
                else:
                    content[i] = piece
        self.write(own, contents)


def _pieces(first: int, last: int) -> list[tuple[int, int, int]]:
    """Return the pages with slots [first, last) of a sequence, and the first and last slot of each."""
    return [
        (page, max(first - page * PAGE, 0), min(last - page * PAGE, PAGE))
        for page in range(first // PAGE, -(-last // PAGE))
    ]


def _slot_order(layout: Layout, kv_cache: str) -> npt.NDArray[np.intp]:
    """Return where the bytes of each slot are in a page, [PAGE, bytes of a slot]."""
    size, page = (2, 0) if kv_cache == "fp16" else (1, 0)
    slots = []
    for _ in range(layout.kv_heads):
        keys, values = PAGE * layout.head_dim * size, PAGE * layout.value_dim * size
        at = page + np.arange(keys).reshape(PAGE // LANES, layout.head_dim, LANES, size)
        slots.append(at.transpose(0, 2, 1, 3).reshape(PAGE, -1))
        slots.append(page + keys + np.arange(values).reshape(PAGE, -1))
        page += keys + values
        if kv_cache != "fp16":  # the scales of keys, then of values
            slots.append((page + np.arange(8 * PAGE)).reshape(2, PAGE, 4).transpose(1, 0, 2).reshape(PAGE, -1))
            page += 8 * PAGE
    return np.concatenate(slots, 1)


class OneUser:
    """A base for objects that only one thread may use at a time."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    @contextmanager
    def claim(self, deed: str) -> Iterator[None]:
        """Lock the object inside the context. Raises BusyError if another thread has locked it."""
        if not self._busy.acquire(blocking=False):
            raise BusyError(
                f"{deed}: the cache is in use by another thread",
                hint="give each thread caches of its own (new_cache, fork)",
            )
        try:
            yield
        finally:
            self._busy.release()


class OpenClCache(OneUser):
    """Keys and values of one sequence, and its recurrent states. See ``engines.api.Cache``.

    Attributes:
        pages: the model's pages.
        state: None for a model without recurrent layers.
        length: number of committed positions.
        held: numbers of the sequence's pages.
    """

    def __init__(self, pages: Pages, state: RecurrentState | None = None) -> None:
        super().__init__()
        self.pages, self.state = pages, state
        self.length = 0
        self.held: list[int] = []
        self._parents: list[int] = []
        self._settled = 0
        self.head: Any = None
        """The ``HeadState`` of the drafting head that follows the sequence, or None."""
        weakref.finalize(self, pages.release, self.held).atexit = False
        if state is not None:
            weakref.finalize(self, state.close).atexit = False

    def prepare(self, rows: int, settled: int = 0) -> None:
        """Make room for a step of ``rows`` rows, of which ``settled`` cannot be rejected (or ``HELD``).

        The slots from ``length`` on become writable: their pages exist and are not shared.
        """
        if self.state is not None:
            self.state.prepare(rows, settled)
        first, needed = self.length // PAGE, -(-(self.length + rows) // PAGE)
        for i in range(first, min(needed, len(self.held))):
            if self.pages.is_shared(self.held[i]):
                shared, self.held[i] = self.held[i], self.pages.copied(self.held[i])
                self.pages.release([shared])
        if needed > len(self.held):
            self.held += self.pages.take(needed - len(self.held))

    def begin_step(self) -> None:
        """Mark the prepared step as begun, after which its kernels may write to the cache."""
        if self.state is not None:
            self.state.begin()

    def fill_blank(self, positions: int) -> None:
        """Make an empty sequence one of ``positions`` zeros, for measuring steps at that length."""
        with self.claim("filling"):
            self.prepare(positions)
            self.pages.clear(self.held)
            if self.state is not None:
                self.state.fill_blank(positions)
            self.length = positions
            if self.head is not None:
                self.head.fill_blank(positions)

    def set_step(self, parents: list[int], settled: int = 0) -> None:
        """Set the parents of the step's rows and the number of settled ones, which ``keep`` checks paths against."""
        self._parents, self._settled = parents, max(settled, 0)

    def stepped(self) -> None:
        """Take over what the prepared step wrote: called once it has run, before :meth:`set_step`."""
        if self.state is not None:
            self.state.stepped()

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last step's rows. Raises InputError if it is none, EngineError as all that follow do."""
        try:
            path = [operator.index(row) for row in rows]
        except TypeError as error:
            raise InputError(f"keep takes a list of rows: {error}") from None
        with self.claim("keep"):
            if len(path) < self._settled:
                raise InputError(
                    f"keep: the last step's first {self._settled} rows were settled, and these are {len(path)}"
                )
            parent = -1
            for row in path:
                if not 0 <= row < len(self._parents):
                    raise InputError(f"keep: row {row} is not one of the last step's {len(self._parents)} rows")
                if self._parents[row] != parent:
                    raise InputError(
                        f"keep: rows must be a path of the last step, root first; row {row} does not follow {parent}"
                    )
                parent = row
            # Rows of a path ascend strictly, so none is overwritten before it is moved.
            moves = [
                (*self._place(self.length + row), *self._place(self.length + i))
                for i, row in enumerate(path)
                if row != i
            ]
            if moves:
                self.pages.move(moves)
            if self.state is not None:
                self.state.keep(path)
            self.length += len(path)
            self.set_step([])
            if self.head is not None:
                self.head.keep(path)

    def _place(self, slot: int) -> tuple[int, int]:
        return self.held[slot // PAGE], slot % PAGE

    def crop(self, length: int) -> int:
        """Keep the first ``length`` positions, or fewer where states cannot go back: see ``engines.api.Cache``.

        Returns the new length. Raises InputError if there are fewer positions.
        """
        try:
            length = operator.index(length)
        except TypeError as error:
            raise InputError(f"crop takes a length: {error}") from None
        with self.claim("crop"):
            if not 0 <= length <= self.length:
                raise InputError(f"crop: length {length} is not between 0 and the present {self.length}")
            if self.state is not None:
                length = self.state.reach(length)
                self.state.crop(length)
            self.length = length
            self.set_step([])
            if self.head is not None:
                self.head.crop(length)
            needed = -(-length // PAGE)
            self.pages.release(self.held[needed:])
            del self.held[needed:]
            return length

    @property
    def state_bytes(self) -> int:
        """See ``engines.api.Checkpointed``."""
        with self.claim("state_bytes"):
            states = 0 if self.state is None else self.state.nbytes
            return states + (0 if self.head is None else self.head.feature_bytes)

    def checkpoint(self) -> None:
        """Make the current length one that ``crop`` can restore; drops the last step's rows."""
        with self.claim("checkpoint"):
            self.set_step([])
            if self.state is not None:
                self.state.checkpoint(self.length)

    def export_pages(self, first: int, last: int) -> Bytes:
        """See ``engines.api.ExportsCache``. Layers with a window keep every position here."""
        with self.claim("export_pages"):
            check_range(first, last, self.length)
            own = self.pages.slots(self.held, first, last)
            return own if self.head is None else joined(own, self.head.export_pages(first, last))

    def export_state(self) -> Bytes:
        """See ``engines.api.ExportsCache``."""
        with self.claim("export_state"):
            parts = [] if self.state is None else [self.state.export()]
            parts += [] if self.head is None else [self.head.export_state()]
            return joined(int(self.head is not None), *parts)

    def import_pages(self, first: int, last: int, image: ImageReader) -> None:
        """Continue an import. Raises InputError for an image of other sizes."""
        with self.claim("import_pages"):
            self.held += self.pages.take(-(-last // PAGE) - len(self.held))
            self.pages.set_slots(self.held, first, last, image)
            if self.head is not None:
                self.head.import_pages(first, last, image)
            image.finish()

    def import_state(self, length: int, image: ImageReader) -> None:
        """Finish an import, after all pages. Raises InputError for an image of other sizes or with invalid numbers."""
        with self.claim("import_state"):
            if not image.number(0, int(self.head is not None), "drafting head"):
                self.head = None
            if self.state is not None:
                self.state.read_image(length, image)
            if self.head is not None:
                self.head.import_state(length, image)
            image.finish()
            self.length = length

    def fork(self) -> OpenClCache:
        """A second sequence with the same committed prefix."""
        with self.claim("fork"):
            other = OpenClCache(self.pages, None if self.state is None else self.state.fork())
            shared = self.held[: -(-self.length // PAGE)]
            self.pages.hold(shared)
            other.held += shared
            other.length = self.length
            other.head = None if self.head is None else self.head.fork()
            if self._parents and self.length % PAGE:  # keep may still move slots in the last page
                other.held[-1] = self.pages.copied(shared[-1])
                self.pages.release([shared[-1]])
            return other

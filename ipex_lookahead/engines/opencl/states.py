"""Recurrent states of a sequence on a device, as ``csrc/model/states/recurrent.h`` keeps them.

A state is, for each recurrent layer, a matrix that every position updates and the last inputs of a convolution. A step
reads one state and writes another. Rows that may be rejected store their raw inputs only: the next step first replays
those that were accepted, with the same kernels. So the state's bytes do not depend on drafts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ipex_lookahead.engines.api import HELD
from ipex_lookahead.engines.cache_images import Bytes, ImageReader, joined
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.pool import Pool
from ipex_lookahead.errors import EngineError

CHECKPOINTS = 4
"""Most checkpoints of a sequence; the oldest is dropped."""
DRAFT_ROWS = 8
"""Rows of a page of raw inputs."""
GROWTH = 1.25
"""Factor by which pools of states grow: a state of a large model is tens of megabytes."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The state of a recurrent layer.

    Attributes:
        kernel: taps of the convolution, including the row's own.
        channels: channels of the convolution.
        gates: further raw inputs of a row.
        tiles: tiles of 16 values, each float32 [keys][16].
        keys: keys of a tile.
    """

    kernel: int
    channels: int
    gates: int = 0
    tiles: int = 0
    keys: int = 0

    @property
    def matrix_bytes(self) -> int:
        """The bytes of the matrix."""
        return 4 * self.tiles * self.keys * 16

    @property
    def history_bytes(self) -> int:
        """The bytes of the convolution's inputs at the positions before the state's end, [kernel - 1][channels]."""
        return 4 * (self.kernel - 1) * self.channels

    @property
    def draft_bytes(self) -> int:
        """The bytes of the raw inputs of a row, those of the convolution first."""
        return 4 * (self.channels + self.gates)

    @property
    def nbytes(self) -> int:
        """The bytes of a state."""
        return self.matrix_bytes + self.history_bytes

    @property
    def step_bytes(self) -> int:
        """The bytes that a sequence's steps need: the states that they read and write, and a page of drafts of each."""
        return 2 * (self.nbytes + DRAFT_ROWS * self.draft_bytes)


class RecurrentStates:
    """The memory of all sequences' states of a model.

    Args:
        device: the owner of the memory.
        layouts: one for each recurrent layer.
        lock: see ``Pool``.

    Attributes:
        matrices, histories: pools of states.
        drafts: a pool of pages of ``DRAFT_ROWS`` rows of raw inputs.
    """

    def __init__(self, device: Device, layouts: Sequence[StateLayout], lock: threading.RLock | None = None) -> None:
        self.layouts = list(layouts)
        self.matrices = Pool(device, [one.matrix_bytes for one in layouts], GROWTH, lock)
        self.histories = Pool(device, [one.history_bytes for one in layouts], GROWTH, self.matrices.lock)
        self.drafts = Pool(device, [DRAFT_ROWS * one.draft_bytes for one in layouts], GROWTH, self.matrices.lock)

    @property
    def nbytes(self) -> int:
        """The bytes of one sequence's state."""
        return sum(one.nbytes for one in self.layouts)

    @property
    def generation(self) -> tuple[int, int, int]:
        """Changes when buffers are replaced."""
        return self.matrices.generation, self.histories.generation, self.drafts.generation


@dataclass(slots=True)
class Snapshot:
    """A state with its pending rows. Its memory may be shared, and does not change then.

    Attributes:
        matrix: number in the pool, or None: zeros.
        history: number in the pool, or None: there is no memory yet.
        drafts: pages of raw inputs.
        at: number of positions in the matrix.
        accepted: rows of ``drafts`` that follow them.
    """

    matrix: int | None = None
    history: int | None = None
    drafts: list[int] = field(default_factory=list)
    at: int = 0
    accepted: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of positions."""
        return self.at + len(self.accepted)

    def holds(self, length: int) -> bool:
        """Return True if the snapshot can be cropped to ``length``."""
        return self.at <= length <= self.length

    def draft(self, row: int) -> int:
        """Return the row of the pool's buffers with the raw inputs of row ``row`` of ``drafts``."""
        return self.drafts[row // DRAFT_ROWS] * DRAFT_ROWS + row % DRAFT_ROWS


class RecurrentState:
    """The states of one sequence in all recurrent layers.

    Between ``prepare`` and ``stepped`` a step reads ``now`` and writes ``next``.

    Args:
        states: the model's.
        now: the state, which this object then owns; None: that of an empty sequence.
    """

    def __init__(self, states: RecurrentStates, now: Snapshot | None = None) -> None:
        self.states = states
        self.now = self._empty() if now is None else now
        self.next = Snapshot()
        self._undo = Snapshot()  # the state before the last step, while its settled rows are not kept
        self._spare = Snapshot()  # a matrix for the next settled rows
        self._checkpoints: list[Snapshot] = []
        self._settled = self._next_settled = self._deferred = 0
        self._in_place = self._spoiled = False

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _pieces(self, one: Snapshot) -> tuple[tuple[Pool, list[int]], ...]:
        states = self.states
        matrix, history = ([] if number is None else [number] for number in (one.matrix, one.history))
        return (states.matrices, matrix), (states.histories, history), (states.drafts, one.drafts)

    def _copy(self, one: Snapshot) -> Snapshot:
        for pool, numbers in self._pieces(one):
            pool.hold(numbers)
        return replace(one, drafts=list(one.drafts), accepted=list(one.accepted))

    def _drop(self, one: Snapshot) -> Snapshot:
        """Give a snapshot's memory back and return one without memory."""
        for pool, numbers in self._pieces(one):
            pool.release(numbers)
        return Snapshot()

    def _empty(self) -> Snapshot:
        history = self.states.histories.take(1)
        self.states.histories.clear(history)
        return Snapshot(history=history[0])

    def _is_shared(self, matrix: int | None) -> bool:
        return matrix is not None and self.states.matrices.is_shared(matrix)

    def close(self) -> None:
        """Give all memory back."""
        for one in (self.now, self.next, self._undo, self._spare, *self._checkpoints):
            self._drop(one)

    @property
    def nbytes(self) -> int:
        """The bytes of all memory, shared memory included."""
        held: dict[int, tuple[Pool, set[int]]] = {}
        for one in (self.now, self.next, self._undo, self._spare, *self._checkpoints):
            for pool, numbers in self._pieces(one):
                held.setdefault(id(pool), (pool, set()))[1].update(numbers)
        return sum(len(numbers) * sum(pool.sizes) for pool, numbers in held.values())

    # ---- a step ------------------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        """Number of accepted rows that the next step replays."""
        return len((self._undo if self._settled else self.now).accepted)

    @property
    def committed(self) -> int:
        """Number of rows, accepted ones first, that the prepared step adds to the state."""
        return len(self.now.accepted) - self._deferred + self._next_settled

    def prepare(self, rows: int, settled: int) -> None:
        """Make room for a step of ``rows`` rows of which ``settled`` cannot be rejected, or ``HELD``.

        Raises EngineError if there is no memory, or if the state was lost; then nothing has changed.
        """
        self.check()
        self._drop_settled()
        states, now, next_ = self.states, self.now, self.next
        self._deferred = len(now.accepted) if settled == HELD else 0
        self._next_settled = settled = max(settled, 0)
        drafts = -(-(self._deferred + rows - settled) // DRAFT_ROWS)
        if next_.history is None or states.histories.is_shared(next_.history):
            (fresh,) = states.histories.take(1)
            states.histories.release([] if next_.history is None else [next_.history])
            next_.history = fresh
        if len(next_.drafts) < drafts or any(map(states.drafts.is_shared, next_.drafts)):
            pages = states.drafts.take(drafts)
            states.drafts.release(next_.drafts)
            next_.drafts = pages
        if next_.matrix is not None:  # of a step that failed
            states.matrices.release([next_.matrix])
            next_.matrix = None
        replays = len(now.accepted) > self._deferred
        moves = settled > 0 or (replays and (now.matrix is None or self._is_shared(now.matrix)))
        if moves and any(states.matrices.sizes):
            if self._spare.matrix is None:
                (self._spare.matrix,) = states.matrices.take(1)
            next_.matrix, self._spare.matrix = self._spare.matrix, None
        elif now.matrix is not None:
            next_.matrix = now.matrix
            states.matrices.hold([now.matrix])
        self._spare = self._drop(self._spare)
        self._in_place = replays and not moves

    def begin(self) -> None:
        """Mark the prepared step as begun: if it fails, a state that it updates in place is lost."""
        self._spoiled = self._in_place

    def stepped(self) -> None:
        """Mark the step as done."""
        self._spoiled = False
        self._settled = self._next_settled
        self.next.at = self.now.length - self._deferred + self._settled
        self.next.accepted = list(range(self._deferred))
        self.now, self.next = self.next, self.now
        if self._settled:
            self._undo, self.next = self.next, Snapshot()
        elif self.next.matrix is not None:
            self.states.matrices.release([self.next.matrix])
            self.next.matrix = None

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the step's rows, the settled ones first."""
        self.now.accepted += [self._deferred + row - self._settled for row in rows[self._settled :]]
        undo = self._undo
        if self._settled and undo.matrix is not None and not self._is_shared(undo.matrix):
            self._spare, undo.matrix = Snapshot(undo.matrix), None
        self._undo, self._settled = self._drop(undo), 0

    def _drop_settled(self) -> None:
        """Roll back to before the last step if its settled rows were not kept."""
        if self._settled:
            self._drop(self.now)
            self.now, self._undo, self._settled = self._undo, Snapshot(), 0

    # ---- images ------------------------------------------------------------------------------------------------------

    def export(self) -> Bytes:
        """Return the state's part of a cache's image. Raises EngineError if the state was lost."""
        self.check()
        now = self._undo if self._settled else self.now
        parts = [pool.read(numbers) for pool, numbers in self._pieces(now)]
        rows = [content.reshape(-1, content.shape[1] // DRAFT_ROWS)[now.accepted] for content in parts[2]]
        return joined(len(now.accepted), int(now.matrix is not None), *parts[0], *parts[1], *rows)

    def read_image(self, length: int, image: ImageReader) -> None:
        """Make an empty state that of ``length`` positions. Raises InputError for an image that does not fit."""
        states, now = self.states, self.now
        rows = image.number(0, length, "number of accepted rows")
        has_matrix = image.number(0, int(any(states.matrices.sizes)), "matrix flag")
        matrices, histories = (
            [image.take((count, size)) for size in pool.sizes]
            for pool, count in ((states.matrices, has_matrix), (states.histories, 1))
        )
        drafts = [image.take((rows, size // DRAFT_ROWS)) for size in states.drafts.sizes]
        if has_matrix:
            (now.matrix,) = states.matrices.take(1)
        now.drafts = states.drafts.take(-(-rows // DRAFT_ROWS))
        for content, (pool, numbers) in zip((matrices, histories), self._pieces(now), strict=False):
            pool.write(numbers, content)
        padding = ((0, len(now.drafts) * DRAFT_ROWS - rows), (0, 0))
        pages = [
            np.pad(each, padding).reshape(len(now.drafts), size)
            for each, size in zip(drafts, states.drafts.sizes, strict=True)
        ]
        states.drafts.write(now.drafts, pages)
        now.at, now.accepted = length - rows, list(range(rows))

    # ---- lengths -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise EngineError if the state was lost in a step that failed."""
        if self._spoiled:
            raise EngineError(
                "the sequence's recurrent state was lost in a step that failed on the device",
                hint="crop it to 0 or to a checkpoint, and run the tokens after it again",
            )

    def reach(self, length: int) -> int:
        """Return the largest length, at most ``length``, that ``crop`` can roll back to."""
        now = self._undo if self._settled else self.now
        if now.holds(length) and not self._spoiled:
            return length
        return max((min(length, one.length) for one in self._checkpoints if one.at <= length), default=0)

    def crop(self, length: int) -> None:
        """Roll back to a length that ``reach`` returned. Raises EngineError if there is no memory."""
        self._drop_settled()
        if self._spoiled or not self.now.holds(length):
            found = next((one for one in reversed(self._checkpoints) if one.holds(length)), None)
            before, self.now = self.now, self._empty() if found is None else self._copy(found)
            self._drop(before)
            self._spoiled = False
        del self.now.accepted[length - self.now.at :]
        kept = [one for one in self._checkpoints if one.length <= length]
        for one in self._checkpoints[len(kept) :]:  # they ascend
            self._drop(one)
        self._checkpoints = kept

    def checkpoint(self, length: int) -> None:
        """Make the current length one that ``crop`` can roll back to."""
        self.check()
        self._drop_settled()
        if self._checkpoints and self._checkpoints[-1].length == length:
            return
        if len(self._checkpoints) == CHECKPOINTS:
            self._drop(self._checkpoints.pop(0))
        self._checkpoints.append(self._copy(self.now))

    def fill_blank(self, length: int) -> None:
        """Set an empty state to ``length`` positions of zeros."""
        self.now.at = length

    def fork(self) -> RecurrentState:
        """Return the same positions for another sequence."""
        other = RecurrentState(self.states, self._copy(self._undo if self._settled else self.now))
        other._checkpoints = [self._copy(one) for one in self._checkpoints]
        other._spoiled = self._spoiled
        return other

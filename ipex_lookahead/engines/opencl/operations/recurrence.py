"""Gated delta nets and Mamba-2 on a device. They differ in the state update only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import GatedDeltaNet, Linear, Mamba2, ModelSpec
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, Matrix
from ipex_lookahead.engines.opencl.operations.base import (
    NORM_BLOCKS,
    Binder,
    Branch,
    Launch,
    Needs,
    NormBefore,
    Operation,
)
from ipex_lookahead.engines.opencl.states import StateLayout
from ipex_lookahead.engines.opencl.uploads import Uploads

i32, f32 = np.int32, np.float32

RECURRENT = 64
"""Work-items of a work-group of ``recur``."""


def padded(n: int) -> int:
    """Return ``n`` rounded up to whole tiles of outputs."""
    return -(-n // LANES) * LANES


def columns_of(linears: Sequence[Linear]) -> tuple[int, ...]:
    """Return the columns of linear layers in a row with the outputs of all of them, and the length of the row."""
    columns = [0]
    for linear in linears:
        columns.append(columns[-1] + padded(linear.weight.shape[0]))
    return tuple(columns)


class Joined:
    """Linear layers of the same inputs. Neighbors of one format are one matrix."""

    def __init__(self, linears: Sequence[Linear], uploads: Uploads) -> None:
        groups: list[list[Linear]] = []
        for linear in linears:
            if groups and uploads.alike([*groups[-1], linear]):
                groups[-1].append(linear)
            else:
                groups.append([linear])
        self._matrices: list[tuple[Matrix, int]] = []
        columns, done = columns_of(linears), 0
        for group in groups:
            self._matrices.append((uploads.matrix(group), columns[done]))
            done += len(group)
        self.stride = columns[-1]

    def launches(self, binder: Binder, out: Any) -> Iterator[Launch]:
        """Yield the products of ``scratch.x``, stored in ``out``, float32 [rows][stride]."""
        for matrix, column in self._matrices:
            yield binder.linear(matrix, binder.scratch.x, out, self.stride, column)


class RecurrenceOperation(Operation):
    """A linear recurrence.

    Attributes:
        part: the description.
        joined: the layers of ``_linears``.
        out: the output projection.
    """

    reads = "inputs"

    def __init__(self, part: GatedDeltaNet | Mamba2, uploads: Uploads) -> None:
        self.part = part
        self.joined, self.out = Joined(_linears(part), uploads), uploads.matrix([part.out])
        self._convolution, self._rate = uploads.vector(part.convolution), uploads.vector(part.rate)
        self._step_bias, self._norm = uploads.vector(part.step_bias), uploads.norm(part.norm)
        self._bias = self._skip = None
        if isinstance(part, Mamba2):
            self._bias, self._skip = uploads.vector(part.convolution_bias), uploads.vector(part.skip)
        self._layout = self.layout(part)
        self._state = uploads.state(self._layout)

    @staticmethod
    def layout(part: GatedDeltaNet | Mamba2) -> StateLayout:
        """Return the layout of the state."""
        keys, values = part.groups * part.key_dim, part.heads * part.value_dim
        gates = part.heads * (2 if isinstance(part, GatedDeltaNet) else 1)
        tiles = part.heads * padded(part.value_dim) // LANES
        return StateLayout(part.kernel, 2 * keys + values, gates, tiles, part.key_dim)

    @staticmethod
    def needs(part: GatedDeltaNet | Mamba2, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        values, channels = part.heads * part.value_dim, RecurrenceOperation.layout(part).channels
        raw = columns_of(_linears(part))[-1]
        floats = {"raw": raw, "mixed": channels + 2 * part.heads, "y": values}
        return Needs(floats=floats, rows={"finished": (values, 1)})

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        yield from self.joined.launches(binder, binder.scratch.floats("raw"))
        yield self._convolve(binder)
        yield self._recur(binder)
        finished = binder.scratch.rows("finished", self.part.heads * self.part.value_dim)
        yield self._finish(binder, finished)
        yield from binder.end_branch(self.out, finished, branch, following)

    def _kernel(self, b: Binder, name: str, *arguments: Any) -> Any:
        program = b.device.program("recurrence", options=[f"-DKEYS={self.part.key_dim}"])
        return b.device.kernel(program, name, *arguments)

    @property
    def _gate(self) -> tuple[Any, ...]:
        """The row length of raw inputs and the column of the gate."""
        _, gate, *_ = columns_of(_linears(self.part))
        return i32(self.joined.stride), i32(gate)

    def _convolve(self, b: Binder) -> Launch:
        part, s = self.part, b.scratch
        _, _, steps, beta, *_ = (*columns_of(_linears(part)), 0)
        least, most, epsilon = 0.0, float("inf"), 0.0
        if isinstance(part, Mamba2):
            least, most = part.least_step, part.most_step
        else:
            epsilon = float(f32(part.length_epsilon) / f32(part.key_dim))
        delta = isinstance(part, GatedDeltaNet)
        sizes = (steps, beta, part.groups, part.heads, part.key_dim, part.value_dim, delta)
        length = f32(1) / np.sqrt(f32(part.key_dim))
        steps_of = (self._rate, self._step_bias, f32(least), f32(most))
        kernel = self._kernel(
            b, "convolve", *lineage(b, self._state, self.joined.stride), *map(i32, sizes), self._convolution,
            self._bias, f32(epsilon), length, *steps_of, s.floats("mixed"), b.step,
        )  # fmt: skip
        units = 2 * part.groups + part.heads + 1
        return Launch(kernel, b.device.lane_groups(units), b.device.width, replays=True)

    def _recur(self, b: Binder) -> Launch:
        part, s, layout = self.part, b.scratch, self._layout
        assert b.recurrent is not None
        delta, keys, values = isinstance(part, GatedDeltaNet), part.groups * part.key_dim, part.heads * part.value_dim
        q, k, v = (0, keys, 2 * keys) if delta else (values + keys, values, 0)
        sizes = (layout.channels, q, k, v, part.groups, part.heads, part.value_dim, part.tiled, delta)
        gate = s.floats("raw") if self._gate_first else None
        kernel = self._kernel(
            b, "recur", s.floats("mixed"), *map(i32, sizes), self._skip, gate, *self._gate,
            b.recurrent.matrices.buffers[self._state], s.floats("y"), b.step,
        )  # fmt: skip
        return Launch(kernel, layout.tiles * RECURRENT, RECURRENT, by_sequence=True)

    def _finish(self, b: Binder, out: Any) -> Launch:
        part, s = self.part, b.scratch
        width = part.norm_group if isinstance(part, Mamba2) else part.value_dim
        gate = None if self._gate_first else s.floats("raw")
        each = min(max(width // GROUP, 1), NORM_BLOCKS)
        assert part.norm is not None  # supported.py refuses Mamba-2 without a norm
        norm = (i32(width), self._norm, i32(part.norm.weight.shape[0]), f32(part.norm.epsilon))
        arguments = (i32(out.n), *norm, gate, *self._gate, *out.arguments(), b.step, i32(each))
        return b.lanes(self._kernel(b, "norm_groups", s.floats("y"), *arguments), -(-out.blocks // each))

    @property
    def _gate_first(self) -> bool:
        return isinstance(self.part, Mamba2) and self.part.gate_first


def lineage(b: Binder, state: int, stride: int) -> tuple[Any, ...]:
    """Return the arguments of kernels for the raw inputs of rows, float32 [rows][stride], and the states of a layer."""
    assert b.recurrent is not None  # a model with recurrent layers has their memory
    layout, states = b.recurrent.layouts[state], b.recurrent
    sizes = (i32(layout.kernel), i32(layout.channels), i32(layout.gates))
    memory = (states.histories.buffers[state], states.drafts.buffers[state])
    return (b.scratch.floats("raw"), i32(stride), *memory, *sizes)


def _linears(part: GatedDeltaNet | Mamba2) -> tuple[Linear, ...]:
    """Return the layers that read a row, in the order of their columns."""
    gates = (part.steps, part.beta) if isinstance(part, GatedDeltaNet) else (part.steps,)
    return (part.inputs, part.gate, *gates)

"""MLPs on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ipex_lookahead.architectures.spec import Activation, GatedMlp, ModelSpec
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, STEP_ROWS, Matrix, Rows
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, Launch, Needs, NormBefore, Operation
from ipex_lookahead.engines.opencl.supported import ACTIVATIONS
from ipex_lookahead.engines.opencl.uploads import Stack, Uploads

i32, f32 = np.int32, np.float32


class GatedMlpOperation(Operation):
    """down(f(gate x) * up x), or down(f(up x)) without a gate.

    Attributes:
        mlp: the description.
        gate, up, down: the matrices; without a gate ``gate`` is None.
        paired: whether gate and up are computed in one kernel: they have equal formats.
    """

    reads = "gate"

    def __init__(self, mlp: GatedMlp, uploads: Uploads) -> None:
        self.mlp = mlp
        self.gate = None if mlp.gate is None else uploads.matrix([mlp.gate])
        self.up, self.down = uploads.matrix([mlp.up]), uploads.matrix([mlp.down])
        of = mlp.parameters
        self._parameters = None if of is None else uploads.values([of.alpha_p, of.alpha_n, of.beta, of.eps])
        formats = [(one.format, one.group_size) for one in (self.gate, self.up) if one is not None]
        self.paired = of is None and len(formats) == 2 and formats[0] == formats[1]
        self._down_order = uploads.order("down")

    @staticmethod
    def needs(part: GatedMlp, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        inner = part.up.weight.shape[0]
        return Needs(floats={"gate": inner, "up": inner}, rows={"gated": (inner, 1), "ordered": (inner, 1)})

    @property
    def nbytes(self) -> int:
        """The bytes of the matrices."""
        return sum(one.nbytes for one in (self.gate, self.up, self.down) if one is not None)

    def gated(self, b: Binder, made: Rows) -> Iterator[Launch]:
        """Yield the launches from ``scratch.x`` to ``made``, the rows that ``down`` reads."""
        s, kind = b.scratch, kind_of(self.mlp.activation)
        if self.paired and self.gate is not None:
            yield gate_up(b, s.x, self.gate, self.up, made, kind)
            return
        if self.gate is not None:
            yield b.linear(self.gate, s.x, s.floats("gate"), made.n)
        yield b.linear(self.up, s.x, s.floats("up"), made.n)
        gate = None if self.gate is None else s.floats("gate")
        yield activate(b, gate, s.floats("up"), made, kind, parameters=self._parameters)

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        s = binder.scratch
        made = s.rows("gated", self.up.n_out)
        yield from self.gated(binder, made)
        if self._down_order is not None:
            values, made = made, s.rows("ordered", self.up.n_out)
            of = (values.buffers[0], values.blocks * GROUP)
            yield binder.norm(NormBefore(None, None, self._down_order), made, values=of)
        yield from binder.end_branch(self.down, made, branch, following)


def gate_up(
    b: Binder,
    x: Rows,
    gate: Matrix,
    up: Matrix,
    made: Rows,
    kind: tuple[Any, ...],
    pairs: int = 1,
    experts: tuple[Any, ...] = (),
) -> Launch:
    """Return f(gate x) * up x as one kernel; ``experts``: buffer of chosen experts, the layer's offset, places."""
    chosen, first, places = experts or (None, i32(0), None)
    tiles = -(-made.n // LANES)
    rows = (*up.arguments(), *x.arguments(), *made.arguments(), b.step)
    arguments = (*rows, chosen, first, i32(pairs), places, i32(tiles), *kind)
    return b.product("gate_up", gate, *arguments, tiles=tiles, pairs=pairs if experts else None)


def activate(
    b: Binder,
    gate: Any,
    up: Any,
    made: Rows,
    kind: tuple[Any, ...],
    pairs: int = 1,
    up_at: tuple[int, int] | None = None,
    parameters: Any = None,
) -> Launch:
    """Return f(gate) * up, or f(up) without ``gate``: for each row, or for each expert of a row.

    Args:
        b: the step.
        gate: buffer, float32 [rows * pairs][made.n], or None.
        up: a buffer like ``gate``.
        made: the rows that are written.
        kind: see ``kind_of``.
        pairs: experts of a row.
        up_at: stride and first column of ``up``, if it has more columns.
        parameters: buffer of the four parameters of xIELU, which replaces ``kind``; None for other activations.
    """
    sizes = (i32(made.n), *map(i32, up_at or (made.n, 0)), i32(made.n))
    arguments = (gate, up, *sizes, *made.arguments(), b.step, i32(STEP_ROWS), i32(pairs), parameters, *kind)
    kernel = b.kernel("activate", *arguments)
    return Launch(kernel, b.device.lane_groups(made.blocks), b.device.width, pairs=pairs)


def kind_of(activation: Activation) -> tuple[Any, ...]:
    """Return an activation as arguments of kernels."""
    return i32(ACTIVATIONS[activation.kind]), f32(activation.alpha), f32(activation.limit)


def paired(gate: Sequence[Stack], up: Sequence[Stack]) -> bool:
    """Return True if stacks of gate and up hold the same experts in equal formats."""
    return [one.key for one in gate] == [one.key for one in up]

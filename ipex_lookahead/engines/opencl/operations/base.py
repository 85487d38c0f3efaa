"""What the operations of a step share: launches, branches, and the buffers that kernels are bound to.

A model is a list of branches, each of which reads the hidden rows and adds to them. A block has one or two. Each kind
of mixer and of feed-forward is a subclass of ``Operation`` in a file of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ipex_lookahead.architectures.spec import ModelSpec, Norm
from ipex_lookahead.engines.opencl.cache import Layout, Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import LANES, NORMERS, STEP_ROWS, STEP_WANTED, Matrix, Rows, blocks_of
from ipex_lookahead.engines.opencl.programs import ARRIVALS, ROWS
from ipex_lookahead.engines.opencl.recording import Sized
from ipex_lookahead.engines.opencl.states import RecurrentStates, StateLayout
from ipex_lookahead.engines.opencl.step import MOST_ROWS, Plan

i32, f32 = np.int32, np.float32

MOST_FUSED = ROWS[1]
"""Most rows for which the last work-group of a product also norms the rows or finishes the heads."""
COPIERS = 64
"""Work-items of a work-group of ``copy_rows``."""
NORM_BLOCKS = 16
"""Blocks of a row that one lane group writes, where each computes the row's norm itself."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel to enqueue.

    Attributes:
        kernel: with its arguments.
        size: work-items for each group of ``rows`` rows.
        local: work-items of a work-group, for each of ``lane_groups``.
        lane_groups: lane groups of a work-group that work together: the second dimension of the work-items.
        rows: rows of the step that the kernel computes together.
        pairs: experts of a row; the work-items are multiplied by it.
        wanted: whether only wanted rows count.
        attends: whether the launch is attention's: ``size`` work-items for each group of rows that attention computes
            together, and for each block of positions.
        replays: whether accepted rows of the last steps, which recurrent layers compute again, count too.
        by_sequence: whether ``size`` is the work-items for each sequence instead.
        spare: number of groups of rows in addition to those of the step's rows.
        least, most: numbers of rows of the steps that the launch is a part of.
    """

    kernel: Any
    size: int
    local: int
    rows: int = 1
    pairs: int = 1
    wanted: bool = False
    attends: bool = False
    replays: bool = False
    by_sequence: bool = False
    spare: int = 0
    least: int = 1
    most: int = MOST_ROWS
    lane_groups: int = 1


@dataclass(frozen=True, slots=True)
class HostCall:
    """Work of the CPU between launches: ``run(rows)`` is called once all earlier launches are enqueued."""

    run: Callable[[int], None]


def sized(launches: list[Launch], plan: Plan, blocks: int, joint: int, replayed: int = 0) -> Iterator[Sized]:
    """Yield the launches of a step with their sizes.

    Args:
        launches: of the step.
        plan: the step's rows.
        blocks: number of blocks of positions; at least the plan's.
        joint: number of rows that attention computes together.
        replayed: number of accepted rows of the last steps; at least the plan's.
    """
    wanted = len(plan.want)
    for launch in launches:
        if not launch.least <= plan.rows <= launch.most:
            continue
        counted = wanted if launch.wanted else plan.rows + (replayed if launch.replays else 0)
        rows = len(plan.sequences) if launch.by_sequence else -(-counted // launch.rows) * launch.pairs
        if launch.attends:
            yield launch.kernel, (launch.size, -(-plan.rows // joint), blocks), (launch.local, 1, 1)
        elif rows:
            size = (launch.size, (rows + launch.spare) * launch.lane_groups)
            yield launch.kernel, size, (launch.local, launch.lane_groups)


@dataclass(frozen=True, slots=True)
class NormBefore:
    """The norm before an operation or the lm_head, or after an operation.

    ``weight`` and ``bias`` are on the device; ``order`` is the order in which the following product reads the normed
    row.
    """

    weight: Any
    norm: Norm | None
    order: Any = None
    bias: Any = None

    @property
    def centered(self) -> bool:
        """True for a layer norm."""
        return self.norm is not None and self.norm.centered

    @property
    def epsilon(self) -> Any:
        """The norm's epsilon; 0 without a norm."""
        return f32(self.norm.epsilon if self.norm else 0)


@dataclass(slots=True)
class Needs:
    """Scratch of an operation, by name; operations with equal names share a buffer.

    Attributes:
        floats: number of float32 values for each row of a step.
        rows: rows as linear layers read them: their width, and their number for each row of a step.
        partials: number of float32 values for each partial result of attention of a row.
        arrivals: number of counters of arrivals for each row.
        spare: for names of ``floats`` or ``rows`` that only large steps need: the number of values, or of rows, in
            addition to those of the step's rows, and the least number of rows of such a step.
    """

    floats: dict[str, int] = field(default_factory=dict)
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    partials: int = 0
    arrivals: int = 0
    spare: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Branch:
    """An operation between norms: hidden = (hidden + multiplier * after(operation(before(hidden)))) * scale.

    Attributes:
        layer: index of the operation's block.
        operation: a mixer or a feed-forward.
        before: the norm before it.
        after: the norm after it, which has no weight if there is no norm.
        multiplier: factor on its output.
        scale: buffer of one factor on the block's output; None: no factor.
        defers: True for the mixer of a parallel block: its output is left in ``scratch.branch``, and the next branch
            reads the same hidden rows.
        adds_deferred: True for that next branch, which adds both outputs.
    """

    layer: int
    operation: Operation
    before: NormBefore
    after: NormBefore = NormBefore(None, None)
    multiplier: float = 1.0
    scale: Any = None
    defers: bool = False
    adds_deferred: bool = False

    @property
    def plain(self) -> bool:
        """True if the last product is added to the hidden rows as it is."""
        return self.after.weight is None and self.multiplier == 1 and self.scale is None and not self.defers


class Operation(ABC):
    """A mixer or a feed-forward on a device: its weights, and its launches."""

    reads: ClassVar[str]
    """The field with the linear layer that decides the order of the operation's inputs."""

    @abstractmethod
    def __init__(self, part: Any, uploads: Any) -> None:
        """Upload the weights of ``part``, a layer of the model's description, with its ``Uploads``."""

    @staticmethod
    @abstractmethod
    def needs(part: Any, spec: ModelSpec) -> Needs:
        """Return the scratch for ``part``."""

    @staticmethod
    def layout(part: Any) -> Layout | StateLayout | None:
        """Return the layout of what a sequence's cache holds for ``part``; None: nothing."""
        return None

    @abstractmethod
    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch | HostCall]:
        """Yield the launches of a step. They read ``scratch.x``, and end with ``binder.end_branch`` or the like.

        ``following``: the norm that follows; its result is left in ``scratch.x`` by the last launch. None: the
        lm_head follows, which norms its rows itself.
        """


@dataclass(frozen=True, slots=True)
class Binder:
    """Binds the kernels of a step to buffers.

    Attributes:
        device, spec, pages: a model on a device.
        ropes: tables of ropes, by the ``id`` of the rope.
        scratch: buffers of the step (:class:`ipex_lookahead.engines.opencl.scratch.Scratch`).
        step: the buffer with the values that change from step to step.
        rows: most rows of the step, one of ``STEPS``; the last one has no limit.
        recurrent: the memory of the model's recurrent states; None: it has none.
    """

    device: Device
    spec: ModelSpec
    pages: Pages
    ropes: Mapping[int, Any]
    scratch: Any
    step: Any
    rows: int
    recurrent: RecurrentStates | None = None

    @property
    def fused(self) -> bool:
        """True if the last work-groups of a product may also do what follows it."""
        return ARRIVALS in self.device.spelling and self.rows <= MOST_FUSED

    def lanes(self, kernel: Any, count: int, rows: int = 1, wanted: bool = False, width: int | None = None) -> Launch:
        """Return a launch of ``count`` lane groups for each group of ``rows`` rows; ``width`` as in ``Device``."""
        return Launch(kernel, self.device.lane_groups(count), width or self.device.width, rows, wanted=wanted)

    def blocks(self, kernel: Any, count: int, wanted: bool = False) -> Launch:
        """Return a launch of work-groups that norm rows of ``count`` blocks."""
        return Launch(kernel, -(-count // NORMERS) * LANES, LANES, wanted=wanted, lane_groups=NORMERS)

    def product(
        self,
        name: str,
        w: Matrix,
        *arguments: Any,
        tiles: int | None = None,
        pairs: int | None = None,
        wanted: bool = False,
        options: Sequence[str] = (),
    ) -> Launch:
        """Return the launch of a kernel over weights; its first arguments are the matrix's.

        Args:
            name: of the kernel.
            w: the matrix.
            arguments: those that follow the matrix's.
            tiles: number of tiles; None: all of the matrix.
            pairs: number of experts of a row, which are computed one by one; None: there are no experts.
            wanted: whether only wanted rows count.
            options: more options of the compiler.
        """
        tiles, rows = tiles or w.tiles, 1 if pairs else self.rows
        count, split = w.at_once(rows), w.split(name, rows, tiles * (pairs or 1))
        items, (local, lane_groups) = w.items(name, count, tiles, split)
        kernel = w.kernel(name, count, *w.arguments(), *arguments, options=options, split=split)
        return Launch(kernel, items, local, count, pairs or 1, wanted, lane_groups=lane_groups)

    def kernel(self, name: str, *arguments: Any) -> Any:
        """Make a kernel over rows and heads, with its arguments."""
        return self.device.kernel(self.pages.program, name, *arguments)

    def norm(
        self, before: NormBefore, out: Rows, wanted: bool = False, values: tuple[Any, int] | None = None
    ) -> Launch:
        """Return the launch that norms rows for the next product: all, or the wanted ones.

        ``values``: a buffer, float32 [rows][stride], and its stride; None: the hidden rows.
        """
        counted = i32(STEP_WANTED if wanted else STEP_ROWS)
        buffer, stride = values or (self.scratch.hidden, self.spec.hidden)
        name, bias = ("layer_norm", (before.bias,)) if before.centered else ("norm", ())
        arguments = (before.weight, *bias, before.epsilon, before.order, *out.arguments(), self.step, counted)
        return self.blocks(self.kernel(name, buffer, i32(stride), i32(out.n), *arguments), out.blocks, wanted)

    def linear(
        self, w: Matrix, x: Rows, out: Any, stride: int, column: int = 0, add: bool = False, wanted: bool = False
    ) -> Launch:
        """Return the launch of a product; it is stored from ``column`` of ``out``, float32 [rows][stride], or added."""
        counted = i32(STEP_WANTED if wanted else STEP_ROWS)
        arguments = (*x.arguments(), self.step, counted, out, i32(stride), i32(column), i32(add))
        return self.product("linear", w, *arguments, wanted=wanted)

    def copy_rows(
        self, values: Any, stride: int, n: int, out: Any, out_stride: int, column: int = 0, wanted: bool = False
    ) -> Launch:
        """Return the launch that copies ``n`` values of each row, or wanted row, to ``column`` of ``out``."""
        counted = i32(STEP_WANTED if wanted else STEP_ROWS)
        sizes = (i32(stride), i32(n), out, i32(out_stride), i32(column))
        return Launch(
            self.kernel("copy_rows", values, *sizes, self.step, counted), -(-n // COPIERS) * COPIERS, COPIERS,
            wanted=wanted,
        )  # fmt: skip

    def add_branch(self, branch: Branch) -> Launch:
        """Return the launch that adds ``scratch.branch`` to the hidden rows, with the branch's norm and factors."""
        hidden, after = i32(self.spec.hidden), branch.after
        norm = (after.weight, after.bias, after.epsilon, i32(after.centered))
        factors = (f32(branch.multiplier), branch.scale)
        arguments = (hidden, hidden, *norm, *factors, self.scratch.hidden, self.step)
        kernel = self.kernel("add_branch", self.scratch.branch, *arguments)
        return self.blocks(kernel, blocks_of(self.spec.hidden))

    def end_branch(self, w: Matrix, x: Rows, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """Yield an operation's last product, what adds it to the hidden rows, and the norm that follows."""
        s, hidden = self.scratch, self.spec.hidden
        yield from self.before_product(branch)
        if branch.plain and self.fused and following is not None and not following.centered:
            normed = (following.weight, following.epsilon, following.order, *s.x.arguments(), s.arrivals)
            yield self.product("linear_norm", w, *x.arguments(), self.step, s.hidden, i32(hidden), *normed)
            return
        yield self.linear(w, x, s.hidden if branch.plain else s.branch, hidden, add=branch.plain)
        yield from self.after_product(branch, following)

    def before_product(self, branch: Branch) -> Iterator[Launch]:
        """Yield what must be added to the hidden rows before the branch's own output."""
        if branch.adds_deferred:
            yield self.add_branch(Branch(branch.layer, branch.operation, branch.before))

    def after_product(self, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """Yield what follows an output in ``hidden`` (of a plain branch) or in ``branch``."""
        if not branch.plain and not branch.defers:
            yield self.add_branch(branch)
        unchanged = branch.defers and following is not None and following.order is branch.before.order
        if following is not None and not unchanged:
            yield self.norm(following, self.scratch.x)

"""Mixtures of experts on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, ModelSpec
from ipex_lookahead.engines.opencl.linear import GROUP, LANES, STEP_ROWS, Rows, blocks_of
from ipex_lookahead.engines.opencl.operations.base import (
    NORM_BLOCKS,
    Binder,
    Branch,
    HostCall,
    Launch,
    Needs,
    NormBefore,
    Operation,
)
from ipex_lookahead.engines.opencl.operations.mlp import GatedMlpOperation, activate, gate_up, kind_of, paired
from ipex_lookahead.engines.opencl.programs import ROWS
from ipex_lookahead.engines.opencl.step import MOST_ROWS
from ipex_lookahead.engines.opencl.supported import SCORES
from ipex_lookahead.engines.opencl.uploads import Stack, Uploads

i32, f32 = np.int32, np.float32

GROUPED, GROUPERS = 16, 256
"""Rows of a group with one expert, and work-items of the work-group that makes the groups (``kernels/experts.cl``)."""


class ExpertsOperation(Operation):
    """A router, the experts that it chooses for each row, and an expert that all rows share.

    With norms of its own (Gemma 4), router and experts read the hidden rows after a norm each, and the outputs of the
    chosen experts and of the shared one are normed before they are added.

    Attributes:
        mixture: the description.
        routers: in floats: the router and the shared expert's gate, one matrix if their formats are equal.
        gate, up, down: a stack for each format of the experts; no ``gate`` for experts without one.
        paired: whether gate and up have equal formats, expert by expert.
        shared: the shared expert; None: there is none.
    """

    reads = "gate"

    def __init__(self, mixture: Experts, uploads: Uploads) -> None:
        self.mixture = mixture
        self._correction = uploads.vector(mixture.correction)
        self._expert_scales = uploads.vector(mixture.expert_scales)
        self._router_norm, self._norm, self._after, self._shared_after = (
            NormBefore(uploads.norm(norm), norm, bias=uploads.bias(norm))
            for norm in (mixture.router_norm, mixture.norm, mixture.after, mixture.shared_after)
        )
        routers = [mixture.router, *([mixture.shared_gate] if mixture.shared_gate is not None else [])]
        groups = [routers] if uploads.alike(routers) else [[one] for one in routers]
        self.routers = [uploads.matrix(group) for group in groups]
        self.upload_experts(uploads)
        self.shared = None if mixture.shared is None else GatedMlpOperation(mixture.shared, uploads)

    def upload_experts(self, uploads: Uploads) -> None:
        """Upload the experts that the router chooses from."""
        self.gate, self.up, self.down = (
            uploads.stacks([one for mlp in self.mixture.experts if (one := getattr(mlp, name)) is not None])
            for name in ("gate", "up", "down")
        )
        self.paired = paired(self.gate, self.up)

    @property
    def nbytes(self) -> int:
        """The bytes of all experts that a router chooses from."""
        return sum(stack.matrix.nbytes for stacks in (self.gate, self.up, self.down) for stack in stacks)

    def touched(self, chosen: npt.NDArray[np.int32], rows: int) -> int:
        """Return the number of experts that ``rows`` rows read; ``chosen``, int32 [pairs]: the experts of each row."""
        return len(np.unique(chosen[: rows * self.mixture.used]))

    @staticmethod
    def needs(part: Experts, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        inner, used, needs = part.experts[0].up.weight.shape[0], part.used, needs_around_experts(part, spec)
        for name in ("gate", "up"):
            needs.floats[name] = max(used * inner, needs.floats.get(name, 0))
        needs.floats |= {"made": used * spec.hidden, "members": used, "owners": used}
        # Members and owners are int32, one for each group and more.
        needs.rows |= {"gated": (inner, used), "grouped": (max(inner, spec.hidden), used)}
        spare = (GROUPED * (used + len(part.experts)), thresholds(part)[0])
        needs.spare |= dict.fromkeys(("grouped", "members", "owners"), spare)
        return needs

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch | HostCall]:
        """See ``Operation``. A weight is read once for every row that goes to its expert."""
        first = i32(branch.layer * binder.scratch.pairs)
        yield from self.choose(binder, first)
        yield from self.routed(binder, first)
        yield from self.shared_expert(binder)
        yield from self.add(binder, branch, following)

    def choose(self, b: Binder, first: np.int32) -> Iterator[Launch]:
        """Yield what writes each row's experts and their weights; a layer's experts are stored from ``first``."""
        s, mixture = b.scratch, self.mixture
        x, column, logits = s.x, _gate_column(mixture), s.floats("router")
        if _has_norms(mixture):
            x = s.rows("normed", b.spec.hidden)
            yield b.norm(self._router_norm, x)
            if mixture.router_multiplier != 1:  # the router reads floats alone
                stride, n = i32(x.blocks * GROUP), i32(x.n)
                scaled = (x.buffers[0], stride, n, f32(mixture.router_multiplier), f32(0), b.step, i32(STEP_ROWS))
                yield Launch(b.kernel("cap", *scaled), -(-x.n // 64) * 64, 64)
        for w, at in zip(self.routers, (0, column), strict=False):
            yield b.linear(w, x, logits, column + LANES, at)
        groups = (i32(mixture.groups), i32(mixture.groups_used), i32(mixture.group_best))
        weights = (i32(mixture.renormalize), f32(mixture.sum_epsilon), f32(mixture.scale), self._expert_scales)
        sizes = (i32(column + LANES), i32(len(mixture.experts)), i32(mixture.used), i32(SCORES.index(mixture.scores)))
        arguments = (logits, *sizes, self._correction, *groups, *weights, s.floats("scores"), s.experts, first)
        yield b.lanes(b.kernel("choose", *arguments, s.floats("weights"), b.step), 1)

    def inputs(self, b: Binder) -> Rows:
        """Return the rows that the chosen experts read."""
        rows: Rows = b.scratch.rows("normed", b.spec.hidden) if _has_norms(self.mixture) else b.scratch.x
        return rows

    def norm_inputs(self, b: Binder) -> Iterator[Launch]:
        """Yield what writes these rows, if the experts have a norm of their own."""
        if _has_norms(self.mixture):
            yield b.norm(self._norm, self.inputs(b))

    def routed(self, b: Binder, first: np.int32) -> Iterator[Launch]:
        """Yield the chosen experts, from rows to the floats "made", [rows][used][hidden]."""
        s, mixture, x = b.scratch, self.mixture, self.inputs(b)
        yield from self.norm_inputs(b)
        few, _ = thresholds(mixture)
        yield from (replace(launch, most=few - 1) for launch in self._by_pair(b, first, x))
        if s.sizes[0] >= few and b.rows >= ROWS[-1]:
            yield from (replace(launch, least=max(few, launch.least)) for launch in self._grouped(b, first, x))

    def _by_pair(self, b: Binder, first: np.int32, x: Rows) -> Iterator[Launch]:
        """Yield the experts of each row, which read their weights for each pair of a row and an expert."""
        s, mixture, pairs = b.scratch, self.mixture, self.mixture.used
        kind = kind_of(mixture.experts[0].activation)
        made = s.rows("gated", mixture.experts[0].up.weight.shape[0])
        if self.paired:
            for gate, up in zip(self.gate, self.up, strict=True):
                yield gate_up(b, x, gate.matrix, up.matrix, made, kind, pairs, (s.experts, first, gate.places))
        else:
            gates = s.floats("gate") if self.gate else None
            yield from self._each(b, self.gate, x, pairs, gates, made.n, first)
            yield from self._each(b, self.up, x, pairs, s.floats("up"), made.n, first)
            yield activate(b, gates, s.floats("up"), made, kind, pairs)
        yield from self._each(b, self.down, made, 1, s.floats("made"), b.spec.hidden, first)

    def _grouped(self, b: Binder, first: np.int32, x: Rows) -> Iterator[Launch]:
        """Yield the same for rows that are grouped by expert: a weight is read once for up to 16 rows of its expert."""
        s, mixture, used, of = b.scratch, self.mixture, self.mixture.used, len(self.mixture.experts)
        groups = -(-s.sizes[0] // GROUPED) * used + of
        members, owners = s.floats("members"), s.floats("owners")
        arguments = (s.experts, first, i32(used), i32(of), members, owners, i32(groups), b.step)
        yield Launch(b.kernel("group_pairs", *arguments), GROUPERS, GROUPERS, rows=MOST_ROWS)
        kind, inner = kind_of(mixture.experts[0].activation), mixture.experts[0].up.weight.shape[0]
        made = s.rows("gated", inner)

        def gather(rows: Rows, factor: int, share: int) -> tuple[Rows, Launch]:
            grouped = s.rows("grouped", rows.n)
            of_x = (*rows.arguments(), i32(factor), i32(share), members, owners, *grouped.arguments())
            kernel = b.kernel("gather_rows", *of_x, i32(GROUPED * groups), b.step)
            launch = b.lanes(kernel, grouped.blocks, GROUPED)
            return grouped, replace(launch, pairs=used * GROUPED, spare=of * GROUPED)

        def products(stacks: list[Stack], rows: Rows, out: Any, n: int) -> Iterator[Launch]:
            few, many = thresholds(mixture)
            for stack in stacks:
                w, tiles = stack.matrix, -(-stack.matrix.parts[0] // LANES)
                of_rows = (*rows.arguments(), members, owners, i32(GROUPED * groups), stack.places, i32(tiles))
                for most, (least, end) in ((4, (few, many - 1)), (GROUPED, (many, MOST_ROWS))):
                    count = w.at_once(most)
                    kernel = w.kernel("grouped_linear", count, *w.arguments(), *of_rows, out, i32(n))
                    launch = b.lanes(kernel, tiles, GROUPED, width=w.width(count))
                    parts = GROUPED // count
                    yield replace(launch, pairs=used * parts, spare=of * parts, least=least, most=end)

        grouped, launch = gather(x, 1, used)
        yield launch
        yield from products(self.gate, grouped, s.floats("gate"), inner)
        yield from products(self.up, grouped, s.floats("up"), inner)
        yield activate(b, s.floats("gate") if self.gate else None, s.floats("up"), made, kind, used)
        grouped, launch = gather(made, used, 1)
        yield launch
        yield from products(self.down, grouped, s.floats("made"), b.spec.hidden)

    def shared_expert(self, b: Binder) -> Iterator[Launch]:
        """Yield the shared expert, from ``scratch.x`` to the floats "shared", [rows][hidden]."""
        if self.shared is not None:
            made = b.scratch.rows("shared", self.shared.up.n_out)
            yield from self.shared.gated(b, made)
            yield b.linear(self.shared.down, made, b.scratch.floats("shared"), b.spec.hidden)

    def summed(self, b: Binder) -> tuple[Any, Any, int]:
        """Return what is added to a row: float32 [rows][n][hidden], factors [rows][n] (None: 1), and n."""
        return b.scratch.floats("made"), b.scratch.floats("weights"), self.mixture.used

    def add(self, b: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """Yield what adds the experts' outputs to the hidden rows, in ascending order of rank, the shared one last."""
        s, n, normed = b.scratch, i32(b.spec.hidden), _has_norms(self.mixture)
        column = _gate_column(self.mixture)
        shared = s.floats("shared") if self.shared is not None and not normed else None
        gates = s.floats("router") if self.mixture.shared_gate is not None else None
        adds = branch.plain and not normed
        yield from b.before_product(branch)
        out = s.floats("results") if normed else s.hidden if adds else s.branch
        made, weights, count = self.summed(b)
        arguments = (made, weights, i32(count), n, shared, gates)
        places = (i32(column + LANES), i32(column), out, i32(adds), b.step)
        yield Launch(b.kernel("add_experts", *arguments, *places), -(-b.spec.hidden // 64) * 64, 64)
        if normed:
            groups = -(-blocks_of(b.spec.hidden) // NORM_BLOCKS)
            both = (*_normed(s.floats("shared"), self._shared_after), *_normed(out, self._after))
            yield b.lanes(b.kernel("add_norms", *both, n, s.branch, b.step, i32(groups)), groups)
            if branch.plain:
                yield b.add_branch(branch)
        yield from b.after_product(branch, following)

    def _each(
        self, b: Binder, stacks: list[Stack], x: Rows, share: int, out: Any, n: int, first: np.int32
    ) -> Iterator[Launch]:
        """Yield the products of each pair of row and expert; ``share`` consecutive pairs read the same row of x."""
        pairs = self.mixture.used
        for stack in stacks:
            w, tiles = stack.matrix, -(-stack.matrix.parts[0] // LANES)
            own = (b.step, b.scratch.experts, first, i32(pairs), stack.places, i32(tiles), i32(share))
            yield b.product("expert_linear", w, *x.arguments(), *own, out, i32(n), tiles=tiles, pairs=pairs)


def needs_around_experts(part: Experts, spec: ModelSpec) -> Needs:
    """Return the scratch for a mixture without its routed experts."""
    floats = {"router": _gate_column(part) + LANES, "scores": len(part.experts) + part.groups, "weights": part.used}
    rows: dict[str, tuple[int, int]] = {}
    if part.shared is not None:
        shared = GatedMlpOperation.needs(part.shared, spec)
        floats |= shared.floats
        floats["shared"] = spec.hidden
        rows["shared"] = shared.rows["gated"]
    if _has_norms(part):
        floats["results"] = spec.hidden
        rows["normed"] = (spec.hidden, 1)
    return Needs(floats, rows)


def _has_norms(mixture: Experts) -> bool:
    """Return True for a mixture with norms of its own, of which it has all or none."""
    return mixture.norm is not None


def thresholds(mixture: Experts) -> tuple[int, int]:
    """Return the numbers of rows from which rows are grouped: an expert has two on average, and at once 16: eight."""
    few, many = (-(-rows * len(mixture.experts) // mixture.used) for rows in (2, 8))
    return max(few, ROWS[-2] + 1), max(many, ROWS[-2] + 1)


def _gate_column(mixture: Experts) -> int:
    """Return the column of the shared expert's gate next to the router's logits."""
    return -(-len(mixture.experts) // LANES) * LANES


def _normed(values: Any, norm: NormBefore) -> tuple[Any, ...]:
    return values, norm.weight, norm.epsilon

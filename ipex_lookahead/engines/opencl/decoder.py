"""The decoder stack on a device: its weights, and a step as a list of kernels whose arguments are bound once.

A block is eight launches: norm and quantise; q, k and v; heads rotated and stored; attention, merged and quantised; o;
norm and quantise; gate and up; down. Where arrivals of work-groups cannot be counted, merging is a ninth. What changes
from step to step lies in one buffer, which all of them read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Block, Experts, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.opencl.cache import Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.layers import Floats, Layer, Stack, Weights
from ipex_lookahead.engines.opencl.linear import GROUP, STEP_ROWS, STEP_WANTED, Matrix, Rows, blocks_of, rows_at_once
from ipex_lookahead.engines.opencl.matrix_units import use_matrix_units
from ipex_lookahead.engines.opencl.programs import ARRIVALS
from ipex_lookahead.engines.opencl.recording import Recorded, Recorder, Sized
from ipex_lookahead.engines.opencl.scratch import PIECE, RopeTable, Scratch, mlps_of
from ipex_lookahead.engines.opencl.step import SPLIT_ROWS, Plan
from ipex_lookahead.errors import EngineError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

i32, f32 = np.int32, np.float32

ATTENDERS, SEARCHERS = 256, 64
"""Work-items of a work-group of ``attend``, and of ``top``."""
PAIRS, QUERIES = 8, 1024
"""Of a work-group of ``attend``: the most (row, head) pairs, and the most values of all their queries."""
NORM_BLOCKS = 16
"""Blocks of a row that one lane group of a norm makes; each takes the row's mean for itself."""
MOST_HEAD, MOST_USED = 1024, 64
MOST_RECORDED = 64
"""Steps of different sizes that are kept recorded."""
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel to enqueue.

    ``size`` work-items for every ``rows`` rows of the step, or of those wanted, and for each of a row's ``pairs`` with
    an expert; ``attends``: for every so many rows as attention computes together, and for each block of positions that
    is computed apart.
    """

    kernel: Any
    size: int
    local: int
    rows: int = 1
    pairs: int = 1
    wanted: bool = False
    attends: bool = False


def _sized(launches: list[Launch], plan: Plan, blocks: int, joint: int) -> Iterator[Sized]:
    """The launches of a step; ``blocks`` of positions or more than the plan has, if it has more than one.

    ``joint``: rows that attention computes together.
    """
    wanted = len(plan.want)
    for launch in launches:
        rows = -(-(wanted if launch.wanted else plan.rows) // launch.rows) * launch.pairs
        if launch.attends:
            yield launch.kernel, (launch.size, -(-plan.rows // joint), blocks), (launch.local, 1, 1)
        elif rows:
            yield launch.kernel, (launch.size, rows), (launch.local, 1)


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model that the kernels do not run."""
    first = spec.layers[0].mixer
    for block in spec.layers:
        attention = block.mixer
        if isinstance(block.feed_forward, Experts):
            if block.feed_forward.used > MOST_USED:
                raise UnsupportedModelError(
                    f"a row goes to {block.feed_forward.used} experts; the OpenCL engine has {MOST_USED}"
                )
            if len({expert.activation for expert in block.feed_forward.experts}) > 1:
                raise UnsupportedModelError(
                    "the experts of a layer have several activations; the OpenCL engine has one"
                )
        if (attention.heads, attention.kv_heads, attention.head_dim) != (first.heads, first.kv_heads, first.head_dim):
            raise UnsupportedModelError("heads, kv_heads and head_dim must be the same in all layers")
    if first.head_dim > MOST_HEAD or first.head_dim % 8 or first.heads % first.kv_heads:
        raise UnsupportedModelError(
            f"heads have {first.head_dim} values, {first.heads} of them for {first.kv_heads} key heads; the OpenCL"
            f" engine has heads of a multiple of 8 values up to {MOST_HEAD}, whole groups of them for a key head"
        )


class Decoder:
    """A model's weights on a device, and its steps.

    Args:
        device: where.
        spec: what it is.
        matrix, vector: a tensor -> its weight, asked in the order a step reads them.
        kv_cache: "fp16" or "int8".
        threads: of this machine, which pack the weights; None: as many as it has cores.
        embeds: whether the embedding is there; else steps are given the rows that the first layer reads.

    Raises:
        UnsupportedModelError: the kernels do not run a model like that.
        EngineError: the device has no memory for it.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        matrix: Callable[[Tensor], PackedWeight],
        vector: Callable[[Tensor], Floats],
        kv_cache: str = "fp16",
        threads: int | None = None,
        embeds: bool = True,
    ) -> None:
        check_spec(spec)
        self.device, self.spec = device, spec
        use_matrix_units(device)
        attention = spec.layers[0].mixer
        self.pages = Pages(device, len(spec.layers), attention.kv_heads, attention.head_dim, kv_cache)
        self._rows = device.program("rows", "attention", options=self.pages.options)
        self._share = min(PAIRS, QUERIES // attention.head_dim)
        self._joint_heads = min(self._share, attention.heads // attention.kv_heads)
        self.weights = Weights(device, spec, matrix, vector, threads, embeds)
        self.ropes: dict[int, RopeTable] = {}
        for block in spec.layers:
            if (rope := block.mixer.rope) is not None and id(rope) not in self.ropes:
                self.ropes[id(rope)] = RopeTable(device, rope)
        self._reorders = any("down" in layer.orders for layer in self.weights.layers)
        self._scratch: Scratch | None = None
        self._step: Any = device.empty(0)
        self._launches: dict[int, list[Launch]] = {}
        self._recorded: dict[tuple[int, int, int, int], Recorded] = {}
        self._bound: object = None
        device.models.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the device's memory that its weights, keys and values take."""
        return self.weights.nbytes + sum(int(buffer.size) for buffer in self.pages.buffers)

    def _experts_touched(self, chosen: npt.NDArray[np.int32], rows: int) -> int:
        """How many experts a step of so many rows read in all layers, of those chosen, [layers][pairs]."""
        return sum(
            len(np.unique(own[: rows * layer.block.feed_forward.used]))
            for own, layer in zip(chosen, self.weights.layers, strict=True)
            if isinstance(layer.block.feed_forward, Experts)
        )

    # ---- a step ------------------------------------------------------------------------------------------------------

    def run(
        self, plan: Plan, top: int, logits: bool, hidden: Floats | None = None
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int]:
        """The ids of each wanted row's ``top`` largest logits, the logits, and how many experts all layers have read.

        Ids are below 0 where logits are not finite. ``hidden``, float32 [rows, hidden]: what the first layer reads,
        where the embedding is elsewhere.
        """
        try:
            return self._run(plan, top, logits, hidden)
        except EngineError:
            self._scratch = None  # what counts arrivals may be anything after a kernel that did not end
            self._forget()
            raise

    def _run(
        self, plan: Plan, top: int, logits: bool, hidden: Floats | None
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int]:
        device, wanted = self.device, len(plan.want)
        scratch = self._reserve(plan, top)
        with self.pages.lock:
            self._enqueue(plan, scratch, hidden)
        vocab, ids, found = self.spec.vocab, np.empty((0, top), i32), np.empty((0, self.spec.vocab), f32)
        reads: list[tuple[Any, tuple[int, ...], type[np.generic], int]] = []
        if wanted:
            reads.append((scratch.tops[0 if scratch.pieces == 1 else 1][1], (wanted, top), i32, 0))
        if wanted and logits:
            reads.append((scratch.logits, (wanted, vocab), f32, 0))
        if scratch.pairs:
            reads.append((scratch.experts, (len(self.spec.layers), scratch.pairs), i32, 0))
        arrays = device.read_all(*reads)  # one wait for all of them
        touched = self._experts_touched(arrays.pop(), plan.rows) if scratch.pairs else 0
        if wanted:
            ids, *rest = arrays
            found = rest[0] if logits else found
        return ids, found if logits else None, touched

    def _enqueue(self, plan: Plan, scratch: Scratch, hidden: Floats | None) -> None:
        """Make room for the rows' keys and values, and start what writes them there."""
        device = self.device
        for sequence in plan.sequences:
            sequence.cache.prepare(sequence.rows)
        joint = plan.joint(self._share // self._joint_heads)
        encoded = plan.encoded(joint)
        if self._step.size < encoded.nbytes:
            self._step = device.empty(2 * encoded.nbytes)
        most = rows_at_once(plan.rows)
        bound = (scratch, self._step, self.pages.generation, tuple(rope.positions for rope in self.ropes.values()))
        if bound != self._bound:
            self._forget()
            self._bound = bound
        launches = self._launches.get(most)
        if launches is None:
            launches = self._launches[most] = list(self._bind(scratch, most))
        with device.errors("run"):
            device.write(self._step, encoded)
            if hidden is not None:
                device.write(scratch.hidden, hidden)
            if device.recorder is not None and plan.rows <= SPLIT_ROWS:
                self._record(launches, plan, joint, device.recorder).enqueue()
            else:
                enqueue, queue = device.launch, device.queue
                for kernel, size, local in _sized(launches, plan, plan.blocks, joint):
                    enqueue(queue, kernel, size, local)

    def _record(self, launches: list[Launch], plan: Plan, joint: int, recorder: Recorder) -> Recorded:
        """Recorded for as many rows, wanted ones, joint ones and, up to the next power of two, blocks of positions."""
        blocks = 1 << (plan.blocks - 1).bit_length()
        key = (plan.rows, len(plan.want), blocks, joint)
        recorded = self._recorded.pop(key, None) or recorder.record(list(_sized(launches, plan, blocks, joint)))
        self._recorded[key] = recorded  # the latest at the end
        if len(self._recorded) > MOST_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        return recorded

    def _forget(self) -> None:
        """Launches whose arguments are others now."""
        self._launches, self._recorded, self._bound = {}, {}, None

    def _reserve(self, plan: Plan, top: int) -> Scratch:
        """Scratch that holds the step: grown by doubling, so that it is seldom made anew."""
        for rope in self.ropes.values():
            rope.reserve(plan.positions, self.spec.max_context)
        need = (plan.rows, max(len(plan.want), 1), plan.rows * plan.blocks, top)
        if self._scratch is None or not self._scratch.holds(need):
            have = (0, 0, 0, 0) if self._scratch is None else self._scratch.sizes
            rows, wanted, partials = (
                old if n <= old else max(n, 2 * old) for n, old in zip(need[:3], have[:3], strict=True)
            )
            self._scratch = None  # its memory first
            self._forget()
            self._scratch = Scratch(self.device, self.spec, rows, wanted, partials, top, self._reorders)
        return self._scratch

    def _lanes(self, kernel: Any, count: int, rows: int = 1, wanted: bool = False, width: int | None = None) -> Launch:
        return Launch(kernel, self.device.lane_groups(count), width or self.device.width, rows, wanted=wanted)

    def _kernel(self, name: str, *arguments: Any) -> Any:
        return self.device.kernel(self._rows, name, *arguments)

    def _bind(self, s: Scratch, rows: int) -> Iterator[Launch]:
        """A step's kernels in their order, with their arguments, for up to so many rows, or for any number."""
        spec, step = self.spec, self._step
        hidden = i32(spec.hidden)
        blocks = blocks_of(spec.hidden)
        groups = -(-blocks // NORM_BLOCKS)

        def norm(weight: Any, one: Norm | None, out: Rows, order: Any = None, wanted: bool = False) -> Launch:
            counted, epsilon = i32(STEP_WANTED if wanted else STEP_ROWS), f32(one.epsilon if one else 0)
            arguments = (weight, epsilon, order, *out.arguments(), step, counted, i32(groups))
            return self._lanes(self._kernel("norm", s.hidden, hidden, hidden, *arguments), groups, wanted=wanted)

        def linear(
            w: Matrix, x: Rows, out: Any, stride: int, column: int = 0, add: bool = False, wanted: bool = False
        ) -> Launch:
            counted = i32(STEP_WANTED if wanted else STEP_ROWS)
            arguments = (*w.arguments(), *x.arguments(), step, counted, out, i32(stride), i32(column), i32(add))
            count = w.at_once(rows)
            return self._lanes(w.kernel("linear", count, *arguments), w.tiles, count, wanted, w.width(count))

        def add_branch(block: Block, after: Any, one: Norm | None) -> Launch:
            factors = (f32(one.epsilon if one else 0), f32(block.residual_multiplier))
            kernel = self._kernel("add_branch", s.branch, hidden, hidden, after, *factors, s.hidden, step, i32(groups))
            return self._lanes(kernel, groups)

        def add_to_hidden(w: Matrix, x: Rows, block: Block, after: Any, one: Norm | None) -> Iterator[Launch]:
            if after is None and block.residual_multiplier == 1:
                yield linear(w, x, s.hidden, spec.hidden, add=True)
                return
            yield linear(w, x, s.branch, spec.hidden)
            yield add_branch(block, after, one)

        weights = self.weights
        if (embed := weights.embedding) is not None:
            arguments = (*embed.arguments(), step, s.hidden, hidden, f32(spec.embedding_multiplier))
            yield self._lanes(embed.kernel("embed", 1, *arguments), -(-blocks // 16))
        for number, layer in enumerate(weights.layers):
            block, v = layer.block, layer.vectors
            yield norm(v["mixer_norm"], block.mixer_norm, s.x, layer.orders.get("q"))
            columns = [0] if len(layer.qkv) == 1 else [0, s.k_column, s.v_column]
            for one, column in zip(layer.qkv, columns, strict=True):
                yield linear(one, s.x, s.qkv, s.qkv_stride, column)
            yield from self._attention(s, layer, self.pages.buffers[number])
            yield from add_to_hidden(layer.o, s.attended, block, v["mixer_after"], block.mixer_after)
            yield norm(v["feed_forward_norm"], block.feed_forward_norm, s.x, layer.orders.get("gate"))
            activation = mlps_of(block)[0].activation
            kind = (i32(ACTIVATIONS[activation.kind]), f32(activation.alpha), f32(activation.limit))
            if isinstance(block.feed_forward, Experts):
                router = layer.router
                assert router is not None  # a mixture has one
                yield linear(router, s.x, s.router, router.n_out)
                yield from self._experts(s, layer, block.feed_forward, i32(number * s.pairs), kind)
                if v["feed_forward_after"] is not None or block.residual_multiplier != 1:
                    yield add_branch(block, v["feed_forward_after"], block.feed_forward_after)
                continue
            gate, up = layer.gate[0].matrix, layer.up[0].matrix
            made = Rows(gate.n_out, s.gated.buffers)
            if layer.paired:
                both = (*gate.arguments(), *up.arguments())
                arguments = (*both, *s.x.arguments(), *made.arguments(), step, i32(STEP_ROWS), *kind)
                count = gate.at_once(rows)
                width = gate.width(count)
                yield Launch(gate.kernel("gate_up", count, *arguments), made.blocks * width, width, count)
            else:
                yield linear(gate, s.x, s.gate, gate.n_out)
                yield linear(up, s.x, s.up, up.n_out)
                yield self._activate(s, made, kind)
            if (order := layer.orders.get("down")) is not None:
                values, made = made, Rows(gate.n_out, s.ordered.buffers)
                parts = -(-made.blocks // NORM_BLOCKS)
                sizes = (i32(values.blocks * GROUP), i32(gate.n_out), None, f32(0), order)
                counts = (step, i32(STEP_ROWS), i32(parts))
                yield self._lanes(self._kernel("norm", values.buffers[0], *sizes, *made.arguments(), *counts), parts)
            yield from add_to_hidden(
                layer.down[0].matrix, made, block, v["feed_forward_after"], block.feed_forward_after
            )
        yield norm(weights.final_norm, spec.final_norm, s.head_x, wanted=True)
        column = 0
        for piece in weights.head:
            yield linear(piece, s.head_x, s.logits, spec.vocab, column, wanted=True)
            column += piece.n_out
        if spec.logit_multiplier != 1 or spec.logit_softcap:
            caps = (i32(spec.vocab), f32(spec.logit_multiplier), f32(spec.logit_softcap or 0))
            kernel = self._kernel("cap", s.logits, i32(spec.vocab), *caps, step)
            yield Launch(kernel, -(-spec.vocab // 64) * 64, 64, wanted=True)
        top = i32(s.sizes[3])
        (values, ids), last = s.tops
        kernel = self._kernel(
            "top", s.logits, None, i32(spec.vocab), i32(spec.vocab), i32(PIECE), top, values, ids, step
        )
        yield Launch(kernel, s.pieces * SEARCHERS, SEARCHERS, wanted=True)
        if s.pieces > 1:
            width = i32(s.pieces * s.sizes[3])
            kernel = self._kernel("top", values, ids, width, width, width, top, *last, step)
            yield Launch(kernel, SEARCHERS, SEARCHERS, wanted=True)

    def _attention(self, s: Scratch, layer: Layer, pages: Any) -> Iterator[Launch]:
        attention, v, step = layer.block.mixer, layer.vectors, self._step
        heads, kv_heads, d = attention.heads, attention.kv_heads, attention.head_dim
        stride, window = i32(s.qkv_stride), i32(attention.window or 0)
        weights, epsilon = [], 0.0
        for name, one, column, width in (
            ("q_norm", attention.q_norm, 0, heads * d),
            ("k_norm", attention.k_norm, s.k_column, kv_heads * d),
        ):
            epsilon = one.epsilon if one is not None else epsilon
            whole = one is not None and one.weight.shape != (d,)
            if whole:
                kernel = self._kernel("norm_whole", s.qkv, stride, i32(column), i32(width), v[name], f32(epsilon), step)
                yield self._lanes(kernel, 1)
            weights.append(None if whole else v[name])
        rope = None if attention.rope is None else self.ropes[id(attention.rope)]
        half = 0 if attention.rope is None else len(attention.rope.frequencies)
        columns = (i32(s.k_column), i32(s.v_column), i32(heads), i32(kv_heads), i32(d), i32(half))
        turns = (None, None, None) if rope is None else rope.buffers
        kernel = self._kernel(
            "finish_heads", s.qkv, stride, *columns, *turns, f32(attention.scale), *weights, f32(epsilon), pages, step
        )
        yield self._lanes(kernel, heads + 2 * kv_heads)
        sizes = (i32(heads), i32(kv_heads), i32(d))
        joint = i32(self._joint_heads)
        arguments = (s.qkv, stride, *sizes, joint, pages, window, f32(attention.softcap or 0), s.partials, step)
        order = layer.orders.get("o")  # of a whole row, which no group of heads has
        merges = ARRIVALS in self.device.spelling and order is None
        if ARRIVALS in self.device.spelling:
            merged = i32(GROUP // math.gcd(d, GROUP) if merges else 0)
            arguments += (merged, v["sinks"], *s.attended.arguments(), s.arrivals)
        groups = kv_heads * -(-(heads // kv_heads) // self._joint_heads)
        yield Launch(self._kernel("attend", *arguments), groups * ATTENDERS, ATTENDERS, attends=True)
        if not merges:
            arguments = (s.partials, i32(heads), i32(d), window, v["sinks"], order, *s.attended.arguments(), step)
            yield self._lanes(self._kernel("merge_heads", *arguments), s.attended.blocks)

    def _activate(self, s: Scratch, made: Rows, kind: tuple[Any, ...], pairs: int = 1) -> Launch:
        """f(gate) up of what was multiplied apart: of each row, or of each of its pairs with an expert."""
        n = i32(made.n)
        arguments = (s.gate, s.up, n, n, *made.arguments(), self._step, i32(STEP_ROWS), i32(pairs), *kind)
        kernel = self._kernel("activate", *arguments)
        return Launch(kernel, self.device.lane_groups(made.blocks), self.device.width, pairs=pairs)

    def _experts(
        self, s: Scratch, layer: Layer, mixture: Experts, first: np.int32, kind: tuple[Any, ...]
    ) -> Iterator[Launch]:
        """Each row with each of its experts, one by one: a weight is read again for every row that goes to it."""
        device, step, used, width = self.device, self._step, i32(mixture.used), self.device.width
        softmax = (i32(mixture.softmax == "all"), i32(mixture.renormalise))
        kernel = self._kernel(
            "choose", s.router, i32(len(mixture.experts)), used, *softmax, s.experts, first, s.weights, step
        )
        yield self._lanes(kernel, 1)
        made = Rows(layer.gate[0].matrix.parts[0], s.gated.buffers)
        hidden, sizes = i32(self.spec.hidden), (step, s.experts, first, used)

        def multiply(stacks: list[Stack], x: Rows, share: np.int32, out: Any, n: np.int32) -> Iterator[Launch]:
            for stack in stacks:
                w, tiles = stack.matrix, -(-stack.matrix.parts[0] // 16)
                arguments = (*w.arguments(), *x.arguments(), *sizes, stack.places, i32(tiles), share, out, n)
                kernel = w.kernel("expert_linear", 1, *arguments)
                yield Launch(kernel, device.lane_groups(tiles), width, pairs=mixture.used)

        if layer.paired:
            for gate, up in zip(layer.gate, layer.up, strict=True):
                both = (*gate.matrix.arguments(), *up.matrix.arguments(), *s.x.arguments(), *made.arguments())
                tiles = i32(-(-made.n // 16))
                arguments = (*both, *sizes, gate.places, tiles, *kind)
                kernel = gate.matrix.kernel("expert_gate_up", 1, *arguments)
                yield Launch(kernel, device.lane_groups(made.blocks), width, pairs=mixture.used)
        else:
            yield from multiply(layer.gate, s.x, used, s.gate, i32(made.n))
            yield from multiply(layer.up, s.x, used, s.up, i32(made.n))
            yield self._activate(s, made, kind, mixture.used)
        yield from multiply(layer.down, made, i32(1), s.made, hidden)
        add = layer.vectors["feed_forward_after"] is None and layer.block.residual_multiplier == 1
        out = s.hidden if add else s.branch
        kernel = self._kernel("add_experts", s.made, s.weights, used, hidden, out, i32(add), step)
        yield Launch(kernel, -(-self.spec.hidden // 64) * 64, 64)

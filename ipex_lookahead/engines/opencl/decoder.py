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

from ipex_lookahead.architectures.spec import Block, Experts, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.engines.opencl.cache import Pages
from ipex_lookahead.engines.opencl.device import ARRIVALS, Device
from ipex_lookahead.engines.opencl.linear import GROUP, STEP_ROWS, STEP_WANTED, Matrix, Rows, blocks_of, rows_at_once
from ipex_lookahead.engines.opencl.scratch import PIECE, RopeTable, Scratch, mlps_of
from ipex_lookahead.engines.opencl.step import Plan
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

Floats = npt.NDArray[np.float32]
i32, f32 = np.int32, np.float32

ATTENDERS, SEARCHERS = 256, 64
"""Work-items of a work-group of ``attend``, and of ``top``."""
NORM_BLOCKS = 16
"""Blocks of a row that one lane group of a norm makes; each takes the row's mean for itself."""
MOST_HEAD, MOST_USED = 1024, 64
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clamped": 2}


@dataclass(frozen=True, slots=True)
class Layer:
    """One block's weights: ``qkv`` is one matrix where formats allow, else three; experts lie one below the other."""

    block: Block
    qkv: list[Matrix]
    o: Matrix
    router: Matrix | None
    gate: Matrix
    up: Matrix
    down: Matrix
    vectors: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel to enqueue.

    ``size`` work-items for every ``rows`` rows of the step, or of those wanted, and for each of a row's ``pairs`` with
    an expert; ``by_blocks``: and for each block of positions that is computed apart.
    """

    kernel: Any
    size: int
    local: int
    rows: int = 1
    pairs: int = 1
    wanted: bool = False
    by_blocks: bool = False


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model that the kernels do not run."""
    first = spec.layers[0].attention
    for block in spec.layers:
        attention = block.attention
        if isinstance(block.mlp, Experts):
            if block.mlp.used > MOST_USED:
                raise UnsupportedModelError(
                    f"a row goes to {block.mlp.used} experts; the OpenCL engine has {MOST_USED}"
                )
            if len({expert.activation for expert in block.mlp.experts}) > 1:
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
    ) -> None:
        check_spec(spec)
        self.device, self.spec = device, spec
        attention = spec.layers[0].attention
        self.pages = Pages(device, len(spec.layers), attention.kv_heads, attention.head_dim, kv_cache)
        self._rows = device.program("rows", "attention", options=self.pages.options)
        self._matrices: dict[str, tuple[Matrix, int]] = {}
        self._vectors: dict[str, Any] = {}

        def linears(*linears: Linear) -> list[Matrix]:
            """One matrix where the formats are one, else one for each."""
            weights = [matrix(linear.weight) for linear in linears]
            biases = [None if linear.bias is None else vector(linear.bias) for linear in linears]
            alike = len({(weight.format, weight.group_size) for weight in weights}) == 1
            groups = [range(len(linears))] if alike else [range(i, i + 1) for i in range(len(linears))]
            made = []
            for group in groups:
                one = Matrix.upload(device, [weights[i] for i in group], [biases[i] for i in group], threads)
                for part, i in enumerate(group):
                    self._matrices[linears[i].weight.name] = (one, part)
                made.append(one)
            for linear, bias in zip(linears, biases, strict=True):
                if linear.bias is not None and bias is not None:
                    self._vectors[linear.bias.name] = device.upload(bias)
            return made

        def of(tensor: Tensor | None) -> Any:
            if tensor is None:
                return None
            self._vectors[tensor.name] = device.upload(vector(tensor))
            return self._vectors[tensor.name]

        def norm(one: Norm | None) -> Any:
            return of(None if one is None else one.weight)

        head = Linear(spec.embedding) if spec.head is None else spec.head
        if not spec.tied:
            (self.embedding,) = linears(Linear(spec.embedding))
        self.layers = []
        for block in spec.layers:
            own, mlps = block.attention, mlps_of(block)
            vectors = {"attention_norm": norm(block.attention_norm)}
            qkv = linears(own.q, own.k, own.v)
            vectors |= {"q_norm": norm(own.q_norm), "k_norm": norm(own.k_norm), "sinks": of(own.sinks)}
            (o,) = linears(own.o)
            vectors |= {"attention_after": norm(block.attention_after), "mlp_norm": norm(block.mlp_norm)}
            router = linears(block.mlp.router)[0] if isinstance(block.mlp, Experts) else None
            parts = [linears(*(getattr(mlp, name) for mlp in mlps)) for name in ("gate", "up", "down")]
            if any(len(part) > 1 for part in parts):
                raise UnsupportedModelError(
                    "the experts of a layer are in several formats; the OpenCL engine takes them in one",
                    hint="load it in one format, or use engine='native'",
                )
            (gate,), (up,), (down,) = parts
            if router is not None and (gate.format, gate.group_size) != (up.format, up.group_size):
                raise UnsupportedModelError(
                    "gate and up of a layer's experts are in two formats; the OpenCL engine takes them in one",
                    hint="load it in one format, or use engine='native'",
                )
            vectors["mlp_after"] = norm(block.mlp_after)
            self.layers.append(Layer(block, qkv, o, router, gate, up, down, vectors))
        self.final_norm = norm(spec.final_norm)
        (self.head,) = linears(head)
        if spec.tied:
            self.embedding = self.head
        self.ropes: dict[int, RopeTable] = {}
        for block in spec.layers:
            if (rope := block.attention.rope) is not None and id(rope) not in self.ropes:
                self.ropes[id(rope)] = RopeTable(device, rope)
        self._scratch: Scratch | None = None
        self._step: Any = device.empty(0)
        self._launches: dict[int, list[Launch]] = {}
        self._bound: object = None

    # ---- weights -----------------------------------------------------------------------------------------------------

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        matrices = {id(one): one.nbytes for one, _ in self._matrices.values()}
        return sum(matrices.values()) + sum(int(buffer.size) for buffer in self._vectors.values())

    @property
    def idle_bytes(self) -> int:
        """Bytes of weights that a step of one row does not read: an embedding that is no lm_head, and idle experts."""
        idle = 0 if self.spec.tied else self.embedding.nbytes
        for layer in self.layers:
            if isinstance(mixture := layer.block.mlp, Experts):
                count = len(mixture.experts)
                idle += sum(one.nbytes for one in (layer.gate, layer.up, layer.down)) * (count - mixture.used) // count
        return idle

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert's weights; 0 without experts."""
        for layer in self.layers:
            if isinstance(mixture := layer.block.mlp, Experts):
                return sum(one.nbytes for one in (layer.gate, layer.up, layer.down)) // len(mixture.experts)
        return 0

    def experts_touched(self, rows: int) -> int:
        """How many experts the last step, of so many rows, read in all layers."""
        if self._scratch is None or self._scratch.pairs == 0:
            return 0
        chosen = self.device.read(self._scratch.experts, (len(self.layers), self._scratch.pairs), i32)
        return sum(
            len(np.unique(own[: rows * layer.block.mlp.used]))
            for own, layer in zip(chosen, self.layers, strict=True)
            if isinstance(layer.block.mlp, Experts)
        )

    def matrix(self, tensor: Tensor) -> PackedWeight:
        """A weight in plain order, bit for bit as it came."""
        one, part = self._matrices[tensor.name]
        return one.weights()[part]

    def vector(self, tensor: Tensor) -> Floats:
        """A norm's weights, a bias or sinks as they came."""
        return self.device.read(self._vectors[tensor.name], tensor.shape, f32)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def run(self, plan: Plan, top: int, logits: bool) -> tuple[npt.NDArray[np.int32], Floats | None]:
        """The ids of each wanted row's ``top`` largest logits, below 0 where logits are not finite; and the logits."""
        device, wanted = self.device, len(plan.want)
        for sequence in plan.sequences:
            sequence.cache.prepare(sequence.rows)
        scratch = self._reserve(plan, top)
        encoded = plan.encoded()
        if self._step.size < encoded.nbytes:
            self._step = device.empty(2 * encoded.nbytes)
        at_once = rows_at_once(plan.rows)
        bound = (scratch, self._step, self.pages.generation, tuple(rope.positions for rope in self.ropes.values()))
        if bound != self._bound:
            self._launches, self._bound = {}, bound
        launches = self._launches.get(at_once)
        if launches is None:
            launches = self._launches[at_once] = list(self._bind(scratch, at_once))
        with device.errors("run"):
            device.write(self._step, encoded)
            enqueue, queue = device.cl.enqueue_nd_range_kernel, device.queue
            for launch in launches:
                rows = -(-(wanted if launch.wanted else plan.rows) // launch.rows) * launch.pairs
                if rows == 0:
                    continue
                if launch.by_blocks:
                    enqueue(queue, launch.kernel, (launch.size, rows, plan.blocks), (launch.local, 1, 1))
                else:
                    enqueue(queue, launch.kernel, (launch.size, rows), (launch.local, 1))
        if wanted == 0:
            with device.errors("run"):
                device.queue.finish()
            return np.empty((0, top), i32), np.empty((0, self.spec.vocab), f32) if logits else None
        ids = scratch.tops[0 if scratch.pieces == 1 else 1][1]
        found = device.read(ids, (wanted, top), i32)
        return found, device.read(scratch.logits, (wanted, self.spec.vocab), f32) if logits else None

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
            self._bound, self._launches = None, {}
            self._scratch = Scratch(self.device, self.spec, rows, wanted, partials, top)
        return self._scratch

    def _lanes(self, kernel: Any, count: int, rows: int = 1, wanted: bool = False) -> Launch:
        return Launch(kernel, self.device.lane_groups(count), self.device.width, rows, wanted=wanted)

    def _kernel(self, name: str, *arguments: Any) -> Any:
        return self.device.kernel(self._rows, name, *arguments)

    def _bind(self, s: Scratch, at_once: int) -> Iterator[Launch]:
        """A step's kernels in their order, with their arguments, for so many rows at once."""
        spec, step, device = self.spec, self._step, self.device
        hidden = i32(spec.hidden)
        blocks = blocks_of(spec.hidden)
        groups = -(-blocks // NORM_BLOCKS)

        def norm(weight: Any, one: Norm | None, out: Rows, wanted: bool = False) -> Launch:
            counted, epsilon = i32(STEP_WANTED if wanted else STEP_ROWS), f32(one.epsilon if one else 0)
            kernel = self._kernel(
                "norm", s.hidden, hidden, hidden, weight, epsilon, *out.arguments(), step, counted, i32(groups)
            )
            return self._lanes(kernel, groups, wanted=wanted)

        def linear(
            w: Matrix, x: Rows, out: Any, stride: int, column: int = 0, add: bool = False, wanted: bool = False
        ) -> Launch:
            counted = i32(STEP_WANTED if wanted else STEP_ROWS)
            arguments = (*w.arguments(), *x.arguments(), step, counted, out, i32(stride), i32(column), i32(add))
            return self._lanes(device.kernel(w.program(at_once), "linear", *arguments), w.tiles, at_once, wanted)

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

        embed = self.embedding
        arguments = (*embed.arguments(), step, s.hidden, hidden, f32(spec.embedding_multiplier))
        yield self._lanes(device.kernel(embed.program(at_once), "embed", *arguments), -(-blocks // 16))
        for number, layer in enumerate(self.layers):
            block, v = layer.block, layer.vectors
            yield norm(v["attention_norm"], block.attention_norm, s.x)
            columns = [0] if len(layer.qkv) == 1 else [0, s.k_column, s.v_column]
            for one, column in zip(layer.qkv, columns, strict=True):
                yield linear(one, s.x, s.qkv, s.qkv_stride, column)
            yield from self._attention(s, layer, self.pages.buffers[number])
            yield from add_to_hidden(layer.o, s.attended, block, v["attention_after"], block.attention_after)
            yield norm(v["mlp_norm"], block.mlp_norm, s.x)
            activation = mlps_of(block)[0].activation
            kind = (i32(ACTIVATIONS[activation.kind]), f32(activation.alpha), f32(activation.limit))
            gate, up = layer.gate, layer.up
            if isinstance(block.mlp, Experts):
                router = layer.router
                assert router is not None  # a mixture has one
                yield linear(router, s.x, s.router, router.n_out)
                yield from self._experts(s, layer, block.mlp, i32(number * s.pairs), kind)
                if v["mlp_after"] is not None or block.residual_multiplier != 1:
                    yield add_branch(block, v["mlp_after"], block.mlp_after)
                continue
            made = Rows(gate.n_out, s.gated.buffers)
            if (gate.format, gate.group_size) == (up.format, up.group_size):
                both = (*gate.arguments(), *up.arguments())
                arguments = (*both, *s.x.arguments(), *made.arguments(), step, i32(STEP_ROWS), *kind)
                kernel = device.kernel(gate.program(at_once), "gate_up", *arguments)
                yield self._lanes(kernel, made.blocks, at_once)
            else:
                yield linear(gate, s.x, s.gate, gate.n_out)
                yield linear(up, s.x, s.up, up.n_out)
                both = (s.gate, s.up, i32(gate.n_out), i32(gate.n_out))
                kernel = self._kernel("activate", *both, *made.arguments(), step, i32(STEP_ROWS), *kind)
                yield self._lanes(kernel, made.blocks)
            yield from add_to_hidden(layer.down, made, block, v["mlp_after"], block.mlp_after)
        yield norm(self.final_norm, spec.final_norm, s.head_x, wanted=True)
        yield linear(self.head, s.head_x, s.logits, spec.vocab, wanted=True)
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
        attention, v, step = layer.block.attention, layer.vectors, self._step
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
        arguments = (s.qkv, stride, *sizes, pages, window, f32(attention.softcap or 0), s.partials, step)
        if arrivals := ARRIVALS in self.device.spelling:
            joint = i32(GROUP // math.gcd(d, GROUP))
            arguments += (joint, v["sinks"], *s.attended.arguments(), s.arrivals)
        yield Launch(self._kernel("attend", *arguments), heads * ATTENDERS, ATTENDERS, by_blocks=True)
        if arrivals:
            return
        kernel = self._kernel(
            "merge_heads", s.partials, i32(heads), i32(d), window, v["sinks"], *s.attended.arguments(), step
        )
        yield self._lanes(kernel, s.attended.blocks)

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
        gate, up, down = layer.gate, layer.up, layer.down
        made = Rows(gate.parts[0], s.gated.buffers)
        sizes = (step, s.experts, first, used)
        both = (*gate.arguments(), *up.arguments(), *s.x.arguments(), *made.arguments())
        kernel = device.kernel(gate.program(1), "expert_gate_up", *both, *sizes, i32(-(-gate.parts[0] // 16)), *kind)
        yield Launch(kernel, device.lane_groups(made.blocks), width, pairs=mixture.used)
        tiles, hidden = -(-down.parts[0] // 16), i32(self.spec.hidden)
        arguments = (*down.arguments(), *made.arguments(), *sizes, i32(tiles), s.made, hidden)
        kernel = device.kernel(down.program(1), "expert_linear", *arguments)
        yield Launch(kernel, device.lane_groups(tiles), width, pairs=mixture.used)
        add = layer.vectors["mlp_after"] is None and layer.block.residual_multiplier == 1
        out = s.hidden if add else s.branch
        kernel = self._kernel("add_experts", s.made, s.weights, used, hidden, out, i32(add), step)
        yield Launch(kernel, -(-self.spec.hidden // 64) * 64, 64)

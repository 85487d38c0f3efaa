"""The decoder stack on a device: its weights, and steps of it, whose kernels ``launches`` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, ModelSpec, Tensor
from ipex_lookahead.engines.opencl.cache import Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.launches import Binder, Launch, sized
from ipex_lookahead.engines.opencl.layers import Floats, Weights
from ipex_lookahead.engines.opencl.linear import rows_at_once
from ipex_lookahead.engines.opencl.matrix_units import use_matrix_units
from ipex_lookahead.engines.opencl.recording import Recorded, Recorder
from ipex_lookahead.engines.opencl.scratch import RopeTable, Scratch
from ipex_lookahead.engines.opencl.step import SPLIT_ROWS, Plan
from ipex_lookahead.engines.opencl.supported import attention_of, check_spec
from ipex_lookahead.errors import EngineError
from ipex_lookahead.formats.base import PackedWeight

i32, f32 = np.int32, np.float32

PAIRS, QUERIES = 8, 1024
"""Of a work-group of ``attend``: the most (row, head) pairs, and the most values of all their queries."""
MOST_RECORDED = 64
"""Steps of different sizes that are kept recorded."""


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
        attention = attention_of(spec.layers[0])
        self.pages = Pages(device, len(spec.layers), attention.kv_heads, attention.head_dim, kv_cache)
        self._share = min(PAIRS, QUERIES // attention.head_dim)
        self._joint_heads = min(self._share, attention.heads // attention.kv_heads)
        self.weights = Weights(device, spec, matrix, vector, threads, embeds)
        self.ropes: dict[int, RopeTable] = {}
        for block in spec.layers:
            if (rope := attention_of(block).rope) is not None and id(rope) not in self.ropes:
                self.ropes[id(rope)] = RopeTable(device, rope)
        self._reorders = any("down" in layer.orders for layer in self.weights.layers)
        self._scratch: Scratch | None = None
        self._step: Any = device.empty(0)
        self._launches: dict[int, list[Launch]] = {}
        self._recorded: dict[tuple[int, int, int, int], Recorded] = {}
        self._bound: object = None

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
        with device.errors("run"), self.pages.lock:  # a forked process is refused before it calls the driver
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
            model = (self.weights, self.pages, self.ropes, self._joint_heads)
            binder = Binder(device, self.spec, *model, scratch, self._step, most)
            launches = self._launches[most] = list(binder.launches())
        with device.errors("run"):
            device.write(self._step, encoded)
            if hidden is not None:
                device.write(scratch.hidden, hidden)
            if device.recorder is not None and plan.rows <= SPLIT_ROWS:
                self._record(launches, plan, joint, device.recorder).enqueue()
            else:
                enqueue, queue = device.launch, device.queue
                for kernel, size, local in sized(launches, plan, plan.blocks, joint):
                    enqueue(queue, kernel, size, local)

    def _record(self, launches: list[Launch], plan: Plan, joint: int, recorder: Recorder) -> Recorded:
        """Recorded for as many rows, wanted ones, joint ones and, up to the next power of two, blocks of positions."""
        blocks = 1 << (plan.blocks - 1).bit_length()
        key = (plan.rows, len(plan.want), blocks, joint)
        recorded = self._recorded.pop(key, None) or recorder.record(list(sized(launches, plan, blocks, joint)))
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

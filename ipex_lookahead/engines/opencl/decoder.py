"""The decoder on a device: its weights, and the execution of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, ModelSpec
from ipex_lookahead.engines.load_weights import Read
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

i32, f32 = np.int32, np.float32

PAIRS, QUERIES = 8, 1024
"""Limits of a work-group of ``attend``: (row, head) pairs, and values of all their queries."""
MOST_RECORDED = 64
"""Most recorded steps, each of a different size."""


class Decoder:
    """A model on a device.

    Args:
        device: the device.
        spec: the model.
        read: returns a tensor's weight; see ``load_weights``.
        kv_cache: "fp16" or "int8".
        threads: number of CPU threads that pack the weights; None: one per core.
        embeds: whether the device embeds tokens. If not, steps get the rows that the first layer reads.

    Raises:
        UnsupportedModelError: kernels do not support the model.
        EngineError: the device lacks the memory.
    """

    def __init__(
        self,
        device: Device,
        spec: ModelSpec,
        read: Read,
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
        self.weights = Weights(device, spec, read, threads, embeds)
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
        """Return the number of experts that a step of ``rows`` rows read, over all layers; chosen: [layers][pairs]."""
        return sum(
            len(np.unique(own[: rows * layer.block.feed_forward.used]))
            for own, layer in zip(chosen, self.weights.layers, strict=True)
            if isinstance(layer.block.feed_forward, Experts)
        )

    # ---- a step ------------------------------------------------------------------------------------------------------

    def run(
        self, plan: Plan, top: int, logits: bool, hidden: Floats | None = None
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int]:
        """Return the ids of each wanted row's ``top`` largest logits, the logits, and the number of experts read.

        Ids are negative if logits are not finite. ``hidden``, float32 [rows, hidden]: the first layer's input where the
        device does not embed tokens.
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
        """Return the recorded step for these numbers of rows; blocks of positions are rounded up to a power of two."""
        blocks = 1 << (plan.blocks - 1).bit_length()
        key = (plan.rows, len(plan.want), blocks, joint)
        recorded = self._recorded.pop(key, None) or recorder.record(list(sized(launches, plan, blocks, joint)))
        self._recorded[key] = recorded  # the latest at the end
        if len(self._recorded) > MOST_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        return recorded

    def _forget(self) -> None:
        """Drop bound launches after a change of their buffers."""
        self._launches, self._recorded, self._bound = {}, {}, None

    def _reserve(self, plan: Plan, top: int) -> Scratch:
        """Return scratch that holds the step. It grows by doubling, so that it is rarely replaced."""
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

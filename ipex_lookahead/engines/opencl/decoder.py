"""The decoder on a device: its weights, and the execution of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.engines.load_weights import Read
from ipex_lookahead.engines.opencl.cache import OpenClCache, Pages
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.launches import States, step_launches
from ipex_lookahead.engines.opencl.layers import EMBEDDING, Weights
from ipex_lookahead.engines.opencl.linear import STEPS, rows_at_once
from ipex_lookahead.engines.opencl.matrix_units import use_matrix_units
from ipex_lookahead.engines.opencl.operations.base import Binder, HostCall, Launch, sized
from ipex_lookahead.engines.opencl.operations.per_layer import TABLE
from ipex_lookahead.engines.opencl.recording import Recorded, Recorder
from ipex_lookahead.engines.opencl.scratch import RopeTable, Scratch, ropes_of
from ipex_lookahead.engines.opencl.states import RecurrentState, RecurrentStates
from ipex_lookahead.engines.opencl.step import SPLIT_ROWS, Plan
from ipex_lookahead.engines.opencl.supported import check_spec
from ipex_lookahead.engines.opencl.uploads import Floats
from ipex_lookahead.errors import EngineError

i32, f32 = np.int32, np.float32

MOST_RECORDED = 64
"""Most recorded steps, each of a different size."""

Segment = list[Launch] | HostCall
"""Launches of a step up to the next call of the CPU, or such a call."""


class Decoder:
    """A model on a device.

    Args:
        device: the device.
        spec: the model.
        read: returns a tensor's weight; see ``load_weights``.
        kv_cache: "fp16" or "int8".
        threads: number of CPU threads that pack the weights; None: one per core.
        embeds: whether the device embeds tokens. If not, steps get the rows that the first layer reads.
        cpu_moe: number of first layers with their routed experts on the CPU.

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
        cpu_moe: int = 0,
    ) -> None:
        check_spec(spec)
        self.device, self.spec, self.cpu_moe = device, spec, cpu_moe
        use_matrix_units(device)
        self.weights = Weights(device, spec, read, threads, () if embeds else EMBEDDING, cpu_moe=cpu_moe)
        self.pages = Pages(device, self.weights.held.layouts, kv_cache)
        self.recurrent = RecurrentStates(device, self.weights.held.states, self.pages.lock)
        self._joint_rows = min((one.cached.joint_rows for one in self.weights.attentions), default=1)
        self.ropes = {id(rope): RopeTable(device, rope) for rope in ropes_of(spec)}
        self._scratch: Scratch | None = None
        self._step: Any = device.empty(0)
        self._states: Any = device.empty(0)
        self.features: Any = device.empty(0)
        """The last step's features for drafting heads, float32 [rows][layers][hidden]."""
        self._launches: dict[tuple[object, ...], list[Segment]] = {}
        self._recorded: dict[tuple[object, ...], list[Recorded | HostCall]] = {}
        self._bound: object = None

    def new_cache(self) -> OpenClCache:
        """Return an empty sequence. Raises EngineError if there is no memory."""
        return OpenClCache(self.pages, RecurrentState(self.recurrent) if self.recurrent.layouts else None)

    def _experts_touched(self, chosen: npt.NDArray[np.int32], rows: int) -> int:
        """Return the number of experts that a step of ``rows`` rows read, over all layers; chosen: [layers][pairs]."""
        return sum(mixture.touched(chosen[layer], rows) for layer, mixture in self.weights.mixtures)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def run(
        self,
        plan: Plan,
        top: int,
        logits: bool,
        hidden: Floats | None = None,
        layers: tuple[int, ...] = (),
        features: tuple[int, ...] = (),
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int, Floats | None]:
        """Return the ids of each wanted row's ``top`` largest logits, the logits, the number of experts, and states.

        Ids are negative if logits are not finite. ``hidden``, float32 [rows, hidden]: the first layer's input where the
        device does not embed tokens. ``layers``: as in ``OutputRequest.hidden``; the states are float32 [rows, layers,
        hidden], None without layers. ``features``: the same for states that remain on the device, in ``features``.
        """
        try:
            return self._run(plan, top, logits, hidden, layers, features)
        except EngineError:
            self._scratch = None  # what counts arrivals may be anything after a kernel that did not end
            self._forget()
            raise

    def _run(
        self,
        plan: Plan,
        top: int,
        logits: bool,
        hidden: Floats | None,
        layers: tuple[int, ...],
        features: tuple[int, ...],
    ) -> tuple[npt.NDArray[np.int32], Floats | None, int, Floats | None]:
        device, wanted = self.device, len(plan.want)
        scratch = self._reserve(plan, top)
        shape = (plan.rows, len(layers), self.spec.hidden)
        if self._states.size < 4 * math.prod(shape):
            self._states = device.empty(8 * math.prod(shape))
        if self.features.size < 4 * plan.rows * len(features) * self.spec.hidden:
            self.features = device.empty(8 * plan.rows * len(features) * self.spec.hidden)
        buffers = ((layers, self._states), (features, self.features))
        copied = [States(numbers, buffer) for numbers, buffer in buffers if numbers]
        with device.errors("run"), self.pages.lock:  # a forked process is refused before it calls the driver
            self._enqueue(plan, scratch, hidden, copied)
        vocab, ids, found = self.spec.vocab, np.empty((0, top), i32), np.empty((0, self.spec.vocab), f32)
        reads: list[tuple[Any, tuple[int, ...], type[np.generic], int]] = []
        if wanted:
            reads.append((scratch.tops[0 if scratch.pieces == 1 else 1][1], (wanted, top), i32, 0))
        if wanted and logits:
            reads.append((scratch.logits, (wanted, vocab), f32, 0))
        if scratch.pairs:
            reads.append((scratch.experts, (len(self.spec.layers), scratch.pairs), i32, 0))
        if layers:
            reads.append((self._states, shape, f32, 0))
        arrays = device.read_all(*reads)  # one wait for all of them
        states = arrays.pop() if layers else None
        touched = self._experts_touched(arrays.pop(), plan.rows) if scratch.pairs else 0
        if wanted:
            ids, *rest = arrays
            found = rest[0] if logits else found
        return ids, found if logits else None, touched, states

    def _enqueue(self, plan: Plan, scratch: Scratch, hidden: Floats | None, copied: Sequence[States]) -> None:
        """Make room for the rows' keys and values and states, and start what writes them there."""
        device = self.device
        for sequence in plan.sequences:
            sequence.cache.prepare(sequence.rows, sequence.settled)
        joint = plan.joint(self._joint_rows)
        encoded = plan.encoded(joint)
        if self._step.size < encoded.nbytes:
            self._step = device.empty(2 * encoded.nbytes)
        most = rows_at_once(plan.rows, STEPS)
        bound = (
            scratch,
            self._step,
            self._states,
            self.features,
            self.pages.generation,
            self.recurrent.generation,
            tuple(rope.positions for rope in self.ropes.values()),
        )
        if bound != self._bound:
            self._forget()
            self._bound = bound
        key = (most, *((one.layers, id(one.buffer)) for one in copied))
        launches = self._launches.get(key)
        if launches is None:
            binder = Binder(device, self.spec, self.pages, self.ropes, scratch, self._step, most, self.recurrent)
            launches = self._launches[key] = _segments(step_launches(binder, self.weights, copied))
        with device.errors("run"):
            for sequence in plan.sequences:
                sequence.cache.begin_step()
            device.write(self._step, encoded)
            if hidden is not None:
                device.write(scratch.hidden, hidden)
            if self.weights.per_layer is not None:
                device.write(scratch.floats(TABLE), self.weights.per_layer.rows(plan.tokens))
            if device.recorder is not None and plan.rows <= SPLIT_ROWS:
                for part in self._record(key, launches, plan, joint, device.recorder):
                    if isinstance(part, HostCall):
                        part.run(plan.rows)
                    else:
                        part.enqueue()
            else:
                enqueue, queue = device.launch, device.queue
                for segment in launches:
                    if isinstance(segment, HostCall):
                        segment.run(plan.rows)
                        continue
                    for kernel, size, local in sized(segment, plan, plan.blocks, joint, plan.replayed):
                        enqueue(queue, kernel, size, local)

    def _record(
        self, of: tuple[object, ...], launches: list[Segment], plan: Plan, joint: int, recorder: Recorder
    ) -> list[Recorded | HostCall]:
        """Return the recorded step for these numbers of rows.

        Numbers of blocks of positions and of replayed rows are rounded up to powers of two.
        """
        blocks, replayed = (1 << (n - 1).bit_length() if n else 0 for n in (plan.blocks, plan.replayed))
        sequences = len(plan.sequences) if self.recurrent.layouts else 1
        key = (*of, plan.rows, len(plan.want), blocks, joint, replayed, sequences)
        recorded = self._recorded.pop(key, None) or [
            one if isinstance(one, HostCall) else recorder.record([*sized(one, plan, blocks, joint, replayed)])
            for one in launches
        ]
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
        need = (plan.rows + plan.replayed, max(len(plan.want), 1), plan.rows * plan.blocks, top)
        if self._scratch is None or not self._scratch.holds(need):
            have = (0, 0, 0, 0) if self._scratch is None else self._scratch.sizes
            rows, wanted, partials = (
                old if n <= old else max(n, 2 * old) for n, old in zip(need[:3], have[:3], strict=True)
            )
            self._scratch = None  # its memory first
            self._forget()
            self._scratch = Scratch(self.device, self.spec, rows, wanted, partials, top, self.cpu_moe)
        return self._scratch


def _segments(parts: Iterator[Launch | HostCall]) -> list[Segment]:
    """Return a step with the launches between calls of the CPU in lists."""
    found: list[Segment] = []
    for part in parts:
        if isinstance(part, HostCall):
            found.append(part)
        elif found and isinstance(found[-1], list):
            found[-1].append(part)
        else:
            found.append([part])
    return found

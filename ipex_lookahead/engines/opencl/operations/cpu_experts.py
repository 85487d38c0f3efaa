"""Mixtures with their routed experts in the native core, for models that are larger than the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Experts, ModelSpec
from ipex_lookahead.engines.native.experts import RoutedExperts
from ipex_lookahead.engines.opencl.linear import GROUP, Rows
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, HostCall, Launch, Needs, NormBefore
from ipex_lookahead.engines.opencl.operations.experts import ExpertsOperation, needs_around_experts
from ipex_lookahead.engines.opencl.uploads import Uploads

i32, f32 = np.int32, np.float32


class CpuExpertsOperation(ExpertsOperation):
    """A mixture with its routed experts on the CPU and everything else on the device.

    Rows, chosen experts and weights are read back, and the core's sums are written to the device. The shared expert is
    enqueued before the CPU begins, so both work at the same time.
    """

    def upload_experts(self, uploads: Uploads) -> None:
        """Hand the routed experts to the core."""
        self._core, self._nbytes = uploads.to_core(self.mixture.experts)

    @property
    def nbytes(self) -> int:
        """The bytes of all experts that the router chooses from."""
        return self._nbytes

    @staticmethod
    def needs(part: Experts, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        needs = needs_around_experts(part, spec)
        needs.floats["made"] = spec.hidden
        return needs

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch | HostCall]:
        """See ``Operation``."""
        first = i32(branch.layer * binder.scratch.pairs)
        yield from self.choose(binder, first)
        yield from self.norm_inputs(binder)
        visit = _Visit(binder, self._core, branch.layer, self.inputs(binder), self.mixture.used)
        yield HostCall(visit.start)
        yield from self.shared_expert(binder)
        yield HostCall(visit.finish)
        yield from self.add(binder, branch, following)

    def summed(self, b: Binder) -> tuple[Any, Any, int]:
        """See ``ExpertsOperation``: the core's sums."""
        return b.scratch.floats("made"), None, 1


@dataclass(slots=True)
class _Visit:
    """A step's visit to the core in one layer: rows ``x`` and their experts go there, and sums come back to "made"."""

    binder: Binder
    core: RoutedExperts
    layer: int
    x: Rows
    used: int
    _read: Callable[[], list[npt.NDArray[Any]]] | None = None
    _written: Any = None
    """The event of the last copy to the device, which holds the copied array."""

    def start(self, rows: int) -> None:
        """Enqueue reading what the core needs."""
        s, stride = self.binder.scratch, self.x.blocks * GROUP
        at = 4 * self.layer * s.pairs
        self._read = self.binder.device.start_read(
            (self.x.buffers[0], (rows, stride), f32, 0),
            (s.experts, (rows, self.used), i32, at),
            (s.floats("weights"), (rows, self.used), f32, 0),
        )

    def finish(self, rows: int) -> None:
        """Wait for the rows, run their experts, and enqueue writing the sums."""
        assert self._read is not None
        x, experts, weights = self._read()
        sums, _ = self.core.run(self.layer, x[:, : self.x.n], experts, weights)
        self._written = self.binder.device.start_write(self.binder.scratch.floats("made"), sums)

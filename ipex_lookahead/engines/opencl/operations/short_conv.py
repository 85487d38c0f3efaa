"""Short convolutions on a device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ipex_lookahead.architectures.spec import Linear, ModelSpec, ShortConv
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, Launch, Needs, NormBefore, Operation
from ipex_lookahead.engines.opencl.operations.recurrence import Joined, columns_of, lineage
from ipex_lookahead.engines.opencl.states import StateLayout
from ipex_lookahead.engines.opencl.uploads import Uploads

i32 = np.int32


class ShortConvOperation(Operation):
    """out(c * convolution(b * x)).

    Attributes:
        part: the description.
        joined: b, x and c.
        out: the output projection.
    """

    reads = "b"

    def __init__(self, part: ShortConv, uploads: Uploads) -> None:
        self.part = part
        self.joined, self.out = Joined(_linears(part), uploads), uploads.matrix([part.out])
        self._convolution, self._bias = uploads.vector(part.convolution), uploads.vector(part.convolution_bias)
        self._state = uploads.state(self.layout(part))

    @staticmethod
    def layout(part: ShortConv) -> StateLayout:
        """Return the layout of the state."""
        return StateLayout(part.kernel, part.b.weight.shape[0])

    @staticmethod
    def needs(part: ShortConv, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        return Needs(floats={"raw": columns_of(_linears(part))[-1]}, rows={"finished": (part.b.weight.shape[0], 1)})

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        yield from self.joined.launches(binder, binder.scratch.floats("raw"))
        finished = binder.scratch.rows("finished", self.part.b.weight.shape[0])
        _, x, c, _ = columns_of(_linears(self.part))
        arguments = (*lineage(binder, self._state, self.joined.stride), i32(x), i32(c), self._convolution, self._bias)
        program = binder.device.program("recurrence")
        kernel = binder.device.kernel(program, "short_conv", *arguments, *finished.arguments(), binder.step)
        yield Launch(kernel, binder.device.lane_groups(finished.blocks), binder.device.width, replays=True)
        yield from binder.end_branch(self.out, finished, branch, following)


def _linears(part: ShortConv) -> tuple[Linear, ...]:
    """Return the layers that read a row, in the order of their columns."""
    return part.b, part.x, part.c

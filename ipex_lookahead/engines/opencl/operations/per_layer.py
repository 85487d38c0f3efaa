"""Additional inputs per layer on a device (Gemma 4). Their table stays on the CPU: a step reads rows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import spec as architecture
from ipex_lookahead.architectures.spec import Activation, ModelSpec, PerLayerGate
from ipex_lookahead.engines.opencl.operations.base import Binder, Branch, Launch, Needs, NormBefore, Operation
from ipex_lookahead.engines.opencl.operations.mlp import activate, kind_of
from ipex_lookahead.engines.opencl.uploads import Floats, Uploads
from ipex_lookahead.engines.weights import outputs_of
from ipex_lookahead.formats import dequantize

f32, i32 = np.float32, np.int32

INPUTS, TABLE = "per_layer", "per_layer_table"
"""Names of scratch, float32 [rows][layers * width]: the inputs of all layers, and the tokens' rows of the table."""


class PerLayerInputs:
    """The inputs of all layers that have a ``PerLayerGate``.

    Attributes:
        inputs: the description.
        table: on the CPU.
        projection: the matrix that reads embeddings.
    """

    def __init__(self, inputs: architecture.PerLayerInputs, uploads: Uploads) -> None:
        self.inputs = inputs
        self.table = uploads.table(inputs.table)
        self.projection = uploads.matrix([inputs.projection])
        self._norm = NormBefore(uploads.norm(inputs.norm), inputs.norm, bias=uploads.bias(inputs.norm))

    @staticmethod
    def needs(inputs: architecture.PerLayerInputs) -> Needs:
        """Return the scratch for all layers' inputs."""
        total = inputs.layers * inputs.width
        return Needs(floats={INPUTS: total, TABLE: total})

    def rows(self, tokens: npt.NDArray[np.int32]) -> Floats:
        """Return the rows of the table for tokens, float32 [rows, layers * width]."""
        return dequantize(outputs_of(self.table, tokens))

    def launches(self, b: Binder) -> Iterator[Launch]:
        """Yield the launches that make the inputs from the embeddings, in the hidden rows, and the table's rows."""
        s, inputs = b.scratch, self.inputs
        values, norm, total = s.floats(INPUTS), self._norm, inputs.layers * inputs.width
        yield b.norm(NormBefore(None, None), s.x)
        yield b.linear(self.projection, s.x, values, total)
        of_norm = (norm.weight, norm.bias, norm.epsilon, i32(norm.centered))
        factors = map(f32, (inputs.projection_multiplier, inputs.table_multiplier, inputs.multiplier))
        arguments = (values, s.floats(TABLE), i32(inputs.width), i32(inputs.layers), *of_norm, *factors, b.step)
        yield b.lanes(b.kernel("per_layer_inputs", *arguments), inputs.layers)


class PerLayerGateOperation(Operation):
    """out(gelu_tanh(gate x) * values), with the row's values for the layer.

    Attributes:
        part: the description.
        gate, out: the matrices.
    """

    reads = "gate"

    def __init__(self, part: PerLayerGate, uploads: Uploads) -> None:
        self.part = part
        self.gate, self.out = uploads.matrix([part.gate]), uploads.matrix([part.out])

    @staticmethod
    def needs(part: PerLayerGate, spec: ModelSpec) -> Needs:
        """See ``Operation``."""
        width = part.out.weight.shape[1]
        return Needs(floats={"gate": width}, rows={"gated": (width, 1)})

    def launches(self, binder: Binder, branch: Branch, following: NormBefore | None) -> Iterator[Launch]:
        """See ``Operation``."""
        s, width = binder.scratch, self.out.n_in
        made, gate = s.rows("gated", width), s.floats("gate")
        inputs: Any = binder.spec.per_layer
        values = (inputs.layers * width, self.part.layer * width)
        yield binder.linear(self.gate, s.x, gate, width)
        yield activate(binder, gate, s.floats(INPUTS), made, kind_of(Activation("gelu_tanh")), up_at=values)
        yield from binder.end_branch(self.out, made, branch, following)

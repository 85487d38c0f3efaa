"""The operations of a step: a file for each kind of mixer and of feed-forward."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.spec import (
    Attention,
    Experts,
    GatedDeltaNet,
    GatedMlp,
    LatentAttention,
    Mamba2,
    PerLayerGate,
    ShortConv,
)
from ipex_lookahead.engines.opencl.operations.attention import AttentionOperation
from ipex_lookahead.engines.opencl.operations.base import Operation
from ipex_lookahead.engines.opencl.operations.cpu_experts import CpuExpertsOperation
from ipex_lookahead.engines.opencl.operations.experts import ExpertsOperation
from ipex_lookahead.engines.opencl.operations.latent_attention import LatentAttentionOperation
from ipex_lookahead.engines.opencl.operations.mlp import GatedMlpOperation
from ipex_lookahead.engines.opencl.operations.per_layer import PerLayerGateOperation
from ipex_lookahead.engines.opencl.operations.recurrence import RecurrenceOperation
from ipex_lookahead.engines.opencl.operations.short_conv import ShortConvOperation

OPERATIONS: dict[type, Any] = {
    Attention: AttentionOperation,
    LatentAttention: LatentAttentionOperation,
    GatedDeltaNet: RecurrenceOperation,
    Mamba2: RecurrenceOperation,
    ShortConv: ShortConvOperation,
    GatedMlp: GatedMlpOperation,
    Experts: ExpertsOperation,
    PerLayerGate: PerLayerGateOperation,
}
"""Layers of descriptions -> their operations."""


def operation_of(part: Any, cpu_moe: bool = False) -> type[Operation]:
    """Return the operation for a mixer or a feed-forward, which ``check_spec`` has checked.

    ``cpu_moe``: whether routed experts of this layer run on the CPU.
    """
    if cpu_moe and isinstance(part, Experts):
        return CpuExpertsOperation
    found: type[Operation] = OPERATIONS[type(part)]
    return found

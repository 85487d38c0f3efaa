"""The device memory that a drafting head needs, computed before weights are read."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.spec import Linear, ModelSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.drafters import drafter_of
from ipex_lookahead.engines.cache_images import PAGE
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.drafters import plan_of_head
from ipex_lookahead.engines.opencl.cache import Layout
from ipex_lookahead.engines.opencl.head_state import ROWS_AT_ONCE
from ipex_lookahead.engines.opencl.memory import POSITIONS, Ledger, buffers_of, need_of_formats
from ipex_lookahead.engines.opencl.operations import operation_of
from ipex_lookahead.engines.opencl.operations.features import FeatureBuffers
from ipex_lookahead.engines.opencl.scratch import RopeTable, Scratch, ropes_of
from ipex_lookahead.engines.opencl.step import BLOCK
from ipex_lookahead.engines.prefill import PREFILL_ROWS
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import LookaheadError


def head_bytes(request: LoadRequest, checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan) -> int:
    """Return the bytes of the head that will draft for a model: weights, keys and scratch; 0 without a head.

    A head that was not requested by name and cannot be used counts as none.

    Raises LookaheadError for a head that was requested by name and cannot be used.
    """
    found = None
    with contextlib.nullcontext() if request.drafter is not None else contextlib.suppress(LookaheadError):
        found = drafter_of(checkpoint, request.path, request.drafter)
    if found is None:
        return 0
    drafter, _ = found
    try:
        head, features = drafter.spec, drafter.spec.features
        assert features is not None
        own, ids = plan_of_head(drafter, request, plan, plan.label, spec.vocab)
        formats = need_of_formats(drafter.checkpoint, head, own)
        weights = sum(buffers_of(tensor, formats)[0] for tensor in drafter.tensors())
        outputs = spec.vocab if ids is None or head.candidates is not None else len(ids)
        if "head" in features.shares and outputs < spec.vocab:  # a copy of these rows
            whole, _ = buffers_of(spec.head_weight, need_of_formats(checkpoint, spec, plan))
            weights += whole * outputs // spec.vocab
        return weights + _keys(head, request, spec) + _scratch(head, request, spec, outputs)
    finally:
        if drafter.checkpoint is not checkpoint:
            drafter.checkpoint.close()


def _positions(request: LoadRequest, spec: ModelSpec) -> int:
    return request.max_context or min(spec.max_context, POSITIONS)


def _keys(head: ModelSpec, request: LoadRequest, spec: ModelSpec) -> int:
    if head.target_keys:
        return 0
    layouts = (operation_of(block.mixer).layout(block.mixer) for block in head.layers if block.mixer is not None)
    each = sum(layout.page_bytes(request.kv_cache) for layout in layouts if isinstance(layout, Layout))
    return -(-_positions(request, spec) // PAGE) * each


def _scratch(head: ModelSpec, request: LoadRequest, spec: ModelSpec, outputs: int) -> int:
    """Return the bytes of a step that reads a prompt's features, and of these features."""
    ledger, positions = Ledger(), _positions(request, spec)
    device: Any = ledger
    assert head.head is not None
    own = replace(head, head=Linear(replace(head.head.weight, shape=(outputs, head.hidden))))
    Scratch(device, own, ROWS_AT_ONCE, 1, max(ROWS_AT_ONCE, -(-positions // BLOCK)), 1)
    FeatureBuffers(own, device, ROWS_AT_ONCE)
    for rope in ropes_of(own):
        RopeTable(device, rope).reserve(positions, own.max_context)
    assert head.features is not None
    return ledger.nbytes + 4 * 3 * PREFILL_ROWS * head.features.width  # of the step, and those not read yet

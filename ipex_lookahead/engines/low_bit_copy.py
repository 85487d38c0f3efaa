"""A copy of a loaded engine in four bits, which self-speculation drafts with."""

from __future__ import annotations

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.load_weights import weights_of
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan, in_plan
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats.base import PackedWeight

DRAFT_FORMAT = "sym_int4"
GAINFUL = ("sym_int8", "fp16", "bf16", "fp32")
"""Formats of a target that a copy in ``DRAFT_FORMAT`` is faster than."""


def check_gains(low_bit: str) -> None:
    """Raise InputError if a four-bit copy of a model in ``low_bit`` would be no faster than the model."""
    if low_bit not in GAINFUL:
        raise InputError(
            f"self-speculation drafts with a copy of the model in {DRAFT_FORMAT}, which is no faster"
            f" than this model in {low_bit}; load it in one of {', '.join(GAINFUL[:3])}, or"
            " use lookahead instead"
        )


def low_bit_copy(engine: Engine) -> Engine:
    """Return a copy of a native engine in ``sym_int4``, groups of 32, with the same number of threads.

    Its KV cache has the engine's format, since the copy works on the engine's caches. Besides the copy, only one tensor
    at a time is in memory (and a tied embedding).

    Example: of a sym_int8 engine with 135 million weights, which takes 143 MB, the copy takes 76 MB more.

    Raises:
        InputError: the engine is not the native one, or is in four bits already.
    """
    if not isinstance(engine, NativeEngine):
        raise InputError(
            f"the {engine.name} engine cannot return its weights; self-speculation needs the native engine"
        )
    facts, spec = engine.describe(), engine.spec
    check_gains(facts["low_bit"])
    plan = WeightPlan(DRAFT_FORMAT, head=spec.head_weight.name)
    read, kept = weights_of(engine), {*spec.kept()}

    def in_four_bits(tensor: Tensor) -> PackedWeight:
        weight = read(tensor)
        return in_plan(weight, tensor, plan) if tensor.is_matrix and tensor.name not in kept else weight

    return NativeEngine.build(spec, DRAFT_FORMAT, in_four_bits, threads=facts["threads"], kv_cache=facts["kv_cache"])

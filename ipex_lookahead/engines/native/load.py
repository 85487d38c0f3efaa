"""Load checkpoints onto the native engine. Imports neither torch nor transformers: commands start in a second."""

from __future__ import annotations

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, load_by_spec, refuse_options
from ipex_lookahead.engines.native.drafters import head_for
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import InputError, arg


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto the native engine. See ``NativeEngine.load`` for what it may raise."""
    refuse_options("native", "it runs without torch", ipex=request.ipex)
    refuse_options("native", "all layers are on the CPU", **request.placement())
    if request.device is not None and str(request.device) != "cpu":
        raise InputError(
            f"the native engine runs on the CPU, not on {request.device!r}; use {arg('engine', 'torch')} for that"
        )

    def engine(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan) -> NativeEngine:
        made = NativeEngine.load(
            checkpoint, spec, plan, threads=request.threads, kv_cache=request.kv_cache, progress=request.progress
        )
        made.head = head_for(request, checkpoint, spec, plan, made)
        if made.head is not None:
            made.facts["drafter"] = made.head.describe()
        return made

    return load_by_spec(request, engine)

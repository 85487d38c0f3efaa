"""Checkpoints onto the native engine. Imports neither torch nor transformers: a command starts in a second."""

from __future__ import annotations

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.hf_config import generation_defaults
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, refuse_options
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.requantize import warn_of_requantizing
from ipex_lookahead.engines.weights import label_in, log_fallbacks, matrices
from ipex_lookahead.errors import InputError, arg


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto the native engine. See ``NativeEngine.load`` for what it may raise."""
    refuse_options("native", "it runs without torch", ipex=request.ipex)
    refuse_options("native", "all layers are on the CPU", gpu_layers=request.gpu_layers)
    if request.device is not None and str(request.device) != "cpu":
        raise InputError(
            f"the native engine runs on the CPU, not on {request.device!r}; use {arg('engine', 'torch')} for that"
        )
    checkpoint = open_checkpoint(request.path)
    try:
        spec = spec_for(checkpoint.config, request.max_context)
        label = request.label or label_in(checkpoint, spec)
        if request.check_label is not None:
            request.check_label(label)
        plan = request.plan(label).of_spec(spec)
        rounded_from = warn_of_requantizing(checkpoint, plan, kept=spec.kept())
        if rounded_from is None:  # else what becomes of it was said, and one sentence is enough
            log_fallbacks(plan, matrices(spec))
        tokenizer, why_none = request.tokenizer(checkpoint.text_tokenizer)
        engine = NativeEngine.load(
            checkpoint, spec, plan, threads=request.threads, kv_cache=request.kv_cache, progress=request.progress
        )
        if rounded_from is not None:
            engine.facts["requantized_from"] = rounded_from
        defaults = generation_defaults(checkpoint)
        return LoadedModel(engine, label, dict(checkpoint.config), defaults, tokenizer, no_tokenizer=why_none)
    finally:
        checkpoint.close()

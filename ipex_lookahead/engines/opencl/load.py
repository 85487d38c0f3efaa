"""Checkpoints onto an OpenCL device. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.hf_config import generation_defaults
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, refuse_options
from ipex_lookahead.engines.opencl.decoder import check_spec
from ipex_lookahead.engines.opencl.device import device_of
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.memory import choose_layers, measured
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.requantize import warn_of_requantizing
from ipex_lookahead.engines.weights import label_in, log_fallbacks, matrices


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto a device, its first layers onto the CPU where not all are wanted there, or fit.

    See ``OpenClEngine.load``, ``choose_layers`` and ``Device`` for what it may raise.
    """
    refuse_options("opencl", "it runs without torch", ipex=request.ipex)
    device = device_of(None if request.device is None else str(request.device))
    checkpoint = open_checkpoint(request.path)
    try:
        spec = spec_for(checkpoint.config, request.max_context)
        check_spec(spec)
        label = request.label or label_in(checkpoint, spec)
        if request.check_label is not None:
            request.check_label(label)
        plan = request.plan(label).of_spec(spec)
        rounded_from = warn_of_requantizing(checkpoint, plan, kept=spec.kept())
        if rounded_from is None:  # else what becomes of it was said, and one sentence is enough
            log_fallbacks(plan, matrices(spec))
        tokenizer, why_none = request.tokenizer(checkpoint.text_tokenizer)
        model = measured(checkpoint, spec, plan, request.kv_cache, request.max_context)
        layers = choose_layers(device, model, request.gpu_layers)
        rest: dict[str, Any] = {
            "threads": request.threads, "kv_cache": request.kv_cache, "progress": request.progress,
        }  # fmt: skip
        engine: OpenClEngine | SplitEngine
        if layers == len(spec.layers):
            engine = OpenClEngine.load(checkpoint, spec, plan, device, **rest)
        else:
            engine = SplitEngine.load(checkpoint, spec, plan, device, layers, **rest)
        if rounded_from is not None:
            engine.facts["requantized_from"] = rounded_from
        defaults = generation_defaults(checkpoint)
        return LoadedModel(engine, label, dict(checkpoint.config), defaults, tokenizer, no_tokenizer=why_none)
    finally:
        checkpoint.close()

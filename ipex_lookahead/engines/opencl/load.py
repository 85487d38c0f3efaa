"""Load checkpoints onto an OpenCL device. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, load_by_spec, refuse_options
from ipex_lookahead.engines.opencl.device import device_of
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.memory import choose_layers, measured
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.opencl.supported import check_spec
from ipex_lookahead.engines.weights import WeightPlan


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto a device; its first layers run on the CPU if they do not fit or are not requested there.

    Raises as ``OpenClEngine.load``, ``choose_layers`` and ``Device``.
    """
    refuse_options("opencl", "it runs without torch", ipex=request.ipex)
    device = device_of(None if request.device is None else str(request.device))

    def engine(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan) -> OpenClEngine | SplitEngine:
        model = measured(checkpoint, spec, plan, request.kv_cache, request.max_context)
        layers = choose_layers(device, model, request.gpu_layers)
        rest: dict[str, Any] = {
            "threads": request.threads, "kv_cache": request.kv_cache, "progress": request.progress,
        }  # fmt: skip
        if layers == len(spec.layers):
            return OpenClEngine.load(checkpoint, spec, plan, device, **rest)
        return SplitEngine.load(checkpoint, spec, plan, device, layers, **rest)

    return load_by_spec(request, engine, check_spec)

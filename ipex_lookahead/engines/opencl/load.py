"""Load checkpoints onto an OpenCL device. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints import Checkpoint
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, load_by_spec, refuse_options
from ipex_lookahead.engines.native.drafters import head_for
from ipex_lookahead.engines.opencl.device import device_of
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.head import OpenClHead
from ipex_lookahead.engines.opencl.head_memory import head_bytes
from ipex_lookahead.engines.opencl.memory import measured
from ipex_lookahead.engines.opencl.placement import choose
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.opencl.supported import check_spec
from ipex_lookahead.engines.weights import WeightPlan


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto a device; what does not fit or is not requested there runs on the CPU.

    Raises as ``OpenClEngine.load``, ``placement.choose`` and ``Device``.
    """
    refuse_options("opencl", "it runs without torch", ipex=request.ipex)
    device = device_of(None if request.device is None else str(request.device))

    def engine(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan) -> OpenClEngine | SplitEngine:
        head = head_bytes(request, checkpoint, spec, plan)
        model = measured(checkpoint, spec, plan, request.kv_cache, request.max_context, head)
        placed = choose(device, model, request.gpu_layers, request.n_cpu_moe, request.cpu_moe)
        rest: dict[str, Any] = {
            "cpu_moe": placed.cpu_moe_there(len(spec.layers)),
            "threads": request.threads, "kv_cache": request.kv_cache, "progress": request.progress,
        }  # fmt: skip
        made: OpenClEngine | SplitEngine
        if placed.layers == len(spec.layers):
            made = OpenClEngine.load(checkpoint, spec, plan, device, **rest)
        else:
            made = SplitEngine.load(checkpoint, spec, plan, device, placed.layers, **rest)
        made.head = head_for(request, checkpoint, spec, plan, made, OpenClHead)
        if made.head is not None:
            made.facts["drafter"] = made.head.describe()
        return made

    return load_by_spec(request, engine, check_spec)

"""Every kernel and every format once, in the smallest shapes: what an interpreter that looks for races gets through.

``scripts/test_opencl.py`` runs this file under oclgrind; the shapes that matter are in the other files.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.linear import Matrix, Product
from ipex_lookahead.engines.opencl.programs import ARRIVALS, KERNELS, Units, rows_of
from ipex_lookahead.formats import FORMATS
from tests.engines.native.test_kernels import linear, make_weight
from tests.engines.opencl.test_engine import both
from tests.engines.opencl.test_linear import activations
from tests.support.native import ids_of, run
from tests.support.recurrences import ODD, recurrent_spec
from tests.support.specs import make_spec

SMALL: dict[str, Any] = {"layers": 1, "hidden": 64, "intermediate": 40, "heads": 2, "kv_heads": 1, "vocab": 40}
AFTER: dict[str, Any] = {
    **SMALL, "mixer_after": True, "feed_forward_after": True, "softcap": 5.0, "logit_softcap": 3.0, "window": 7,
    "q_norm": "whole", "k_norm": "whole", "activation": Activation("gelu_tanh"), "bias": "qd",
}  # fmt: skip
"""Norms behind the branches and over all heads, and caps; gate and up are in formats of their own."""
MIXTURE: dict[str, Any] = {
    **SMALL, "experts": 3, "used": 2, "sinks": True, "q_norm": "head", "k_norm": "head", "bias": "gudr",
    "activation": Activation("clamped", 1.702, 0.7),
}  # fmt: skip
LATENTS: dict[str, Any] = {
    **SMALL, "latent": (24, 20, 8, 12, 40), "experts": 4, "used": 2, "groups": (2, 1, 2), "scores": "sigmoid",
    "correction": True, "shared_expert": 40, "router_multiplier": 0.3,
}  # fmt: skip
"""Latent attention, and a mixture with norms of its own, a shared expert and groups."""
VARIANTS: dict[str, Any] = {**SMALL, "layer_norm": "biased", "per_layer": 5}
MODELS = {"llama": SMALL, "after": AFTER, "mixture": MIXTURE, "latents": LATENTS, "variants": VARIANTS}
STATES = recurrent_spec("delta alone", "mamba alone", "short alone", **{**ODD, "hidden": 40, "vocab": 40})
OF_HEADS = {"copy_rows", "join", "candidate_tokens", "exponential_sums", "choose_token"}
"""Kernels of drafting heads and of hidden states, which ``test_heads.py`` and ``test_hidden.py`` run."""
NOT_OF_A_STEP = {"self_test", "range_test", "arrivals", "read_all", "copy_all", *OF_HEADS}


def test_every_kernel_of_a_step(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, a tree of which a path is kept, and a row: the native engine's bytes."""
    kernel = Device.kernel
    used: set[str] = set()

    def noted(self: Device, program: Any, name: str, *arguments: Any) -> Any:
        used.add(name)
        return kernel(self, program, name, *arguments)

    monkeypatch.setattr(Device, "kernel", noted)
    monkeypatch.setattr(device, "recorder", None)  # oclgrind has none
    for name, kv_cache in (
        ("llama", "fp16"), ("after", "int8"), ("mixture", "fp16"), ("latents", "int8"), ("states", "fp16"),
        ("variants", "fp16"),
    ):  # fmt: skip
        native, engine = both(
            STATES if name == "states" else make_spec(**MODELS[name]),
            device,
            lambda tensor, name=name: "sym_int8" if name == "after" and ".up" in tensor.name else "sym_int4",
            kv_cache,
        )
        tokens = ids_of(native, 21)
        pairs = [(one, one.new_cache()) for one in (engine, native)]
        for rows, parents, kept in ((17, None, range(17)), (3, [-1, 0, 0], [0, 2]), (1, None, [0])):
            got, expected = (run(one, cache, tokens[:rows], parents) for one, cache in pairs)
            assert got.tobytes() == expected.tobytes(), (name, rows)
            for _, cache in pairs:
                cache.keep(kept)
    source = "".join(path.read_text() for path in KERNELS.glob("*.cl"))
    there = (
        set(re.findall(r"(?m)^(?:LANE_GROUPS(?:_OF\w*(?:\([\w * ]+\))?)? )?(?:kernel )?void (\w+)\(", source))
        - NOT_OF_A_STEP
    )
    counting = {"linear_heads", "linear_norm"}  # arrivals of work-groups
    assert used == there - ({"merge_heads"} if ARRIVALS in device.spelling else counting)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(device: Device, name: str) -> None:
    inputs = max(FORMATS[name].group_sizes[0], 64)
    weight, x = make_weight(name, 17, inputs, group=FORMATS[name].group_sizes[0] or 32, seed=1), activations(3, inputs)
    matrix = Matrix.upload(device, [weight], [np.ones(17, np.float32)])
    oracle = linear(weight, x, isa="scalar", bias=np.ones(17, np.float32))
    for at_once in rows_of(name, Units(16)):
        assert Product(matrix, x, at_once=at_once).result().tobytes() == oracle.tobytes(), at_once

"""Variants of layers on the OpenCL engine: the native core's logits, byte for byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import Activation
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import InputError
from tests.engines.opencl.test_engine import both, in_pieces
from tests.support.native import ids_of, run
from tests.support.specs import make_spec, native_engine, random_native_switches, random_weights, reader

VARIANTS: dict[str, dict[str, Any]] = {
    "gated attention": {
        "attention_gate": True, "bias": "qkvogud", "heads": 3, "kv_heads": 3, "head_dim": 24, "sinks": True,
    },
    "softplus gates of heads": {
        "attention_gate": "heads", "gate_kind": "softplus", "q_norm": "head", "k_norm": "head", "rope": "half",
    },
    "sigmoid gates of heads that are no tiles": {"attention_gate": "heads", "heads": 21, "kv_heads": 7, "head_dim": 8},
    "softplus gates of values": {"attention_gate": True, "gate_kind": "softplus", "sinks": True},
    "gated attention of whole tiles": {"attention_gate": True, "q_norm": "head", "k_norm": "head", "rope": "half"},
    "norms after rope": {"norm_after_rope": True, "q_norm": "head", "k_norm": "head", "scale": 0.2, "rope": "half"},
    "norms after rope, of odd heads": {"norm_after_rope": True, "q_norm": "head", "k_norm": "head", "head_dim": 40},
    "values that are keys": {
        "one_projection": True, "value_norm": [1e-6, None], "k_norm": "head", "attention_gate": True,
    },
    "normed values": {"value_norm": 0.3, "head_dim": 24},
    "shared keys": {
        "layers": 4, "shared": [None, None, 0, 1], "heads": [4, 2, 4, 2], "kv_heads": [2, 1, 2, 1],
        "head_dim": [16, 32, 16, 32], "window": [7, None, 7, None], "q_norm": "head", "k_norm": "head",
        "value_norm": 1e-6,
    },
    "interleaved rope": {
        "rope": ["interleaved", "interleaved half"], "q_norm": "head", "k_norm": "head", "bias": "qkv",
    },
    "interleaved rope of odd heads": {
        "rope": ["interleaved", "interleaved half"], "head_dim": 24, "one_projection": True,
    },
    "interleaved rope with gates": {
        "rope": "interleaved half", "head_dim": 32, "attention_gate": True, "q_norm": "head", "k_norm": "head",
    },
    "layer norms": {"layer_norm": "biased", "q_norm": "head", "k_norm": "whole", "mixer_after": True, "kv_heads": 4},
    "layer norms without biases": {
        "layer_norm": "plain", "q_norm": "whole", "feed_forward_after": True, "hidden": 72,
    },
    "parallel blocks": {"layer_norm": "plain", "parallel": True, "rope": "interleaved", "logit_multiplier": 0.3},
    "parallel blocks with experts": {"parallel": [True, False], "experts": 4, "used": 2},
    "no gate": {"gated": False, "activation": Activation("relu_squared"), "intermediate": 47, "bias": "ud"},
    "no gate, gelu": {"gated": False, "activation": Activation("gelu_tanh"), "layer_norm": "biased"},
    "experts without a gate": {"gated": False, "activation": Activation("relu_squared"), "experts": 4, "used": 2},
    "squared": {"activation": Activation("relu_squared")},
    "xielu": {"gated": False, "activation": Activation("xielu")},
    "xielu with a gate": {"activation": Activation("xielu")},
    "inputs per layer": {"per_layer": 5, "mixer_after": True, "output_scale": True, "layers": 3},
    "inputs per layer, without norms after them": {"per_layer": 32, "activation": Activation("gelu_tanh")},
    "scaled blocks": {"output_scale": True, "residual_multiplier": 0.3, "feed_forward_after": [True, False]},
    "only a mixer or a feed-forward": {"parts": ["mixer", "feed_forward", "both"], "layers": 3, "output_scale": True},
}  # fmt: skip
"""Switches of ``make_spec`` by what they vary."""


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.rotating(12)
def test_logits_are_the_native_engines(device: Device, name: str, kv_cache: str) -> None:
    native, engine = both(make_spec(**VARIANTS[name]), device, "sym_int4", kv_cache)
    tokens = ids_of(native, 300, seed=1)
    expected = run(native, native.new_cache(), tokens)
    for sizes in ([300], [1, 16, 3, 17, 100]):
        assert in_pieces(engine, tokens, sizes).tobytes() == expected.tobytes(), sizes


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False), seed=st.integers(0, 1000), rows=st.integers(1, 90))
def test_any_switches_together(device: Device, chance: random.Random, seed: int, rows: int) -> None:
    spec = make_spec(**random_native_switches(chance) | {"experts_latent": 0})  # refused, see test_supported.py
    native, engine = both(spec, device, kv_cache=chance.choice(("fp16", "int8")), seed=seed)
    tokens = ids_of(native, rows, seed)
    sizes = [chance.randint(1, 40) for _ in range(5)]
    assert in_pieces(engine, tokens, sizes).tobytes() == run(native, native.new_cache(), tokens).tobytes()


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.rotating(8)
def test_trees_and_what_follows_them(device: Device, name: str, kv_cache: str) -> None:
    native, engine = both(make_spec(**VARIANTS[name]), device, "fp32", kv_cache)
    tokens, outputs = ids_of(native, 90, seed=2), []
    for one in (native, engine):
        cache = one.new_cache()
        run(one, cache, tokens[:66])
        cache.keep(range(66))
        made = [run(one, cache, tokens[66:73], np.array([-1, 0, 0, 1, 2, 2, 5], np.int32))]
        cache.keep([0, 2, 5, 6])
        outputs.append([*made, run(one, cache, tokens[73:76])])
    for expected, found in zip(*outputs, strict=True):
        assert found.tobytes() == expected.tobytes()


def test_layers_that_share_keys_are_on_one_device(device: Device) -> None:
    spec = make_spec(layers=4, shared=[None, None, 1, 1], value_norm=1e-6)
    read = reader(random_weights(spec))
    native = native_engine(spec, random_weights(spec))
    tokens = ids_of(native, 40)
    divided = SplitEngine.build(spec, "fp32", read, device, 3, threads=1)
    assert in_pieces(divided, tokens, [40]).tobytes() == run(native, native.new_cache(), tokens).tobytes()
    with pytest.raises(InputError, match=r"gpu_layers=2: .* of earlier layers, .* allowed are 3, 4"):
        SplitEngine.build(spec, "fp32", read, device, 2)

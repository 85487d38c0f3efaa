"""Latent attention on a device: the native core's bytes, for prompts, few rows, trees, batches and either KV cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.formats.base import PackedWeight
from tests.engines.opencl.test_engine import both, in_pieces, sorted_weights
from tests.support.cache_walk import Plain, walk
from tests.support.native import chain, ids_of, run
from tests.support.specs import make_spec, random_weights, reader

LATENTS: dict[str, dict[str, Any]] = {
    "deepseek_v2_lite": {"latent": (512, 128, 64, 128, None), "heads": 5, "rope": "interleaved", "layers": 1},
    "deepseek_v3": {"latent": (512, 128, 64, 128, 96), "heads": 8, "rope": "interleaved", "layers": 1},
    "glm4_moe_lite": {"latent": (256, 192, 64, 256, 48), "heads": 4, "rope": "interleaved", "layers": 1},
    "small": {"latent": (24, 20, 8, 12, None), "heads": 3, "bias": "qkvo"},
    "smaller": {"latent": (6, 1, 2, 3, 5), "heads": 1, "rope": "beta"},
    "wide": {"latent": (40, 33, 24, 50, 72), "heads": 2, "rope": "yarn", "scale": 0.3, "residual_multiplier": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.rotating(6)
def test_latents_are_the_native_engines(device: Device, name: str, kv_cache: str) -> None:
    """A prompt at once and in pieces, over the edge of a block of positions."""
    low_bit = "fp16" if name == "smaller" else "sym_int4"
    native, engine = both(make_spec(**LATENTS[name]), device, low_bit, kv_cache)
    tokens = ids_of(native, 300, seed=1)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for sizes in ([300], [1, 16, 3, 17, 100]):
        assert in_pieces(engine, tokens, sizes).tobytes() == expected, sizes


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_latents_of_trees_and_batches(device: Device, kv_cache: str) -> None:
    """Trees over pages and blocks, of which a path is kept, next to another sequence."""
    spec = make_spec(latent=(24, 20, 8, 12, 40), heads=6, rope="interleaved", layers=2)
    rng = np.random.default_rng(3)
    native, engine = both(spec, device, "sym_int4", kv_cache)
    for length in (1, 62, 257):
        prompt = ids_of(native, length, length)
        caches = [(one, one.new_cache(), one.new_cache()) for one in (native, engine)]
        for one, cache, _ in caches:
            run(one, cache, prompt)
            cache.keep(range(length))
        for rows, others in ((5, 2), (24, 9)):
            tokens = ids_of(native, rows + others, rows)
            tree = [int(rng.integers(-1, i)) for i in range(rows)]
            parents = np.array([*tree, *range(-1, others - 1)], np.int32)
            made = [
                one.forward(Batch([cache, other], [rows, others], tokens, parents, OutputRequest(logits=True))).logits
                for one, cache, other in caches
            ]
            assert made[0].tobytes() == made[1].tobytes(), (length, rows)
            path = [rows - 1]
            while tree[path[0]] >= 0:
                path.insert(0, tree[path[0]])
            for _, cache, other in caches:
                cache.keep(path)
                other.keep([0])


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_walks_over_caches_of_latents(device: Device, kv_cache: str) -> None:
    """Keep, crop and fork, several sequences at once; layers with latents and with heads of their own in one model."""
    spec = make_spec(latent=[(24, 20, 8, 12, None), None], heads=4, vocab=40)
    native, engine = both(spec, device, kv_cache=kv_cache)
    plain = Plain(native)
    for seed in range(4):
        walk(engine, seed, steps=12, plain=plain, longest=90)


def test_long_contexts_of_latents(device: Device) -> None:
    """Several blocks of positions, merged for few rows in work-groups of their own."""
    spec = make_spec(latent=(40, 32, 8, 16, None), heads=9, layers=1, context=1200)
    native, engine = both(spec, device, "sym_int4")
    tokens = ids_of(native, 1100)
    none = OutputRequest(np.zeros(0, np.int32))
    caches = native.new_cache(), engine.new_cache()
    for one, cache in zip((native, engine), caches, strict=True):
        one.forward(Batch([cache], [1040], tokens[:1040], chain(1040), none))
        cache.keep(range(1040))
    for rows in (1, 4, 16, 17):
        expected = run(native, caches[0], tokens[1040 : 1040 + rows]).tobytes()
        assert run(engine, caches[1], tokens[1040 : 1040 + rows]).tobytes() == expected, rows


def test_formats_and_orders_of_latents(device: Device) -> None:
    """Heads' matrices in several formats, first products in two, and act orders of the queries and of the output."""
    spec = make_spec(latent=(64, 32, 16, 32, 64), heads=4, layers=1, hidden=128, rope="interleaved", bias="ko")
    formats = {"kv_a": "sym_int8", "k_b.1": "fp16", "k_b.3": "sym_int8", "v_b.0": "sym_int8"}
    rng = np.random.default_rng(0)
    orders = {name: rng.permutation(n).astype(np.int32) for name, n in (("layers.0.q.", 64), ("layers.0.o.", 128))}
    read = reader(
        random_weights(spec), lambda tensor: next((f for part, f in formats.items() if part in tensor.name), "sym_int4")
    )

    def ordered(tensor: Any) -> PackedWeight:
        weight = read(tensor)
        order = next((order for part, order in orders.items() if part in tensor.name and tensor.is_matrix), None)
        return weight if order is None else replace(weight, order=order)

    native = NativeEngine.build(spec, "mixed", ordered, threads=1)
    engine = OpenClEngine.build(spec, "mixed", ordered, device)
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([40], [1, 5]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected, pieces
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key

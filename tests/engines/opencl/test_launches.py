"""A step's launches: how many, and that those which do what follows a product give the native core's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.operations.base import MOST_FUSED
from ipex_lookahead.engines.opencl.programs import ARRIVALS
from tests.engines.opencl.test_engine import both
from tests.support.native import ids_of, run
from tests.support.specs import make_spec


@pytest.mark.parametrize(("rows", "each", "others"), [(1, 5, 6), (MOST_FUSED, 5, 6), (MOST_FUSED + 1, 8, 5)])
def test_launches_of_a_model_of_7b(device: Device, rows: int, each: int, others: int) -> None:
    """Five a block, 166 in all; eight for more rows, nine where arrivals of work-groups cannot be counted.

    Where a block's last product makes the next one's norm, the first block's is one of the others.
    """
    if ARRIVALS not in device.spelling:
        each, others = 9, 5
    spec = make_spec(layers=32, hidden=32, intermediate=40, heads=2, kv_heads=2, vocab=32000, tied=False)
    _, engine = both(spec, device, "sym_int4")
    run(engine, engine.new_cache(), np.zeros(rows, np.int32))
    ((launches,),) = engine._decoder._launches.values()
    assert len(launches) == 32 * each + others


def _formats(tensor: Any) -> str:
    return "q6_k" if ".v." in tensor.name else "q4_k"


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("head_dim", [16, 48, 80, 128, 256])
@pytest.mark.parametrize("norm", ["none", "head"])
@pytest.mark.parametrize("low_bit", ["sym_int4", _formats], ids=["together", "apart"])
@pytest.mark.rotating(20)
def test_heads_of_any_width_are_finished_once(
    device: Device, kv_cache: str, head_dim: int, norm: str, low_bit: Any
) -> None:
    """As many work-groups as make whole heads, over prompts, few rows and trees."""
    spec = make_spec(
        layers=2,
        hidden=256,
        intermediate=256,
        heads=6,
        kv_heads=3,
        head_dim=head_dim,
        q_norm=norm,
        k_norm=norm,
        window=None,
    )
    native, engine = both(spec, device, low_bit, kv_cache)
    assert len(engine._decoder.weights.attentions[0].qkv) == (1 if low_bit == "sym_int4" else 3)
    tokens = ids_of(native, 70)
    pairs = [(one, one.new_cache()) for one in (engine, native)]
    for rows, parents in (
        (65, None),
        (1, None),
        (2, None),
        (3, [-1, 0, 0]),
        (4, None),
        (5, [-1, -1, 0, 1, 2]),
        (1, None),
    ):
        got, expected = (run(one, cache, tokens[:rows], parents) for one, cache in pairs)
        assert got.tobytes() == expected.tobytes(), rows
        for _, cache in pairs:
            cache.keep(range(1 if parents else rows))

"""Packing for the XPU's four-bit operator, against that operator's documented layout; no Intel GPU is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_lookahead.engines.torch.linear_backends import same_bits
from ipex_lookahead.engines.torch.linear_kernels import reference
from ipex_lookahead.engines.torch.xpu_int4 import OPERATOR, XpuInt4Kernel, zero_points
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import EngineError
from ipex_lookahead.formats import dequantize, quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.int4_operator import NEEDS_HALF, int4_product

pytestmark = NEEDS_HALF

CPU = torch.device("cpu")


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected).norm() / expected.norm())


@settings(max_examples=30, deadline=None)
@given(
    low_bit=st.sampled_from(["sym_int4", "asym_int4"]),
    group=st.sampled_from([32, 64]),
    n_out=st.integers(1, 40),
    n_in=st.integers(1, 200),
    rows=st.integers(1, 5),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    seed=st.integers(0, 1000),
)
def test_the_operator_computes_our_weight(low_bit, group, n_out, n_in, rows, dtype, seed):
    rng = np.random.default_rng(seed)
    weight = random_matrix((n_out, n_in), low_bit, group, rng)
    kernel = XpuInt4Kernel(weight, CPU, int4_product)
    x = torch.from_numpy(rng.standard_normal((rows, n_in), dtype=np.float32)).to(dtype)
    out = kernel.run(x)
    assert out.dtype == dtype
    # Weights are of about 1 / sqrt(n_in); relative to that, for a sum near zero has no relative precision.
    size = float(x.float().norm()) * n_out**0.5
    assert float((out.float() - reference(weight, x)).norm()) < 0.01 * size
    assert same_bits(kernel.weight(), weight)


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4"])
@pytest.mark.parametrize(("n_out", "n_in"), [(48, 256), (33, 172)])
def test_float16_is_as_close_as_float16_allows(low_bit, n_out, n_in):
    """With one value a row, the products are the weight itself: each within float16's rounding."""
    weight = random_matrix((n_out, n_in), low_bit, 32, np.random.default_rng(3))
    x = torch.eye(n_in, dtype=torch.float16)
    got = XpuInt4Kernel(weight, CPU, int4_product).run(x).float().t()
    expected = torch.from_numpy(dequantize(weight))
    assert torch.allclose(got, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


def test_leading_dimensions_are_kept():
    kernel = XpuInt4Kernel(random_matrix((24, 64), "asym_int4", 32, np.random.default_rng(0)), CPU, int4_product)
    x = torch.randn(2, 3, 64, dtype=torch.float16)
    assert kernel.run(x).shape == (2, 3, 24)


def test_whole_zero_points_leave_nothing_over():
    """GPTQ's and AWQ's weights, whose minimum is a whole number of scales, need no second product."""
    weight = random_matrix((4, 64), "asym_int4", 32, np.random.default_rng(0))
    scales = np.full((4, 2), 0.25, np.float16)
    minimums = np.full((4, 2), -1.75, np.float16)
    whole = PackedWeight("asym_int4", (4, 64), weight.codes, 32, scales.view(np.uint16), minimums.view(np.uint16))
    zeros, leftover = zero_points(whole)
    assert leftover is None
    assert (zeros == 7).all()


@pytest.mark.parametrize(("scale", "minimum"), [(0.0, 1.5), (0.001, 3.0), (0.001, -3.0), (1.0, 0.0)])
def test_minimums_that_no_zero_point_reaches(scale, minimum):
    """Constant groups, and groups far from zero: the zero point ends at 8 bits, the rest is left over."""
    codes = np.arange(64, dtype=np.uint8).reshape(4, 16)
    weight = PackedWeight(
        "asym_int4",
        (4, 32),
        codes,
        32,
        np.full((4, 1), scale, np.float16).view(np.uint16),
        np.full((4, 1), minimum, np.float16).view(np.uint16),
    )
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).half()
    out = XpuInt4Kernel(weight, CPU, int4_product).run(x)
    assert relative(out, reference(weight, x)) < 5e-3


def test_scales_survive_a_change_of_dtype():
    """``model.to(bfloat16)`` must not round what the weight is made of."""
    weight = random_matrix((16, 64), "asym_int4", 32, np.random.default_rng(0))
    kernel = XpuInt4Kernel(weight, CPU, int4_product).to(torch.bfloat16)
    assert same_bits(kernel.weight(), weight)
    assert kernel.run(torch.ones(1, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_other_formats_are_refused():
    weight = random_matrix((16, 64), "sym_int8", 32, np.random.default_rng(0))
    with pytest.raises(EngineError, match="not sym_int8"):
        XpuInt4Kernel(weight, CPU, int4_product)


@pytest.mark.skipif(not hasattr(torch.ops.aten, OPERATOR), reason="this PyTorch has no XPU operator for four bits")
def test_pytorch_takes_what_we_give_it():
    """PyTorch's own shape and dtype checks, on the meta device."""
    taken = []

    def on_meta(x, codes, group, scales, zeros):
        moved = [t.to("meta") for t in (x, codes, scales, zeros)]
        out = getattr(torch.ops.aten, OPERATOR)(moved[0], moved[1], group, moved[2], moved[3])
        taken.append(out.shape)
        return int4_product(x, codes, group, scales, zeros)

    weight = quantize(PackedWeight("fp32", (48, 172), np.ones((48, 172), np.float32)), "sym_int4", 64)
    XpuInt4Kernel(weight, CPU, on_meta).run(torch.ones(3, 172, dtype=torch.bfloat16))
    assert taken == [(3, 48)]

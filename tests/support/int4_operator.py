"""PyTorch's XPU operator for four-bit weights, restated from its documented layout: what packing is tested against."""

from __future__ import annotations

import pytest
import torch


def _multiplies_half() -> bool:
    try:
        return bool((torch.ones(1, 1).half() @ torch.ones(1, 1).half()).item())
    except RuntimeError:
        return False


NEEDS_HALF = pytest.mark.skipif(
    not _multiplies_half(), reason=f"torch {torch.__version__} has no float16 products on the CPU"
)


def int4_product(
    x: torch.Tensor, codes: torch.Tensor, group: int, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """``_weight_int4pack_mm_with_scales_and_zeros``: its own checks, then x times scale * (code - zero), slowly."""
    rows, n_in = x.shape
    n_out = codes.shape[0]
    assert x.dtype in (torch.float16, torch.bfloat16)
    assert x.is_contiguous()
    assert scales.dtype == x.dtype
    assert group % 32 == 0
    assert n_in % group == 0
    assert codes.dtype == torch.int32
    assert codes.shape == (n_out, n_in // 8)
    assert zeros.dtype == torch.int8
    assert scales.shape == zeros.shape == (n_in // group, n_out)
    assert all(t.is_contiguous() for t in (codes, scales, zeros))
    weight = torch.zeros(n_out, n_in)
    for place in range(8):
        weight[:, place::8] = ((codes.to(torch.int64) >> (4 * place)) & 15).float()
    weight = weight.view(n_out, -1, group) - zeros.float().t()[:, :, None]
    weight = weight * scales.float().t()[:, :, None]
    out = x.float() @ weight.view(n_out, n_in).t()
    assert out.shape == (rows, n_out)
    return out.to(x.dtype)

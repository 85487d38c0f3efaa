"""Four-dimensional attention masks: the keys that each row of a tree sees, in the conventions of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

CONVENTIONS = ("additive", "ones")
"""Values of a mask: 0 and a very negative number, or 1 and 0 (transformers before 4.40)."""


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return the number of ancestors of each row."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def seen_by(length: int, parents: Sequence[int]) -> torch.Tensor:
    """Return the visible keys, bool [rows, length + rows]: each row sees the prefix, its ancestors and itself."""
    rows = len(parents)
    seen = np.zeros((rows, length + rows), np.bool_)
    seen[:, :length] = True
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row, length:] = seen[parent, length:]
        seen[row, length + row] = True
    return torch.from_numpy(seen)


def spelled(seen: torch.Tensor, convention: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Convert bool [rows, keys] to one of ``CONVENTIONS``: ``dtype`` [1, 1, rows, keys] on the device."""
    seen = seen.to(device)[None, None]
    if convention == "ones":
        return seen.to(dtype)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)

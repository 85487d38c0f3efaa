"""Weights that are parts of a file's tensors: which rows they are, and how they come out.

A place (``architectures.spec.Place``) names a tensor, perhaps an expert's entry of it, and rows. Rows of any format can
be taken out of a tensor without touching a bit; only floats can be transposed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import widen


@dataclass(frozen=True, slots=True)
class Run:
    """Rows ``first``, ``first + step``, ... of a tensor seen as [rows, columns]; a vector is one column of rows."""

    first: int
    count: int
    step: int

    @property
    def span(self) -> int:
        """Rows from the first to the last."""
        return (self.count - 1) * self.step + 1


def run_of(tensor: Tensor, place: Place) -> Run:
    """The rows of ``place``'s tensor that are this weight, the layout not being transposed."""
    first, step = place.rows or (0, 1)
    entry = place.shape if place.expert is None else place.shape[1:]
    rows = entry[0]
    return Run((place.expert or 0) * rows + first, tensor.shape[0], step)


def in_blocks(tensor: Tensor, names: Collection[str]) -> Tensor:
    """The weight as MXFP4 where a folder has its tensor in blocks, and not as floats with inputs before outputs."""
    place = tensor.hf
    parts = (f"{place.name}_blocks", f"{place.name}_scales")
    if place.layout != "transposed" or place.name in names or not any(part in names for part in parts):
        return tensor
    experts, n_in, outputs = place.shape
    shape = (experts, outputs, -(-n_in // 32), 16)
    return replace(tensor, hf=replace(place, name=parts[0], shape=shape, layout="mxfp4"))


def fused_experts(tensor: Tensor, names: Collection[str]) -> Tensor:
    """The weight where folders have it that hold a mixture as transformers 5 does in memory: all experts in one tensor.

    That is ``gate_up_proj`` [experts, 2 * n, hidden], gate first, and ``down_proj`` [experts, hidden, n], both under
    ``mlp``, where the router is too. The torch engine saves such folders.
    """
    place, other = tensor.hf, tensor.gguf
    layer = ".".join(place.name.split(".", 3)[:3])
    if place.name in names or place.expert is not None or f"{layer}.mlp.experts.gate_up_proj" not in names:
        return tensor
    if place.name.endswith(".gate.weight"):
        return replace(tensor, hf=replace(place, name=f"{layer}.mlp.gate.weight"))
    if other.expert is None:
        return tensor
    (experts, rows, columns), part = other.shape, other.name.split("ffn_")[1].removesuffix("_exps.weight")
    if part == "down":
        return replace(tensor, hf=Place(f"{layer}.mlp.experts.down_proj", other.shape, other.expert))
    first = rows if part == "up" else 0
    shape = (experts, 2 * rows, columns)
    return replace(tensor, hf=Place(f"{layer}.mlp.experts.gate_up_proj", shape, other.expert, (first, 1)))


def split_experts(tensor: Tensor, names: Collection[str]) -> Tensor:
    """The weight where GGUF files of early 2024 have it: each expert's in a tensor of its own (``ffn_up.3.weight``)."""
    place = tensor.gguf
    if place.expert is None or place.name in names or place.name.replace("_exps.", ".0.") not in names:
        return tensor
    name = place.name.replace("_exps.", f".{place.expert}.")
    return replace(tensor, gguf=replace(place, name=name, shape=place.shape[1:], expert=None))


def transposed_part(tensor: Tensor, place: Place, entry: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A weight out of an entry [n_in, columns]: its columns as rows."""
    first, step = place.rows or (0, 1)
    return np.ascontiguousarray(entry[:, first : first + (tensor.shape[0] - 1) * step + 1 : step].T)


def row_order(tensor: Tensor, place: Place) -> npt.NDArray[np.intp] | None:
    """Where each row of the file belongs, int [n_out], or None where rows stay.

    llama.cpp rotates neighbouring pairs of a head's values, Hugging Face rotates value i with value i + d / 2. So
    llama.cpp's converter reorders the rows of some families' q and k inside each head; whole rows are put back here,
    which changes no bit of any row.
    """
    if not place.pairs:
        return None
    rows = np.arange(tensor.shape[0], dtype=np.intp)
    half = tensor.shape[0] // place.pairs // 2
    order: npt.NDArray[np.intp] = rows.reshape(place.pairs, 2, half).swapaxes(1, 2).reshape(-1)
    return order


def with_offset(weight: PackedWeight, offset: float) -> PackedWeight:
    """The weight as float32 with ``offset`` added to every value; itself for 0."""
    if not offset:
        return weight
    values = widen(weight.codes, weight.format) + np.float32(offset)
    return PackedWeight("fp32", weight.shape, values)


def tensors_by_name(spec: ModelSpec) -> dict[str, Tensor]:
    """The weights of a model by name, in the order of a step."""
    return {tensor.name: tensor for tensor in spec.tensors()}

"""Weights that are parts of a file's tensors: selection of their rows, and conversion to the layout here.

A place (``architectures.spec.Place``) names a tensor, optionally an expert's entry of it, and rows. Selecting rows
works for any format and changes no bit; transposing works for floats only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.formats import FLOATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import widen


@dataclass(frozen=True, slots=True)
class Run:
    """``block`` rows at ``first``, ``first + step``, ... of a tensor seen as [rows, columns]; a vector has one column.

    ``more`` lists further (offset from ``first``, block) pairs, see ``Place.more``.
    """

    first: int
    count: int
    step: int
    block: int = 1
    more: tuple[tuple[int, int], ...] = ()

    @property
    def _kinds(self) -> tuple[tuple[int, int], ...]:
        """(offset from ``first``, block) of each group of rows."""
        return ((0, self.block), *self.more)

    @property
    def _places(self) -> int:
        return self.count // sum(block for _, block in self._kinds)

    @property
    def span(self) -> int:
        """Number of rows from the first to the last, including gaps."""
        return (self._places - 1) * self.step + max(at + block for at, block in self._kinds)

    @property
    def rows(self) -> slice | npt.NDArray[np.intp]:
        """Indices of the rows relative to ``first``."""
        if self.block == 1 and not self.more:
            return slice(0, self.span, self.step)
        places = np.arange(self._places) * self.step
        return np.concatenate([np.add.outer(places + at, np.arange(block)).reshape(-1) for at, block in self._kinds])

    def stretches(self) -> list[tuple[int, int]]:
        """Return (first row, count) of each run of consecutive rows."""
        if self.step == self.block and not self.more:
            return [(self.first, self.count)]
        return [(self.first + at + i * self.step, block) for at, block in self._kinds for i in range(self._places)]


def run_of(tensor: Tensor, place: Place) -> Run:
    """Return the rows of ``place``'s tensor that make up the weight; not for the transposed layout."""
    first, step = place.rows or (0, 1)
    entry = place.shape if place.expert is None else place.shape[1:]
    rows = entry[0]
    return Run((place.expert or 0) * rows + first, tensor.shape[0], step, place.block, place.more)


def in_blocks(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight as MXFP4 if a folder stores its tensor in blocks instead of transposed floats."""
    place = tensor.hf
    parts = (f"{place.name}_blocks", f"{place.name}_scales")
    if place.layout != "transposed" or place.name in names or not any(part in names for part in parts):
        return tensor
    experts, n_in, outputs = place.shape
    shape = (experts, outputs, -(-n_in // 32), 16)
    return replace(tensor, hf=replace(place, name=parts[0], shape=shape, layout="mxfp4"))


def fused_experts(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in folders that store all experts of a mixture in one tensor, as transformers 5 does.

    The tensors are ``gate_up_proj`` [experts, 2 * n, hidden], gate first, and ``down_proj`` [experts, hidden, n], both
    under ``mlp`` like the router. The torch engine saves such folders.
    """
    place, other = tensor.hf, tensor.gguf
    layer = ".".join(place.name.split(".", 3)[:3])
    if place.name in names or place.expert is not None or f"{layer}.mlp.experts.gate_up_proj" not in names:
        return tensor
    if place.name.endswith(".gate.weight"):
        return replace(tensor, hf=replace(place, name=f"{layer}.mlp.gate.weight"))
    if other.expert is None or "_exps." not in other.name:
        return tensor
    (experts, rows, columns), part = other.shape, other.name.split("ffn_")[1].removesuffix("_exps.weight")
    if part == "down":
        return replace(tensor, hf=Place(f"{layer}.mlp.experts.down_proj", other.shape, other.expert))
    first = rows if part == "up" else 0
    shape = (experts, 2 * rows, columns)
    return replace(tensor, hf=Place(f"{layer}.mlp.experts.gate_up_proj", shape, other.expert, (first, 1)))


def split_experts(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in GGUF files of early 2024: one tensor per expert (``ffn_up.3.weight``)."""
    place = tensor.gguf
    if place.expert is None or place.name in names or place.name.replace("_exps.", ".0.") not in names:
        return tensor
    name = place.name.replace("_exps.", f".{place.expert}.")
    return replace(tensor, gguf=replace(place, name=name, shape=place.shape[1:], expert=None))


def transposed_part(tensor: Tensor, place: Place, entry: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return columns of an entry [n_in, columns] as the rows of a weight."""
    first, step = place.rows or (0, 1)
    return np.ascontiguousarray(entry[:, first : first + (tensor.shape[0] - 1) * step + 1 : step].T)


def stored_rows(tensor: Tensor, place: Place) -> Tensor:
    """Return the rows of ``place``'s tensor that are the weight's inputs (layout "by_input"), as a weight."""
    plain = replace(place, layout="plain")
    return replace(tensor, shape=tensor.shape[::-1], hf=plain, gguf=plain)


def transpose(weight: PackedWeight) -> PackedWeight:
    """Transpose a matrix: floats keep their format, others become float32, because scales apply along rows."""
    if weight.format in FLOATS:
        return replace(weight, shape=weight.shape[::-1], codes=np.ascontiguousarray(weight.codes.T))
    values = dequantize(weight)
    if weight.order is not None:
        values[:, weight.order] = values.copy()
    return PackedWeight("fp32", weight.shape[::-1], np.ascontiguousarray(values.T))


def transposed_format(low_bit: str) -> str:
    """Return the format of a transposed matrix."""
    return low_bit if low_bit in FLOATS else "fp32"


def joined_heads(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in GGUF files before April 2025: ``attn_k_b`` and ``attn_v_b`` in one tensor."""
    place = tensor.gguf
    stem, _, part = place.name.rpartition(".attn_")
    name = f"{stem}.attn_kv_b.weight"
    if place.expert is None or place.name in names or name not in names or part not in ("k_b.weight", "v_b.weight"):
        return tensor
    return replace(tensor, gguf=replace(tensor.hf, name=name))


def fused_inputs(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in the first GGUF files of Qwen3-Next: ``ssm_in``, fused as in folders."""
    stem, _, part = tensor.gguf.name.rpartition(".")[0].rpartition(".")
    name = f"{stem}.ssm_in.weight"
    if tensor.gguf.name in names or name not in names or part not in ("attn_qkv", "attn_gate"):
        return tensor
    return replace(tensor, gguf=replace(tensor.hf, name=name))


def with_old_names(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in a GGUF file, considering the tensors of older converters."""
    for move in (split_experts, joined_heads, fused_inputs):
        tensor = move(tensor, names)
    return tensor


def row_order(tensor: Tensor, place: Place) -> npt.NDArray[np.intp] | None:
    """Return the position of each row of the file, int [n_out], or None if rows keep their order.

    llama.cpp rotates adjacent pairs of a head's values, Hugging Face rotates value i with value i + d / 2. llama.cpp's
    converter therefore reorders the rows of q and k within each head for some families. Restoring the order moves whole
    rows and changes no bit.
    """
    if not place.pairs:
        return None
    rows = np.arange(tensor.shape[0], dtype=np.intp)
    half = tensor.shape[0] // place.pairs // 2
    order: npt.NDArray[np.intp] = rows.reshape(place.pairs, 2, half).swapaxes(1, 2).reshape(-1)
    return order


def with_offset(weight: PackedWeight, offset: float) -> PackedWeight:
    """Return the weight as float32 with ``offset`` added to every value; the weight itself if ``offset`` is 0."""
    if not offset:
        return weight
    values = widen(weight.codes, weight.format) + np.float32(offset)
    return PackedWeight("fp32", weight.shape, values)


def as_logarithm(weight: PackedWeight) -> PackedWeight:
    """Return x for values -e^x of a file; NaN for values that are not negative."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.log(-widen(weight.codes, weight.format).astype(np.float64)).astype(np.float32)
    return PackedWeight("fp32", weight.shape, values)


def joined(parts: Sequence[PackedWeight]) -> PackedWeight:
    """Concatenate the rows of weights of one format."""
    streams: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name, _ in parts[0].arrays()
    }
    rows = sum(part.shape[0] for part in parts)
    return replace(parts[0], shape=(rows, *parts[0].shape[1:]), **streams)


def tensors_by_name(spec: ModelSpec) -> dict[str, Tensor]:
    """Return a model's own weights by name, in the order of a step."""
    return {tensor.name: tensor for tensor in spec.own_tensors()}


def head_tensors(spec: ModelSpec) -> dict[str, Tensor]:
    """Return the own weights of a model's MTP head by name; empty without one."""
    own = tensors_by_name(spec)
    return {} if spec.mtp is None else {t.name: t for t in spec.mtp.tensors() if t.name not in own}


def with_mtp(spec: ModelSpec, there: Callable[[Tensor], bool]) -> ModelSpec:
    """Return the model without its MTP head unless all of the head's own weights are ``there``."""
    complete = spec.mtp is not None and all(map(there, head_tensors(spec).values()))
    return spec if complete else replace(spec, mtp=None)

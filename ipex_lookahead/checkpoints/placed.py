"""Weights that are parts of a file's tensors: selection of their rows, and conversion to the layout here.

A place (``architectures.spec.Place``) names a tensor, optionally an expert's entry of it, and rows. Selecting rows
works for any format and changes no bit; transposing works for floats only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Place, Tensor
from ipex_lookahead.formats import FLOATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import widen

_MODULES = {"mlp": "gate", "block_sparse_moe": "router"}
"""Name of a mixture with fused experts in a folder -> name of its router."""


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


def by_any_name(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in a folder that has its tensor under another of its names."""
    place = tensor.hf
    found = next((name for name in (place.name, *place.also) if name in names), place.name)
    return tensor if found == place.name else replace(tensor, hf=replace(place, name=found))


def fused_experts(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in folders that store all experts of a mixture in one tensor, as transformers 5 does.

    The tensors are ``gate_up_proj`` [experts, 2 * n, hidden], gate first, and ``down_proj`` [experts, hidden, n], both
    next to the router. The torch engine saves such folders.
    """
    place, other = tensor.hf, tensor.gguf
    layer = ".".join(place.name.split(".", 3)[:3])
    fused = ("gate_up_proj", "down_proj")
    modules = [f"{layer}.{one}" for one in _MODULES if any(f"{layer}.{one}.experts.{part}" in names for part in fused)]
    if place.name in names or place.layout != "plain" or not modules:
        return tensor
    module = modules[0]
    if place.name.endswith((".gate.weight", ".router.layer.weight")):
        return replace(tensor, hf=replace(place, name=f"{module}.{_MODULES[module.rpartition('.')[2]]}.weight"))
    if other.expert is None or not other.name.endswith("_exps.weight"):
        return tensor
    (experts, rows, columns), part = other.shape, other.name.split("ffn_")[1].removesuffix("_exps.weight")
    if part == "down":
        return replace(tensor, hf=Place(f"{module}.experts.down_proj", other.shape, other.expert))
    first = rows if part == "up" else 0
    shape = (experts, 2 * rows, columns)
    return replace(tensor, hf=Place(f"{module}.experts.gate_up_proj", shape, other.expert, (first, 1)))


def transposed_experts(tensor: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Return the weight's place in folders with fused experts as [experts, inputs, outputs] (Qwen3-VL).

    Args:
        tensor: the weight, with its place from :func:`fused_experts`.
        shapes: name of each tensor in the folder -> shape.

    Returns:
        The weight, with its place transposed if the shape of ``down_proj`` is, which has two different sizes. A square
        ``gate_up_proj`` has the layout of ``down_proj``.
    """
    place = tensor.hf
    module, _, part = place.name.rpartition(".")
    if place.expert is None or place.layout != "plain" or part not in ("gate_up_proj", "down_proj"):
        return tensor
    experts, n_out, n_in = place.shape
    hidden, inner = (n_out, n_in) if part == "down_proj" else (n_in, n_out // 2)
    if hidden == inner or shapes.get(f"{module}.down_proj") != (experts, inner, hidden):
        return tensor
    return replace(tensor, hf=replace(place, shape=(experts, n_in, n_out), layout="transposed"))


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


def fused_gate_up(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in GGUF files with gate and up of all experts in one tensor, gate first."""
    place = tensor.gguf
    for part in ("gate", "up"):
        name = place.name.replace(f".ffn_{part}_exps.", ".ffn_gate_up_exps.")
        if place.name not in names and name != place.name and name in names and place.rows is None:
            experts, rows, columns = place.shape
            first = rows if part == "up" else 0
            return replace(tensor, gguf=replace(place, name=name, shape=(experts, 2 * rows, columns), rows=(first, 1)))
    return tensor


def with_old_names(tensor: Tensor, names: Collection[str]) -> Tensor:
    """Return the weight's place in a GGUF file, considering the tensors of other converters."""
    for move in (split_experts, joined_heads, fused_inputs, fused_gate_up):
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


def constant(tensor: Tensor) -> PackedWeight:
    """Return a weight that folders do not have, as float32."""
    return PackedWeight("fp32", tensor.shape, np.full(tensor.shape, tensor.constant, np.float32))


def as_logarithm(weight: PackedWeight, sign: int = -1) -> PackedWeight:
    """Return x for values ``sign`` * e^x of a file; NaN for values of the other sign, and an infinity for zeros."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.log(sign * widen(weight.codes, weight.format).astype(np.float64)).astype(np.float32)
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

"""Folders written by ipex-llm's ``save_low_bit`` and converted to safetensors (``ipex_llm_convert.py``).

A packed matrix is a flat tensor of blocks (``ipex_llm_blocks.py``) without its format or shape. The shape follows from
the model's config. The format follows from the name in ``config.json`` or ``bigdl_config.json``, ipex-llm's rules for
exceptions, and the tensor's size. q, k and v are merged into one matrix if ipex-llm's optimizations were enabled; gate
and up are separate even if the original had them in one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, spec_for
from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.architectures.spec import Place, Tensor
from ipex_lookahead.checkpoints.base import Folder, TensorInfo
from ipex_lookahead.checkpoints.config_json import checked_config, read_json
from ipex_lookahead.checkpoints.float_tensors import read_placed, wrong_shape
from ipex_lookahead.checkpoints.generation_config import read_generation_config
from ipex_lookahead.checkpoints.ipex_llm_blocks import BLOCKS, Block
from ipex_lookahead.checkpoints.placed import run_of, tensors_by_name
from ipex_lookahead.checkpoints.safetensors import INDEX, SINGLE, SafetensorsCheckpoint
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS, SafetensorsFile, StoredTensor
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError, arg
from ipex_lookahead.formats import FORMATS, as_floats
from ipex_lookahead.formats.base import PackedWeight

MARKER = "bigdl_transformers_low_bit"
SETTINGS = "bigdl_config.json"
"""File with the marker for models of ``ipex_llm.optimize_model``, instead of config.json."""

_K_AND_LESS = ("q4_k", "q6_k", "q5_k", "asym_int4", "sym_int8", "asym_int5")
KINDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in BLOCKS},
    "fp8": ("fp8_e5m2",),
    "woq_int4": ("sym_int4",),
    "fp16": (),
    "bf16": (),
    "q4_k": ("q4_k", "asym_int4"),
    "q5_k": ("q5_k", "asym_int5"),
    "q6_k": ("q6_k", "sym_int8"),
    "gguf_q4k_s": _K_AND_LESS,
    "gguf_q4k_m": _K_AND_LESS,
    "mixed_fp4": ("sym_int4", "fp4"),
    "mixed_fp8": ("sym_int8",),
}
"""Format name of a folder -> possible blocks of its matrices; the first one that matches the size is used.

A K format has a substitute for matrices with inputs that are not a multiple of 256. In ``mixed_fp8`` every matrix is in
sym_int8: on the CPU, where ipex-llm quantizes, the alternative has values 256 times too large and is never chosen.
"""
_OF_HEAD = {"sym_int4": ("q6_k", "sym_int8"), "asym_int4": ("q6_k", "sym_int8"), "q2_k": ("sym_int8",)}
"""Further possible blocks of the output layer, due to ``mixed_precision=True`` and the default with q2_k."""
_OF_EMBEDDING = ("q4_k", "q2_k")

NOT_READ = {
    "fp6_k": "a format for its Intel GPUs",
    **dict.fromkeys(("gguf_iq2_xxs", "gguf_iq2_xs", "gguf_iq1_s", "gguf_iq1_m"), "a format of two bits or less"),
    **dict.fromkeys(("sym_int4_rtn", "asym_int4_rtn", "sym_int8_rtn"), "a format for its NPU"),
}
"""Formats of ipex-llm that are not supported -> description."""

_QKV = re.compile(r"(.*\.self_attn\.)([qkv])_proj\.(weight|bias)", re.ASCII)
_PADDED = (".gate_proj.weight", ".up_proj.weight", ".down_proj.weight")
_UNUSED = (".rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
_CHUNK_BYTES = 4 << 20
_SURE = 32
"""Number of sym_int4 blocks after which positive scales are conclusive: the chance of an error is 1 in 2^32."""


@dataclass(frozen=True, slots=True)
class Found:
    """Location of a weight: rows of a tensor of a file, in floats or in blocks.

    Attributes:
        file, stored: the file and the tensor's entry.
        tensor: the weight, with its place in this folder.
        block: the format of the blocks; None for floats.
        n_in: inputs of a row in the file, including padding.
    """

    file: SafetensorsFile
    stored: StoredTensor
    tensor: Tensor
    block: Block | None = None
    n_in: int = 0


class IpexLlmCheckpoint(Folder):
    """A folder saved by ipex-llm.

    Attributes:
        saved_as: ipex-llm's name of the folder's format.
    """

    spec: ModelSpec

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and validate the folder; tensors are not read, except scales in ``mixed_fp4``.

        Raises:
            ModelFormatError: if the folder is invalid.
            UnsupportedModelError: if the model is not supported, or its weights are in a pickle; the hint then gives
                the command that converts it.
        """
        self.path = Path(path)
        config_path = self.path / "config.json"
        raw = read_json(config_path)
        self.saved_as = _saved_as(self.path, raw.get(MARKER))
        _refuse_pickles(self.path)
        self._files = SafetensorsCheckpoint(self.path, other_family=True)
        try:
            if "lm_head.weight" in self._files.names():  # tied output layers are packed, their embedding is not
                raw["tie_word_embeddings"] = False
            self.config: dict[str, Any] = checked_config(raw, config_path)
            self.spec = replace(spec_for(self.config, file=self.path), mtp=None)
            settings = self.path / "generation_config.json"
            self.generation_config: dict[str, Any] = read_generation_config(settings, self.config["vocab_size"])
            self._names = {ours: name for name in self._files.names() if (ours := renamed(name)) is not None}
            self._weights = tensors_by_name(self.spec)
            self._routers = set(self.spec.kept()) - {self.spec.embedding.name}
            self._found = {name: self._find(tensor) for name, tensor in self._weights.items()}
            self._check_rest()
        except BaseException:
            self.close()
            raise

    def names(self) -> Sequence[str]:
        return list(self._weights)

    def info(self, name: str) -> TensorInfo:
        found = self._at(name)
        if found.block is None:
            return TensorInfo(found.tensor.shape, FLOATS[found.stored.dtype])
        if name in self._routers:
            return TensorInfo(found.tensor.shape, "fp32", decoded_from=found.block.format)
        return TensorInfo(found.tensor.shape, found.block.format, found.block.group_size)

    def read(self, name: str) -> PackedWeight:
        """Read a weight with the values that ipex-llm uses; routers are decoded to float32.

        Takes about 20 MB in addition to the weight.

        Raises:
            ModelFormatError: if a value is NaN or infinite, a block cannot be represented, or the file was truncated.
        """
        found = self._at(name)
        if found.block is not None:
            weight = _read_blocks(found)
            return as_floats(weight) if name in self._routers else weight
        return read_placed(found.file, found.tensor, found.stored)

    def close(self) -> None:
        self._files.close()

    def _at(self, name: str) -> Found:
        if name not in self._found:
            raise ModelFormatError(self.path, name, None, "no tensor has this name")
        return self._found[name]

    def _find(self, tensor: Tensor) -> Found:
        place = self._place(tensor)
        file, stored = self._files.stored(self._names[place.name])
        found = Found(file, stored, replace(tensor, hf=place))
        if stored.dtype in FLOATS and (len(stored.shape) > 1 or not tensor.is_matrix):
            if stored.shape != place.shape:
                raise wrong_shape(file, found.tensor, stored)
            return found
        return self._packed(found)

    def _place(self, tensor: Tensor) -> Place:
        """Return the place of a weight in this folder; raise ModelFormatError if it is missing."""
        packed = tensor.name.removesuffix(".weight") + ".qweight"
        if packed in self._names:  # an embedding, in addition to an empty tensor under the usual name
            return Place(packed, tensor.shape)
        if tensor.hf.name in self._names:
            return tensor.hf
        if tensor.name in self._names:
            return Place(tensor.name, tensor.shape, offset=tensor.hf.offset)
        matched = _QKV.fullmatch(tensor.name)
        if matched is None or (merged := f"{matched[1]}qkv_proj.{matched[3]}") not in self._names:
            raise ModelFormatError(self.path, tensor.hf.name, None, "no tensor has this name")
        rows = {x: self._weights[f"{matched[1]}{x}_proj.{matched[3]}"].shape[0] for x in "qkv"}
        before = {"q": 0, "k": rows["q"], "v": rows["q"] + rows["k"]}
        return Place(merged, (sum(rows.values()), *tensor.shape[1:]), rows=(before[matched[2]], 1))

    def _packed(self, found: Found) -> Found:
        """Determine the format of a packed matrix by its size; raise ModelFormatError if none matches."""
        stored, place = found.stored, found.tensor.hf
        rows, n_in = place.shape[0], found.tensor.shape[-1]
        names = self._candidates(found.tensor.name)
        dtypes = {"BF16"} if names == ("nf4",) else {"U8"}
        if len(place.shape) != 2 or place.expert is not None or len(stored.shape) != 1 or stored.dtype not in dtypes:
            raise ModelFormatError(
                found.file.path, stored.name, stored.entry,
                f"is {stored.dtype} {list(stored.shape)}; in {self.saved_as} it must be {min(dtypes)} blocks, or floats"
                f" of shape {list(place.shape)}",
            )  # fmt: skip
        fitting = [
            (name, columns)
            for name in names
            for outputs, columns in self._paddings(found.tensor.name, rows, n_in)
            if 0 < outputs * BLOCKS[name].row_bytes(columns) == stored.nbytes
        ]
        if not fitting:
            raise ModelFormatError(
                found.file.path, stored.name, stored.entry,
                f"has {stored.nbytes} bytes, which matches no format of {self.saved_as} ({', '.join(names) or 'none'})"
                f" for a matrix of {rows} x {n_in}",
            )  # fmt: skip
        name, columns = fitting[0]
        if self.saved_as == "mixed_fp4":
            name = _four_bits(replace(found, block=BLOCKS[name], n_in=columns))
        return replace(found, block=BLOCKS[name], n_in=columns)

    def _candidates(self, name: str) -> tuple[str, ...]:
        if name == self.spec.embedding.name and not self.spec.tied:
            return _OF_EMBEDDING
        head = name == self.spec.head_weight.name
        return KINDS[self.saved_as] + (_OF_HEAD.get(self.saved_as, ()) if head else ())

    def _paddings(self, name: str, rows: int, n_in: int) -> Iterator[tuple[int, int]]:
        """Yield possible rows and columns in the file: the matrix's own, and qwen2's MLP padded to multiples of 256."""
        yield rows, n_in
        if self.spec.model_type == "qwen2" and name.endswith(_PADDED):
            down = name.endswith(_PADDED[-1])
            yield (rows, -(-n_in // 256) * 256) if down else (-(-rows // 256) * 256, n_in)

    def _check_rest(self) -> None:
        """Refuse reordered inputs; warn about tensors that the model does not have."""
        used = {found.stored.name for found in self._found.values()}
        rest = [name for name in self._files.names() if name not in used and not name.endswith(_UNUSED)]
        for name in rest:
            if name.endswith(".g_idx_map"):
                raise UnsupportedModelError(
                    f"{self.path}: {name} reorders inputs (a GPTQ model with desc_act), which is not supported",
                    hint="load the original GPTQ model",
                )
        rest = [name for name in rest if 0 not in self._files.stored(name)[1].shape]
        self.warn_of_unused(self.spec.model_type, rest)


def is_ipex_llm(folder: Path, config: dict[str, Any]) -> bool:
    """Return True if ipex-llm saved the folder."""
    return MARKER in config or os.path.exists(folder / SETTINGS)


def _saved_as(folder: Path, name: object) -> str:
    file = folder / "config.json"
    if name is None:
        file = folder / SETTINGS
        name = read_json(file).get(MARKER)
    if not isinstance(name, str):
        raise ModelFormatError(file, MARKER, None, f"is {shown(name)}; it must be a string")
    if name in NOT_READ:
        raise UnsupportedModelError(
            f"{folder}: was saved by ipex-llm in {name}, {NOT_READ[name]}, which is not supported; supported are"
            f" {', '.join(KINDS)}",
            hint=f"load the original checkpoint with {arg('load_in_low_bit')} and save it again with"
            f" {arg('save_low_bit')}",
        )
    if name not in KINDS:
        raise ModelFormatError(file, MARKER, None, f"is {shown(name)}; it must be one of {', '.join(KINDS)}")
    return name


def _refuse_pickles(folder: Path) -> None:
    if os.path.exists(folder / SINGLE) or os.path.exists(folder / INDEX):
        return
    pickles = sorted(name for name in os.listdir(folder) if name.endswith(".bin"))
    if pickles:
        raise UnsupportedModelError(
            f"{folder}: was saved by ipex-llm, and its weights are in {pickles[0]}, a pickle, which can run code when"
            f" loaded and is therefore refused; {SINGLE} or {INDEX} is needed",
            hint=f"convert it without running any code: ipex-lookahead convert-ipex-llm {folder} NEW-FOLDER",
        )


def _pieces(found: Found) -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
    """Yield rows of a packed matrix in chunks: number of the first row, position in the file, and the blocks."""
    assert found.block is not None
    run = run_of(found.tensor, found.tensor.hf)
    row_bytes = found.block.row_bytes(found.n_in)
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, run.count, step):
        at = found.stored.offset + (run.first + start) * row_bytes
        blocks = np.empty((min(step, run.count - start), found.n_in // found.block.inputs), found.block.record)
        found.file.file.read_into(at, blocks, found.stored.name)
        yield start, at, blocks


def _read_blocks(found: Found) -> PackedWeight:
    block, shape = found.block, found.tensor.shape
    assert block is not None
    target = FORMATS[block.format]
    arrays: dict[str, npt.NDArray[Any]] = {
        stream.name: np.empty(stream.shape(shape, block.group_size), stream.dtype) for stream in target.streams
    }
    for start, at, blocks in _pieces(found):
        if (bad := block.first_bad(blocks)) is not None:
            raise ModelFormatError(
                found.file.path, found.stored.name, at + bad[0], f"a block's {bad[1]} is NaN or infinite"
            )
        if problem := block.problem(blocks):
            raise ModelFormatError(found.file.path, found.stored.name, at, f"a block {problem}")
        for name, array in block.convert(blocks, shape[1]).items():
            arrays[name][start : start + len(blocks)] = array
    return PackedWeight(block.format, shape, group_size=block.group_size, **arrays)


def _four_bits(found: Found) -> str:
    """Decide whether a matrix of ``mixed_fp4`` is in sym_int4 or fp4, because their blocks have the same layout.

    A scale in sym_int4 is extreme / -8, of either sign; in fp4 it is the largest magnitude / 6, never negative.

    Raises:
        UnsupportedModelError: if too few blocks have a scale to decide.
    """
    positive = 0
    for _, _, blocks in _pieces(found):
        if (blocks["scale"] & 0x7FFF).astype(bool)[blocks["scale"] >> 15 == 1].any():
            return "sym_int4"
        positive += int((blocks["scale"] != 0).sum())
    if positive >= _SURE:
        return "fp4"
    raise UnsupportedModelError(
        f"{found.file.path}: {found.stored.name} is in sym_int4 or in fp4, which mixed_fp4 does not record; its "
        f"{positive} scales are too few to decide",
        hint=f"load the original checkpoint with {arg('load_in_low_bit', 'mixed_fp4')} and save it again with"
        f" {arg('save_low_bit')}",
    )

"""A checkpoint's tensors as the ``safetensors`` and ``gguf`` packages read them, held against ours bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors
from gguf.quants import dequantize as dequantize_blocks

from ipex_lookahead.checkpoints import Checkpoint, kind_of, open_checkpoint
from ipex_lookahead.checkpoints.gguf_parts import PART_NAME
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.formats import FLOATS, FORMATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.tiny import gguf_name

_LLAMA = [gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.LLAMA]]


def check_tensors(path: Path) -> None:
    """Raise AssertionError unless every tensor of the checkpoint there is what the package of its format reads.

    Names, shapes, dtypes and bytes of safetensors, of a folder of ours too; names, shapes and float32 values of GGUF.
    """
    kind, place = kind_of(path)
    checkpoint = open_checkpoint(place)
    try:
        if kind == "gguf":
            _check_gguf(checkpoint, place)
        else:
            assert _streams(checkpoint) == _safetensors(place)
    finally:
        checkpoint.close()


def _read(checkpoint: Checkpoint, name: str) -> PackedWeight:
    """The tensor, which must be what ``info`` has said of it."""
    weight, info = checkpoint.read(name), checkpoint.info(name)
    assert (weight.format, weight.shape, weight.group_size) == (info.format, info.shape, info.group_size)
    assert weight.nbytes == packed_bytes(info)
    return weight


def _streams(checkpoint: Checkpoint) -> dict[str, tuple[str, list[int], bytes]]:
    found = {}
    for name in checkpoint.names():
        weight = _read(checkpoint, name)
        if weight.format in FLOATS:
            assert weight.codes.shape == weight.shape
        for stream in FORMATS[weight.format].streams:
            array = getattr(weight, stream.name)
            place = name if weight.format in FLOATS else f"{name}.{stream.name}"
            found[place] = stream.stored, list(array.shape), array.tobytes()
    return found


def _safetensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    files = {"model.safetensors"}
    if not (folder / "model.safetensors").exists():
        files = set(json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"].values())
    found = {}
    for file in files:
        for name, tensor in safetensors.deserialize((folder / file).read_bytes()):
            found[name] = tensor["dtype"], tensor["shape"], bytes(tensor["data"])
    return found


def _check_gguf(checkpoint: Checkpoint, file: Path) -> None:
    reader = gguf.GGUFReader(file)
    parts = [file]
    if (named := PART_NAME.fullmatch(file.name)) is not None:
        parts = sorted(file.parent.glob(f"{named['model']}-*-of-{named['parts']}.gguf"))
    theirs = {tensor.name: tensor for part in parts for tensor in gguf.GGUFReader(part).tensors}
    names = {name: gguf_name(name) for name in checkpoint.names()}
    passed_over = set(theirs) - set(names.values())
    if (divisors := theirs.get("rope_freqs.weight")) is not None:  # part of the config
        ours = checkpoint.config["rope_scaling"]["factors"]
        assert np.float32(ours).tobytes() == np.ascontiguousarray(divisors.data, np.float32).tobytes()
        passed_over.remove("rope_freqs.weight")
    layers = range(_whole(reader, "llama.block_count", 0))
    used = {name.format(bid=bid) + end for name in _LLAMA for bid in layers for end in (".weight", ".bias")}
    assert not passed_over & used, passed_over & used
    heads = _whole(reader, "llama.attention.head_count", 0)
    of_slot = {".q_proj.": heads, ".k_proj.": _whole(reader, "llama.attention.head_count_kv", heads)}
    for name, in_reader in names.items():
        ours, info, tensor = _read(checkpoint, name), checkpoint.info(name), theirs[in_reader]
        assert list(ours.shape) == tensor.shape.tolist()[::-1], name
        expected = np.asarray(dequantize_blocks(tensor.data, tensor.tensor_type), np.float32)
        if info.decoded_from and info.format == "fp16":  # values of up to 22 bits, rounded once
            expected = expected.astype(np.float16).astype(np.float32)
        in_file = _rows_as_in_file(dequantize(ours), next((n for slot, n in of_slot.items() if slot in name), 0))
        if info.decoded_from:  # a code of 0 has either sign there, by that of its scale
            in_file, expected = in_file + np.float32(0), expected + np.float32(0)
        assert in_file.dtype == expected.dtype
        assert in_file.tobytes() == np.ascontiguousarray(expected).tobytes(), name


def _rows_as_in_file(values: Any, heads: int) -> Any:
    """Hugging Face pairs row i of a head with row i + head / 2 for rope, GGUF neighbouring rows."""
    if not heads:
        return values
    split = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)


def _whole(reader: Any, key: str, otherwise: int) -> int:
    field = reader.get_field(key)
    return otherwise if field is None else int(field.parts[field.data[0]][0])

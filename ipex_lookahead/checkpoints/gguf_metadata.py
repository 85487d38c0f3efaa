"""What a GGUF file says of its model beside the weights, kept in folders made of it so that they can become GGUF again.

``metadata.gguf`` is a GGUF file of the same metadata, byte for byte, whose only tensors are the rope's. Nothing that
runs a model reads it: a folder's own ``config.json`` and tokenizer do that.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.gguf_reader import MAGIC, GgufTensor
from ipex_lookahead.checkpoints.gguf_types import TENSOR_TYPES
from ipex_lookahead.errors import ModelFormatError

METADATA = "metadata.gguf"
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that are part of the config: ``gguf_config.py`` reads them."""
_NUMBERS = {kind: number for number, kind in TENSOR_TYPES.items()}


def keep_metadata(source: Path, folder: Path) -> None:
    """Write ``metadata.gguf`` into ``folder`` where ``source`` is a GGUF file or a folder that has one. Raises OSError.

    A source that is gone meanwhile, or is no GGUF file, leaves the folder without.
    """
    if source.is_dir():
        if (source / METADATA).is_file():
            shutil.copyfile(source / METADATA, folder / METADATA)
        return
    try:
        file = GgufParts(source)
    except ModelFormatError:
        return
    try:
        file.read_tensor_table()
        ropes = [file.tensors[name] for name in ROPE_TENSORS if name in file.tensors]
        (folder / METADATA).write_bytes(_file(file, ropes))
    except ModelFormatError:
        return
    finally:
        file.close()


def _file(file: GgufParts, tensors: list[GgufTensor]) -> bytes:
    version, count, entries = file.raw_metadata()
    alignment = int(file.scalar("general.alignment", 32))
    table, data = b"", b""
    for tensor in tensors:
        name = tensor.name.encode()
        table += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
        table += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        table += struct.pack("<IQ", _NUMBERS[tensor.type], len(data))
        data += tensor.file.read(tensor.offset, tensor.nbytes, tensor.name)
        data += bytes(-len(data) % alignment)
    head = MAGIC + struct.pack("<IQQ", version, len(tensors), count) + entries + table
    return head + bytes(-len(head) % alignment) + data


def has_metadata(folder: Path) -> bool:
    """Whether a folder can become a GGUF file."""
    return os.path.isfile(folder / METADATA)

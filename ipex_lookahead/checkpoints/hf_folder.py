"""Export of a checkpoint as a plain Hugging Face folder with float weights in safetensors."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.formats import dequantize

SHARD = 1 << 30
"""Bytes of tensors per file."""


def write_hf_folder(
    checkpoint: Checkpoint, folder: str | PathLike[str], *, dtype: str = "float32", tokenizer: bool = True
) -> Path:
    """Write config, tokenizer and dequantized weights; return the folder.

    Args:
        checkpoint: an opened checkpoint.
        folder: target folder; must be empty or not exist.
        dtype: "float32", which represents every format exactly, or "float16".
        tokenizer: True to write the checkpoint's tokenizer as well.

    Raises:
        InputError: if the folder is not empty or the dtype is another one.
    """
    target = given_path(folder)
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype is {dtype!r}; it must be float32 or float16")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists and is not an empty folder; give a path that does not exist")
    target.mkdir(parents=True, exist_ok=True)
    implied = {tensor.name for tensor in checkpoint.spec.tensors() if tensor.constant is not None}
    names = [name for name in checkpoint.names() if name not in implied]
    offsets = {tensor.name: tensor.hf.offset for tensor in checkpoint.spec.tensors()}
    places: dict[str, str] = {}
    shard: dict[str, Any] = {}
    held = total = number = 0
    for name in names:
        weight = with_offset(checkpoint.read(name), -offsets.get(name, 0.0))
        values = np.ascontiguousarray(dequantize(weight), dtype=dtype)
        shard[name] = values
        held += values.nbytes
        total += values.nbytes
        if held >= SHARD or name == names[-1]:
            file = "model.safetensors" if number == 0 and name == names[-1] else f"model-{number + 1:05}.safetensors"
            save_file(shard, str(target / file), metadata={"format": "pt"})
            places.update(dict.fromkeys(shard, file))
            shard, held, number = {}, 0, number + 1
    if number > 1:
        _write(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **checkpoint.config, "torch_dtype": dtype}
    _write(target / "config.json", config)
    if checkpoint.generation_config:
        _write(target / "generation_config.json", checkpoint.generation_config)
    made = checkpoint.text_tokenizer() if tokenizer else None
    if made is not None:
        made.for_transformers().save_pretrained(str(target))
    return target


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")

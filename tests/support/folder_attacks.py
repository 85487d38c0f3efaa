"""What may lie where a model is looked for: pipes, loops of links, pickles, files of gigabytes of nothing."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.gguf_attacks import parts, sound
from tests.support.gguf_bytes import _PACK, ARRAY, BOOL, F32, F64, I32, STRING, U8, build, text
from tests.support.safetensors_attacks import join

Write = Callable[[Path], None]


def misplaced(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes | None | Write]:
    """Something else where a file of a folder belongs; or a folder of another kind."""
    name = chance.choice(sorted(files))
    weights = files["model.safetensors"]
    config = json.loads(files["config.json"])
    return chance.choice((
        {name: None},
        {name: b""},
        {name: chance.choice(sorted(files.values()))},
        {name: os.mkfifo},
        {name: os.mkdir},
        {name: lambda path: path.symlink_to(path)},
        {name: lambda path: path.symlink_to("/dev/zero")},
        {"model.safetensors": None, chance.choice(("pytorch_model.bin", "x.safetensors", "x.gguf", "x")): weights},
        {"config.json": None, "x.gguf": sound()},
        {"config.json": None, "x.gguf": sound(), "y.gguf": weights},
        {"config.json": None, "x.gguf": weights},
        {"bigdl_config.json": b"{}"},
        {"config.json": json.dumps({**config, "bigdl_transformers_low_bit": "sym_int4"}).encode()},
        {"config.json": json.dumps({**config, "model_type": chance.choice(("mamba", "Llama", "", 3, None))}).encode()},
        {"config.json": json.dumps({**config, "ipex_lookahead": chance.choice(({}, 1, {"version": 1}))}).encode()},
        {"config.json": b" " * chance.choice((10**6, 2 * 10**6)) + files["config.json"]},
    ))  # fmt: skip


def immense(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes | None | Write]:
    """A file that claims much more than its bytes on the disk, and has the length for it; or a text that is a bomb."""
    if chance.random() < 0.6:
        return {"config.json": None, "m.gguf": lambda path: _sparse_gguf(chance, path)}
    if chance.random() < 0.3:
        zeros = chance.choice((10**6, 10**8, 10**10))
        return {
            "model.safetensors": lambda path: _sparse(
                path, struct.pack("<Q", chance.choice((zeros - 8, 99 * 10**6))), zeros
            )
        }
    size = chance.choice((10**5, 10**6, 8 * 10**6))
    unit = chance.choice((b"[", b'{"a":', b"[],", b"0,", b'"a",', b"1" * 60 + b",", b'"\\u0041",', b" ", b'{"a":1},'))
    header = b'{"a":' + (b"[" if unit.endswith(b",") else b"") + unit * (size // len(unit)) + b"0]}"
    return chance.choice(
        (
            {"model.safetensors": join(header, b"")},
            {"config.json": header},
            {"model.safetensors": None, "model.safetensors.index.json": header},
        )
    )


def _sparse(path: Path, data: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


def _sparse_gguf(chance: random.Random, path: Path) -> None:
    """A sound file with arrays of zeros after its own entries: numbers, or empty strings."""
    entries, tensors = parts(quantised=False)
    before = bytes(build(entries, []).data)[24:]
    after = build([], tensors)
    table_end = after.at[f"{tensors[-1][0]}:offset"] + 8
    kinds = chance.choices((I32, F32, F64, U8, BOOL, STRING), k=chance.choice((1, 4, 60)))
    most = chance.choice((10_000, 10**6, 16_000_000, 64_000_000))
    keys = ("tokenizer.ggml.merges", "tokenizer.ggml.precompiled_charsmap", "llama.rope.x", "general.x")
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries) + len(kinds)) + before)
        for number, kind in enumerate(kinds):
            key = chance.choice(keys)
            file.write(text(key if number == 0 else f"{key}{number}") + struct.pack("<IIQ", ARRAY, kind, most))
            file.seek(most * (8 if kind == STRING else struct.calcsize(_PACK[kind])), os.SEEK_CUR)
        file.write(after.data[24:table_end])
        file.seek(-file.tell() % 32, os.SEEK_CUR)
        file.write(after.data[after.at[f"{tensors[0][0]}:data"] :])

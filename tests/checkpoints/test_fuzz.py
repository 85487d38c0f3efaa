"""Any bytes give a checkpoint that reads fully, or one of two errors: every truncation, and values at every offset.

Each case goes through ``open_checkpoint`` and reads every tensor. Another exception, a tensor that is not what its
format says, or more memory than the bound is a failure; a crash would take the whole run down. ``tests/gates`` changes
fields at random.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import open_checkpoint, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.checkpoints.low_bit import streams
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import cases
from tests.support.gguf_bytes import llama_bytes
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.safetensors_attacks import without_checksums
from tests.support.tiny import TinyLlama

BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)


def well_formed(weight: PackedWeight, info: TensorInfo) -> bool:
    """Whether a weight has exactly the arrays that formats/base.py describes."""
    if (weight.format, weight.shape, weight.group_size) != (info.format, info.shape, info.group_size):
        return False
    arrays = [a for a in (weight.codes, weight.scales, weight.minimums) if a is not None]
    parts = streams(info)
    return parts is not None and [(a.shape, a.dtype) for a in arrays] == [
        (p.shape, np.dtype(p.stream.dtype)) for p in parts
    ]


def outcome(path: Path) -> str:
    """Open and read everything. Returns what happened; raises what must not."""
    try:
        checkpoint = open_checkpoint(path)
        try:
            for name in checkpoint.names():
                assert well_formed(checkpoint.read(name), checkpoint.info(name)), name
            json.dumps([checkpoint.config, checkpoint.generation_config], allow_nan=False)
        finally:
            checkpoint.close()
    except ModelFormatError as error:
        named = bool(error.field) and str(path.parent) in error.file
        return "refused" if named else f"an error that names nothing: {error}"
    except UnsupportedModelError:
        return "unsupported"
    return "opened"


@contextmanager
def little_memory() -> Iterator[None]:
    """Let the process grow by 256 MiB and no more: a larger claim becomes a MemoryError, and so a failure."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(cases: Iterator[bytes], target: Path, opened: Path) -> dict[str, int]:
    """Write each case to ``target``, open ``opened``, and count the outcomes."""
    seen: dict[str, int] = {}
    with little_memory():
        for number, case in enumerate(cases):
            target.write_bytes(case)
            try:
                result = outcome(opened)
            except BaseException as error:
                raise AssertionError(f"case {number} ({len(case)} bytes: {case[:200]!r}...): {error!r}") from error
            assert result in ("opened", "refused", "unsupported"), result
            seen[result] = seen.get(result, 0) + 1
    return seen


STRIDE = cases(7, 1)
"""Bytes from one place that is broken to the next."""


def truncations(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(0, len(data), STRIDE))


def replacements(data: bytes, few_from: int | None = None) -> Iterator[bytes]:
    """Every value at every offset that is tried; from ``few_from`` on only the two values that can make a NaN."""
    for offset in range(0, len(data), STRIDE):
        for value in BYTES if few_from is None or offset < few_from else (0x7F, 0xFF):
            if data[offset] != value:
                yield data[:offset] + bytes([value]) + data[offset + 1 :]


def floats(shape: tuple[int, ...]) -> PackedWeight:
    return PackedWeight("fp32", shape, np.ones(shape, np.float32))


def write_folder(folder: Path, shards: int) -> Path:
    """A folder small enough to break at every byte."""
    from safetensors.numpy import save_file

    folder.mkdir()
    config = TinyLlama(vocab=8, hidden=8, layers=1, heads=1, kv_heads=1, intermediate=8).config("float32")
    config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_p": 0.9}', encoding="utf-8")
    tensors = {"a": np.ones((2, 3), np.float32), "b.weight": np.ones(4, np.float16), "c": np.ones((1, 5), np.float32)}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    weight_map = {}
    for number, (name, values) in enumerate(tensors.items()):
        save_file({name: values}, folder / f"model-{number}.safetensors")
        weight_map[name] = f"model-{number}.safetensors"
    index = {"metadata": {"total_size": 60}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def write_low_bit(folder: Path) -> Path:
    packed = PackedWeight(
        "asym_int4", (2, 40), np.zeros((2, 32), np.uint8), 32, np.ones((2, 2), np.uint16), np.ones((2, 2), np.uint16)
    )
    weights = {"norm": floats((4,)), "w": packed}
    config = TinyLlama(vocab=8, hidden=8, layers=1, heads=1, kv_heads=1, intermediate=8).config("float32")
    return save(
        folder,
        config=config,
        generation_config={},
        infos={name: TensorInfo(w.shape, w.format, w.group_size) for name, w in weights.items()},
        weights=weights.items(),
        low_bit={"low_bit": "asym_int4", "group_size": 32, "mixed_precision": False},
    )


def write_converted(folder: Path) -> Path:
    sizes: dict[str, Any] = {"vocab": 3, "hidden": 64, "intermediate": 2, "heads": 1, "kv_heads": 1, "head_dim": 8}
    write_ipex_llm(folder.with_name("pickled"), "nf3", layers=1, **sizes)
    return convert_ipex_llm(folder.with_name("pickled"), folder)


def write_gguf(folder: Path, *, quantised: bool) -> Path:
    file = folder.with_suffix(".gguf")
    file.write_bytes(llama_bytes(quantised=quantised).data)
    return file


SEEDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "gguf_floats": (partial(write_gguf, quantised=False), ""),
    "gguf_quantised": (partial(write_gguf, quantised=True), ""),
    "safetensors_file": (partial(write_folder, shards=1), "model.safetensors"),
    "index_json": (partial(write_folder, shards=3), "model.safetensors.index.json"),
    "config_json": (partial(write_folder, shards=1), "config.json"),
    "generation_config_json": (partial(write_folder, shards=1), "generation_config.json"),
    "low_bit_file": (write_low_bit, "model.safetensors"),
    "low_bit_file_of_version_1": (lambda folder: without_checksums(write_low_bit(folder)), "model.safetensors"),
    "low_bit_config": (write_low_bit, "config.json"),
    "ipex_llm_file": (write_converted, "model.safetensors"),
    "ipex_llm_config": (write_converted, "config.json"),
}
"""What writes a small checkpoint, and the file of it to break. Without checksums values may be anything."""


def write(kind: str, tmp: Path) -> tuple[Path, Path]:
    """The file to break, and what to open."""
    made, name = SEEDS[kind]
    opened = made(tmp / "m")
    return opened / name, opened


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.rotating(4)
def test_truncations_are_refused(tmp_path: Path, kind: str) -> None:
    target, opened = write(kind, tmp_path)
    data = target.read_bytes()
    assert len(data) < 4096
    assert outcome(opened) == "opened"
    seen = run(truncations(data), target, opened)
    whole = [length for length in range(0, len(data), STRIDE) if length >= len(data.rstrip())]  # but for a last newline
    assert seen == {"refused": len(range(0, len(data), STRIDE)) - len(whole)} | (
        {"opened": len(whole)} if whole else {}
    )


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.rotating(2)
def test_five_byte_values_at_offsets(tmp_path: Path, kind: str) -> None:
    target, opened = write(kind, tmp_path)
    # The values inside tensors are gone through in full for the other GGUF file; blocks are twice as many bytes.
    few_from = llama_bytes(quantised=True).at["token_embd.weight:data"] if kind == "gguf_quantised" else None
    seen = run(replacements(target.read_bytes(), few_from), target, opened)
    assert seen["refused"] > 50 // STRIDE
    if kind == "low_bit_file":
        assert seen.get("opened", 0) < 20  # bytes of the header that had the value already
    elif kind not in ("generation_config_json", "index_json"):
        assert seen["opened"] > 50 // STRIDE  # values inside tensors and names may be anything

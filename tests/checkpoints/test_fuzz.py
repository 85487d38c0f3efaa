"""Any bytes give a checkpoint that reads fully, or one of two errors: every truncation, every offset, and a mutator.

Each case goes through ``open_checkpoint`` and reads every tensor. Another exception, a tensor that is not what its
format says, or more memory than the bound is a failure; a crash would take the whole run down.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.checkpoints import open_checkpoint, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.checkpoints.low_bit import streams
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from tests.support.gguf_bytes import llama_bytes
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.safetensors_attacks import resealed, without_checksums
from tests.support.tiny import TinyLlama

BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
MEMORY = 2 << 20
"""Most memory a case may take. The files are below 4 KiB; what is counted on top is mostly messages and tables."""


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


def run(cases: Iterator[bytes], target: Path, opened: Path, *, measured: bool = False) -> dict[str, int]:
    """Write each case to ``target``, open ``opened``; count what happened. ``measured``: bound each case's memory."""
    seen: dict[str, int] = {}
    if measured:
        for name in model_types():  # a family's module stays once it was imported, and is no case's memory
            family(name)
        tracemalloc.start()
    try:
        with little_memory():
            for number, case in enumerate(cases):
                target.write_bytes(case)
                if measured:
                    tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                try:
                    result = outcome(opened)
                except BaseException as error:
                    raise AssertionError(f"case {number} ({len(case)} bytes: {case[:200]!r}...): {error!r}") from error
                assert result in ("opened", "refused", "unsupported"), result
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < MEMORY, f"case {number} took {peak} bytes: {case[:200]!r}"
                seen[result] = seen.get(result, 0) + 1
    finally:
        tracemalloc.stop()
    return seen


def truncations(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def replacements(data: bytes, few_from: int | None = None) -> Iterator[bytes]:
    """Every value at every offset; from ``few_from`` on only the two values that can make a NaN."""
    for offset in range(len(data)):
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


SEEDS: dict[str, Callable[[Path], tuple[Path, Path]]] = {}
"""Kind to a function that writes a small checkpoint into a folder and gives the file to break and what to open."""


def seed(build: Callable[[Path], tuple[Path, Path]]) -> Callable[[Path], tuple[Path, Path]]:
    SEEDS[build.__name__] = build
    return build


@seed
def gguf_floats(tmp: Path) -> tuple[Path, Path]:
    file = tmp / "m.gguf"
    file.write_bytes(llama_bytes().data)
    return file, file


@seed
def gguf_quantised(tmp: Path) -> tuple[Path, Path]:
    file = tmp / "m.gguf"
    file.write_bytes(llama_bytes(quantised=True).data)
    return file, file


@seed
def safetensors_file(tmp: Path) -> tuple[Path, Path]:
    folder = write_folder(tmp / "m", 1)
    return folder / "model.safetensors", folder


@seed
def index_json(tmp: Path) -> tuple[Path, Path]:
    folder = write_folder(tmp / "m", 3)
    return folder / "model.safetensors.index.json", folder


@seed
def config_json(tmp: Path) -> tuple[Path, Path]:
    folder = write_folder(tmp / "m", 1)
    return folder / "config.json", folder


@seed
def generation_config_json(tmp: Path) -> tuple[Path, Path]:
    folder = write_folder(tmp / "m", 1)
    return folder / "generation_config.json", folder


@seed
def low_bit_file(tmp: Path) -> tuple[Path, Path]:
    folder = write_low_bit(tmp / "m")
    return folder / "model.safetensors", folder


@seed
def low_bit_file_of_version_1(tmp: Path) -> tuple[Path, Path]:
    """Without checksums: values may be anything."""
    folder = without_checksums(write_low_bit(tmp / "m"))
    return folder / "model.safetensors", folder


@seed
def low_bit_config(tmp: Path) -> tuple[Path, Path]:
    folder = write_low_bit(tmp / "m")
    return folder / "config.json", folder


def write_converted(folder: Path) -> Path:
    sizes: dict[str, Any] = {"vocab": 3, "hidden": 64, "intermediate": 2, "heads": 1, "kv_heads": 1, "head_dim": 8}
    write_ipex_llm(folder.with_name("pickled"), "nf3", layers=1, **sizes)
    return convert_ipex_llm(folder.with_name("pickled"), folder)


@seed
def ipex_llm_file(tmp: Path) -> tuple[Path, Path]:
    folder = write_converted(tmp / "m")
    return folder / "model.safetensors", folder


@seed
def ipex_llm_config(tmp: Path) -> tuple[Path, Path]:
    folder = write_converted(tmp / "m")
    return folder / "config.json", folder


@pytest.mark.parametrize("kind", SEEDS)
def test_the_seed_opens(tmp_path: Path, kind: str) -> None:
    target, opened = SEEDS[kind](tmp_path)
    assert target.stat().st_size < 4096
    assert outcome(opened) == "opened"


@pytest.mark.parametrize("kind", SEEDS)
def test_every_truncation_is_refused(tmp_path: Path, kind: str) -> None:
    target, opened = SEEDS[kind](tmp_path)
    data = target.read_bytes()
    seen = run(truncations(data), target, opened)
    whole_text = data.rstrip()  # a text file may lose its last newline
    assert sum(seen.values()) == len(data)
    assert seen == {"refused": len(whole_text)} | (
        {"opened": len(data) - len(whole_text)} if whole_text != data else {}
    )


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.rotating(2)
def test_five_byte_values_at_every_offset(tmp_path: Path, kind: str) -> None:
    target, opened = SEEDS[kind](tmp_path)
    # The values inside tensors are gone through in full for the other GGUF file; blocks are twice as many bytes.
    few_from = llama_bytes(quantised=True).at["token_embd.weight:data"] if kind == "gguf_quantised" else None
    seen = run(replacements(target.read_bytes(), few_from), target, opened)
    assert seen["refused"] > 50
    if kind == "low_bit_file":
        assert seen.get("opened", 0) < 20  # bytes of the header that had the value already
    elif kind not in ("generation_config_json", "index_json"):
        assert seen["opened"] > 50  # values inside tensors and names may be anything


INTERESTING = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1,
               2**40, 2**40 + 1, 2**42 + 1, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]  # fmt: skip


def mutated_gguf(rng: random.Random) -> bytes:
    """One to three changes, three of four of them on a field of the header, the metadata or the tensor table."""
    made = llama_bytes(quantised=rng.random() < 0.5)
    data = bytearray(made.data)
    for _ in range(rng.randint(1, 3)):
        way = rng.random()
        if way < 0.6:
            at, value = made.at[rng.choice(sorted(made.at))], rng.choice(INTERESTING)
            packed = struct.pack("<Q", value) if rng.random() < 0.5 else struct.pack("<I", value & 0xFFFFFFFF)
            data[at : at + len(packed)] = packed
        elif way < 0.7:  # a field takes the bytes of another
            one, other = (made.at[name] for name in rng.sample(sorted(made.at), 2))
            data[one : one + 12] = data[other : other + 12]
        elif way < 0.8:
            at = rng.randrange(len(data))
            del data[at : at + rng.randint(1, 40)]
        elif way < 0.9:
            at = rng.randrange(len(data))
            data[at:at] = rng.randbytes(rng.randint(1, 40))
        else:
            at = rng.randrange(len(data))
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def mutated_json(rng: random.Random, value: Any) -> Any:
    """A JSON value with one place changed: another value, a key dropped, or a key doubled under another name."""
    odd = [*INTERESTING, -1, 0.5, 1e300, True, None, "", "x", "../x", "F32", [], {}, [1], [[1]], {"a": 1}, "é" * 50]
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        way = rng.random()
        if way < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if way < 0.2:
            return value | {rng.choice(["", "__metadata__", "a", key + "2"]): value[key]}
        return value | {key: mutated_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return value[:at] + [mutated_json(rng, value[at])] + value[at + 1 :]
    return rng.choice(odd)


def mutated_safetensors(rng: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for _ in range(rng.randint(1, 3)):
        header = mutated_json(rng, header)
    text = json.dumps(header).encode()
    size = rng.choice(INTERESTING) if rng.random() < 0.1 else len(text)
    return struct.pack("<Q", size) + text + data[8 + length :] + rng.choice([b"", b"", b"", b"\0"])


@pytest.mark.parametrize("number", range(3))
def test_mutated_gguf(tmp_path: Path, number: int) -> None:
    rng = random.Random(number)
    target, opened = gguf_floats(tmp_path)
    seen = run((mutated_gguf(rng) for _ in range(400)), target, opened, measured=True)
    assert seen["refused"] > 200


@pytest.mark.parametrize("kind", [kind for kind in SEEDS if "gguf" not in kind])
def test_mutated_json(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    target, opened = SEEDS[kind](tmp_path)
    data = target.read_bytes()

    def mutated() -> bytes:
        if target.suffix == ".json":
            return json.dumps(mutated_json(rng, json.loads(data))).encode()
        changed = mutated_safetensors(rng, data)
        return resealed(changed) if kind == "low_bit_file" and rng.random() < 0.7 else changed

    seen = run((mutated() for _ in range(400)), target, opened, measured=True)
    assert seen["refused"] > 20

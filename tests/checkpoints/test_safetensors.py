"""Safetensors: agreement with the ``safetensors`` package, and every row of the checklist refused with its place."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints.float_tensors import same_values
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.checkpoints.safetensors_reader import DTYPE_BITS, SafetensorsFile
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.tiny import TinyLlama, write_tiny_llama


def raw_file(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def refused(tmp_path: Path, content: bytes) -> ModelFormatError:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        SafetensorsFile(path)
    assert caught.value.file == str(path)
    return caught.value


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_bit_is_the_safetensors_packages(tmp_path: Path, dtype: str, shards: int) -> None:
    import torch
    from safetensors.torch import load_file

    folder = write_tiny_llama(tmp_path / "m", dtype=dtype, shards=shards, tie=False, attention_bias=True)
    theirs: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        theirs |= load_file(file)
    checkpoint = SafetensorsCheckpoint(folder)
    assert sorted(checkpoint.names()) == sorted(theirs)
    for name, tensor in theirs.items():
        weight = checkpoint.read(name)
        bits = tensor.view(torch.int16).numpy().view(np.uint16) if dtype != "float32" else tensor.numpy()
        np.testing.assert_array_equal(weight.codes, bits)
        assert weight.codes.dtype == bits.dtype
        assert weight.format == {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
        assert weight.shape == checkpoint.info(name).shape == tuple(tensor.shape)
    checkpoint.close()


ONE = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
EIGHT = b"\0" * 8


def entry(**changes: Any) -> str:
    value: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return json.dumps({"a": {k: v for k, v in value.items() if v is not None}}, separators=(",", ":"))


def two(first: list[int], second: list[int]) -> str:
    def part(offsets: list[int]) -> dict[str, Any]:
        return {"dtype": "U8", "shape": [offsets[1] - offsets[0]], "data_offsets": offsets}

    return json.dumps({"a": part(first), "b": part(second)})


BROKEN: list[tuple[str, bytes, str, int | None, str]] = [
    # what, file, field, offset (None: not checked), words
    ("empty", b"", "header length", 0, "needs 8 bytes"),
    ("7 bytes", b"\0" * 7, "header length", 0, "needs 8 bytes"),
    ("header of 0", raw_file("", EIGHT, 0), "header length", 0, "2 to"),
    ("header of 1", raw_file("{", b"", 1), "header length", 0, "2 to"),
    ("header beyond the file", raw_file(ONE, EIGHT, 1000), "header length", 0, "2 to"),
    ("header over 100 MB", raw_file(ONE, EIGHT, 100_000_001), "header length", 0, "2 to"),
    ("header of 2^64-1", raw_file(ONE, EIGHT, 2**64 - 1), "header length", 0, "2 to"),
    ("does not start with {", raw_file(" " + ONE, EIGHT), "header", 8, "must start with"),
    ("array", raw_file("[]"), "header", 8, "must start with"),
    ("bad UTF-8", raw_file(b'{"\xff":1}'), "header", 10, "UTF-8"),
    ("too deep", raw_file('{"a":{"b":[[[1]]]}}'), "header", None, "deeper than 4"),
    ("duplicate tensor", raw_file(ONE[:-1] + "," + ONE[1:], EIGHT), "header", 8 + len(ONE) + 4, "the key 'a' twice"),
    ("duplicate key", raw_file('{"a":{"dtype":"F32","dtype":"U8"}}'), "header", None, "twice"),
    ("text after the header", raw_file(ONE + "x", EIGHT), "header", 8 + len(ONE), "Extra data"),
    ("metadata is a list", raw_file('{"__metadata__":[]}'), "__metadata__", 24, "not an object"),
    ("metadata number", raw_file('{"__metadata__":{"k":1}}'), "__metadata__.k", 29, "not a string"),
    ("entry is a list", raw_file('{"a":[1,2]}'), "a", 13, "must be an object"),
    ("missing key", raw_file(entry(shape=None), EIGHT), "a", 13, "dtype, shape, data_offsets"),
    ("extra key", raw_file(entry(more=1), EIGHT), "a", 13, "no others"),
    ("empty name", raw_file('{"":{}}'), "''", 12, "1 to 1024"),
    ("NUL in name", raw_file('{"\\u0000":{}}'), "'\\x00'", None, "no NUL"),
    ("unknown dtype", raw_file(entry(dtype="F31"), EIGHT), "a.dtype", 22, "not a dtype"),
    ("dtype number", raw_file(entry(dtype=32), EIGHT), "a.dtype", 22, "not a dtype"),
    ("shape number", raw_file(entry(shape=2), EIGHT), "a.shape", None, "list of up to 8"),
    ("shape float", raw_file(entry(shape=[2.0]), EIGHT), "a.shape", None, "list of up to 8"),
    ("shape negative", raw_file(entry(shape=[-2]), EIGHT), "a.shape", None, "list of up to 8"),
    ("shape true", raw_file(entry(shape=[True]), EIGHT), "a.shape", None, "list of up to 8"),
    ("shape of 9", raw_file(entry(shape=[1] * 9), EIGHT), "a.shape", None, "list of up to 8"),
    ("dimension too large", raw_file(entry(shape=[2**40 + 1]), EIGHT), "a.shape", None, "2^40"),
    ("product wraps 2^64", raw_file(entry(shape=[2**40] * 8), EIGHT), "a.data_offsets", None, "span 8 bytes"),
    ("size below shape", raw_file(entry(shape=[3]), EIGHT), "a.data_offsets", None, "span 8 bytes"),
    ("size above shape", raw_file(entry(shape=[1]), EIGHT), "a.data_offsets", None, "span 8 bytes"),
    ("half a byte", raw_file(entry(dtype="F4", shape=[15]), EIGHT), "a.data_offsets", None, "takes 7.5"),
    ("begin after end", raw_file(entry(data_offsets=[8, 0]), EIGHT), "a.data_offsets", None, "bytes of data"),
    ("end beyond the file", raw_file(entry(shape=[4], data_offsets=[0, 16]), EIGHT), "a.data_offsets", None, "8 bytes"),
    ("offsets negative", raw_file(entry(data_offsets=[-8, 0]), EIGHT), "a.data_offsets", None, "0 to 2^63"),
    ("offsets over 2^63", raw_file(entry(data_offsets=[0, 2**64]), EIGHT), "a.data_offsets", None, "0 to 2^63"),
    ("offsets fraction", raw_file(entry(data_offsets=[0, 8.5]), EIGHT), "a.data_offsets", None, "whole numbers"),
    ("three offsets", raw_file(entry(data_offsets=[0, 8, 8]), EIGHT), "a.data_offsets", None, "two whole"),
    ("tail", raw_file(ONE, EIGHT + b"x"), "data", 8 + len(ONE) + 8, "the file at byte"),
    ("data and no tensor", raw_file("{}", EIGHT), "data", 10, "the file at byte"),
    ("hole", raw_file(two([0, 2], [4, 8]), EIGHT), "b", None, "there is a gap before it"),
    ("hole at the start", raw_file(two([2, 4], [4, 8]), EIGHT), "a", None, "there is a gap before it"),
    ("overlap", raw_file(two([0, 6], [4, 8]), EIGHT), "b", None, "it overlaps"),
    ("same place twice", raw_file(two([0, 8], [0, 8]), EIGHT), "b", None, "it overlaps"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "field", "offset", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_one_broken_field(tmp_path: Path, content: bytes, field: str, offset: int | None, words: str) -> None:
    error = refused(tmp_path, content)
    assert error.field == field
    assert words in error.problem
    assert error.offset is not None
    if offset is not None:
        assert error.offset == offset


def test_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipex_lookahead.checkpoints import safetensors_reader as module

    monkeypatch.setattr(module, "MAX_TENSORS", 1)
    assert "lists 2 tensors; the maximum is 1" in refused(tmp_path, raw_file(two([0, 4], [4, 8]), EIGHT)).problem


def test_padded_headers_and_order_are_free(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_file(two([4, 8], [0, 4]) + "   ", bytes(range(8))))
    assert list(SafetensorsFile(path).tensors) == ["b", "a"]


def test_every_dtype_of_the_package_is_known(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16,
             torch.uint32, torch.uint64]  # fmt: skip
    save_file({str(k): torch.zeros(4, dtype=k) for k in kinds}, tmp_path / "x.safetensors")
    tensors = SafetensorsFile(tmp_path / "x.safetensors").tensors
    assert len(tensors) == len(kinds)
    assert all(DTYPE_BITS[t.dtype] == t.nbytes * 2 for t in tensors.values())


def test_header_claims_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:  # 90 MB of header in a sparse file that starts like one
        file.write(raw_file("[" * 100, length=90_000_000))
        file.truncate(90_000_008)
    with pytest.raises(ModelFormatError, match="must start with"):
        SafetensorsFile(path)
    path.write_bytes(raw_file(entry(shape=[2**40], data_offsets=[0, 2**42]), EIGHT))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError):
            SafetensorsFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def folder_with(tmp_path: Path, header: str, data: bytes) -> Path:
    folder = tmp_path / "m"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TinyLlama().config("float32")), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(raw_file(header, data))
    return folder


@pytest.mark.parametrize("dtype", ["I64", "U8", "F8_E8M0", "BOOL", "F8_E4M3FNUZ", "I32"])
def test_other_dtypes_are_named(tmp_path: Path, dtype: str) -> None:
    header = entry(dtype=dtype, shape=[64 // DTYPE_BITS[dtype]])
    with pytest.raises(
        UnsupportedModelError,
        match=f"tensor a has dtype {dtype}; the supported dtypes are F32, F16, BF16, F64, F8_E4M3",
    ):
        SafetensorsCheckpoint(folder_with(tmp_path, header, EIGHT))


def test_shapes_that_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="vectors and matrices"):
        SafetensorsCheckpoint(folder_with(tmp_path, entry(shape=[2, 1, 1]), EIGHT))
    with pytest.raises(UnsupportedModelError, match="vectors and matrices"):
        SafetensorsCheckpoint(folder_with(tmp_path, entry(shape=[], data_offsets=[0, 4]), b"\0" * 4))
    with pytest.raises(ModelFormatError, match="it is empty"):
        SafetensorsCheckpoint(folder_with(tmp_path, entry(shape=[0, 4], data_offsets=[0, 0]), b""))
    with pytest.raises(ModelFormatError, match="has no tensors"):
        SafetensorsCheckpoint(folder_with(tmp_path, "{}", b""))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m", shards=2)


def change_index(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    change(index)
    path.write_text(json.dumps(index), encoding="utf-8")


def index_refused(folder: Path) -> ModelFormatError:
    with pytest.raises(ModelFormatError) as caught:
        SafetensorsCheckpoint(folder)
    return caught.value


NAME = "model.norm.weight"
ESCAPES = [
    "../model-00001-of-00002.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..\\x.safetensors",
    "C:\\x.safetensors", "C:x.safetensors", "\\\\host\\share\\x.safetensors", "//host/x.safetensors",
    "x..safetensors", "..safetensors", ".safetensors", ".hidden.safetensors", "x.bin", "pytorch_model.bin",
    "x.safetensors.bin", "x.safetensors\0.bin", "x.safetensors\n", "", "x" * 300 + ".safetensors", "ｘ.safetensors",
    "x.SAFETENSORS", "file:x.safetensors", 5, None, ["x.safetensors"],
]  # fmt: skip


@pytest.mark.parametrize("shard", ESCAPES, ids=[str(s)[:30] for s in ESCAPES])
def test_shard_names_stay_in_the_folder(sharded: Path, shard: Any) -> None:
    change_index(sharded, lambda index: index["weight_map"].update({NAME: shard}))
    error = index_refused(sharded)
    assert error.field == NAME
    assert error.file.endswith("index.json")
    assert error.offset is not None
    assert "plain file name that ends in .safetensors" in str(error)


def test_index_and_shards_agree(sharded: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    change_index(sharded, lambda index: index["weight_map"].update({NAME: first}))
    assert f"is not in {first}" in str(index_refused(sharded))
    change_index(sharded, lambda index: index["weight_map"].pop(NAME))
    assert "is not listed in" in str(index_refused(sharded))
    change_index(sharded, lambda index: index["weight_map"].update({NAME: "model-3.safetensors"}))
    assert "not in the folder" in str(index_refused(sharded))
    change_index(sharded, lambda index: index["weight_map"].update({NAME: second}))
    SafetensorsCheckpoint(sharded).close()
    (sharded / second).write_bytes((sharded / first).read_bytes())
    assert f"is in {first} as well" in str(index_refused(sharded))
    (sharded / second).unlink()
    assert "not in the folder" in str(index_refused(sharded))


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_names_in_the_index(sharded: Path, name: str) -> None:
    shard = "model-00001-of-00002.safetensors"
    change_index(sharded, lambda index: index["weight_map"].update({name: shard}))
    error = index_refused(sharded)
    assert error.field == "weight_map"
    assert "1 to 1024 characters" in error.problem


def test_a_name_that_is_not_there(sharded: Path) -> None:
    with pytest.raises(ModelFormatError, match="no tensor has this name") as caught:
        SafetensorsCheckpoint(sharded).info("nope")
    assert caught.value.field == "nope"


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_index_without_a_map(sharded: Path, weight_map: Any) -> None:
    change_index(sharded, lambda index: index.update({"weight_map": weight_map}))
    assert index_refused(sharded).field == "weight_map"


def test_index_json_is_strict(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"weight_map": {', f'"weight_map": {{"{NAME}": "x", '), encoding="utf-8")
    assert "twice" in str(index_refused(sharded))
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert "the maximum is 16777216" in str(index_refused(sharded))


def test_too_many_shards(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipex_lookahead.checkpoints import safetensors as module

    monkeypatch.setattr(module, "MAX_SHARDS", 1)
    assert "the maximum is 1" in str(index_refused(sharded))


def test_shards_may_be_links(sharded: Path, tmp_path: Path) -> None:
    """The hub's cache keeps files elsewhere and links to them; names are what a file can forge, links are not."""
    for file in list(sharded.glob("*.safetensors")):
        blob = tmp_path / f"blob-{file.name}"
        file.rename(blob)
        file.symlink_to(blob)
    SafetensorsCheckpoint(sharded).close()


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ONE, EIGHT)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(UnsupportedModelError, match="pytorch_model.bin, a pickle") as caught:
        SafetensorsCheckpoint(folder)
    assert "save_pretrained" in caught.value.hint


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ONE, EIGHT)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(ModelFormatError, match="found other.safetensors"):
        SafetensorsCheckpoint(folder)
    (folder / "other.safetensors").rename(folder / "m.gguf")
    with pytest.raises(ModelFormatError, match="found m.gguf") as caught:
        SafetensorsCheckpoint(folder)
    assert str(folder / "m.gguf") in caught.value.hint


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    checkpoint = SafetensorsCheckpoint(folder)
    last = checkpoint.names()[-1]
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(ModelFormatError, match="became shorter"):
        checkpoint.read(last)


def test_no_descriptor_is_left_open(sharded: Path) -> None:
    change_index(sharded, lambda index: index["weight_map"].pop(NAME))
    before = len(os.listdir("/proc/self/fd"))
    index_refused(sharded)
    assert len(os.listdir("/proc/self/fd")) == before


def test_reading_takes_one_tensors_memory(tmp_path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(write_tiny_llama(tmp_path / "m", vocab=20_000, tie=False))
    one = 20_000 * 64 * 4
    tracemalloc.start()
    try:
        for name in checkpoint.names():
            checkpoint.read(name)
        assert tracemalloc.get_traced_memory()[1] < one * 1.1
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("at", [None, 0, 1 << 20, (1 << 20) + 4095])
@pytest.mark.parametrize("dtypes", [("F32", "F32"), ("BF16", "BF16"), ("BF16", "F32")])
def test_equal_values_are_seen_to_the_last(tmp_path: Path, dtypes: tuple[str, str], at: int | None) -> None:
    """``at``: the only value that differs, in the first piece or the second, and the last of all."""
    one = np.linspace(1, 2, (1 << 20) + 4096, dtype=np.float32).view(np.uint32) >> 16 << 16
    other = one.copy()
    if at is not None:
        other[at] ^= 1 << 16
    kept = [
        (values if kind == "F32" else (values >> 16).astype(np.uint16)).tobytes()
        for values, kind in zip((one, other), dtypes, strict=True)
    ]
    ends = [len(kept[0]), len(kept[0]) + len(kept[1])]
    header = {
        "a": {"dtype": dtypes[0], "shape": [257, 4096], "data_offsets": [0, ends[0]]},
        "b": {"dtype": dtypes[1], "shape": [257, 4096], "data_offsets": ends},
    }
    (tmp_path / "x.safetensors").write_bytes(raw_file(json.dumps(header), b"".join(kept)))
    file = SafetensorsFile(tmp_path / "x.safetensors")
    tracemalloc.start()
    same = same_values((file, file.tensors["a"]), (file, file.tensors["b"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    file.close()
    assert same is (at is None)
    assert peak < 24 << 20  # a piece of each, however long they are


def test_tensors_of_other_shapes_or_kinds_are_not_equal(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [3, 2], "data_offsets": [24, 48]},
        "c": {"dtype": "I32", "shape": [2, 3], "data_offsets": [48, 72]},
    }
    (tmp_path / "x.safetensors").write_bytes(raw_file(json.dumps(header), bytes(72)))
    file = SafetensorsFile(tmp_path / "x.safetensors")
    a, b, c = ((file, file.tensors[name]) for name in "abc")
    assert same_values(a, a)
    assert not same_values(a, b)
    assert not same_values(a, c)
    file.close()

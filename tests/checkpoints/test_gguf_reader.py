"""The container's checks, one broken field at a time, and agreement with the ``gguf`` package."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import gguf_reader
from ipex_lookahead.checkpoints.gguf import refuse_unread_types
from ipex_lookahead.checkpoints.gguf_reader import GgufFile
from ipex_lookahead.checkpoints.gguf_types import OTHER_TYPES, READ_TYPES, REMOVED_TYPES
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support import gguf_bytes as by_hand
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U32,
    build,
    tensor,
    text,
    write,
)

E: list[by_hand.Entry] = [
    ("a.text", STRING, "héllo"),
    ("a.bool", BOOL, True),
    ("a.numbers", ARRAY, (U32, [1, 2, 3])),
    ("a.strings", ARRAY, (STRING, ["x", "", "yz"])),
    ("a.bools", ARRAY, (BOOL, [True, False])),
    ("general.alignment", U32, 32),
]
T = [tensor("one", (32, 2), 2), tensor("two", (5,), 0)]
GOOD = build(E, T)


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def opened(path: Path) -> GgufFile:
    file = GgufFile(path)
    try:
        file.read_tensor_table()
    finally:
        file.close()
    return file


def refused(tmp_path: Path, data: bytes) -> ModelFormatError:
    path = write(tmp_path / "x.gguf", data)
    with pytest.raises(ModelFormatError) as caught:
        opened(path)
    assert caught.value.file == str(path)
    return caught.value


def test_a_good_file(tmp_path: Path) -> None:
    file = opened(write(tmp_path / "x.gguf", bytes(GOOD.data)))
    assert file.metadata["a.text"] == "héllo"
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.numbers"].tolist() == [1, 2, 3]
    assert file.metadata["a.strings"] == ["x", "", "yz"]
    assert file.metadata["a.bools"].tolist() == [True, False]
    assert file.offsets["a.text"] == GOOD.at["a.text:value"]
    assert list(file.tensors) == ["one", "two"]
    assert file.tensors["one"].shape == (2, 32)
    assert file.tensors["one"].offset == GOOD.at["one:data"]
    assert file.tensors["two"].nbytes == 20


def test_version_2_is_read(tmp_path: Path) -> None:
    assert opened(write(tmp_path / "x.gguf", bytes(build(E, T, version=2).data))).metadata["a.bool"] is True


HUGE = u64(2**64 - 1)
BROKEN: list[tuple[str, str | int, bytes, str, str]] = [
    # what, where, new bytes, field named in the error, words of the message
    ("magic", "magic", b"GGML", "magic", "starts with"),
    ("version 0", "version", u32(0), "version", "versions are 2 and 3"),
    ("version 1", "version", u32(1), "version", "versions are 2 and 3"),
    ("version 4", "version", u32(4), "version", "versions are 2 and 3"),
    ("big endian", "version", struct.pack(">I", 3), "version", "big-endian"),
    ("too many tensors", "tensor_count", u64(65_537), "tensor_count", "the maximum is 65536"),
    ("more tensors than bytes", "tensor_count", u64(60_000), "tensor_count", "bytes hold"),
    ("tensor count 2^64-1", "tensor_count", HUGE, "tensor_count", "maximum"),
    ("too many entries", "kv_count", u64(65_537), "metadata_kv_count", "the maximum is 65536"),
    ("more entries than bytes", "kv_count", u64(60_000), "metadata_kv_count", "bytes hold"),
    ("empty key", "a.text:key", u64(0), "key of metadata entry 0", "empty"),
    ("long key", "a.text:key", u64(65_536), "length of key of metadata entry 0", "the maximum is 65535"),
    ("key beyond the file", "a.text:key", u64(60_000), "key of metadata entry 0", "remain"),
    ("NUL in key", GOOD.at["a.text:key"] + 9, b"\0", "key of metadata entry 0", "NUL"),
    ("bad UTF-8 in key", GOOD.at["a.text:key"] + 9, b"\xff", "key of metadata entry 0", "UTF-8"),
    ("duplicate key", GOOD.at["a.bool:key"] + 8, b"a.text", "a.text", "twice"),
    ("unknown type", "a.bool:type", u32(13), "type of a.bool", "0 to 12"),
    ("bool 2", "a.bool:value", b"\2", "a.bool", "0 or 1"),
    ("long string", "a.text:count", u64((16 << 20) + 1), "length of a.text", "maximum"),
    ("string beyond the file", "a.text:count", u64(1 << 20), "a.text", "remain"),
    ("bad UTF-8 in string", "a.text:data", b"\xc3\x28", "a.text", "UTF-8"),
    ("array of arrays", "a.numbers:element", u32(9), "element type of a.numbers", "arrays of arrays"),
    ("unknown element type", "a.numbers:element", u32(99), "element type of a.numbers", "0 to 12"),
    ("more elements than bytes", "a.numbers:count", u64(1 << 20), "length of a.numbers", "bytes hold"),
    ("element count 2^64-1", "a.numbers:count", HUGE, "length of a.numbers", "bytes hold"),
    ("more strings than bytes", "a.strings:count", u64(1 << 20), "length of a.strings", "bytes hold"),
    ("string in array too long", "a.strings:data", u64(2**63), "length of a.strings[0]", "maximum"),
    ("string in array beyond the file", "a.strings:data", u64(1 << 20), "a.strings[0]", "remain"),
    ("bad UTF-8 in array", GOOD.at["a.strings:data"] + 8, b"\xff", "a.strings[0]", "UTF-8"),
    ("bool 2 in array", GOOD.at["a.bools:data"] + 1, b"\2", "a.bools", "neither 0 nor 1"),
    ("alignment of another type", "general.alignment:type", u32(5), "general.alignment", "uint32"),
    ("alignment 0", "general.alignment:value", u32(0), "general.alignment", "power of two"),
    ("alignment 24", "general.alignment:value", u32(24), "general.alignment", "power of two"),
    ("alignment 128 Ki", "general.alignment:value", u32(1 << 17), "general.alignment", "power of two"),
    ("empty tensor name", "one:name", u64(0), "name of tensor 0", "empty"),
    ("long tensor name", "one:name", u64(1025), "length of name of tensor 0", "the maximum is 1024"),
    ("NUL in tensor name", GOOD.at["one:name"] + 8, b"\0", "name of tensor 0", "NUL"),
    ("duplicate tensor name", GOOD.at["two:name"] + 8, b"one", "one", "twice"),
    ("no dimension", "one:n_dims", u32(0), "n_dims of one", "1 to 4"),
    ("5 dimensions", "one:n_dims", u32(5), "n_dims of one", "1 to 4"),
    ("2^32-1 dimensions", "one:n_dims", u32(2**32 - 1), "n_dims of one", "1 to 4"),
    ("dimension 0", "one:dims", u64(0), "dimension 0 of one", "1 to 2^40"),
    ("dimension 2^40+1", "one:dims", u64(2**40 + 1), "dimension 0 of one", "1 to 2^40"),
    ("dimension -1", "one:dims", HUGE, "dimension 0 of one", "1 to 2^40"),
    ("second dimension 2^42+1", GOOD.at["one:dims"] + 8, u64(2**42 + 1), "dimension 1 of one", "1 to 2^40"),
    ("product wraps 2^64", "one:dims", u64(2**40) + u64(2**40), "one", "ends at byte"),
    ("row is no whole block", "one:dims", u64(33), "dimension 0 of one", "multiple of 32"),
    ("unknown tensor type", "one:type", u32(4242), "type of one", "unknown"),
    ("removed tensor type", "one:type", u32(4), "type of one", "removed"),
    ("offset not aligned", "two:offset", u64(1), "offset of two", "directly after the previous"),
    ("offset leaves a gap", "two:offset", u64(128), "offset of two", "directly after the previous"),
    ("offsets overlap", "two:offset", u64(0), "offset of two", "directly after the previous"),
    ("offset 2^64-32", "two:offset", u64(2**64 - 32), "offset of two", "directly after the previous"),
    ("tensor beyond the file", GOOD.at["two:dims"], u64(6), "two", "ends at byte"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "field", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_one_broken_field(tmp_path: Path, place: str | int, value: bytes, field: str, words: str) -> None:
    error = refused(tmp_path, GOOD.patched(place, value))
    at = GOOD.at[place] if isinstance(place, str) else place
    assert error.field == field
    assert words in error.problem
    assert error.offset is not None
    assert abs(error.offset - at) <= 40  # the field itself, or the length or entry that it belongs to


def test_the_table_of_a_file_with_types_that_are_not_read_can_be_read(tmp_path: Path) -> None:
    for number, known in OTHER_TYPES.items():
        data = b"\0" * (512 // known.block * known.nbytes)
        made = build([], [("one", (256, 2), number, data), tensor("two", (5,), 0)])
        file = opened(write(tmp_path / "x.gguf", bytes(made.data)))
        assert (file.tensors["one"].type, file.tensors["one"].nbytes) == (known, len(data))
        assert known.format == ""
        with pytest.raises(
            UnsupportedModelError, match=f"tensor one has type {known.name}; .* BF16, F16, F32"
        ) as caught:
            refuse_unread_types(file)
        assert f"unsupported in this file: 1 of {known.name}" in str(caught.value)
        assert "llama-quantize --allow-requantize x.gguf x-Q8_0.gguf Q8_0" in caught.value.hint


def test_small_alignments_are_legal(tmp_path: Path) -> None:
    for alignment in (1, 2, 4, 65_536):
        made = build([("general.alignment", U32, alignment)], T, alignment=alignment)
        file = opened(write(tmp_path / "x.gguf", bytes(made.data)))
        assert file.tensors["two"].offset == made.at["two:data"]


def test_trailing_bytes_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(write(tmp_path / "x.gguf", bytes(GOOD.data) + b"\0" * 100))
    assert "bytes follow the last tensor" in caplog.text


def test_strings_straddle_the_read_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["x" * (i % 23) for i in range(500)]
    path = write(tmp_path / "x.gguf", bytes(build([("k", ARRAY, (STRING, words))], T).data))
    for window in (1, 7, 64, 100):
        monkeypatch.setattr(gguf_reader._Cursor, "_WINDOW", window)
        assert opened(path).metadata["k"] == words


def test_too_many_strings_in_all_arrays_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_ARRAY_STRINGS", 5)
    assert "exceeds 5 strings" in str(refused(tmp_path, bytes(build([E[3], ("b", ARRAY, (STRING, "abc"))], []).data)))


def test_claims_of_a_small_file_take_no_memory(tmp_path: Path) -> None:
    places = ("a.numbers:count", "a.strings:count", "a.text:count", "one:dims")
    claims = [GOOD.patched(place, u64(n)) for place in places for n in (2**24, 2**26, 2**32, 2**40, 2**63)]
    tracemalloc.start()
    try:
        for data in claims:
            refused(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def sparse(path: Path, keys: list[str], kind: int, count: int) -> Path:
    """A file of zeros with an array of ``count`` numbers under each key: gigabytes by its size, pages on the disk."""
    width = {I32: 4, BOOL: 1}[kind]
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
        for key in keys:
            file.write(text(key) + struct.pack("<IIQ", ARRAY, kind, count))
            file.seek(count * width, 1)
        file.truncate()
    return path


@pytest.mark.parametrize(("kind", "count"), [(I32, 16_000_000), (BOOL, 64_000_000)])
def test_arrays_of_a_sparse_file_are_bounded_in_sum(tmp_path: Path, kind: int, count: int) -> None:
    keys = [f"tokenizer.ggml.{i}" for i in range(60)]
    path = sparse(tmp_path / "x.gguf", keys, kind, count)
    assert path.stat().st_size > 3 << 30
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match="exceeds 134217728 bytes of metadata") as caught:
            GgufFile(path)
        assert caught.value.field == "length of tokenizer.ggml.2"
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()


def test_large_arrays_that_nobody_reads_are_passed_over(tmp_path: Path) -> None:
    path = sparse(tmp_path / "x.gguf", [f"x.{i}" for i in range(60)], I32, 16_000_000)
    tracemalloc.start()
    try:
        file = opened(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert [(len(values), values.dtype) for values in file.metadata.values()] == [(0, np.int32)] * 60
    with pytest.raises(ModelFormatError, match="is an array"):
        file.scalar("x.3")


def test_the_strings_of_a_file_are_bounded_in_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_VALUE_BYTES", 1000)
    entries = [("a", STRING, "x" * 600), ("b", ARRAY, (STRING, ["x" * 100] * 5))]
    assert "exceeds 1000 bytes of metadata" in str(refused(tmp_path, bytes(build(entries, []).data)))
    opened(write(tmp_path / "x.gguf", bytes(build(entries[:1], []).data)))


def test_the_table_of_types_is_the_gguf_packages() -> None:
    import gguf

    for kind in gguf.GGMLQuantizationType:
        known = (READ_TYPES | OTHER_TYPES).get(int(kind))
        if known is not None:
            assert (known.name, (known.block, known.nbytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])
        assert int(kind) not in REMOVED_TYPES


def test_metadata_of_every_type_as_the_gguf_package_writes_it(tmp_path: Path) -> None:
    import gguf

    kinds = gguf.GGUFValueType
    values: dict[str, tuple[Any, Any]] = {
        "u8": (255, kinds.UINT8), "i8": (-128, kinds.INT8), "u16": (65535, kinds.UINT16), "i16": (-32768, kinds.INT16),
        "u32": (2**32 - 1, kinds.UINT32), "i32": (-(2**31), kinds.INT32), "u64": (2**64 - 1, kinds.UINT64),
        "i64": (-(2**63), kinds.INT64), "f32": (0.5, kinds.FLOAT32), "f64": (1e300, kinds.FLOAT64),
        "bool": (True, kinds.BOOL), "string": ("zwölf", kinds.STRING),
    }  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test")
    for name, (value, kind) in values.items():
        writer.add_key_value(name, value, kind)
        writer.add_key_value(f"{name}.array", [value, value, value], kinds.ARRAY, sub_type=kind)
    writer.add_tensor("t", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = opened(tmp_path / "x.gguf")
    theirs = gguf.GGUFReader(tmp_path / "x.gguf")
    for name, (value, _) in values.items():
        assert file.metadata[name] == value
        assert type(file.metadata[name]) is type(value)
        assert list(file.metadata[f"{name}.array"]) == theirs.fields[f"{name}.array"].contents()
    assert file.tensors["t"].offset == theirs.tensors[0].data_offset
    assert file.tensors["t"].shape == (3, 4)

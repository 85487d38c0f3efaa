"""Split GGUF files: all parts are one model, whichever is given, and parts that do not go together are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.errors import LookaheadError, ModelFormatError
from tests.support.gguf_bytes import I32, STRING, U32, Entry, Tensor, build, llama_parts, write
from tests.support.tiny import write_tiny_gguf

SIZES: dict[str, Any] = {"quant": "Q8_0", "seed": 3}
PARTS = 3
Change = Callable[[list[list[Entry]], list[list[Tensor]]], None]


def split(folder: Path, change: Change = lambda entries, tensors: None) -> Path:
    """The smallest Llama in three parts, the first of which has metadata alone; returns the first."""
    entries, tensors = llama_parts()
    said = [
        [("split.no", U32, number), ("split.count", U32, PARTS), ("split.tensors.count", I32, len(tensors))]
        for number in range(PARTS)
    ]
    heads, tables = [entries + said[0], said[1], said[2]], [[], tensors[:4], tensors[4:]]
    change(heads, tables)
    files = [
        write(folder / f"m-{number:05}-of-00003.gguf", bytes(build(head, table).data))
        for number, (head, table) in enumerate(zip(heads, tables, strict=True), 1)
    ]
    return files[0]


def put(part: int, key: str, kind: int, value: Any) -> Change:
    def change(entries: list[list[Entry]], tensors: list[list[Tensor]]) -> None:
        entries[part] = [entry for entry in entries[part] if entry[0] != key]
        if value is not None:
            entries[part].append((key, kind, value))

    return change


def test_the_gguf_packages_parts_are_the_whole_files_model(tmp_path: Path) -> None:
    whole = GgufCheckpoint(write_tiny_gguf(tmp_path / "whole.gguf", **SIZES))
    first = write_tiny_gguf(tmp_path / "m.gguf", split=5, **SIZES)
    files = sorted(tmp_path.glob("m-*.gguf"))
    assert len(files) > 3
    for given in (first, files[2], files[-1]):
        parts = open_checkpoint(given)
        assert (parts.path, parts.config, parts.names()) == (first, whole.config, whole.names())
        for name in whole.names():
            assert parts.info(name) == whole.info(name)
            one, two = whole.read(name), parts.read(name)
            assert [stream for stream, _ in one.arrays()] == [stream for stream, _ in two.arrays()]
            for (_, ours), (_, theirs) in zip(one.arrays(), two.arrays(), strict=True):
                np.testing.assert_array_equal(ours, theirs)
        parts.close()


def test_a_folder_of_parts_is_one_model_and_info_counts_all(tmp_path: Path) -> None:
    first = split(tmp_path)
    assert open_checkpoint(tmp_path).path == first
    shutil.copytree(tmp_path, tmp_path / "m")
    alone = write(tmp_path / "whole.gguf", bytes(build(*llama_parts()).data))
    same = ("parameters", "bytes", "formats", "architecture", "engine")
    assert {key: describe(tmp_path / "m")[key] for key in same} == {key: describe(alone)[key] for key in same}


def test_a_single_part_is_a_whole_file_whatever_its_name(tmp_path: Path) -> None:
    file = write(tmp_path / "m-00002-of-00003.gguf", bytes(build(*llama_parts()).data))
    assert GgufCheckpoint(file).path == file


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    split(tmp_path)
    lost = tmp_path / f"m-{missing:05}-of-00003.gguf"
    lost.unlink()
    for given in sorted(tmp_path.iterdir()):
        with pytest.raises(ModelFormatError, match=f"it is part {missing} of the model's 3") as caught:
            GgufCheckpoint(given)
        assert (caught.value.file, caught.value.field) == (str(lost), "file")
    with pytest.raises(ModelFormatError, match=f"it is part {missing} of the model's 3"):
        open_checkpoint(tmp_path)


def test_a_part_under_another_name_cannot_find_the_others(tmp_path: Path) -> None:
    for name in ("m.gguf", "m-00001-of-00004.gguf"):
        file = split(tmp_path).rename(tmp_path / name)
        with pytest.raises(ModelFormatError, match="must be NAME-00001-of-00003.gguf") as caught:
            GgufCheckpoint(file)
        assert (caught.value.field, caught.value.file) == ("split.count", str(file))


@pytest.mark.parametrize(
    ("change", "part", "field", "says"),
    [
        (put(0, "split.no", U32, 1), 1, "split.no", "is 1; in part 1 of 3 it must be 0"),
        (put(1, "split.no", U32, 2), 2, "split.no", "is 2; in part 2 of 3 it must be 1"),
        (put(2, "split.no", U32, None), 3, "split.no", "is missing"),
        (put(2, "split.count", U32, 4), 3, "split.count", "is 4; in part 3 of 3 it must be 3"),
        (put(2, "split.count", STRING, "3"), 3, "split.count", "'3'; it must be a whole number"),
        (put(1, "split.tensors.count", I32, 12), 2, "split.tensors.count", "is 12; in part 2 of 3 it must be 11"),
        (
            put(1, "general.architecture", STRING, "qwen2"),
            2,
            "general.architecture",
            "this part belongs to another model",
        ),
        (put(1, "llama.block_count", U32, 2), 2, "llama.block_count", "this part belongs to another model"),
        (put(2, "general.name", STRING, "other"), 3, "general.name", "this part belongs to another model"),
        (lambda entries, tensors: tensors[2].append(tensors[1][0]), 3, "token_embd.weight", "is in m-00002-of-00003"),
        (lambda entries, tensors: tensors[2].pop(), 1, "split.tensors.count", "is 11, but the 3 parts have 10"),
    ],
)
def test_parts_that_do_not_go_together(tmp_path: Path, change: Change, part: int, field: str, says: str) -> None:
    split(tmp_path, change)
    with pytest.raises(ModelFormatError, match=says) as caught:
        GgufCheckpoint(tmp_path / "m-00001-of-00003.gguf")
    assert (Path(caught.value.file).name, caught.value.field) == (f"m-{part:05}-of-00003.gguf", field)
    assert (caught.value.offset is None) == (says == "is missing")


def test_an_error_in_a_later_part_names_that_part(tmp_path: Path) -> None:
    split(tmp_path)
    last = tmp_path / "m-00003-of-00003.gguf"
    good = last.read_bytes()
    for cut in range(len(good)):
        last.write_bytes(good[:cut])
        with pytest.raises(LookaheadError) as caught:
            open_checkpoint(tmp_path)
        assert isinstance(caught.value, ModelFormatError)
        assert caught.value.file == str(last)
    data = bytearray(good)
    data[-4:] = b"\0\0\xc0\x7f"
    last.write_bytes(data)
    with pytest.raises(ModelFormatError, match="is NaN") as found:
        open_checkpoint(tmp_path).read("model.norm.weight")
    assert (found.value.file, found.value.field) == (str(last), "output_norm.weight")

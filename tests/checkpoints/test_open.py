"""``open_checkpoint`` goes by what is there, and says what is wrong where nothing can be opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ipex_lookahead.checkpoints import (
    READERS,
    GgufCheckpoint,
    IpexLlmCheckpoint,
    SafetensorsCheckpoint,
    kind_of,
    open_checkpoint,
)
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.tiny import write_tiny_gguf, write_tiny_llama


def test_kinds(tmp_path: Path) -> None:
    assert sorted(READERS) == ["gguf", "ipex_llm", "low_bit", "safetensors"]
    folder = write_tiny_llama(tmp_path / "m")
    assert isinstance(open_checkpoint(str(folder)), SafetensorsCheckpoint)
    file = write_tiny_gguf(tmp_path / "m.gguf")
    assert isinstance(open_checkpoint(file), GgufCheckpoint)
    shutil.copy(file, tmp_path / "blob")  # what it is, not what it is called
    assert isinstance(open_checkpoint(tmp_path / "blob"), GgufCheckpoint)
    assert open_checkpoint(file).path == file


def test_a_folder_with_gguf_files(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    write_tiny_gguf(folder / "b.gguf")
    assert isinstance(open_checkpoint(folder), GgufCheckpoint)
    write_tiny_gguf(folder / "a.gguf")
    with pytest.raises(InputError, match=r"holds 2 GGUF files \(a.gguf, b.gguf\)") as caught:
        open_checkpoint(folder)
    assert str(folder / "a.gguf") in caught.value.hint


def test_nothing_there(tmp_path: Path) -> None:
    said = {"absent": "no such file or folder", "x" * 5000: "File name too long", "nul\0byte": "is not a valid path"}
    for path, says in ((tmp_path / name, says) for name, says in said.items()):
        with pytest.raises(InputError, match=says):
            open_checkpoint(path)
    with pytest.raises(ModelFormatError, match=r"config\.json: is missing from the folder") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.hint


def test_other_files(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(InputError, match="a single file of a checkpoint") as caught:
            open_checkpoint(folder / name)
        assert str(folder) in caught.value.hint
    (tmp_path / "x.bin").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(ModelFormatError, match="a GGUF file starts with"):
        open_checkpoint(tmp_path / "x.bin")


@pytest.mark.parametrize("settings", [True, False])
def test_ipex_llms_folders(tmp_path: Path, settings: bool) -> None:
    write_ipex_llm(tmp_path / "m", "sym_int4", settings=settings)
    assert kind_of(tmp_path / "m")[0] == "ipex_llm"
    assert isinstance(open_checkpoint(convert_ipex_llm(tmp_path / "m", tmp_path / "n")), IpexLlmCheckpoint)

"""Saved folders: bit for bit what was given, and never at the cost of what was there."""

from __future__ import annotations

import errno
import json
import os
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import LowBitCheckpoint, low_bit_save, open_checkpoint
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.errors import InputError, SaveError
from ipex_lookahead.formats.base import PackedWeight
from tests.support.low_bit_folders import CONFIG, LOW_BIT, WEIGHTS, infos_of, same, saved


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Tokenizer:
    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}", encoding="utf-8")


def test_round_trip(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = saved(tmp_path / "out", tokenizer=Tokenizer(), progress=lambda done, of: seen.append((done, of)))
    total = sum(w.nbytes for w in WEIGHTS.values())
    assert seen[-1] == (total, total)
    assert len(seen) == len(WEIGHTS)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint, LowBitCheckpoint)
    assert checkpoint.low_bit == LOW_BIT
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == {"eos_token_id": [2, 3]}
    assert set(checkpoint.names()) == set(WEIGHTS)
    for name, expected in WEIGHTS.items():
        assert checkpoint.info(name) == infos_of(WEIGHTS)[name]
        assert same(checkpoint.read(name), expected), name
    checkpoint.close()


def test_the_file_is_plain_safetensors_for_others(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(saved(tmp_path / "out") / "model.safetensors")
    np.testing.assert_array_equal(tensors["ragged.weight.codes"].numpy(), WEIGHTS["ragged.weight"].codes)
    np.testing.assert_array_equal(
        tensors["asym.weight.minimums"].numpy().view(np.uint16),
        WEIGHTS["asym.weight"].minimums,  # type: ignore[arg-type]
    )


def test_the_order_of_weights_is_free(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out", weights=reversed(list(WEIGHTS.items())))
    checkpoint = LowBitCheckpoint(folder)
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


def test_one_weight_at_a_time_in_memory(tmp_path: Path) -> None:
    infos = {f"w{i}.weight": TensorInfo((1000, 1024), "sym_int8", 32) for i in range(8)}

    def made() -> Iterator[tuple[str, PackedWeight]]:
        for name in infos:
            yield (
                name,
                PackedWeight(
                    "sym_int8", (1000, 1024), np.zeros((1000, 1024), np.int8), 32, np.zeros((1000, 32), np.uint16)
                ),
            )

    tracemalloc.start()
    try:
        saved(tmp_path / "out", infos=infos, weights=made())
        assert tracemalloc.get_traced_memory()[1] < 2.6e6
    finally:
        tracemalloc.stop()


def test_parents_are_made_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    LowBitCheckpoint(saved(tmp_path / "a" / "b" / "out")).close()
    (tmp_path / "empty").mkdir()
    LowBitCheckpoint(saved(tmp_path / "empty")).close()


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    saved(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    LowBitCheckpoint(tmp_path / "real").close()


def test_folders_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("four years", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="not written by save_low_bit"):
            saved(folder, overwrite=overwrite)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")  # a Hugging Face folder
    with pytest.raises(InputError, match="not written by save_low_bit"):
        saved(folder, overwrite=True)
    assert (folder / "thesis.txt").read_text(encoding="utf-8") == "four years"
    with pytest.raises(InputError, match="is a file"):
        saved(folder / "thesis.txt", overwrite=True)


def test_an_earlier_save_is_replaced_only_when_asked(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out", tokenizer=Tokenizer())
    before = snapshot(folder)
    with pytest.raises(InputError, match="already holds a saved model") as caught:
        saved(folder)
    assert "overwrite=True" in caught.value.hint
    assert snapshot(folder) == before
    only = {"model.norm.weight": WEIGHTS["model.norm.weight"]}
    saved(folder, only, overwrite=True)
    assert LowBitCheckpoint(folder).names() == ["model.norm.weight"]
    assert not (folder / "tokenizer.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_users_file_inside_an_earlier_save_is_not_deleted(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out")
    (folder / "notes.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds notes\.txt"):
        saved(folder, overwrite=True)
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "keep"


def test_a_checkpoint_may_be_saved_over_itself(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out")
    old = LowBitCheckpoint(folder)
    saved(folder, weights=((name, old.read(name)) for name in WEIGHTS), overwrite=True)
    new = LowBitCheckpoint(folder)
    assert all(same(new.read(name), expected) for name, expected in WEIGHTS.items())


class Interrupted(BaseException):
    pass


class FaultyOs:
    """The ``os`` module for one module's eyes, whose ``call`` fails the ``n``-th time."""

    def __init__(self, call: str, n: int, fails_with: BaseException) -> None:
        self._call, self._left, self._fails_with = call, n, fails_with

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._left -= 1
            if self._left == 0:
                raise self._fails_with
        return getattr(os, name)


@pytest.mark.parametrize(
    "fails_with", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "I/O"), Interrupted()]
)
@pytest.mark.parametrize("call", ["pwrite", "fsync", "posix_fallocate", "open"])
@pytest.mark.parametrize("existing", [False, True])
def test_every_failing_call_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fails_with: BaseException, existing: bool
) -> None:
    """The n-th call fails, for n = 1, 2, ... until a save goes through."""
    folder = tmp_path / "deep" / "out"
    before = snapshot(saved(folder)) if existing else None
    for n in range(1, 100):
        monkeypatch.setattr(low_bit_save, "os", FaultyOs(call, n, fails_with))
        refusal: BaseException | None = None
        try:
            saved(folder, overwrite=True)
        except (SaveError, Interrupted) as error:
            refusal = error
        if refusal is None:
            break
        assert isinstance(refusal, SaveError if isinstance(fails_with, OSError) else Interrupted)
        if before is None and folder.exists():  # interrupted after the rename: the save is complete
            LowBitCheckpoint(folder).close()
            break
        if before is None:
            assert list(tmp_path.iterdir()) == []
        else:
            assert [p.name for p in folder.parent.iterdir()] == ["out"]
            assert snapshot(folder) == before
    else:
        pytest.fail("no save went through")
    assert n > 1


def test_a_full_disk_by_the_systems_own_limit(tmp_path: Path) -> None:
    before = snapshot(saved(tmp_path / "out"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(SaveError, match="existing files are unchanged") as caught:
            saved(tmp_path / "out", overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "free some space" in caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("at_once", [True, False])
def test_a_failed_rename_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    before = snapshot(saved(tmp_path / "out"))
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if ".saving-" in path.name:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    def exchange(one: Path, other: Path) -> bool:
        if at_once:
            raise OSError(errno.EIO, "Input/output error")
        return False

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr("ipex_lookahead.files.temporary._exchange", exchange)
    with pytest.raises(SaveError):
        saved(tmp_path / "out", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert snapshot(tmp_path / "out") == before


def test_a_file_system_without_reservation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(low_bit_save.os, "posix_fallocate", refuse)
    checkpoint = LowBitCheckpoint(saved(tmp_path / "out"))
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


def test_a_read_only_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(SaveError, match="Permission denied"):
        saved(tmp_path / "out")


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"infos": {}}, "no weights"),
    ({"infos": {"a": TensorInfo((2, 2), "q9", 32)}}, "unknown"),
    ({"infos": {"a": TensorInfo((2, 2), "sym_int4", 48)}}, "unknown"),
    ({"infos": {"a": TensorInfo((2,), "sym_int4", 32)}}, "unknown"),
    ({"infos": {"format": TensorInfo((2,), "fp32")}}, "already used"),
    ({"infos": {"a.codes": TensorInfo((2,), "fp32"), "a": TensorInfo((2, 2), "sym_int4", 32)}}, "already used"),
    ({"weights": []}, "is in infos but was not given"),
    ({"weights": [("x", WEIGHTS["half.weight"])]}, "is not in infos"),
    ({"weights": [*WEIGHTS.items(), *WEIGHTS.items()]}, "given twice"),
    ({"weights": [("half.weight", WEIGHTS["bits.weight"])]}, "but infos has fp16"),
    ({"weights": [("half.weight", PackedWeight("fp16", (3, 8), np.zeros((3, 8), np.float16)))]}, "is not F16"),
    ({"config": {**CONFIG, "x": object()}}, "cannot be written as JSON"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_CALLS)
def test_bad_calls_leave_nothing(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        saved(tmp_path / "a" / "out", **changes)
    assert list(tmp_path.iterdir()) == []

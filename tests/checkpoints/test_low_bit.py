"""Saved folders: bit for bit what was given, refused when broken, and never at the cost of what was there."""

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

from ipex_lookahead.checkpoints import LowBitCheckpoint, low_bit_save, open_checkpoint, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.errors import InputError, ModelFormatError, SaveError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from tests.support.safetensors_attacks import without_checksums
from tests.support.tiny import TinyLlama

CONFIG = {key: value for key, value in TinyLlama().config("float32").items() if key != "torch_dtype"}
LOW_BIT = {"low_bit": "sym_int4", "group_size": 64, "mixed_precision": False}


def weight(kind: str, shape: tuple[int, ...], group: int, seed: int) -> PackedWeight:
    """Random bits in a format, in the layout of formats/base.py."""
    rng = np.random.default_rng(seed)
    if group == 0:
        codes: Any = rng.standard_normal(shape).astype(np.float32)
        return PackedWeight(kind, shape, codes if kind == "fp32" else codes.astype(np.float16).view(np.uint16))
    blocks, groups = -(-shape[1] // 32), -(-shape[1] // group)
    if kind == "sym_int8":
        codes = rng.integers(-127, 128, (shape[0], blocks * 32), np.int8)
    else:
        codes = rng.integers(0, 256, (shape[0], blocks * 16), np.uint8)
    scales, minimums = rng.standard_normal((2, shape[0], groups)).astype(np.float16).view(np.uint16)
    return PackedWeight(kind, shape, codes, group, scales, minimums if kind == "asym_int4" else None)


WEIGHTS = {
    "model.embed_tokens.weight": weight("sym_int8", (96, 64), 32, 0),
    "ragged.weight": weight("sym_int4", (5, 172), 64, 1),
    "asym.weight": weight("asym_int4", (7, 100), 32, 2),
    "bits.weight": weight("bf16", (3, 9), 0, 3),
    "half.weight": weight("fp16", (3, 8), 0, 4),
    "model.norm.weight": weight("fp32", (64,), 0, 5),
}


def infos_of(weights: dict[str, PackedWeight]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(w.shape, w.format, w.group_size) for name, w in weights.items()}


def saved(folder: Path, given: dict[str, PackedWeight] = WEIGHTS, **more: Any) -> Path:
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "generation_config": {"eos_token_id": [2, 3]},
        "infos": infos_of(given),
        "weights": iter(given.items()),
        "low_bit": LOW_BIT,
    }
    return save(folder, **(arguments | more))


def same(a: PackedWeight, b: PackedWeight) -> bool:
    pairs = ((a.codes, b.codes), (a.scales, b.scales), (a.minimums, b.minimums))
    return (a.format, a.shape, a.group_size) == (b.format, b.shape, b.group_size) and all(
        (x is None and y is None) or (x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y))
        for x, y in pairs
    )


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
        with pytest.raises(SaveError, match="nothing that was there has been changed") as caught:
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
    monkeypatch.setattr("ipex_lookahead.temporary._exchange", exchange)
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
    ({"infos": {"format": TensorInfo((2,), "fp32")}}, "taken"),
    ({"infos": {"a.codes": TensorInfo((2,), "fp32"), "a": TensorInfo((2, 2), "sym_int4", 32)}}, "taken"),
    ({"weights": []}, "announced and not given"),
    ({"weights": [("x", WEIGHTS["half.weight"])]}, "not announced"),
    ({"weights": [*WEIGHTS.items(), *WEIGHTS.items()]}, "given twice"),
    ({"weights": [("half.weight", WEIGHTS["bits.weight"])]}, "announced as fp16"),
    ({"weights": [("half.weight", PackedWeight("fp16", (3, 8), np.zeros((3, 8), np.float16)))]}, "is not F16"),
    ({"config": {**CONFIG, "rms_norm_eps": float("nan")}}, "cannot be written as JSON"),
    ({"config": {**CONFIG, "x": object()}}, "cannot be written as JSON"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_CALLS)
def test_bad_calls_leave_nothing(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        saved(tmp_path / "a" / "out", **changes)
    assert list(tmp_path.iterdir()) == []


def rewritten(folder: Path, change: Any) -> Path:
    """Change the header of the weights file in place, keeping its length."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return folder


BAD_LINES = ["", "sym_int4", "sym_int4 32 5x172x1", "sym_int4 16 5x172", "fp32 0 5x172", "sym_int4 32 0x172",
             "nf4 64 5x172",
             "sym_int4 32 5x172\n", "sym_int4 32 5x99999999999999", "sym_int4 32 5x" + "9" * 13]  # fmt: skip


SUM = "sha256:" + "0" * 64


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_descriptions(tmp_path: Path, line: str) -> None:
    described = {"ragged.weight": f"{line} {SUM}"}
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].update(described))
    with pytest.raises(ModelFormatError, match="must be FORMAT GROUP_SIZE ROWSxCOLUMNS") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "ragged.weight"
    assert caught.value.offset is not None


@pytest.mark.parametrize("line", ["sym_int4 32 5x172", "sym_int8 64 5x172", "sym_int4 64 6x172", "sym_int4 64 5x200"])
def test_descriptions_that_the_arrays_contradict(tmp_path: Path, line: str) -> None:
    described = {"ragged.weight": f"{line} {SUM}"}
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].update(described))
    with pytest.raises(ModelFormatError, match="it must be") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field.startswith("ragged.weight.")


def test_missing_and_left_over_arrays(tmp_path: Path) -> None:
    folder = rewritten(saved(tmp_path / "out"), lambda h: h["__metadata__"].pop("ragged.weight"))
    with pytest.raises(UnsupportedModelError, match=r"ragged\.weight\.codes has dtype U8"):
        LowBitCheckpoint(folder)
    folder = rewritten(
        saved(tmp_path / "out2"), lambda h: h["__metadata__"].update({"other.weight": f"sym_int4 32 5x172 {SUM}"})
    )
    with pytest.raises(ModelFormatError, match="missing from the file") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "other.weight.codes"


def test_folders_without_checksums_are_read(tmp_path: Path) -> None:
    checkpoint = LowBitCheckpoint(without_checksums(saved(tmp_path / "out")))
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_names_file_and_tensor(tmp_path: Path, bit: int) -> None:
    folder = saved(tmp_path / "out")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    checkpoint = LowBitCheckpoint(folder)  # it reads by position: what is written below is what it sees
    for stored in checkpoint._file.tensors.values():
        name = next(name for name in WEIGHTS if stored.name.startswith(name))
        for at in {stored.offset, stored.offset + stored.nbytes // 2, stored.offset + stored.nbytes - 1}:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([data[at] ^ 1 << bit]))
            with pytest.raises(ModelFormatError, match="its checksum is another one|is NaN or infinite") as caught:
                checkpoint.read(name)
            assert (caught.value.file, caught.value.field) == (str(path), name)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(data[at : at + 1])
    assert all(same(checkpoint.read(name), expected) for name, expected in WEIGHTS.items())


@pytest.mark.parametrize("name", ["ragged.weight", "half.weight"])
def test_a_checksum_is_of_the_name_and_must_be_there(tmp_path: Path, name: str) -> None:
    twin = {**WEIGHTS, "other": weight(*[getattr(WEIGHTS[name], key) for key in ("format", "shape", "group_size")], 9)}

    def exchange(header: dict[str, Any]) -> None:
        for table in (header, header["__metadata__"]):
            for suffix in ("", ".codes", ".scales"):
                if name + suffix in table:
                    table[name + suffix], table["other" + suffix] = table["other" + suffix], table[name + suffix]

    checkpoint = LowBitCheckpoint(rewritten(saved(tmp_path / "exchanged", twin), exchange))
    with pytest.raises(ModelFormatError, match="its checksum is another one"):
        checkpoint.read(name)
    with pytest.raises(ModelFormatError, match="must end with sha256:"):
        LowBitCheckpoint(rewritten(saved(tmp_path / "none"), lambda h: h["__metadata__"].update({name: "sym_int4"})))
    if name == "half.weight":
        with pytest.raises(ModelFormatError, match="has no checksum"):
            LowBitCheckpoint(rewritten(saved(tmp_path / "gone"), lambda h: h["__metadata__"].pop(name)))


def test_a_part_of_a_damaged_tensor_is_not_read_either(tmp_path: Path) -> None:
    """Phi-3's q, k and v are one tensor where transformers saves them: what is damaged may lie in another part."""
    config = {"model_type": "phi3", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 64, "original_max_position_embeddings": 64}  # fmt: skip
    fused = weight("sym_int8", (192, 64), 32, 1)
    kinds = {"model.layers.0.self_attn.qkv_proj.weight": fused, "model.norm.weight": weight("fp32", (64,), 0, 2)}
    folder = saved(tmp_path / "out", kinds, config=config)
    path = folder / "model.safetensors"
    q, k, v = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
    assert np.array_equal(LowBitCheckpoint(folder).read(k).codes, fused.codes[64:128])
    data = bytearray(path.read_bytes())
    data[LowBitCheckpoint(folder)._file.tensors["model.layers.0.self_attn.qkv_proj.weight.codes"].offset] ^= 1  # of q
    path.write_bytes(data)
    for name in (k, v, q):
        with pytest.raises(ModelFormatError, match="its checksum is another one") as caught:
            LowBitCheckpoint(folder).read(name)
        assert caught.value.field == "model.layers.0.self_attn.qkv_proj.weight"


def test_one_name_twice_and_no_tensor(tmp_path: Path) -> None:
    def rename(header: dict[str, Any]) -> None:
        header["ragged.weight"] = header.pop("half.weight")

    with pytest.raises(ModelFormatError, match="is missing from the file") as caught:
        LowBitCheckpoint(rewritten(saved(tmp_path / "renamed"), rename))
    assert caught.value.field == "half.weight"
    folder = rewritten(without_checksums(saved(tmp_path / "out")), rename)
    with pytest.raises(ModelFormatError, match="both as a float and as a low-bit tensor") as caught:
        LowBitCheckpoint(folder)
    assert caught.value.field == "ragged.weight"
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelFormatError, match="holds no tensor"):
        LowBitCheckpoint(folder)


def edit_config(folder: Path, change: Any) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", 0, "whole number"), ("version", "1", "whole number"), ("version", None, "whole number"),
        ("low_bit", 4, "string"), ("group_size", -1, "whole number"), ("mixed_precision", "no", "true or false"),
    ],
)  # fmt: skip
def test_bad_marker(tmp_path: Path, key: str, value: Any, words: str) -> None:
    folder = edit_config(saved(tmp_path / "out"), lambda c: c["ipex_lookahead"].update({key: value}))
    with pytest.raises(ModelFormatError, match=words) as caught:
        open_checkpoint(folder)
    assert caught.value.field == f"ipex_lookahead.{key}"


def test_a_newer_version_and_no_marker(tmp_path: Path) -> None:
    folder = edit_config(saved(tmp_path / "out"), lambda c: c["ipex_lookahead"].update({"version": 3}))
    with pytest.raises(UnsupportedModelError, match="version 3 of the format; this release reads versions up to 2"):
        open_checkpoint(folder)
    edit_config(folder, lambda c: c.update({"ipex_lookahead": []}))
    with pytest.raises(ModelFormatError, match="an object here"):
        open_checkpoint(folder)
    edit_config(folder, lambda c: c.pop("ipex_lookahead"))
    with pytest.raises(UnsupportedModelError, match="supported dtypes are F32, F16, BF16"):
        open_checkpoint(folder)


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    folder = saved(tmp_path / "out")
    checkpoint = LowBitCheckpoint(folder)
    os.truncate(folder / "model.safetensors", 1500)
    with pytest.raises(ModelFormatError, match="became shorter"):
        checkpoint.read("model.norm.weight")
    with pytest.raises(ModelFormatError, match="no tensor of this name"):
        checkpoint.info("nope")
